import pytest

from abaton.controller import UpdateThresholds
from abaton.training import should_send, staleness_limit


@pytest.mark.parametrize(
    ("losses", "thresholds", "done"),
    [
        ([1.0, 0.9], UpdateThresholds(0, 0), False),
        ([1.0, 1.0], UpdateThresholds(0, 0), True),  # C1: plateau
        ([1.0, 1.1], UpdateThresholds(0, 0), True),  # C1: rise
        ([1.0, 0.995], UpdateThresholds(1, 0), True),  # C2: fell by half a percent
        ([1.0, 0.995], UpdateThresholds(0, 0), False),
        ([1.0, 1.1], UpdateThresholds(0, 1), False),  # uses up the tombstone
        ([1.0, 1.1, 1.0], UpdateThresholds(0, 1), False),  # improves again: goes on
        ([1.0, 1.1, 1.0, 1.05], UpdateThresholds(0, 1), True),  # hit again, no tombstone left
    ],
)
def test_a_cycle_ends_by_the_papers_conditions(losses, thresholds, done):
    assert should_send(losses, thresholds) is done


def test_a_fast_learner_with_four_tombstones_fails_five_times_and_a_slow_one_twice():
    """The cycles of Fig. 3: VC_Loss 0, 1 and VC_Tomb 4, 1 for fast and slow learners."""
    rising = [1.0]
    while not should_send([*rising, rising[-1] + 0.1], UpdateThresholds(0, 4)):
        rising.append(rising[-1] + 0.1)
    assert len(rising) == 5
    slow = [1.0]
    while not should_send([*slow, slow[-1] * 0.995], UpdateThresholds(1, 1)):
        slow.append(slow[-1] * 0.995)
    assert len(slow) == 2


def test_the_staleness_limit_is_the_median_of_the_first_twenty_cycles():
    assert staleness_limit(range(19)) == float("inf")
    assert staleness_limit(range(20)) == 9.5
    assert staleness_limit([*range(20), 1000, 1000]) == 9.5
