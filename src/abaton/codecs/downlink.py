"""The way down: the community model as compressed differences, one for each version, the same for everybody.

As in STC (Sattler et al. 2019), the controller moves the model that everybody holds by what learners will decode, never
by what it wanted to send, so controller and learners hold the same bits. What a difference leaves out is not lost: the
next one leads from what everybody holds to the newest mix, whatever the mix is made of. That is error feedback, with
the residual (mix - model) kept by nobody, since both are known.

A codec whose error is larger than what it writes (unbiased ones of one bit) would be fed its own error back, louder
each time. So each difference says which share of it is taken: the one that leads closest to the mix, in 256ths. For
sparse ternary codecs that is the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from abaton.codecs.base import Key
from abaton.codecs.pipeline import Pipeline
from abaton.codecs.registry import parse
from abaton.codecs.transforms import ErrorFeedback
from abaton.errors import PayloadError, SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from abaton.layout import Layout, Vector

_SENDER = "\x1fcontroller"  # which no learner can be called
_SHARES = 256
_MOST = 256  # differences that are kept: a learner that follows them all adds as many vectors

RoundKey = Callable[[int], bytes]
"""The round's key by the version of the community model."""


def downlink_of(line: str | Pipeline | None) -> Pipeline | None:
    """The codec of the way down that a line names; none if there is no line.

    `error_feedback` may stand in front, and says what is so anyway.

    >>> downlink_of("error_feedback | stc(sparsity=0.01)").spec, downlink_of(None)
    ('stc(sparsity=0.01)', None)

    Raises:
        SettingsError: There is no such codec, or it has steps that only updates need.
    """
    if line is None:
        return None
    pipeline = parse(line) if isinstance(line, str) else line
    if steps := [step.name for step in pipeline.steps if step.name != ErrorFeedback.name]:
        raise SettingsError(
            f"'{steps[0]}' is for the updates of learners: what goes down is mixed from them already",
            where=f"downlink '{pipeline.spec}'",
            remedy=f"write it into the codec of updates, and here {pipeline.codec.spec}",
        )
    return Pipeline((), pipeline.codec)


@dataclass(frozen=True, slots=True)
class Difference:
    """One step of the model that everybody holds.

    Attributes:
        version: the version that it leads to, from the one before.
        data: which share is taken (one byte, in 256ths, less one), and then the codec's payload.
    """

    version: int
    data: bytes


class Downlink:
    """The controller's side: the model that everybody holds, and the differences that led to it lately.

    Args:
        pipeline: how differences are written.
        layout: of the model.
        model: the first one, which everybody is sent whole.

    Attributes:
        model: what everybody holds who has the newest version; trained from, scored against, and the run's result.
        version: its number.
        lately: the newest differences, in order: as many as are smaller together than the model.

    >>> from abaton.codecs import parse
    >>> from abaton.kernels import Layout, Role, Tensor
    >>> layout, key = Layout([Tensor("weight", (100,), Role.DENSE)]), lambda version: b"version %d" % version
    >>> down = Downlink(parse("stc(sparsity=0.01)"), layout, layout.zeros())
    >>> mix = layout.zeros(); mix[:2] = 3, 1
    >>> down.publish(mix, key)
    >>> down.model[:3].tolist(), down.version
    ([3.0, 0.0, 0.0], 1)
    >>> down.publish(mix, key)  # what was left out comes later
    >>> down.model[:3].tolist()
    [3.0, 1.0, 0.0]
    >>> follow(down.pipeline, layout, layout.zeros(), down.lately, key)[:3].tolist()
    [3.0, 1.0, 0.0]
    """

    def __init__(self, pipeline: Pipeline, layout: Layout, model: Vector) -> None:
        self.pipeline, self.layout = pipeline, layout
        self.model = layout.check(model, whose="the first model")
        self.version, self.lately = 0, tuple[Difference, ...]()

    def publish(self, mix: Vector, round_key: RoundKey) -> None:
        """Make the next version: move the model that everybody holds towards the mix, by what the codec writes."""
        version, wanted = self.version + 1, mix - self.model
        key = _key(round_key, version)
        payload, _ = self.pipeline.encode(wanted, self.layout, key, {})
        share = _share(wanted, self.pipeline.decode(payload, self.layout, key))
        made = Difference(version, bytes([share - 1]) + payload)
        model = follow(self.pipeline, self.layout, self.model, (made,), round_key)
        self.model = self.layout.check(model, whose="the model on the way down")
        self.version, self.lately = version, _affordable((*self.lately, made), 4 * self.layout.size)

    def save(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Plain values and arrays that `load` makes the same of; the residual follows from them and from the mix."""
        arrays = {f"difference/{d.version}": np.frombuffer(d.data, np.uint8) for d in self.lately}
        return {"version": self.version}, {"model": self.model, **arrays}

    def load(self, saved: tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]) -> None:
        """Take over what `save` gave."""
        about, arrays = saved
        versions = sorted(int(name.partition("/")[2]) for name in arrays if name.startswith("difference/"))
        self.lately = tuple(Difference(v, arrays[f"difference/{v}"].tobytes()) for v in versions)
        self.model = self.layout.check(arrays["model"], whose="the model on the way down")
        self.version = int(about["version"])


def follow(
    pipeline: Pipeline, layout: Layout, model: Vector, steps: Iterable[Difference], round_key: RoundKey
) -> Vector:
    """The learner's side: its model after some differences, in their order; the same bits as the controller's."""
    for step in steps:
        if not step.data:
            raise PayloadError("a difference on the way down is empty", where="downlink")
        share = np.float32((step.data[0] + 1) / _SHARES)
        model = model + share * pipeline.decode(step.data[1:], layout, _key(round_key, step.version))
    return model


def lacking(lately: Iterable[Difference], held: Iterable[int], version: int) -> tuple[Difference, ...] | None:
    """The differences that lead to a version from one that is held, as few as can be; nothing if none do.

    >>> lately = [Difference(v, b"..") for v in (3, 4, 5)]
    >>> [d.version for d in lacking(lately, {1, 3}, 5)], lacking(lately, {1, 6}, 5), lacking(lately, {5}, 5)
    ([4, 5], None, ())
    """
    known = {step.version: step for step in lately}
    base = max((v for v in held if v <= version), default=None)
    if base is None:
        return None
    found = tuple(known[v] for v in range(base + 1, version + 1) if v in known)
    return found if len(found) == version - base else None


def _key(round_key: RoundKey, version: int) -> Key:
    """A key of its own: updates that start from the version must not be turned as the version was."""
    return Key(hashlib.blake2b(b"down", key=round_key(version), digest_size=32).digest(), _SENDER)


def _share(wanted: Vector, decoded: Vector) -> int:
    """How many 256ths of what was decoded come closest to what was wanted; one at least, all at most."""
    length = float(np.square(decoded, dtype=np.float64).sum())
    if not length:
        return _SHARES
    closest = float(np.multiply(wanted, decoded, dtype=np.float64).sum()) / length
    return min(_SHARES, max(1, round(_SHARES * closest)))


def _affordable(steps: tuple[Difference, ...], most: int) -> tuple[Difference, ...]:
    """The newest of them that are smaller together than the model itself."""
    total, first = 0, len(steps)
    while first > max(0, len(steps) - _MOST) and total + len(steps[first - 1].data) < most:
        first -= 1
        total += len(steps[first].data)
    return steps[first:]
