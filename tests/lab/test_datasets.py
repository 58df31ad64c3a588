"""Data sets by name, from a user's files, and from a seed."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from abaton.errors import SettingsError
from abaton.lab.datasets import DATA_SETS, DataSetColumns, load, missing_files, synthetic
from abaton.lab.image_transforms import ImagePreprocessing, averaging_matrix, prepare


@pytest.fixture(autouse=True)
def no_folder(monkeypatch):
    monkeypatch.delenv("ABATON_DATA", raising=False)


def arrays(rng, rows=60, shape=(6, 6), classes=3):
    x = rng.integers(0, 256, (rows, *shape)).astype(np.uint8)
    y = np.arange(rows) % classes
    return {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9]}


# inputs


@pytest.mark.parametrize(("before", "after"), [(32, 8), (28, 14), (28, 8), (32, 24), (5, 5), (7, 1)])
def test_averaging_keeps_the_mean(before, after):
    matrix = averaging_matrix(before, after)
    assert matrix.shape == (after, before)
    assert np.allclose(matrix.sum(1), 1)
    assert np.allclose(matrix.sum(0), after / before), "every pixel counts the same"


def test_averaging_down_by_a_whole_number_is_the_mean_of_blocks():
    x = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    images, _ = prepare(x, x, ImagePreprocessing(side=8, normalise=False))
    blocks = x.reshape(5, 8, 4, 8, 4, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    assert images.shape == (5, 3, 8, 8)
    assert np.allclose(images, blocks, atol=1e-3)


def test_scaling_comes_from_the_training_data_alone():
    rng = np.random.default_rng(0)
    train, test = rng.normal(7, 3, (500, 4)), rng.normal(0, 1, (50, 4))
    x, test_inputs = prepare(train, test, ImagePreprocessing())
    assert np.allclose(x.mean(0), 0, atol=1e-5)
    assert np.allclose(x.std(0), 1, atol=1e-5)
    assert np.allclose(test_inputs, (test - train.mean(0)) / train.std(0), atol=1e-4)


def test_images_are_scaled_by_channel_even_when_flat():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (200, 4, 4, 2)).astype(np.uint8)
    x[..., 1] += 100
    x[:, 0, 0, 0] = 0
    x[0, 0, 0, 0] = 255  # a pixel that is nearly always black
    images, _ = prepare(x, x, ImagePreprocessing(flat=True))
    assert images.shape == (200, 32)
    assert np.allclose(images.reshape(200, 2, 16).mean((0, 2)), 0, atol=1e-4)
    assert np.abs(images).max() < 20


def test_gaps_become_the_training_mean_and_constant_columns_stay_finite():
    train = np.array([[1.0, 5.0], [3.0, 5.0], [np.nan, 5.0]])
    x, test_inputs = prepare(train, np.array([[np.nan, np.inf]]), ImagePreprocessing())
    assert np.isfinite(x).all()
    assert test_inputs.tolist() == [[0, 0]]
    with pytest.raises(SettingsError, match="no value"):
        prepare(np.full((3, 1), np.nan), np.zeros((1, 1)), ImagePreprocessing())


@pytest.mark.parametrize(("shape", "side"), [((3, 8, 8), 9), ((3, 8, 8), 0), ((3, 2, 2, 2, 2), None)])
def test_invalid_inputs_are_refused(shape, side):
    with pytest.raises(SettingsError, match="data set"):
        prepare(np.zeros(shape), np.zeros(shape), ImagePreprocessing(side=side))


# by name


def test_the_synthetic_set_needs_no_file_and_is_the_same_every_time():
    one, again = load("synthetic"), load("synthetic")
    assert one.train.x.shape == (4000, 1, 8, 8)
    assert np.array_equal(one.train.x, again.train.x)
    assert len(np.unique(one.groups)) == 40
    assert one.classes == tuple("ABCDEFGHIJ")
    assert not np.array_equal(synthetic(1).x_train, synthetic(2).x_train)


@pytest.mark.parametrize("name", [name for name, known in DATA_SETS.items() if known.files])
def test_a_set_that_is_not_there_says_which_file_is_missing(name, tmp_path):
    for folder in (None, tmp_path):
        with pytest.raises(SettingsError, match="ABATON_DATA") as caught:
            load(name, folder=folder)
        assert DATA_SETS[name].files[0] in str(caught.value)
        assert missing_files(name, folder) == list(DATA_SETS[name].files)


def test_a_named_set_is_found_by_the_environment_in_its_place_or_in_a_flat_folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "cifar10_20k.npz", **arrays(rng, shape=(8, 8, 3)))
    monkeypatch.setenv("ABATON_DATA", str(tmp_path))
    assert load("cifar10_20k").train.x.shape == (60, 3, 8, 8)
    assert missing_files("cifar10_20k") == []


def test_one_missing_hospital_is_named(tmp_path):
    (tmp_path / "heart").mkdir()
    for name in ("cleveland", "hungarian", "switzerland"):
        (tmp_path / "heart" / f"processed.{name}.data").write_text("1,2,3,4,5,6,7,8,9,10,11,12,?,0\n")
    with pytest.raises(SettingsError, match="needs heart/processed.va.data"):
        load("heart", folder=tmp_path)


def test_heart_like_files_become_a_table_by_hospital(tmp_path):
    row = ",".join(map(str, range(13)))
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        lines = [f"{row},{i % 3}" for i in range(24)] + [row.replace("5", "?") + ",1"]
        (tmp_path / f"processed.{name}.data").write_text("\n".join(lines))
    data_set = load("heart", folder=tmp_path)
    assert set(data_set.groups) == {"cleveland", "hungarian", "switzerland", "va"}
    assert data_set.train.x.shape[1] == 13
    assert np.isfinite(data_set.train.x).all()
    assert len(data_set.train) + len(data_set.test) == 100
    assert data_set.classes == ("healthy", "ill")
    (tmp_path / "processed.va.data").write_text("1,2,3\n")
    with pytest.raises(SettingsError, match="cannot be read"):
        load("heart", folder=tmp_path)


def test_text_becomes_windows_and_the_character_after_each(tmp_path):
    spoken = {
        "ADAM": {"train": ["to be or not " * 20], "test": ["to be?" * 20]},
        "EVE": {"train": ["no"], "test": []},
    }
    (tmp_path / "shakespeare_by_role.json.gz").write_bytes(gzip.compress(json.dumps(spoken).encode()))
    data_set = load("shakespeare", folder=tmp_path)
    assert data_set.train.x.shape == data_set.train.y.shape == (3, 80)
    assert np.array_equal(data_set.train.x[:, 1:], data_set.train.y[:, :-1])
    text = "".join(data_set.classes[code] for code in data_set.train.x[0])
    assert text.startswith("to be or not to be")
    assert (data_set.test.x == 0).any(), "the question mark is not in the training text"
    assert set(data_set.groups) == {"ADAM"}
    assert data_set.labels.shape == (3,)
    (tmp_path / "shakespeare_by_role.json.gz").write_bytes(b"not compressed")
    with pytest.raises(SettingsError, match="cannot be read"):
        load("shakespeare", folder=tmp_path)


# of the user


def test_an_archive_of_the_user(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays(rng), groups_train=np.arange(60) // 20, classes=np.array(["a", "b", "c"]))
    for name in (path, tmp_path):
        data_set = load(str(name), preparation=ImagePreprocessing(flat=True))
        assert data_set.train.x.shape == (60, 36)
        assert data_set.classes == ("a", "b", "c")
        assert len(np.unique(data_set.groups)) == 3


def test_labels_may_be_words_or_any_numbers(tmp_path):
    given = arrays(np.random.default_rng(0))
    np.savez(
        tmp_path / "a.npz", **given | {"y_train": given["y_train"] * 7 - 3, "y_test": given["y_test"] * 7 - 3}
    )
    data_set = load(str(tmp_path / "a.npz"))
    assert data_set.classes == ("-3", "4", "11")
    class_names = np.array(["ill", "well", "unknown"])
    np.savez(tmp_path / "b.npz", **given | {k: class_names[given[k]] for k in ("y_train", "y_test")})
    assert load(str(tmp_path / "b.npz")).classes == ("ill", "unknown", "well")


def test_without_a_test_set_a_fifth_of_the_writers_is_held_out(tmp_path):
    given = arrays(np.random.default_rng(0))
    np.savez(tmp_path / "a.npz", x=given["x_train"], y=given["y_train"], writer=np.arange(60) % 10)
    data_set = load(str(tmp_path / "a.npz"))
    assert set(data_set.groups) == {0, 1, 2, 3, 5, 6, 7, 8}
    assert len(data_set.test) == 12
    np.savez(tmp_path / "b.npz", x=given["x_train"], y=given["y_train"])
    without = load(str(tmp_path / "b.npz"))
    assert without.groups is None
    assert np.bincount(without.test.y).tolist() == [4, 4, 4], "of each class a fifth"
    np.savez(tmp_path / "c.npz", x=given["x_train"], y=given["y_train"], writer=np.arange(59))
    with pytest.raises(SettingsError, match="as many inputs"):
        load(str(tmp_path / "c.npz"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y_test": None}, "no y_test"),
        ({"x_train": None, "y_train": None}, "no x_train and no y_train"),
        ({"y_train": np.zeros(59, int)}, "60 training inputs and 59"),
        ({"y_train": np.zeros(60)}, "labels are of type float64"),
        ({"x_test": np.zeros((9, 5, 5))}, "shape"),
        ({"y_test": np.array([], int), "x_test": np.zeros((0, 6, 6))}, "0 test inputs"),
        ({"groups_train": np.zeros(3)}, "3 groups"),
        ({"y_train": np.array([object()] * 60)}, "cannot be read"),
    ],
)
def test_an_invalid_archive_is_refused(tmp_path, change, says):
    given = {k: v for k, v in (arrays(np.random.default_rng(0)) | change).items() if v is not None}
    np.savez(tmp_path / "a.npz", **given)
    with pytest.raises(SettingsError, match=says):
        load(str(tmp_path / "a.npz"))


def test_rubbish_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\3\4rubbish")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\0\0,\n1")
    for name in ("a.npz", "b.csv", "nothing.npz", "c.txt", "nothing"):
        with pytest.raises(SettingsError):
            load(str(tmp_path / name))
    with pytest.raises(SettingsError, match="1 archives and 1 tables"):
        load(str(tmp_path))


TABLE = "age,sex,ward,site,label\n" + "".join(
    f"{40 + i},{'fm'[i % 2]},{'' if i % 7 == 0 else i % 3},{('kos', 'athens')[i % 2]},{i % 5 > 2}\n"
    for i in range(50)
)


def test_a_table_of_the_user(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(TABLE)
    data_set = load(
        str(path), columns=DataSetColumns("label", "site"), preparation=ImagePreprocessing(normalise=False)
    )
    assert data_set.train.x.shape == (40, 4), "age, ward, and one column for each sex"
    assert set(data_set.groups) == {"kos", "athens"}
    assert np.isfinite(data_set.train.x).all()
    assert len(data_set.classes) == 2
    assert len(data_set.test) == 10
    for column, says in (("nothing", "no column 'nothing'"), ("age", None)):
        if says:
            with pytest.raises(SettingsError, match=says):
                load(str(path), columns=DataSetColumns(column))


def test_two_tables_of_the_user(tmp_path):
    (tmp_path / "train.csv").write_text(TABLE)
    (tmp_path / "test.csv").write_text("\n".join(TABLE.splitlines()[:11]))
    data_set = load(str(tmp_path))
    assert (len(data_set.train), len(data_set.test)) == (50, 10)


def test_a_column_of_free_text_is_refused_without_showing_it(tmp_path):
    rows = "".join(f"secret-{i},{i % 2}\n" for i in range(50))
    (tmp_path / "a.csv").write_text("note,label\n" + rows)
    with pytest.raises(SettingsError, match="column 'note' has 50 different values") as caught:
        load(str(tmp_path / "a.csv"))
    assert "secret" not in str(caught.value)
    (tmp_path / "b.csv").write_text("label\n1\n2\n")
    with pytest.raises(SettingsError, match="no column to learn from"):
        load(str(tmp_path / "b.csv"))
    (tmp_path / "c.csv").write_text("a,label\n1,2\nsecret,3,4,5\n")
    with pytest.raises(SettingsError) as caught:
        load(str(tmp_path / "c.csv"))
    assert "secret" not in str(caught.value)


# the cache


def test_prepared_arrays_are_mapped_from_the_cache(tmp_path):
    given, path, cache = arrays(np.random.default_rng(0)), tmp_path / "a.npz", tmp_path / "cache"
    np.savez(path, **given, groups_train=np.array(["kos", "athens"] * 30))
    first, again = load(str(path), cache=cache), load(str(path), cache=cache)
    assert isinstance(again.train.x, np.memmap)
    assert not isinstance(first.train.x, np.memmap)
    assert np.array_equal(first.train.x, again.train.x)
    assert np.array_equal(first.groups, again.groups)
    assert first.classes == again.classes
    flat = load(str(path), cache=cache, preparation=ImagePreprocessing(flat=True))
    assert flat.train.x.shape == (60, 36), "another preparation is another thing"
    for file in cache.glob("*/x_train.npy"):
        file.write_bytes(b"damaged")
    assert np.array_equal(load(str(path), cache=cache).train.x, first.train.x)
    np.savez(path, **given | {"x_train": given["x_train"][::-1]})
    assert not np.array_equal(load(str(path), cache=cache).train.x, first.train.x), "the file has changed"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays(np.random.default_rng(0)))
    (tmp_path / "file").write_text("in the way")
    assert len(load(str(tmp_path / "a.npz"), cache=tmp_path / "file").train) == 60


# the real ones


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "train", "test", "shape", "classes", "groups"),
    [
        ("cifar10_20k", 20_000, 5_000, (192,), 10, None),
        ("cifar100_10k", 10_000, 2_000, (192,), 100, None),
        ("mnist_by_writer", 60_000, 10_000, (64,), 10, 539),
        ("emnist_balanced_small_by_writer", 2_000, 2_000, (64,), 47, 1491),
        ("chars74k_hnd62_by_writer", 2_728, 682, (64,), 62, 44),
        ("hand62_scans", 4_960, 1_240, (64,), 62, None),
        ("pneumoniamnist", 4_708, 624, (64,), 2, None),
        ("shakespeare", 29_326, 3_911, (80,), 79, 649),
        ("heart", 693, 227, (13,), 2, 4),
    ],
)
def test_the_real_sets_are_what_the_list_says(shared, name, train, test, shape, classes, groups):
    data_set = load(name, folder=shared / "data", preparation=ImagePreprocessing(side=8, flat=True))
    assert (len(data_set.train), len(data_set.test), data_set.train.x.shape[1:]) == (train, test, shape)
    assert len(data_set.classes) == classes
    assert data_set.labels.ndim == 1
    assert (None if data_set.groups is None else len(np.unique(data_set.groups))) == groups
    assert missing_files(name, shared / "data") == []
    if name != "shakespeare":
        assert np.isfinite(data_set.train.x).all()
        assert abs(data_set.train.x.mean()) < 1e-3
        assert set(data_set.labels) == set(range(classes))
