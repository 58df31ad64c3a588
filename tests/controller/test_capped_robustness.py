"""Textbook weights by default, and the bounds of `robustness = "capped"`, which the result states."""

from __future__ import annotations

import numpy as np
import pytest

from abaton import Examples, Federation, Strategy, strategy
from abaton.controller import (
    Commit,
    ControllerState,
    EvaluationReceived,
    LearnerJoined,
    StartEvaluation,
    StartTraining,
    UpdateReceived,
    transition,
)
from abaton.errors import SettingsError
from abaton.models import logistic
from abaton.study import LearningSection

SIZES = {"a": 5000, "b": 100, "c": 100}


def commit_round(
    rules: Strategy, counts: dict[str, tuple[int, ...]]
) -> tuple[ControllerState, dict[str, float]]:
    """Return the state and the weights after one round of learners of different sizes."""
    state, instructions = ControllerState(), ()
    for name, size in SIZES.items():
        state, instructions = transition(rules, state, LearnerJoined(0.0, name, size))
    weights: dict[str, float] = {}
    queue = list(instructions)
    while queue and len(weights) < len(SIZES):
        match queue.pop(0):
            case StartTraining(task, name):
                update = UpdateReceived(1.0, name, task, "p", 9, 1, SIZES[name], {}, counts.get(name, ()))
                state, more = transition(rules, state, update)
            case StartEvaluation(task, name):
                state, more = transition(rules, state, EvaluationReceived(2.0, name, task, counts[name]))
            case Commit(update, _, weight):
                weights[update.learner], more = weight, ()
            case _:
                more = ()
        queue += more
    return state, weights


@pytest.mark.parametrize("name", ["SyncFedAvg", "AsyncFedAvg"])
def test_fedavg_weights_by_the_number_of_examples(name):
    state, weights = commit_round(strategy(name, learners=3), {})
    total = sum(weights.values())
    assert [round(weights[site] / total, 3) for site in SIZES] == [0.962, 0.019, 0.019]
    assert state.capped_updates == 0


def test_capped_robustness_limits_a_dominant_site_and_counts_it():
    state, weights = commit_round(strategy("SyncFedAvg", learners=3, robustness="capped"), {})
    assert weights == {"a": 400, "b": 100, "c": 100}
    assert state.capped_updates == 1


def test_dvw_pools_counts_as_equation_3():
    """The F1 score of the summed confusion counts, however large one evaluator is."""
    counts = {"a": (2000, 1000, 3000, 2000, 3000, 2000), "b": (9, 1, 9, 1, 9, 1), "c": (5, 5, 5, 5, 5, 5)}
    _, weights = commit_round(strategy("SyncDVW", learners=3), counts)
    pooled = np.sum(list(counts.values()), axis=0)
    true_positives, errors = pooled[:2].sum(), pooled[2:4].sum() - pooled[:2].sum()
    expected = 2 * true_positives / (2 * true_positives + errors + errors)
    assert weights == pytest.approx(dict.fromkeys(SIZES, expected), rel=1e-12)
    state, capped = commit_round(strategy("SyncDVW", learners=3, robustness="capped"), counts)
    assert capped["a"] > weights["a"]
    assert state.capped_evaluations == 3


def test_a_plain_federation_does_not_clip(tmp_path):
    """A site whose update is 10,000 times longer takes part in full, unless robustness is capped."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    sites = {
        "north": Examples(x[:30], y[:30]),
        "south": Examples(x[30:60], y[30:60]),
        "far": Examples(1e4 * x[60:], y[60:]),
    }
    results = {}
    for robustness in ("none", "capped"):
        federation = Federation(
            logistic(features=3), sites, Strategy(rounds=3, robustness=robustness), test=Examples(x, y)
        )
        run = federation.run(robustness, store=tmp_path)
        results[robustness] = run.result
        report = run.report(tmp_path / "report.html")["results"]["robustness"]
        assert report["setting"] == robustness
        page = (tmp_path / "report.html").read_text()
        assert ("updates clipped to the norm bound" in page) == (robustness == "capped")
    assert results["none"]["robustness"] == "none"
    assert results["none"]["clipped_updates"] == 0
    assert results["capped"]["robustness"] == "capped"
    assert results["capped"]["clipped_updates"] == 3
    assert results["none"]["digest"] != results["capped"]["digest"]


def test_a_study_document_switches_it_on():
    assert LearningSection().build_strategy(3).robustness == "none"
    assert LearningSection(robustness="capped").build_strategy(3).robustness == "capped"


def test_an_unknown_robustness_is_refused():
    with pytest.raises(SettingsError, match="robustness is 'strong'"):
        Strategy(robustness="strong")
