"""Who computes how fast and over which line: fast and slow learners, dealt alternately by size.

The paper's cluster has ten fast learners, or five fast and five slow ones; on CIFAR-10 a batch takes a fast learner
30 ms and a slow one 300 ms. Give the learners in descending order of size (`Partition.by_size`): then the largest is
fast, the second slow, the third fast, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from abaton.engines import Profile
from abaton.errors import SettingsError

_LOCAL = Profile(bandwidth=1.25e8, latency=0.001)  # a gigabit line between machine rooms
FAST = replace(_LOCAL, speed=1 / 0.030)
SLOW = replace(_LOCAL, speed=1 / 0.300)


@dataclass(frozen=True, slots=True)
class Group:
    """So many learners with the same kind of machine."""

    name: str
    learners: int
    profile: Profile


@dataclass(frozen=True, slots=True)
class Environment:
    """Each learner's profile, and the group it belongs to."""

    profiles: Mapping[str, Profile]
    groups: Mapping[str, str]

    def members(self, group: str) -> tuple[str, ...]:
        """The learners of a group, in their order."""
        return tuple(name for name, mine in self.groups.items() if mine == group)


def deal(learners: Sequence[str], groups: Sequence[Group]) -> Environment:
    """Deal groups to learners in turn: the first learner to the first group, the second to the second, and again.

    A group that is full is passed over. The groups must have as many places as there are learners.

    >>> made = deal(["a", "b", "c", "d"], [Group("fast", 3, FAST), Group("slow", 1, SLOW)])
    >>> list(made.groups.values())
    ['fast', 'slow', 'fast', 'fast']
    """
    places = sum(group.learners for group in groups)
    if places != len(learners) or any(group.learners < 0 for group in groups):
        raise SettingsError(
            f"the groups have {places} places for {len(learners)} learners",
            where="environment",
            remedy="let the groups add up to the number of learners",
        )
    if len({group.name for group in groups}) < len(groups):
        raise SettingsError(
            "two groups have the same name", where="environment", remedy="give each its own name"
        )
    left = {group.name: group.learners for group in groups}
    turns: list[Group] = []
    while any(left.values()):
        for group in groups:
            if left[group.name]:
                left[group.name] -= 1
                turns.append(group)
    pairs = list(zip(learners, turns, strict=True))
    return Environment(
        {name: replace(group.profile, group=group.name) for name, group in pairs},
        {name: group.name for name, group in pairs},
    )


def homogeneous(learners: Sequence[str], profile: Profile = FAST) -> Environment:
    """All learners with the same machine: the paper's ten GPUs."""
    return deal(learners, [Group("fast", len(learners), profile)])


def heterogeneous(
    learners: Sequence[str], *, slow: int | None = None, fast_as: Profile = FAST, slow_as: Profile = SLOW
) -> Environment:
    """Fast and slow learners in turn, half of each unless told otherwise: the paper's five GPUs and five CPUs.

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
    return deal(learners, [Group("fast", len(learners) - slow, fast_as), Group("slow", slow, slow_as)])
