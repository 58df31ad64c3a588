import doctest
import tomllib

import pytest

from abaton.anonymity import (
    BandHierarchy,
    DateHierarchy,
    FileHierarchy,
    FlatHierarchy,
    LDiversity,
    PrefixHierarchy,
    TableHierarchy,
    TCloseness,
    read_settings,
    settings_from,
    settings_reader,
)
from abaton.errors import SettingsError

FULL_STUDY = """
[privacy.anonymity]
k = 7
suppression_limit = 0.1
min_cell_count = 3
method = "mondrian"
passthrough_columns = ["outcome"]
missing_values = ["?"]
population = 100000

[[privacy.anonymity.quasi_identifiers]]
column = "age"
hierarchy = { bands = [[18, 40, 65], [40]] }

[[privacy.anonymity.quasi_identifiers]]
column = "postcode"
hierarchy = { prefix = [3, 1] }

[[privacy.anonymity.quasi_identifiers]]
column = "born"
hierarchy = { dates = ["year", "decade"] }

[[privacy.anonymity.quasi_identifiers]]
column = "job"
hierarchy = "job.csv"

[[privacy.anonymity.quasi_identifiers]]
column = "sex"

[[privacy.anonymity.quasi_identifiers]]
column = "race"
hierarchy = { rows = [["a", "*"], ["b", "*"]] }

[[privacy.anonymity.sensitive]]
column = "diagnosis"
diversity = { l = 3, kind = "recursive", c = 2 }
closeness = { t = 0.2, distance = "ordered", order = ["low", "high"] }
"""


def test_a_whole_table_is_read(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(FULL_STUDY)
    settings = read_settings(study)
    assert (settings.k, settings.min_cell_count, settings.method, settings.population) == (
        7,
        3,
        "mondrian",
        100000,
    )
    assert [q.hierarchy for q in settings.quasi_identifiers] == [
        BandHierarchy(((18, 40, 65), (40,))),
        PrefixHierarchy((3, 1)),
        DateHierarchy(("year", "decade")),
        FileHierarchy("job.csv"),
        FlatHierarchy(),
        TableHierarchy((("a", "*"), ("b", "*"))),
    ]
    assert settings.sensitive[0].diversity == LDiversity(3, "recursive", 2.0)
    assert settings.sensitive[0].closeness == TCloseness(0.2, "ordered", ("low", "high"))
    assert settings.columns[-2:] == ("diagnosis", "outcome")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"k": "5"}, "'k' must be an integer"),
        ({"k": True}, "'k' must be an integer"),
        ({"k": 0}, "k is 0, less than 1"),
        ({"suppression_limit": 2}, "not between 0 and 1"),
        ({"method": "magic"}, "one of 'recode', 'mondrian' or 'measure'"),
        ({"supression_limit": 0.1}, "'supression_limit' is not a known key"),
        ({"passthrough_columns": ["age"]}, "a column has two roles"),
        ({"population": 10, "sampling_fraction": 0.1}, "are both given"),
        ({"quasi_identifiers": []}, "no quasi-identifier"),
        ({"quasi_identifiers": None}, "'quasi_identifiers' must be given"),
        ({"quasi_identifiers": 3}, "'quasi_identifiers' must be a list"),
        ({"quasi_identifiers": [3]}, "'quasi_identifiers' must be a table"),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"bins": [5, 12]}}]}, "multiple"),
        (
            {"quasi_identifiers": [{"column": "age", "hierarchy": {"bands": [[1, 2], [3]]}}]},
            "not a proper subset",
        ),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"prefix": [2, 3]}}]}, "not decreasing"),
        (
            {"quasi_identifiers": [{"column": "age", "hierarchy": {"dates": ["decade", "year"]}}]},
            "from fine to coarse",
        ),
        (
            {"quasi_identifiers": [{"column": "age", "hierarchy": {"dates": ["week"]}}]},
            "'dates' must be one of 'month'",
        ),
        ({"quasi_identifiers": [{"column": "age", "hierarchy": {"bin": [5]}}]}, "exactly one of file"),
        ({"quasi_identifiers": [{"columns": "age"}]}, "did you mean 'column'"),
        ({"quasi_identifiers": [{"column": "age", "wieght": 2}]}, "did you mean 'weight'"),
        ({"quasi_identifiers": [{"column": "age", "weight": -1}]}, "a weight is negative"),
        ({"quasi_identifiers": [{"column": "age", "weight": 0}]}, "a weight is negative"),
        ({"subject": "age"}, "would be released"),
        ({"subject": "patient", "passthrough_columns": ["patient"]}, "would be released"),
        ({"subject": "patient", "one_row_per_subject": True}, "are both given"),
        ({"one_row_per_subject": 1}, "'one_row_per_subject' must be true or false"),
        ({"sensitive": [{"column": "x", "diversity": {"l": 2.5}}]}, "allows fractions"),
        ({"sensitive": [{"column": "x", "diversity": {"kind": "entropy"}}]}, "'l' must be given"),
        ({"sensitive": [{"column": "x", "closeness": {"t": 3}}]}, "t is 3.0"),
        ({"sensitive": [{"column": "x", "closeness": {"t": 0.3, "order": ["a"]}}]}, "distance is not"),
    ],
)
def test_what_is_not_understood_is_refused(change, complaint):
    table = {"quasi_identifiers": [{"column": "age"}]} | change
    with pytest.raises(SettingsError, match=complaint):
        settings_from({key: value for key, value in table.items() if value is not None})


def test_a_study_without_the_table_says_so(tmp_path):
    study = tmp_path / "study.toml"
    study.write_text("[privacy]\nx = 1\n")
    with pytest.raises(SettingsError, match="has no table"):
        read_settings(study)
    study.write_text("[privacy")
    with pytest.raises(SettingsError, match="not TOML"):
        read_settings(study)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_settings(tmp_path / "none.toml")


def test_examples_run():
    assert doctest.testmod(settings_reader).failed == 0
    assert tomllib.loads(FULL_STUDY)
