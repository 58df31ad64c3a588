"""A post without a network: messages are handed to the sites' desks at once, after they have been made into bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from abaton.engines.flower import Desk, Lost, Parcel
from abaton.engines.flower.parcels import from_text, pieces, to_text, together


def through(parcel: Parcel) -> Parcel:
    """What is left of a parcel on the other side of a network."""
    return Parcel(parcel.kind, from_text(to_text(parcel.about)), together(dict(pieces(parcel.blobs))))


class LoopPost:
    """Nodes in this process; a test can take them away, let them be busy, or say what becomes of a message."""

    def __init__(self, desks: Mapping[int, Desk]) -> None:
        self.desks, self.sent = dict(desks), []
        self.answers: dict[str, Parcel | Lost] = {}
        self.fate = lambda desk, parcel: None
        self.busy: set[int] = set()

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
        there = [n for n in letters if n in self.answers and self.sent[int(n)][0] not in self.busy]
        return {letter: self.answers.pop(letter) for letter in there}
