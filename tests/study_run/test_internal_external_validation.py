"""Internal-external validation: no row of the omitted site is used, the same seed gives the same result, refusals."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from abaton.errors import RefusedError, SettingsError
from abaton.features import FeatureColumn, FeatureTable, SplineBasis
from abaton.lab.demo import NOW
from abaton.store import Store
from abaton.study import LearningSection
from abaton.study.lint import lint_study
from abaton.study_run.coordinator import StudyOptions, run_study
from abaton.study_run.internal_external_validation import check_sites, validate_by_site

COLUMNS = (
    *(FeatureColumn(name, name, is_numeric=True, has_statistics=True) for name in "ab"),
    FeatureColumn("c", "c", is_numeric=True, has_statistics=True, spline=SplineBasis((-150.0, 0.0, 150.0))),
)
LEARNING = LearningSection(
    strategy="SyncFedAvg",
    rounds=15,
    training={"epochs": 4, "learning_rate": 0.1},
    evaluation={"internal_external": True},
)


def table(rng, name: str, count: int) -> FeatureTable:
    x = rng.normal(size=(count, 3)) * (1, 10, 100)
    y = (rng.random(count) < 1 / (1 + np.exp(1 - 1.5 * x[:, 0]))).astype(np.int64)
    return FeatureTable(COLUMNS, x, y, ("no", "yes"), tuple(f"{name} {i}" for i in range(count)))


def prepare(tables: dict[str, FeatureTable]):
    sites, splits = [], []
    for name, rows in tables.items():
        names, n = rows.subjects, len(rows)
        part = [
            SimpleNamespace(subjects=names[a:b])
            for a, b in ((0, n // 2), (n // 2, 2 * n // 3), (2 * n // 3, n))
        ]
        limits = SimpleNamespace(max_batch_size=None)
        file = SimpleNamespace(config=SimpleNamespace(limits=limits))
        sites.append(SimpleNamespace(name=name, rows=SimpleNamespace(train=part[0], validation=part[1]), test=part[2],
                                     min_cell_count=5, file=file))  # fmt: skip
        splits.append(SimpleNamespace(table=rows, ingest=SimpleNamespace(name=name)))
    return SimpleNamespace(sites=tuple(sites), splits=tuple(splits), columns=COLUMNS, classes=("no", "yes"),
                           excluded_sites={})  # fmt: skip


def validate(tables: dict[str, FeatureTable], seed: int = 4):
    subjects = {name: frozenset(rows.subjects) for name, rows in tables.items()}
    return validate_by_site(LEARNING, prepare(tables), subjects, {}, seed=seed, run="parent")


@pytest.fixture
def tables() -> dict[str, FeatureTable]:
    rng = np.random.default_rng(7)
    return {
        name: table(rng, name, count)
        for name, count in (("kos", 150), ("lebena", 12), ("troy", 180), ("rhodes", 120))
    }


def test_each_site_is_predicted_by_the_others(tables):
    result = validate(tables)
    assert list(result["sites"]) == list(tables)
    assert result["sites"]["lebena"] == {"subjects": "12", "metrics": None}  # too few
    assert result["auroc"]["sites"] == 3
    for name in ("kos", "troy", "rhodes"):
        metrics = result["sites"][name]["metrics"]
        assert 0.7 < metrics["auroc"]["low"] < metrics["auroc"]["value"] < 0.95
        assert metrics["observed_expected"]["low"] < metrics["observed_expected"]["value"]
        assert metrics["calibration_slope"]["value"] > 0
    assert validate(tables) == result
    assert validate(tables, seed=5) != result


def test_no_row_of_the_omitted_site_is_used(tables):
    result = validate(tables)["sites"]["kos"]["metrics"]["auroc"]
    flipped = replace(tables["kos"], y=1 - tables["kos"].y)
    other = validate({**tables, "kos": flipped})["sites"]["kos"]["metrics"]["auroc"]
    assert other["value"] == pytest.approx(
        1 - result["value"], abs=1e-12
    )  # the same predictions, other outcomes
    # Further rows of the omitted site change neither scaling nor training: monotone scores, the same order.
    outlier = replace(tables["kos"], x=np.where(np.arange(150)[:, None] == 149, 1e4, tables["kos"].x))
    moved = validate({**tables, "kos": outlier})["sites"]["kos"]["metrics"]["auroc"]
    assert moved["value"] == pytest.approx(result["value"], abs=0.02)


def test_withdrawn_subjects_neither_train_nor_are_evaluated(tables):
    subjects = {name: frozenset(rows.subjects) for name, rows in tables.items()}
    withdrawn = frozenset(tables["troy"].subjects[:30])
    fewer = {**tables, "troy": tables["troy"].without(withdrawn)}
    prepared, without = prepare(tables), prepare(fewer)
    for site, other in zip(without.sites, prepared.sites, strict=True):  # the same split, without them
        for part in ("train", "validation"):
            names = getattr(other.rows, part).subjects
            setattr(site.rows, part, SimpleNamespace(subjects=tuple(s for s in names if s not in withdrawn)))
    one = validate_by_site(
        LEARNING, prepared, {**subjects, "troy": subjects["troy"] - withdrawn}, {}, seed=4, run="r"
    )
    two = validate_by_site(
        LEARNING, without, {**subjects, "troy": subjects["troy"] - withdrawn}, {}, seed=4, run="r"
    )
    assert one == two
    assert one["sites"]["troy"]["subjects"] == "150"


def test_too_few_sites_are_refused_before_training(tables):
    two = prepare({name: tables[name] for name in ("kos", "troy")})
    with pytest.raises(RefusedError, match="needs 3 sites, 2 can take part"):
        check_sites(LEARNING, two)
    with pytest.raises(SettingsError, match="two classes"):
        check_sites(LEARNING, SimpleNamespace(**{**vars(two), "classes": ("a", "b", "c")}))
    check_sites(LearningSection(), two)


@pytest.mark.parametrize("settings", [
    {"task": "regression", "model": "linear", "strategy": "SyncFedAvg"},
    {"model": "mlp(8)", "personal_layers": {"layers": ["2"]}},
])  # fmt: skip
def test_contradictions_are_found_in_the_document(settings):
    with pytest.raises((ValidationError, SettingsError), match="internal-external|personal layers"):
        LearningSection(evaluation={"internal_external": True}, **settings)


def with_validation(demo):
    learning = demo.study.learning
    evaluation = learning.evaluation.model_copy(update={"internal_external": True})
    return demo.study.model_copy(update={"learning": learning.model_copy(update={"evaluation": evaluation})})


def test_a_network_refuses_it(four, tmp_path):
    study = with_validation(four)
    with pytest.raises(SettingsError, match="not available on a network"):
        run_study(study, four.sites, Store(tmp_path / "store"), engine="flower")
    assert any("internal_external" in remark for remark in lint_study(study, NOW.date()))
    assert not any("internal_external" in remark for remark in lint_study(four.study, NOW.date()))


def test_a_study_run_has_the_result_and_keeps_its_model(four, tmp_path):
    options = StudyOptions(seed=3, profiles=four.profiles)
    names = [Store(tmp_path / name) for name in ("one", "two")]
    unvalidated = run_study(four.study, four.sites, names[0], options, name="run", now=NOW)
    validated = run_study(with_validation(four), four.sites, names[1], options, name="run", now=NOW)
    assert validated.result["digest"] == unvalidated.result["digest"]
    assert set(validated.result["internal_external_validation"]["sites"]) == {
        path.parent.name for path in four.sites
    }
    assert "internal_external_validation" not in unvalidated.result
    assert [row.run for row in names[1].runs()] == ["run"]  # the runs without a site are in memory
