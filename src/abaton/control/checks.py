"""Settings that cannot be used are refused before anything starts, with the key and what to do."""

from __future__ import annotations

import math
from numbers import Integral

from abaton.controller.events import TrainSettings
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
