"""Machine profiles of an experiment: fast and slow learners, alternating by size.

The paper's cluster has ten fast learners, or five fast and five slow ones; on CIFAR-10 a batch takes a fast learner
30 ms and a slow one 300 ms. Pass the learners in descending order of size (`Partition.by_size`): then the largest
is fast, the second slow, the third fast, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from abaton.engines import MachineProfile
from abaton.errors import SettingsError

_LOCAL = MachineProfile(bandwidth=1.25e8, latency=0.001)  # a gigabit network
FAST = replace(_LOCAL, speed=1 / 0.030)
SLOW = replace(_LOCAL, speed=1 / 0.300)


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """Group of learners with the same machine profile."""

    name: str
    learners: int
    profile: MachineProfile


@dataclass(frozen=True, slots=True)
class MachineEnvironment:
    """Profile and group of each learner."""

    profiles: Mapping[str, MachineProfile]
    groups: Mapping[str, str]

    def members(self, group: str) -> tuple[str, ...]:
        """Return the learners of a group of machines, in order."""
        return tuple(name for name, learner_group in self.groups.items() if learner_group == group)


def assign_machines(learners: Sequence[str], groups: Sequence[MachineGroup]) -> MachineEnvironment:
    """Assign machine groups to learners in turn: the first learner to the first group, and so on.

    A full group is skipped. The groups must have as many machines as there are learners.

    >>> made = assign_machines(["a", "b", "c", "d"], [MachineGroup("fast", 3, FAST), MachineGroup("slow", 1, SLOW)])
    >>> list(made.groups.values())
    ['fast', 'slow', 'fast', 'fast']
    """
    machine_count = sum(group.learners for group in groups)
    if machine_count != len(learners) or any(group.learners < 0 for group in groups):
        raise SettingsError(
            f"the groups have {machine_count} machines for {len(learners)} learners",
            where="environment",
            remedy="give the groups as many machines as there are learners",
        )
    if len({group.name for group in groups}) < len(groups):
        raise SettingsError(
            "two groups have the same name", where="environment", remedy="give each its own name"
        )
    remaining = {group.name: group.learners for group in groups}
    assigned: list[MachineGroup] = []
    while any(remaining.values()):
        for group in groups:
            if remaining[group.name]:
                remaining[group.name] -= 1
                assigned.append(group)
    pairs = list(zip(learners, assigned, strict=True))
    return MachineEnvironment(
        {name: replace(group.profile, group=group.name) for name, group in pairs},
        {name: group.name for name, group in pairs},
    )


def homogeneous(learners: Sequence[str], profile: MachineProfile = FAST) -> MachineEnvironment:
    """Return the same machine profile for all learners: the paper's ten GPUs."""
    return assign_machines(learners, [MachineGroup("fast", len(learners), profile)])


def heterogeneous(
    learners: Sequence[str],
    *,
    slow: int | None = None,
    fast_as: MachineProfile = FAST,
    slow_as: MachineProfile = SLOW,
) -> MachineEnvironment:
    """Return machine profiles that alternate fast and slow, half of each by default: five GPUs and five CPUs.

    >>> heterogeneous([f"learner-{k}" for k in range(1, 6)]).members("slow")
    ('learner-2', 'learner-4')
    """
    slow = len(learners) // 2 if slow is None else slow
    if not 0 <= slow <= len(learners):
        raise SettingsError(
            f"slow is {slow}, but there are {len(learners)} learners",
            where="environment",
            remedy=f"use a number from 0 to {len(learners)}",
        )
    return assign_machines(
        learners, [MachineGroup("fast", len(learners) - slow, fast_as), MachineGroup("slow", slow, slow_as)]
    )
