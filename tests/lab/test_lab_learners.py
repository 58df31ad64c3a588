"""Learners see views of one array, in the partition's order."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.errors import SettingsError
from abaton.lab import ImagePreprocessing, by_group, load, partition_data, split_learners
from abaton.models import Examples, train_model


def rng(seed=1990):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def data():
    return load("synthetic", preparation=ImagePreprocessing(flat=True))


@pytest.mark.parametrize("validation", [0.0, 0.05])
def test_each_learner_gets_views_of_its_rows(data, validation):
    part = partition_data(
        data.labels, learners=10, rng=rng(), sizes_as="power-law", classes_as="Non-IID(3x8)"
    )
    splits = split_learners(data.train, data.labels, part, validation=validation, rng=rng())
    assert list(splits) == list(part.learners)
    base = {id(piece.x.base) for split in splits.values() for piece in (split.train, split.validation)}
    assert len(base) == 1, "one array for all"
    for rows, split in zip(part.rows, splits.values(), strict=True):
        both = np.concatenate([split.train.x, split.validation.x])
        assert sorted(map(bytes, both)) == sorted(map(bytes, data.train.x[rows]))
        assert len(split.validation) == (max(1, round(validation * len(rows))) if validation else 0)
        assert set(split.train.y) == set(data.labels[rows])


def test_a_network_trains_on_views_and_on_mapped_files(data, tmp_path):
    from abaton.controller import TrainSettings
    from abaton.models import mlp

    path = tmp_path / "mine.npz"
    given = {"x_train": data.train.x, "y_train": data.train.y, "x_test": data.test.x, "y_test": data.test.y}
    np.savez(path, **given)
    load(str(path), cache=tmp_path / "cache")
    mapped = load(str(path), cache=tmp_path / "cache")
    part = partition_data(mapped.labels, learners=4, rng=rng(), classes_as="Non-IID(5)")
    learner_split = split_learners(mapped.train, mapped.labels, part, validation=0.05, rng=rng())["learner-1"]
    model = mlp(features=64, classes=10)
    trained = train_model(model, model.initial(0), learner_split.train, TrainSettings(1, 32, 0.05), rng())
    for examples in (learner_split.validation, mapped.test):
        assert np.isfinite(model.score(trained.vector, examples).loss)


def test_without_validation_the_order_is_the_partition_s(data):
    part = partition_data(data.labels, learners=4, rng=rng())
    for rows, split in zip(part.rows, split_learners(data.train, data.labels, part).values(), strict=True):
        assert np.array_equal(split.train.x, data.train.x[rows])
        assert np.array_equal(split.train.y, data.train.y[rows])


def test_a_learner_too_small_to_validate_is_named(data):
    small_examples = Examples(data.train.x[:5], np.array([0, 0, 1, 0, 1]))
    part = by_group(small_examples.y, np.array(["kos", "kos", "kos", "athens", "athens"]))
    with pytest.raises(SettingsError, match="learner 'athens'"):
        split_learners(small_examples, small_examples.y, part, validation=0.05, rng=rng())


def test_updates_that_do_not_fit_are_refused(data):
    part = partition_data(data.labels, learners=4, rng=rng())
    with pytest.raises(SettingsError, match="but the data has 100"):
        split_learners(Examples(data.train.x[:100], data.train.y[:100]), data.labels[:100], part)
    with pytest.raises(SettingsError, match="fraction"):
        split_learners(data.train, data.labels, part, validation=1.5, rng=rng())
    with pytest.raises(SettingsError, match="generator"):
        split_learners(data.train, data.labels, part, validation=0.05)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "sizes_as", "classes_as"),
    [
        ("cifar10_20k", "power-law", "Non-IID(3x8)"),
        ("cifar10_20k", "skewed", "Non-IID(3)"),
        ("cifar100_10k", "power-law", "Non-IID(50x5)"),
        ("mnist_by_writer", "power-law", "Non-IID(5x7)"),
        ("mnist_by_writer", "uniform", "Dirichlet(0.1)"),
        ("emnist_balanced_small_by_writer", "uniform", "Non-IID(30)"),
        ("chars74k_hnd62_by_writer", "skewed", "IID"),
        ("pneumoniamnist", "skewed", "IID"),
    ],
)
def test_real_sets_are_partitioned_and_split(shared, name, sizes_as, classes_as):
    data = load(name, folder=shared / "data", preparation=ImagePreprocessing(side=8, flat=True))
    part = partition_data(data.labels, learners=10, rng=rng(), sizes_as=sizes_as, classes_as=classes_as)
    splits = split_learners(data.train, data.labels, part, validation=0.05, rng=rng())
    assert sum(len(s.train) + len(s.validation) for s in splits.values()) == part.sizes.sum()
    assert all(len(s.validation) for s in splits.values())


@pytest.mark.shared
@pytest.mark.parametrize(("name", "minimum", "learners"), [("mnist_by_writer", 1, 539), ("heart", 1, 4)])
def test_natural_partitions_of_real_sets(shared, name, minimum, learners):
    data = load(name, folder=shared / "data", preparation=ImagePreprocessing(side=8, flat=True))
    part = by_group(data.labels, data.groups, minimum=minimum)
    assert len(part) == learners
    assert part.sizes.sum() == len(data.train)
    split_learners(data.train, data.labels, part, validation=0.05, rng=rng())
