"""Two small study runs, shared by the tests of deployment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cached_files import _cached_ingest  # noqa: F401

from abaton.federation import Run
from abaton.lab.demo import NOW, make_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.store import Store
from abaton.study import InterpretabilitySection
from abaton.study_run import StudyOptions, run_study


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Iterator[tuple[Run, Run]]:
    """Return two runs at four synthetic hospitals: with k-anonymity in bins, and without."""
    folder = tmp_path_factory.mktemp("finished")
    demo = make_demo(folder / "hospitals", 3, 0.25, rounds=8, cohort=FOUR_HOSPITALS)
    interpretability = InterpretabilitySection(
        permutation_repeats=2, partial_dependence=("age", "sex"), grid_points=3
    )
    settings = {"model": "mlp(6)", "interpretability": interpretability, "personalise": ("interpolate",)}
    learning = demo.study.learning.model_copy(update=settings)
    study = demo.study.model_copy(update={"learning": learning})
    with Store(folder / "store") as store:
        options = StudyOptions(profiles=demo.profiles, seed=5, bootstrap_resamples=50)
        finished = run_study(study, demo.sites, store, options, name="finished", now=NOW)
        study = study.model_copy(update={"privacy": study.privacy.model_copy(update={"anonymity": None})})
        for site in demo.sites:  # consents refer to the other document
            site.write_text(site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"'))
        options = StudyOptions(profiles=demo.profiles, seed=5, bootstrap_resamples=0)
        yield finished, run_study(study, demo.sites, store, options, name="without-bins", now=NOW)


@pytest.fixture
def finished(results) -> Run:
    """Return a run with a hidden layer, confidence intervals and k-anonymity in bins."""
    return results[0]


@pytest.fixture
def without_bins(results) -> Run:
    """Return the same run without k-anonymity."""
    return results[1]
