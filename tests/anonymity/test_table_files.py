import polars as pl
import pytest

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    QuasiIdentifier,
    SensitiveAttribute,
    TableHierarchy,
    examine,
)
from abaton.anonymity.table_files import scan, write
from abaton.errors import SettingsError

QUASI = (
    QuasiIdentifier("age", BinHierarchy((10.0,))),
    QuasiIdentifier("sex", TableHierarchy((("f", "*"), ("m", "*")))),
)
ROWS = {
    "name": ["N1", "N2", "N3", "N4", "N5"],
    "age": [31, 34, 35, 52, None],
    "sex": ["f", "f", "f", "m", "f"],
    "outcome": ["x", "y", "x", "y", "x"],
    "note": ["a", "b", "c", "d", "e"],
}


def settings_with(**options):
    return AnonymitySettings(
        QUASI,
        k=3,
        sensitive=(SensitiveAttribute("outcome"),),
        suppression_limit=0.4,
        **options,
        one_row_per_subject=True,
    )


def released(tmp_path, source, settings, target):
    frame = scan(source)
    outcome = examine(frame, settings)
    dropped = write(frame, outcome.table, outcome.release, settings, tmp_path / target)
    return scan(tmp_path / target).collect(), dropped


@pytest.mark.parametrize("kind", ["csv", "parquet", "ndjson"])
@pytest.mark.parametrize("method", ["recode", "mondrian"])
def test_a_table_goes_in_and_an_anonymous_one_comes_out(tmp_path, kind, method):
    source = tmp_path / f"in.{kind}"
    frame = pl.DataFrame(ROWS)
    {"csv": frame.write_csv, "parquet": frame.write_parquet, "ndjson": frame.write_ndjson}[kind](source)
    examined, dropped = released(
        tmp_path, source, settings_with(method=method, passthrough_columns=("note",)), f"out.{kind}"
    )
    assert dropped == ["name"]
    assert examined.columns == ["age", "sex", "outcome", "note"]
    assert examined.group_by("age", "sex").len()["len"].min() >= 3
    if method == "recode":
        assert examined["age"].to_list() == ["30-39"] * 3
        assert examined["note"].to_list() == ["a", "b", "c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"in.{kind}", f"out.{kind}"]


def test_a_column_shown_as_it_is_keeps_its_type(tmp_path):
    frame = pl.DataFrame(
        {"age": [30.0, 30.0, 30.0, float("nan"), None, None], "sex": ["f"] * 6, "outcome": ["x"] * 6}
    )
    frame.write_parquet(tmp_path / "in.parquet")
    examined, _ = released(tmp_path, tmp_path / "in.parquet", settings_with(), "out.parquet")
    assert examined["age"].dtype == pl.Float64
    assert examined["age"].to_list() == [30.0] * 3 + [None] * 3


def test_every_way_of_writing_a_value_is_shown_as_one(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text('age;sex;outcome\n30;f;x\n30.0;" f";x\n 30;f;x\n?;m;x\n;m;x\n?;m;x\n')
    examined, _ = released(tmp_path, source, settings_with(missing_values=("?",)), "out.csv")
    assert examined.group_by("age", "sex").len().sort("sex")["len"].to_list() == [3, 3]


def test_ints_in_the_table_match_texts_in_the_hierarchy():
    quasi = (QuasiIdentifier("age", TableHierarchy((("30", "30s"), ("31", "30s")))),)
    frame = pl.DataFrame({"age": [30, 31]})
    assert examine(frame, AnonymitySettings(quasi, k=2, one_row_per_subject=True)).release.node == (1,)
    assert examine(
        frame.cast(pl.Float64), AnonymitySettings(quasi, k=2, one_row_per_subject=True)
    ).release.node == (1,)
    assert examine(
        frame.cast(pl.String), AnonymitySettings(quasi, k=2, one_row_per_subject=True)
    ).release.node == (1,)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("in.xml", "<a/>", "not a supported table format"),
        ("none.csv", None, "does not exist"),
        ("in.parquet", "secret", "does not match its suffix"),
        ("in.csv", "age,sex,outcome\n", "no records"),
        ("in.csv", "age,sex\n1,f\n", "no column 'outcome'"),
        ("in.csv", "age,sex,outcome\nsecret,f,x\n", "1 of 1 distinct values of the table are not a number"),
        ("in.csv", "age,sex,outcome\n1,secret,x\n", "not in the hierarchy"),
        ("in.csv", "age,sex,outcome\n1,f,x,secret,secret\n", "cannot be read completely"),
        ("in.ndjson", '{"age": [1], "sex": "f", "outcome": "secret"}\n', "lists or records"),
    ],
)
def test_what_cannot_be_used_is_refused_without_a_value(tmp_path, name, content, complaint):
    if content is not None:
        (tmp_path / name).write_text(content)

    def run():
        return examine(scan(tmp_path / name), settings_with())

    with pytest.raises(SettingsError, match=complaint) as caught:
        run()
    assert "secret" not in str(caught.value)
