"""A post without a network: messages are handed to the sites' desks at once, after they have been made into bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from abaton.engines.flower import Lost, Parcel
from abaton.engines.flower.site_worker import ROLES, role_of


def through(parcel: Parcel) -> Parcel:
    """What is left of a parcel on the other side of a network."""
    return Parcel.unpacked(parcel.packed())


class TwoDesks:
    """A site's two desks behind its node; whatever else is asked of it, the one that trains is asked for."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self.desks = {role: make(role) for role in ROLES}

    def answer(self, parcel: Parcel) -> Parcel:
        return self.desks[role_of(parcel)].answer(parcel)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.desks["train"], name)

    @property
    def policy(self) -> Any:
        return self.desks["train"].policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        for desk in self.desks.values():
            desk.policy = policy


class LoopPost:
    """Nodes in this process; a test can take them away, let them be busy, or say what becomes of a message.

    Attributes:
        busy: nodes that do not answer, or (node, role) of desks that do not.
    """

    def __init__(self, desks: Mapping[int, Any]) -> None:
        self.desks, self.sent = dict(desks), []
        self.answers: dict[str, Parcel | Lost] = {}
        self.fate = lambda desk, parcel: None
        self.busy: set[Any] = set()
        self.silent = 0.0

    def nodes(self) -> Collection[int]:
        return list(self.desks)

    def send(self, node: int, parcel: Parcel, ttl: float) -> str:
        if node not in self.desks:
            return ""
        letter = f"{len(self.sent):06}"
        self.sent.append((node, parcel))
        desk = self.desks[node]
        fate = self.fate(desk, parcel)
        self.answers[letter] = through(desk.answer(through(parcel))) if fate is None else fate
        return letter

    def collect(self, letters: Collection[str]) -> Mapping[str, Parcel | Lost]:
        there = [letter for letter in letters if letter in self.answers and not self._waits(letter)]
        return {letter: self.answers.pop(letter) for letter in there}

    def silence(self) -> float:
        silent, self.silent = self.silent, 0.0
        return silent

    def _waits(self, letter: str) -> bool:
        node, parcel = self.sent[int(letter)]
        return bool({node, (node, role_of(parcel))} & self.busy)
