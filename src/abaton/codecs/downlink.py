"""The way down: the community model as a compressed difference, with the server's own residual.

As in STC (Sattler et al. 2019), the server moves its model by what the learners will decode, never by what
it wanted to send, so server and learners hold the same bits. Learners that missed rounds get the
differences they lack, as long as the server still has them; otherwise the full model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abaton.codecs.chain import Memory, Pipeline
from abaton.codecs.contract import Key
from abaton.codecs.raw import Raw
from abaton.codecs.settings import check_whole
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.vectors.layout import Layout, Vector

SENDER = "controller"  # the name under which the server's differences are keyed


@dataclass(frozen=True, slots=True)
class Difference:
    """One step of the community model, as sent."""

    payload: bytes
    round_key: bytes


@dataclass(frozen=True, slots=True)
class Parcel:
    """What one learner is sent: the full model, or the differences it lacks, in order."""

    full: bytes | None
    differences: tuple[Difference, ...]

    @property
    def size(self) -> int:
        """How many payload bytes it has."""
        return len(self.full or b"") + sum(len(d.payload) for d in self.differences)


@dataclass(frozen=True)
class Downlink:
    """The server's side: the model that learners hold, the residual, and the last few differences.

    >>> import numpy as np
    >>> from abaton.codecs import parse
    >>> from abaton.vectors import Layout, Role, Tensor
    >>> layout = Layout([Tensor("weight", (4,), Role.DENSE)])
    >>> down = Downlink.start(parse("error_feedback | stc(sparsity=0.25)"), layout, np.zeros(4, np.float32))
    >>> down = down.publish(np.float32([3, 1, 0, 0]), b"round one")
    >>> down.model.tolist(), down.version
    ([3.0, 0.0, 0.0, 0.0], 1)
    >>> receive(down.pipeline, layout, np.zeros(4, np.float32), down.parcel(0)).tolist()
    [3.0, 0.0, 0.0, 0.0]
    """

    pipeline: Pipeline
    layout: Layout
    model: Vector
    memory: Memory
    version: int
    sent: Mapping[int, Difference]  # by the version each one leads to
    keep: int

    @staticmethod
    def start(pipeline: Pipeline, layout: Layout, model: Vector, *, keep: int = 8) -> Downlink:
        """A server that has sent nothing; ``keep`` differences stay for learners that miss rounds."""
        check_whole("keep", keep, 0, 10_000)
        model = layout.check(model, whose="model").copy()
        return Downlink(pipeline, layout, model, pipeline.start(layout), 0, {}, keep)

    def publish(self, change: Vector, round_key: bytes) -> Downlink:
        """Move the model by what the codec makes of a change, such as the mean of the round's updates."""
        key = Key(round_key, SENDER)
        payload, memory = self.pipeline.encode(change, self.layout, key, self.memory)
        model = self.model + self.pipeline.decode(payload, self.layout, key)
        version = self.version + 1
        sent = {**self.sent, version: Difference(payload, round_key)}
        sent = {v: d for v, d in sent.items() if v > version - self.keep}
        return Downlink(self.pipeline, self.layout, model, memory, version, sent, self.keep)

    def parcel(self, base: int | None) -> Parcel:
        """What to send to a learner that holds version ``base``, or none; whichever is smaller."""
        full = Raw().encode(self.model, self.layout, Key(b"full", SENDER))
        if base is None or not 0 <= base <= self.version:
            return Parcel(full, ())
        lacking = [self.sent.get(v) for v in range(base + 1, self.version + 1)]
        found = tuple(d for d in lacking if d is not None)
        if len(found) < len(lacking) or sum(len(d.payload) for d in found) >= len(full):
            return Parcel(full, ())
        return Parcel(None, found)


def receive(pipeline: Pipeline, layout: Layout, model: Vector | None, parcel: Parcel) -> Vector:
    """The learner's side: its model after a parcel; the same bits as the server's."""
    if parcel.full is not None:
        return Raw().decode(parcel.full, layout, Key(b"full", SENDER))
    if model is None:
        raise SettingsError(
            "differences came without a model to add them to", remedy="ask for the full model"
        )
    for difference in parcel.differences:
        key = Key(difference.round_key, SENDER)
        model = model + pipeline.decode(difference.payload, layout, key)
    return model
