"""Codecs with steps in front: clipping, noise and error feedback, chained flat.

``chain(clip, feedback, codec)`` reads like the way of an update: each step in order, then the codec. Laws:
``chain(codec)`` writes the codec's own bytes; ``chain(a, chain(b, codec))`` is ``chain(a, b, codec)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from abaton.codecs.base import OWN_CODES, Codec
from abaton.errors import SettingsError
from abaton.protocols import require

if TYPE_CHECKING:
    from abaton.codecs.base import Accumulator, Key
    from abaton.layout import Layout, Vector

Memory = Mapping[str, "Vector"]
"""What the steps of a pipeline keep from round to round at a site: one flat vector by step name."""


class Step(Protocol):
    """Something done to an update before it is encoded."""

    name: ClassVar[str]
    stateful: ClassVar[bool]
    unbiased: ClassVar[bool]

    @property
    def spec(self) -> str:
        """The step's part of the line."""

    def before(self, update: Vector, layout: Layout, key: Key, state: Vector | None) -> Vector:
        """The update to pass on; the input is never changed."""

    def after(self, passed_on: Vector, decoded: Vector) -> Vector | None:
        """What a stateful step keeps, once it is known what the server will read."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps and a codec: what a study's codec line names.

    >>> import numpy as np
    >>> from abaton.codecs import Key, parse
    >>> from abaton.kernels import Layout, Role, Tensor
    >>> layout = Layout([Tensor("weight", (2,), Role.DENSE)])
    >>> pipeline, key = parse("raw"), Key(b"round one", "north")
    >>> payload, memory = pipeline.encode(np.float32([1, 2]), layout, key, pipeline.start(layout))
    >>> pipeline.decode(payload, layout, key).tolist(), len(payload)
    ([1.0, 2.0], 36)
    """

    steps: tuple[Step, ...]
    codec: Codec

    @property
    def spec(self) -> str:
        """The line that names it; parsing it gives an equal pipeline."""
        return " | ".join([*(step.spec for step in self.steps), self.codec.spec])

    @property
    def unbiased(self) -> bool:
        """Whether the mean of many decoded payloads goes to the update itself."""
        return self.codec.unbiased and all(step.unbiased for step in self.steps)

    @property
    def stateful(self) -> bool:
        """Whether a learner must keep something from round to round."""
        return any(step.stateful for step in self.steps)

    def start(self, layout: Layout) -> Memory:
        """The memory of a learner that has sent nothing yet."""
        return {step.name: layout.zeros() for step in self.steps if step.stateful}

    def encode(self, update: Vector, layout: Layout, key: Key, memory: Memory) -> tuple[bytes, Memory]:
        """The payload, and the memory to store before it is sent."""
        vector, passed_on = update, {}
        for step in self.steps:
            state = self._state(memory, step, layout) if step.stateful else None
            vector = step.before(vector, layout, key, state)
            passed_on[step.name] = vector
        payload = self.codec.encode(vector, layout, key)
        if not self.stateful:
            return payload, {}
        decoded = self.codec.decode(payload, layout, key)
        kept = {step.name: step.after(passed_on[step.name], decoded) for step in self.steps}
        return payload, {name: state for name, state in kept.items() if state is not None}

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        """What the server reads."""
        return self.codec.decode(payload, layout, key)

    def accumulator(self, layout: Layout, round_key: bytes) -> Accumulator:
        """An empty sum for one round."""
        return self.codec.accumulator(layout, round_key)

    @staticmethod
    def _state(memory: Memory, step: Step, layout: Layout) -> Vector:
        if step.name not in memory:
            raise SettingsError(
                f"the learner's memory has no '{step.name}'", remedy="begin with pipeline.start(layout)"
            )
        return layout.check(memory[step.name], whose=f"memory of {step.name}")


def chain(*parts: Step | Codec | Pipeline) -> Pipeline:
    """Steps and, last, a codec or another chain, as one flat pipeline."""
    if not parts or not hasattr(parts[-1], "decode"):
        raise SettingsError("a chain ends with a codec", remedy="put a codec such as raw last")
    *steps, last = parts
    if any(hasattr(step, "decode") for step in steps):
        raise SettingsError("a chain has one codec", remedy="put steps such as clip in front of it")
    tail = last if isinstance(last, Pipeline) else Pipeline((), last)  # type: ignore[arg-type]
    pipeline = Pipeline((*steps, *tail.steps), tail.codec)  # type: ignore[arg-type]
    _check(pipeline.codec)
    names = [step.name for step in pipeline.steps]
    if len(set(names)) < len(names):
        raise SettingsError("a step appears twice in a chain", remedy="name each step once")
    order = [name for name in names if name in ("error_feedback", "gaussian_noise")]
    if order == ["error_feedback", "gaussian_noise"]:
        raise SettingsError(
            "error feedback in front of noise would send the noise back in the next round",
            remedy="write gaussian_noise first, then error_feedback",
        )
    return pipeline


def _check(codec: Codec) -> None:
    """Refuse a codec of your own that is none, or whose payloads would be taken for another one's."""
    if type(codec).__module__.startswith("abaton."):
        return
    require(codec, Codec, name="codec", where="chain", known="a codec such as Raw()")
    if not is_dataclass(codec):
        raise SettingsError(
            f"the codec '{codec.name}' is no dataclass",
            remedy="write @dataclass(frozen=True) above its class",
        )
    if codec.code not in OWN_CODES:
        raise SettingsError(
            f"the codec '{codec.name}' has the code {codec.code}",
            remedy=f"use one from {OWN_CODES[0]} to {OWN_CODES[-1]}: the others are Abaton's",
        )
