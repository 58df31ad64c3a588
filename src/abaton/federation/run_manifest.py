"""What a run is made of, as plain words and digests: kept with the run, and compared before it is resumed.

Rules, codec, model, machines and software are told in words, so that a difference can be named. Data are told by one
keyed digest for each site, and one for the test examples; first weights by their digest.

Which software made a result: kept with every run, so that it can be made again.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from abaton import __version__
from abaton.codecs import Pipeline
from abaton.engines import Profile
from abaton.models.code_digest import own_code

Fingerprint = Mapping[str, Any]

_LONGEST = 120  # of a model's description that is kept as it is; longer ones are told by a digest


def flat(part: object) -> dict[str, str]:
    """Every setting of a part of the rules by its whole name, in words; own parts are told by their attributes.

    >>> from abaton.controller import Rules
    >>> flat(Rules(learners=2, rounds=3))["training.learning_rate"]
    '0.05'
    """
    return dict(_settings(part, ""))


def _settings(part: object, name: str) -> Iterator[tuple[str, str]]:
    inside = f"{name}." if name else ""
    if isinstance(part, np.generic):  # numbers that came out of an array are the numbers they are
        part = part.item()
    if part is None or isinstance(part, str | int | float | bytes):
        yield name, repr(part)
    elif isinstance(part, Mapping):
        for key in sorted(part, key=repr):
            yield from _settings(part[key], f"{inside}{key}")
    elif isinstance(part, tuple | list):
        for place, each in enumerate(part):
            yield from _settings(each, f"{inside}{place}")
    else:
        yield name or "is", _kind(part)
        names = (
            [f.name for f in fields(part)] if is_dataclass(part) else sorted(getattr(part, "__dict__", ()))
        )
        for key in names:
            if not key.startswith("_"):
                yield from _settings(getattr(part, key), f"{inside}{key}")


def _kind(part: object) -> str:
    """What a part is called; one of your own by its whole name and a digest of its code."""
    own = own_code([part])
    named = type(part).__qualname__
    return f"{type(part).__module__}.{named}, code {own}" if own else named


def written(codec: Pipeline) -> str:
    """A codec as its line, with a digest of code of your own."""
    own = own_code([*codec.steps, codec.codec])
    return f"{codec.spec}, code {own}" if own else codec.spec


def described(model: object) -> str:
    """A model in words: what it says of itself, or what it is called, and a digest of your own code."""
    own = own_code([model])
    words = str(getattr(model, "description", type(model).__qualname__)) + (f", code {own}" if own else "")
    if len(words) <= _LONGEST:
        return words
    return f"{type(model).__qualname__} {hashlib.sha256(words.encode()).hexdigest()[:16]}"


def machines(profiles: Mapping[str, Profile]) -> dict[str, dict[str, str]]:
    """The simulated machines that are not the usual one."""
    usual = Profile()
    return {
        name: {key: repr(value) for key, value in asdict(profile).items() if value != getattr(usual, key)}
        for name, profile in profiles.items()
        if profile != usual
    }


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """What of a run is not as it was, in words.

    >>> differences({"codec": "raw", "sites": {"a": "1"}}, {"codec": "fp16", "sites": {"a": "2"}})
    ['codec was raw and is fp16', "the data of 'a'"]
    """
    made = []
    for part in dict.fromkeys((*before, *now)):
        then, this = before.get(part), now.get(part)
        if then == this:
            continue
        if part == "sites":
            made += _sites(then or {}, this or {})
        elif isinstance(then, Mapping) and isinstance(this, Mapping):
            keys = [key for key in dict.fromkeys((*then, *this)) if then.get(key) != this.get(key)]
            made += [_changed(f"{part}.{key}", then.get(key), this.get(key)) for key in keys]
        else:
            made.append(_changed(part, then, this))
    return made


def _sites(then: Mapping[str, str], this: Mapping[str, str]) -> list[str]:
    gone = [f"site '{name}' is not there" for name in then if name not in this]
    new = [f"site '{name}' is new" for name in this if name not in then]
    other = [f"the data of '{name}'" for name in then if name in this and then[name] != this[name]]
    return gone + new + other


def _changed(name: str, then: object, this: object) -> str:
    if then is None or this is None:
        return (
            f"{name} was {'nothing' if then is None else then} and is {'nothing' if this is None else this}"
        )
    return f"{name} was {then} and is {this}"


_PARTS = ("numpy", "numba", "torch", "scikit-learn")


def versions() -> dict[str, str]:
    """The versions that the bits of a result may depend on.

    >>> list(versions())[:2]
    ['abaton', 'python']
    """
    made = {"abaton": __version__, "python": platform.python_version()}
    for part in _PARTS:
        try:
            made[part] = version(part)
        except PackageNotFoundError:  # an adapter that is not installed cannot have been used
            continue
    return made
