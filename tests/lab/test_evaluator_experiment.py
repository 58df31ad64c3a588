from __future__ import annotations

import pytest

from abaton.controller import TrainSettings
from abaton.lab import ImagePreprocessing, load
from abaton.lab.evaluator_experiment import EvaluatorExperimentSettings, compare

DATA = load("synthetic", preparation=ImagePreprocessing(flat=True))
TRAINING = TrainSettings(batch_size=50, learning_rate=0.1)
SECONDS = {"synchronous": 6.0, "asynchronous": 0.7}


@pytest.mark.parametrize("scheduler", SECONDS)
def test_fewer_evaluators_move_fewer_models_and_all_are_counted(scheduler):
    setting = EvaluatorExperimentSettings(DATA, TRAINING, SECONDS[scheduler], scheduler, hidden=8)
    rows = compare(setting, seeds=[1990], counts=(1, 3, None))
    assert [(row["evaluators"], row["evaluator_selection"]) for row in rows] == [
        (1, "random"),
        (1, "label_coverage"),
        (3, "random"),
        (3, "label_coverage"),
        (9, "all"),
    ]
    for row in rows:
        # Updates that arrive when the time is nearly up are not scored to the end.
        share = row["models_for_evaluation"] / row["updates"] / row["evaluators"]
        assert 0.5 < share <= 1
        size = 4 * (64 * 8 + 8 + 8 * 10 + 10)
        assert row["megabytes_for_evaluation"] == pytest.approx(row["models_for_evaluation"] * size / 1e6)
        assert 0.05 < row["accuracy"] <= 1
