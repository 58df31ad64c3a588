import pytest

from abaton.control import Rules, TrainSettings
from abaton.errors import SettingsError


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"learners": 0}, "learners"),
        ({"rounds": -1}, "rounds"),
        ({"participants": 9}, "participants"),
        ({"participants": 0}, "participants"),
        ({"quorum": 5}, "quorum"),
        ({"participants": 2, "quorum": 3}, "quorum"),
        ({"training": TrainSettings(epochs=0)}, "training.epochs"),
        ({"training": TrainSettings(learning_rate=float("nan"))}, "training.learning_rate"),
        ({"training": TrainSettings(momentum=1.0)}, "training.momentum"),
    ],
)
def test_wrong_rules_are_refused_with_the_key_and_the_remedy(wrong, key):
    with pytest.raises(SettingsError, match=key) as caught:
        Rules(**{"learners": 4, "rounds": 2, **wrong})
    assert "use" in caught.value.remedy
