"""Description of the cohort: characteristics, standardised differences, events per parameter, attrition."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from abaton.features import FeatureColumn, FeatureTable
from abaton.study_run.cohort_description import (
    ALL,
    baseline_characteristics,
    complete_attrition,
    events_per_parameter,
    standardised_difference,
    suppressed_cells,
)

INPUTS = [
    SimpleNamespace(name="age", unit="a", kind=SimpleNamespace(value="age"), imputation="mean"),
    SimpleNamespace(name="smoking", unit=None, kind=SimpleNamespace(value="category"), imputation="mean"),
    SimpleNamespace(name="diabetes", unit=None, kind=SimpleNamespace(value="flag"), imputation="mean"),
]
STUDY = SimpleNamespace(features=SimpleNamespace(inputs=INPUTS))
COLUMNS = (
    FeatureColumn("age", "age", is_numeric=True),
    FeatureColumn("smoking=daily", "smoking"),
    FeatureColumn("smoking=never", "smoking"),
    FeatureColumn("smoking=other", "smoking"),
    FeatureColumn("diabetes", "diabetes"),
)


def table(rng, count: int, age: float = 60.0, daily: float = 0.3, missing: int = 0) -> FeatureTable:
    is_daily = (rng.random(count) < daily) * 1.0
    ages = rng.normal(age, 10, count)
    ages[:missing] = np.nan
    x = np.stack([ages, is_daily, 1 - is_daily, np.zeros(count), (rng.random(count) < 0.4) * 1.0], 1)
    y = (rng.random(count) < 0.3).astype(int)
    return FeatureTable(COLUMNS, x, y, ("no", "yes"), tuple(f"{age} {i}" for i in range(count)), label="ill")


def test_each_cell_is_the_statistic_of_the_rows():
    rng = np.random.default_rng(0)
    tables = {"kos": table(rng, 80, 60, missing=9), "troy": table(rng, 120, 70, 0.5)}
    result = baseline_characteristics(STUDY, tables, 5)
    assert result["sites"] == {"kos": 80, "troy": 120, ALL: 200}
    rows = {(row["input"], row["level"]): row for row in result["rows"]}
    assert ("smoking", "other") not in rows  # no subject has it
    kos = tables["kos"].x
    ages = kos[~np.isnan(kos[:, 0]), 0]
    assert rows["age, a", ""]["cells"]["kos"] == f"{ages.mean():.4g} ({ages.std(ddof=1):.3g})"
    assert rows["age, a", ""]["missing"] == {"kos": "9 (11.2 %)", "troy": "0 (0.0 %)", ALL: "9 (4.5 %)"}
    daily = int(kos[:, 1].sum())
    assert rows["smoking", "daily"]["cells"]["kos"] == f"{daily} ({100 * daily / 80:.1f} %)"
    pooled = np.concatenate([ages, tables["troy"].x[:, 0]])
    assert rows["age, a", ""]["cells"][ALL] == f"{pooled.mean():.4g} ({pooled.std(ddof=1):.3g})"
    troy = tables["troy"].x[:, 0]
    expected = (ages.mean() - troy.mean()) / np.sqrt((ages.var(ddof=1) + troy.var(ddof=1)) / 2)
    assert rows["age, a", ""]["differences"]["kos"] == pytest.approx(expected)
    assert rows["age, a", ""]["differences"]["troy"] == pytest.approx(-expected)
    p, q = tables["kos"].x[:, 4].mean(), tables["troy"].x[:, 4].mean()
    expected = (p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2)
    assert rows["diabetes", "yes"]["differences"]["kos"] == pytest.approx(expected)


def test_skewed_inputs_are_described_by_median_and_quartiles():
    rng = np.random.default_rng(1)
    one = table(rng, 100)
    one.x[:, 0] = np.exp(rng.normal(size=100))
    row = baseline_characteristics(STUDY, {"kos": one, "troy": one}, 5)["rows"][1]
    low, middle, high = np.quantile(one.x[:, 0], [0.25, 0.5, 0.75])
    assert row["statistic"] == "median (IQR)"
    assert row["cells"]["kos"] == f"{middle:.4g} ({low:.4g} to {high:.4g})"


def test_the_difference_of_several_levels_is_that_of_yang_and_dalton():
    for seed in range(50):
        rng = np.random.default_rng(seed)
        one, other = (np.eye(4)[rng.choice(4, 200, p=rng.dirichlet(np.full(4, 8)))] for _ in range(2))
        p, q = one.mean(0)[1:], other.mean(0)[1:]  # by their definition: without the first level
        covariance = (np.diag(p) - np.outer(p, p) + np.diag(q) - np.outer(q, q)) / 2
        expected = np.sqrt((p - q) @ np.linalg.inv(covariance) @ (p - q))
        assert standardised_difference(one, other) == pytest.approx(expected)


def test_groups_that_a_level_separates_have_no_difference():
    one, other = np.eye(3)[np.full(20, 2)], np.eye(3)[np.arange(20) % 2]
    assert standardised_difference(one, other) is None
    assert standardised_difference(np.ones((9, 1)), np.zeros((9, 1))) is None
    assert standardised_difference(np.ones((9, 1)), np.ones((9, 1))) == 0.0


def test_no_suppressed_count_follows_from_the_totals():
    for seed in range(300):
        rng = np.random.default_rng(seed)
        counts = rng.poisson(rng.uniform(2, 12), (int(rng.integers(1, 5)), int(rng.integers(2, 6))))
        hidden = suppressed_cells(counts, 5)
        assert hidden[(counts > 0) & (counts < 5)].all()
        for cells, mask in ((counts, hidden), (counts.T, hidden.T)):
            for row, row_mask in zip(cells, mask, strict=True):
                assert row_mask.sum() != 1 or (row > 0).sum() == 1


def test_small_counts_are_not_printed():
    rng = np.random.default_rng(3)
    one, other = table(rng, 60, missing=3), table(rng, 60, 61, missing=20)
    one.x[:, 4] = np.arange(60) < 2
    row = baseline_characteristics(STUDY, {"kos": one, "troy": other}, 5)["rows"]
    diabetes, age = row[-1], row[1]
    assert diabetes["cells"]["kos"] == "<5"
    assert diabetes["cells"]["troy"] == "≥5"  # otherwise the total would give it
    assert diabetes["differences"]["kos"] is None
    assert age["missing"]["kos"] == "<5"
    assert age["missing"]["troy"] == "≥5"


def prepared_site(name: str, labels, min_cell_count: int = 5):
    rows = SimpleNamespace(y=np.array(labels), subjects=tuple(f"{name} {i}" for i in range(len(labels))))
    return SimpleNamespace(name=name, rows=SimpleNamespace(train=rows), min_cell_count=min_cell_count)


def test_events_per_parameter_counts_training_cases_in_force():
    sites = (prepared_site("kos", [1] * 12 + [0] * 50), prepared_site("troy", [1] * 20 + [0] * 70))
    prepared = SimpleNamespace(sites=sites, classes=("no", "yes"), columns=COLUMNS)
    subjects = {site.name: frozenset(site.rows.train.subjects) for site in sites}
    subjects["kos"] -= {"kos 0", "kos 1"}  # two cases withdrew
    result = events_per_parameter(prepared, subjects, 20, 5)
    assert result["sites"]["kos"] == {"events": "10", "per_parameter": 0.5, "per_column": 2.0}
    assert result["sites"][ALL] == {"events": "30", "per_parameter": 1.5, "per_column": 6.0}
    small = replace_site(prepared, prepared_site("kos", [1] * 3 + [0] * 50))
    hidden = events_per_parameter(
        small, {**subjects, "kos": frozenset(small.sites[0].rows.train.subjects)}, 20, 5
    )
    assert hidden["sites"]["kos"]["events"] == "<5"
    assert hidden["sites"]["troy"]["events"] == "≥5"  # otherwise the total would give it


def replace_site(prepared, site):
    return SimpleNamespace(**{**vars(prepared), "sites": (site, *prepared.sites[1:])})


def test_the_attrition_adds_up_from_consented_to_evaluated():
    cells = {"retained/no record": 0, "rows/no label": 10, "rows/no value": 3, "rows": 137}
    cohort = SimpleNamespace(cells={name: ("p",) * n for name, n in cells.items()})
    names = [f"s{i}" for i in range(130)]
    parts = {"train": names[:80], "validation": names[80:90], "test": names[90:]}
    rows = {name: SimpleNamespace(subjects=tuple(part)) for name, part in parts.items()}
    site = SimpleNamespace(rows=SimpleNamespace(**rows), test=rows["test"], min_cell_count=5)
    split = SimpleNamespace(table=names, ingest=SimpleNamespace(cohort=cohort))
    steps = complete_attrition(split, site, frozenset(names[10:]))
    assert [step["subjects"] for step in steps] == ["≥148", "≥148", "137", "130", "120", "40"]
    assert steps[2]["excluded"] == [
        {"reason": "no label", "subjects": "10"},
        {"reason": "no value", "subjects": "<5"},
    ]
    check_sums(steps)
    assert steps[-1]["excluded"] == [
        {"reason": "used for training", "subjects": "70"},
        {"reason": "used for validation", "subjects": "10"},
    ]


def check_sums(steps) -> None:
    """Check that each step's exclusions are the difference to the step before, with suppressed counts as ranges."""
    for before, after in pairwise(steps):
        low, high = bounds(after["subjects"])
        for entry in after["excluded"]:
            a, b = bounds(entry["subjects"])
            low, high = low + a, high + b
        first, last = bounds(before["subjects"])
        assert first <= high
        assert low <= last


def bounds(text: str) -> tuple[float, float]:
    number = int(re.sub(r"\D", "", text))
    return (1, number - 1) if text.startswith("<") else (number, float("inf") if "≥" in text else number)
