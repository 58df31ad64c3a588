"""The paper's tables can be run: every environment is dealt exactly, and every learner can validate."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.lab import load, partition, stratified
from abaton.lab.paper_tables import ASYNCHRONOUS, SYNCHRONOUS, TABLES

ROWS = [
    pytest.param(table, row, id=f"{name}-{row.sizes}-{row.classes}")
    for name, table in TABLES.items()
    for row in table.rows
]


def test_the_tables_have_the_paper_s_rows():
    assert [len(table.rows) for table in TABLES.values()] == [9, 6, 3]
    for table in TABLES.values():
        for row in table.rows:
            assert set(ASYNCHRONOUS) <= set(row.heterogeneous) <= {*SYNCHRONOUS, *ASYNCHRONOUS}
            assert all(0 < value < 1 for value in row.heterogeneous.values())
    hardest = TABLES["table-1"].rows[-1]
    assert hardest.heterogeneous["AsyncDVW(a)"] == 0.5703
    assert hardest.heterogeneous["FedAsync"] == 0.4205
    assert hardest.homogeneous == {"SyncFedAvg": 0.4869, "SyncDVW": 0.6191}
    assert TABLES["table-3"].rows[-1].heterogeneous["FedAsync"] == 0.6833


@pytest.mark.shared
@pytest.mark.parametrize(("table", "row"), ROWS)
def test_every_environment_is_dealt_on_the_data_that_stands_in(shared, table, row, data_sets):
    labels = data_sets(table.data, shared / "data")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        made = partition(labels, learners=row.learners, rng=rng, sizes_as=row.sizes, classes_as=row.classes)
        assert made.sizes.sum() > len(labels) - row.learners
        for name, rows in zip(made.learners, made.rows, strict=True):
            assert len(stratified(labels, rows, rng=rng, learner=name)[1])


@pytest.fixture(scope="module")
def data_sets():
    kept: dict[str, np.ndarray] = {}

    def labels(name, folder):
        if name not in kept:
            kept[name] = load(name, folder=folder, how=None).labels
        return kept[name]

    return labels
