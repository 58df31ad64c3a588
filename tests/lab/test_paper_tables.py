"""The paper's tables can be run: every environment is partitioned exactly, and every learner has validation data."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.lab import load, partition_data, stratified_split
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
def test_every_environment_is_partitioned_on_the_substitute_data(shared, table, row, data_sets):
    labels = data_sets(table.data, shared / "data")
    for seed in range(3):
        rng = np.random.default_rng(seed)
        partition = partition_data(
            labels, learners=row.learners, rng=rng, sizes_as=row.sizes, classes_as=row.classes
        )
        assert partition.sizes.sum() > len(labels) - row.learners
        for name, rows in zip(partition.learners, partition.rows, strict=True):
            assert len(stratified_split(labels, rows, rng=rng, learner=name)[1])


@pytest.fixture(scope="module")
def data_sets():
    labels_by_name: dict[str, np.ndarray] = {}

    def labels(name, folder):
        if name not in labels_by_name:
            labels_by_name[name] = load(name, folder=folder, preparation=None).labels
        return labels_by_name[name]

    return labels
