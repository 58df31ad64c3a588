from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abaton.engines import MachineProfile
from abaton.errors import SettingsError
from abaton.lab.machine_profiles import FAST, SLOW, MachineGroup, assign_machines, heterogeneous, homogeneous
from abaton.lab.partition import by_group, partition_data

TEN = [f"learner-{k:02}" for k in range(1, 11)]


def test_the_paper_s_machines_take_30_and_300_milliseconds_a_batch():
    assert 1 / FAST.speed == pytest.approx(0.030)
    assert 1 / SLOW.speed == pytest.approx(0.300)


def test_ten_alike():
    machines = homogeneous(TEN)
    assert set(machines.profiles.values()) == {replace(FAST, group="fast")}
    assert machines.members("fast") == tuple(TEN)


def test_learners_by_size_alternate_between_fast_and_slow():
    labels = np.arange(1000) % 10
    part = partition_data(labels, learners=10, rng=np.random.default_rng(0), sizes_as="power-law")
    machines = heterogeneous(part.by_size())
    assert list(machines.groups) == list(part.learners)
    assert list(machines.groups.values()) == ["fast", "slow"] * 5
    assert machines.profiles["learner-01"] == replace(FAST, group="fast")
    assert machines.profiles["learner-02"] == replace(SLOW, group="slow")


def test_natural_learners_are_assigned_by_size():
    groups = np.array(["kos"] * 2 + ["athens"] * 5 + ["pergamon"] * 3)
    part = by_group(np.zeros(10, int), groups)
    assert part.by_size() == ("athens", "pergamon", "kos")
    assert heterogeneous(part.by_size()).groups == {"athens": "fast", "pergamon": "slow", "kos": "fast"}


def test_when_one_group_is_full_the_others_go_on():
    assert list(heterogeneous(TEN, slow=2).groups.values()) == ["fast", "slow"] * 2 + ["fast"] * 6
    assert heterogeneous(TEN, slow=0).members("slow") == ()
    poor = MachineProfile(speed=1, bandwidth=1e4, latency=2, dropout_probability=0.5)
    machines = assign_machines(
        "abcd", [MachineGroup("fast", 1, FAST), MachineGroup("slow", 1, SLOW), MachineGroup("far", 2, poor)]
    )
    assert "".join(machines.groups[name][0:2] for name in "abcd") == "faslfafa"
    assert machines.profiles["d"] == replace(poor, group="far")


@pytest.mark.parametrize(
    "groups",
    [
        lambda: heterogeneous(TEN, slow=11),
        lambda: heterogeneous(TEN, slow=-1),
        lambda: assign_machines(TEN, [MachineGroup("fast", 9, FAST)]),
        lambda: assign_machines(TEN, [MachineGroup("fast", 11, FAST), MachineGroup("slow", -1, SLOW)]),
        lambda: assign_machines(TEN, [MachineGroup("fast", 5, FAST), MachineGroup("fast", 5, SLOW)]),
    ],
)
def test_groups_that_do_not_add_up_are_refused(groups):
    with pytest.raises(SettingsError, match="environment"):
        groups()
