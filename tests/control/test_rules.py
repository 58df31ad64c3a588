import pytest

from abaton.control import (
    POLICIES,
    Asynchronous,
    Blend,
    ByStaleness,
    ByValidation,
    Latest,
    Rules,
    Synchronous,
    Thresholds,
    TrainSettings,
)
from abaton.errors import SettingsError


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"learners": 0}, "learners"),
        ({"rounds": -1}, "rounds"),
        ({"seconds": -5.0}, "seconds"),
        ({"pacing": Synchronous(participants=9)}, "participants"),
        ({"pacing": Synchronous(participants=0)}, "participants"),
        ({"pacing": Synchronous(quorum=5)}, "quorum"),
        ({"pacing": Synchronous(participants=2, quorum=3)}, "quorum"),
        ({"pacing": Synchronous(participants=2, extra=3)}, "extra"),
        ({"pacing": Synchronous(deadline=0)}, "deadline"),
        ({"pacing": Asynchronous(attempts=0)}, "attempts"),
        ({"pacing": Asynchronous(), "mixing": Blend(alpha=1.5)}, "alpha"),
        ({"mixing": Latest("vanish")}, "leavers"),
        ({"weighting": ()}, "weighting"),
        ({"learners": 1, "weighting": (ByValidation(),)}, "other learners"),
        ({"training": TrainSettings(epochs=0)}, "training.epochs"),
        ({"training": TrainSettings(learning_rate=float("nan"))}, "training.learning_rate"),
        ({"training": TrainSettings(momentum=1.0)}, "training.momentum"),
    ],
)
def test_wrong_rules_are_refused_with_the_key_and_the_remedy(wrong, key):
    with pytest.raises(SettingsError, match=key) as caught:
        Rules(**{"learners": 4, "rounds": 2, **wrong})
    assert "use" in caught.value.remedy or "check" in caught.value.remedy


@pytest.mark.parametrize(
    "make",
    [
        lambda: ByValidation("beauty"),
        lambda: ByValidation(evaluators=0),
        lambda: ByStaleness("linear"),
        lambda: ByStaleness(a=-1),
        lambda: Thresholds(loss=-1),
        lambda: Thresholds(tombstones=-1),
    ],
)
def test_wrong_policies_are_refused(make):
    with pytest.raises(SettingsError):
        make()


def test_the_papers_policies_are_all_there():
    names = ["SyncFedAvg", "SyncDVW", "AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)"]
    assert list(POLICIES) == names
    assert all(Rules(learners=10, rounds=5, **POLICIES[name]) for name in names)
