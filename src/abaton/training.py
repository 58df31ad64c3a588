"""Settings that cannot be used are refused before anything starts, with the key and what to do.

When a learner of its own accord sends its update: the adaptive update frequency of the Metis paper (section V).

After every local epoch the learner looks at its validation loss. C1: it did not fall. C2: it fell, but by no more than
`loss` percent. Each time one of them holds uses up a tombstone; when all are used up and one holds again, the learner
sends. C3: it sends as soon as its effective staleness is above the median of its first twenty cycles.

Drawing lots that come out the same everywhere: chance is a function of a key, never of a clock.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from numbers import Integral
from statistics import median
from typing import Any

from abaton.errors import SettingsError

_CHOICES = {"solver": ("sgd", "adam"), "schedule": ("constant", "step", "cosine", "driven")}


def check_training(training: TrainSettings) -> None:
    """Refuse settings that no learner could train by."""
    for name in ("epochs", "batch_size", "period"):
        whole(f"training.{name}", getattr(training, name), least=1)
    for name in ("window", "elapsed", "steps"):
        whole(f"training.{name}", getattr(training, name), least=0)
    for name in ("proximal", "clip", "budget"):
        value = getattr(training, name)
        if not 0 <= value < math.inf:
            refuse(f"training.{name}", value, "use 0 or more")
    above_zero("training.learning_rate", training.learning_rate)
    if not 0 <= training.momentum < 1:
        refuse("training.momentum", training.momentum, "use a number from 0 up to, but not, 1")
    if not 0 < training.decay <= 1:
        refuse("training.decay", training.decay, "use a number above 0 and at most 1")
    for name, choices in _CHOICES.items():
        if getattr(training, name) not in choices:
            refuse(f"training.{name}", f"'{getattr(training, name)}'", f"use one of {', '.join(choices)}")


def one_of(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Refuse what is none of the kinds that there are: it would be taken for another one, or fail in the middle.

    >>> one_of("pacing", "synchronous", (int, float))
    Traceback (most recent call last):
    abaton.errors.SettingsError: pacing is 'synchronous' (rules): use int or float
    """
    if not isinstance(value, kinds):
        *others, last = (kind.__name__ for kind in kinds)
        refuse(name, repr(value), f"use {', '.join(others)} or {last}" if others else f"use {last}")


def whole(name: str, value: int, *, least: int) -> None:
    """Refuse what is not a whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        refuse(name, value, f"use a whole number, at least {least}")


def above_zero(name: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < value < math.inf:
        refuse(name, value, "use a number above 0")


def refuse(name: str, value: object, remedy: str) -> None:
    """Say which key is wrong, what it is, and what to do.

    >>> refuse("rounds", 0, "use at least 1")
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (rules): use at least 1
    """
    raise SettingsError(f"{name} is {value}", where="rules", remedy=remedy)


CYCLES = 20


@dataclass(frozen=True, slots=True)
class Thresholds:
    """VC_Loss in percent and VC_Tomb of the paper.

    >>> sends([1.0, 0.8, 0.81], Thresholds(loss=0.0, tombstones=0))
    True
    """

    loss: float = 0.0
    tombstones: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.loss < float("inf"):
            raise SettingsError(f"loss is {self.loss}", where="thresholds", remedy="use 0 or more percent")
        if not isinstance(self.tombstones, int) or self.tombstones < 0:
            raise SettingsError(
                f"tombstones is {self.tombstones}", where="thresholds", remedy="use 0 or a whole number above"
            )


def sends(losses: Sequence[float], thresholds: Thresholds) -> bool:
    """Whether a cycle with these validation losses, one for each epoch, has come to its end (C1, C2, tombstones).

    Two consecutive epochs are compared, so a cycle has at least two.
    """
    hits = sum(_stalls(before, after, thresholds.loss) for before, after in pairwise(losses))
    stalled = len(losses) > 1 and _stalls(losses[-2], losses[-1], thresholds.loss)
    return stalled and hits > thresholds.tombstones


def _stalls(before: float, after: float, percent: float) -> bool:
    change = 100 * (after - before) / before if before else 0.0
    return change >= 0 or -change <= percent


def staleness_limit(cycles: Sequence[int]) -> float:
    """The staleness above which a learner sends (C3): the median of its first twenty cycles, no limit before."""
    return float(median(cycles[:CYCLES])) if len(cycles) >= CYCLES else float("inf")


def uniform(*key: object) -> float:
    """A number from 0 up to 1 that depends on the key alone.

    >>> uniform("seed", 7) == uniform("seed", 7) != uniform("seed", 8)
    True
    """
    return _word(key) / 2**64


def sample(names: Sequence[str], count: int, *key: object) -> list[str]:
    """Some of the names, each with the same chance, in the order in which they were drawn."""
    pool = list(names)
    for i in range(count):
        # The bias of a 64-bit remainder is below 2^-40 for any number of learners that fits in memory.
        j = i + _word((*key, i)) % (len(pool) - i)
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


@lru_cache(maxsize=256)
def round_key(seed: int, version: int) -> bytes:
    """The key of all codecs' common randomness for updates that start from a version of the community model."""
    return hashlib.blake2b(f"round\x1f{seed}\x1f{version}".encode(), digest_size=32).digest()


def _word(key: tuple[object, ...]) -> int:
    text = "\x1f".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a learner trains before it sends its update.

    Attributes:
        epochs: passes over the data; the most there may be, if the learner decides itself when to send.
        batch_size: examples in a step.
        learning_rate: of the solver, before the schedule.
        momentum: how much of the last direction is kept (Metis, Eq. 2); 0 is plain descent.
        solver: `sgd` or `adam`.
        proximal: how strongly the model is pulled back to where it started (FedProx); 0 is not at all.
        clip: the longest gradient that is taken as it is; 0 is no limit.
        window: 0 shuffles all examples; a number shuffles through a window of so many, over examples sorted by label.
        keep_momentum: whether the solver's memory survives, at the learner, from one task to the next.
        schedule: `constant`, `step`, `cosine` or `driven` (see `learning.solvers.rate`).
        decay: the factor of the schedule.
        period: after how many epochs a `step` is taken, or a `cosine` has come down.
        elapsed: how many epochs lie behind this task, for the schedule.
        adaptive: thresholds of a learner that decides itself when to send.
        committed: how many steps had been committed when it was asked.
        staleness_limit: the effective staleness above which it sends.
        budget: seconds in which a learner does as many batches as it can, at least one; 0 is none.
        steps: exactly so many batches, whatever `epochs` and `budget` say; 0 leaves it to them.
        complete: whether the validation set is trained on too (the post-validation phase).
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    solver: str = "sgd"
    proximal: float = 0.0
    clip: float = 0.0
    window: int = 0
    keep_momentum: bool = False
    schedule: str = "constant"
    decay: float = 1.0
    period: int = 1
    elapsed: int = 0
    adaptive: Thresholds | None = None
    committed: int = 0
    staleness_limit: float = float("inf")
    budget: float = 0.0
    steps: int = 0
    complete: bool = False


def settings_from(values: Mapping[str, Any]) -> TrainSettings:
    """Settings that crossed a pipe as plain values.

    >>> settings_from({"epochs": 3, "adaptive": {"loss": 1.0, "tombstones": 2}}).adaptive
    Thresholds(loss=1.0, tombstones=2)
    """
    thresholds = values.get("adaptive")
    return TrainSettings(**{**values, "adaptive": Thresholds(**thresholds) if thresholds else None})
