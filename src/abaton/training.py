"""Settings of local training with their checks, the adaptive update frequency, and seeded sampling.

Adaptive update frequency (Metis, section V): after every local epoch the learner compares its validation loss. C1: it
did not fall. C2: it fell by at most `loss` percent. Each epoch in which C1 or C2 holds uses up a tombstone; when all
are used up and one holds again, the learner sends its update. C3: it sends as soon as its effective staleness is above
the median of its first twenty cycles.

Seeded sampling is a function of a key, so it gives the same result on every machine.
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

_CHOICES = {
    "optimiser": ("sgd", "adam"),
    "learning_rate_schedule": ("constant", "step", "cosine", "plateau"),
}


@dataclass(frozen=True, slots=True)
class UpdateThresholds:
    """Thresholds of the adaptive update frequency: VC_Loss in percent and VC_Tomb of the Metis paper.

    >>> should_send([1.0, 0.8, 0.81], UpdateThresholds(loss=0.0, tombstones=0))
    True
    """

    loss: float = 0.0
    tombstones: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.loss < float("inf"):
            raise SettingsError(f"loss is {self.loss}", where="thresholds", remedy="use 0 or more percent")
        if not isinstance(self.tombstones, int) or self.tombstones < 0:
            raise SettingsError(
                f"tombstones is {self.tombstones}", where="thresholds", remedy="use an integer >= 0"
            )


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Settings of local training.

    Attributes:
        epochs: Passes over the examples; the maximum if the learner decides when to send.
        batch_size: Examples of a step.
        learning_rate: Learning rate before the schedule.
        momentum: Momentum of SGD (Metis, Eq. 2); 0 is none.
        optimiser: `sgd` or `adam`.
        proximal_mu: μ of the FedProx term; 0 is none.
        max_grad_norm: Norm to which gradients are clipped; 0 is no limit.
        shuffle_window: 0 shuffles all examples; n > 0 shuffles through a window of n over examples sorted by label.
        keep_optimiser_state: Whether the optimiser's state is kept at the learner from one task to the next.
        learning_rate_schedule: `constant`, `step`, `cosine` or `plateau` (see `models.optimisers.learning_rate_at`).
        learning_rate_decay: Factor of the schedule.
        schedule_period: Epochs after which a `step` is applied, or of a `cosine`.
        elapsed_epochs: Epochs before this task, for the schedule.
        update_thresholds: Thresholds of a learner that decides when to send.
        committed_steps: Steps committed when the task started.
        staleness_limit: Effective staleness above which the learner sends.
        time_budget_seconds: Seconds in which a learner trains as many batches as it can, at least one; 0 is no budget.
        steps: Exact number of batches, regardless of `epochs` and `time_budget_seconds`; 0 is not set.
        use_validation_data: Whether the learner also trains on its validation set (final rounds).
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    optimiser: str = "sgd"
    proximal_mu: float = 0.0
    max_grad_norm: float = 0.0
    shuffle_window: int = 0
    keep_optimiser_state: bool = False
    learning_rate_schedule: str = "constant"
    learning_rate_decay: float = 1.0
    schedule_period: int = 1
    elapsed_epochs: int = 0
    update_thresholds: UpdateThresholds | None = None
    committed_steps: int = 0
    staleness_limit: float = float("inf")
    time_budget_seconds: float = 0.0
    steps: int = 0
    use_validation_data: bool = False


def train_settings_from_row(values: Mapping[str, Any]) -> TrainSettings:
    """Return training settings from their JSON values.

    >>> train_settings_from_row({"epochs": 3, "update_thresholds": {"loss": 1.0, "tombstones": 2}}).update_thresholds
    UpdateThresholds(loss=1.0, tombstones=2)
    """
    thresholds = values.get("update_thresholds")
    parsed = UpdateThresholds(**thresholds) if thresholds else None
    return TrainSettings(**{**values, "update_thresholds": parsed})


def check_training(training: TrainSettings) -> None:
    """Raise a `SettingsError` for training settings that no learner can train with."""
    for name in ("epochs", "batch_size", "schedule_period"):
        check_integer_setting(f"training.{name}", getattr(training, name), minimum=1)
    for name in ("shuffle_window", "elapsed_epochs", "steps"):
        check_integer_setting(f"training.{name}", getattr(training, name), minimum=0)
    for name in ("proximal_mu", "max_grad_norm", "time_budget_seconds"):
        value = getattr(training, name)
        if not 0 <= value < math.inf:
            refuse(f"training.{name}", value, "use 0 or more")
    check_positive("training.learning_rate", training.learning_rate)
    if not 0 <= training.momentum < 1:
        refuse("training.momentum", training.momentum, "use a number from 0 to below 1")
    if not 0 < training.learning_rate_decay <= 1:
        refuse(
            "training.learning_rate_decay", training.learning_rate_decay, "use a number above 0 and at most 1"
        )
    for name, choices in _CHOICES.items():
        if getattr(training, name) not in choices:
            refuse(f"training.{name}", f"'{getattr(training, name)}'", f"use one of {', '.join(choices)}")


def check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    """Raise a `SettingsError` for a training or strategy setting of another type.

    >>> check_type("scheduler", "synchronous", (int, float))
    Traceback (most recent call last):
    abaton.errors.SettingsError: scheduler is 'synchronous' (strategy): use int or float
    """
    if not isinstance(value, types):
        *first, last = (accepted.__name__ for accepted in types)
        refuse(name, repr(value), f"use {', '.join(first)} or {last}" if first else f"use {last}")


def check_integer_setting(name: str, value: int, *, minimum: int) -> None:
    """Raise a `SettingsError` for a training or strategy setting that is no integer or below the minimum."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        refuse(name, value, f"use an integer >= {minimum}")


