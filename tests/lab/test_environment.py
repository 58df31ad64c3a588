from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abaton.engines import Profile
from abaton.errors import SettingsError
from abaton.lab.machine_profiles import FAST, SLOW, Group, deal, heterogeneous, homogeneous
from abaton.lab.partition import by_group, partition

TEN = [f"learner-{k:02}" for k in range(1, 11)]


def test_the_paper_s_machines_take_30_and_300_milliseconds_a_batch():
    assert 1 / FAST.speed == pytest.approx(0.030)
    assert 1 / SLOW.speed == pytest.approx(0.300)


def test_ten_alike():
    made = homogeneous(TEN)
    assert set(made.profiles.values()) == {replace(FAST, group="fast")}
    assert made.members("fast") == tuple(TEN)


def test_sorted_sizes_are_dealt_alternately_to_fast_and_slow():
    labels = np.arange(1000) % 10
    part = partition(labels, learners=10, rng=np.random.default_rng(0), sizes_as="power-law")
    made = heterogeneous(part.by_size())
    assert list(made.groups) == list(part.learners)
    assert list(made.groups.values()) == ["fast", "slow"] * 5
    assert made.profiles["learner-01"] == replace(FAST, group="fast")
    assert made.profiles["learner-02"] == replace(SLOW, group="slow")


def test_natural_learners_are_dealt_by_size_too():
    groups = np.array(["kos"] * 2 + ["athens"] * 5 + ["pergamon"] * 3)
    part = by_group(np.zeros(10, int), groups)
    assert part.by_size() == ("athens", "pergamon", "kos")
    assert heterogeneous(part.by_size()).groups == {"athens": "fast", "pergamon": "slow", "kos": "fast"}


def test_when_one_group_is_full_the_others_go_on():
    assert list(heterogeneous(TEN, slow=2).groups.values()) == ["fast", "slow"] * 2 + ["fast"] * 6
    assert heterogeneous(TEN, slow=0).members("slow") == ()
    poor = Profile(speed=1, bandwidth=1e4, latency=2, dropout=0.5)
    made = deal("abcd", [Group("fast", 1, FAST), Group("slow", 1, SLOW), Group("far", 2, poor)])
    assert "".join(made.groups[name][0:2] for name in "abcd") == "faslfafa"
    assert made.profiles["d"] == replace(poor, group="far")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: heterogeneous(TEN, slow=11),
        lambda: heterogeneous(TEN, slow=-1),
        lambda: deal(TEN, [Group("fast", 9, FAST)]),
        lambda: deal(TEN, [Group("fast", 11, FAST), Group("slow", -1, SLOW)]),
        lambda: deal(TEN, [Group("fast", 5, FAST), Group("fast", 5, SLOW)]),
    ],
)
def test_groups_that_do_not_add_up_are_refused(wrong):
    with pytest.raises(SettingsError, match="environment"):
        wrong()
