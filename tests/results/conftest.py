"""A small study that was run, shared by the tests of what its result is good for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.reading_once import _reading_once  # noqa: F401

from abaton.federation import Run, StudyOptions, run_study
from abaton.lab.demo import NOW, demonstration
from abaton.store import Store
from abaton.study import Explanation


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Iterator[tuple[Run, Run]]:
    """Two runs of the lab's four hospitals: people hidden among others in ranges, and as they are."""
    folder = tmp_path_factory.mktemp("ended")
    made = demonstration(folder / "hospitals", 3, 0.25, rounds=8)
    asked = Explanation(importance=2, dependence=("age", "sex"), points=3)
    other = {"network": "mlp(6)", "explanation": asked, "personalise": ("interpolate",)}
    learning = made.study.learning.model_copy(update=other)
    study = made.study.model_copy(update={"learning": learning})
    with Store(folder / "store") as store:
        options = StudyOptions(profiles=made.profiles, seed=5, resamples=50)
        ended = run_study(study, made.sites, store, options, name="ended", now=NOW)
        study = study.model_copy(update={"privacy": study.privacy.model_copy(update={"anonymity": None})})
        for site in made.sites:  # consents are to the other document
            site.write_text(site.read_text().replace('registry = "consents.db"', 'ground = "a vote"'))
        options = StudyOptions(profiles=made.profiles, seed=5, resamples=0)
        yield ended, run_study(study, made.sites, store, options, name="plain", now=NOW)


@pytest.fixture
def ended(results) -> Run:
    """A run with a hidden layer, judged with intervals, in which people were hidden in ranges."""
    return results[0]


@pytest.fixture
def plain(results) -> Run:
    """The same without ranges."""
    return results[1]