def check_positive(name: str, value: float) -> None:
    """Raise a `SettingsError` for a training or strategy setting that is not finite and positive."""
    if not 0 < value < math.inf:
        refuse(name, value, "use a number above 0")


def refuse(name: str, value: object, remedy: str) -> None:
    """Raise a `SettingsError` for a training or strategy setting, with its value and the remedy.

    >>> refuse("rounds", 0, "use at least 1")
    Traceback (most recent call last):
    abaton.errors.SettingsError: rounds is 0 (strategy): use at least 1
    """
    raise SettingsError(f"{name} is {value}", where="strategy", remedy=remedy)


STALENESS_CYCLES = 20
"""Number of cycles whose median staleness is the limit of C3."""


def should_send(losses: Sequence[float], thresholds: UpdateThresholds) -> bool:
    """Return whether a learner's training cycle with these losses per epoch is complete (C1, C2, tombstones).

    Two consecutive epochs are compared, so a cycle has at least two.
    """
    hits = sum(_has_stalled(before, after, thresholds.loss) for before, after in pairwise(losses))
    stalled = len(losses) > 1 and _has_stalled(losses[-2], losses[-1], thresholds.loss)
    return stalled and hits > thresholds.tombstones


def _has_stalled(before: float, after: float, percent: float) -> bool:
    change = 100 * (after - before) / before if before else 0.0
    return change >= 0 or -change <= percent


def staleness_limit(cycles: Sequence[int]) -> float:
    """Return the staleness above which a training learner sends (C3): the median of its first twenty cycles."""
    return float(median(cycles[:STALENESS_CYCLES])) if len(cycles) >= STALENESS_CYCLES else float("inf")


def seeded_uniform(*key: object) -> float:
    """Return a uniform number from 0 to below 1 that depends only on the seed key, for reproducible training.

    >>> seeded_uniform("seed", 7) == seeded_uniform("seed", 7) != seeded_uniform("seed", 8)
    True
    """
    return _hash_word(key) / 2**64


def seeded_sample(names: Sequence[str], count: int, *key: object) -> list[str]:
    """Sample learners' names for training by a seed key, without replacement, in order of sampling."""
    pool = list(names)
    for i in range(count):
        # The bias of a 64-bit remainder is below 2^-40 for any number of learners that fits in memory.
        j = i + _hash_word((*key, i)) % (len(pool) - i)
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


@lru_cache(maxsize=256)
def round_key(seed: int, version: int) -> bytes:
    """Return the key of the codecs' shared randomness for training that starts from a version."""
    label = f"round\x1f{seed}\x1f{version}"  # frozen: part of the bytes
    return hashlib.blake2b(label.encode(), digest_size=32).digest()


def _hash_word(key: tuple[object, ...]) -> int:
    text = "\x1f".join(map(str, key)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
