"""Questions of a centre read with care, before a site does anything about them: the kinds of every value they may hold.

What a value may be is decided later, by the contract and the policy; here it is made sure that a number is a number, so
that nothing a centre sends breaks a site's programs instead of being refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from abaton.control import TrainSettings
from abaton.engines.flower import Parcel
from abaton.engines.reasons import UNKNOWN, Said

_LONGEST, _MOST, _TASKS = 400, 1 << 53, 4096
_SETTINGS = {each.name: type(each.default) for each in fields(TrainSettings)}


def checked(parcel: Parcel) -> Parcel:
    """A question whose values are of the kinds they must be.

    Raises:
        Said: It is not one.
    """
    about, blobs, check = parcel.about, parcel.blobs, _CHECKS.get(parcel.kind, _anything)
    sound = isinstance(about, Mapping) and isinstance(blobs, Mapping) and all(map(_text, blobs))
    sound = sound and all(isinstance(data, bytes) for data in blobs.values())
    if not (sound and _text(about.get("run")) and _text(about.get("terms")) and check(about, blobs)):
        raise Said(UNKNOWN)
    return parcel


def _anything(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    """Of a question without fields of its own nothing more is asked here."""
    return True


def _text(said: object) -> bool:
    return isinstance(said, str) and len(said) <= _LONGEST


def _whole(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and -_MOST <= said <= _MOST


def _number(said: object) -> bool:
    return _whole(said) or isinstance(said, float)


def _training(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    plain = _text(about.get("layout")) and _text(about.get("key")) and _whole(about.get("version"))
    return (
        plain
        and _whole(about.get("committed"))
        and _settings(about.get("settings"))
        and _model(about, "model", blobs)
    )


def _models(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    tasks = about.get("tasks")
    if not _text(about.get("layout")) or not isinstance(tasks, list) or len(tasks) > _TASKS:
        return False
    return all(isinstance(one, Mapping) and _model(one, f"model/{i}", blobs) for i, one in enumerate(tasks))


def _one_model(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    return _models(about, blobs) and len(about["tasks"]) == 1


def _scoring(about: Mapping[str, Any], blobs: Mapping[str, bytes]) -> bool:
    return (
        _whole(about.get("committed"))
        and _models(about, blobs)
        and all(_text(one.get("key")) and _signed(one) for one in about["tasks"])
    )


def _signed(one: Mapping[str, Any]) -> bool:
    said = one.get("signed", ["", 0, ""])
    if not isinstance(said, list | tuple) or len(said) != 3:
        return False
    return _text(said[0]) and _whole(said[1]) and _text(said[2])


def _model(about: Mapping[str, Any], blob: str, blobs: Mapping[str, bytes]) -> bool:
    base, steps, made = about.get("base", 0), about.get("steps"), about.get("made")
    if not _text(about.get("model")) or not (base is None or _text(base)) or blob not in blobs:
        return False
    if steps is None:
        return True
    pairs = isinstance(steps, list) and all(
        isinstance(each, list | tuple) and len(each) == 2 and all(map(_whole, each)) for each in steps
    )
    authored = isinstance(made, list | tuple) and len(made) == 2 and _whole(made[0]) and _text(made[1])
    return pairs and authored and _whole(about.get("exact")) and _text(about.get("start"))


def _settings(said: object) -> bool:
    if not isinstance(said, Mapping) or not said.keys() <= _SETTINGS.keys():
        return False
    return all(_setting(_SETTINGS[name], value) for name, value in said.items())


def _setting(kind: type, value: object) -> bool:
    if kind is type(None):
        return value is None or (
            isinstance(value, Mapping)
            and value.keys() == {"loss", "tombstones"}
            and _number(value["loss"])
            and _whole(value["tombstones"])
        )
    if kind is float:
        return _number(value)
    return _whole(value) if kind is int else isinstance(value, kind)


_CHECKS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, bytes]], bool]] = {
    "train": _training,
    "evaluate": _scoring,
    "judge": _models,
    "gain": lambda about, blobs: (
        _one_model(about, blobs) and all(_whole(about.get(key)) for key in ("epochs", "seed", "resamples"))
    ),
    "explain": lambda about, blobs: _one_model(about, blobs),
    "tell": lambda about, blobs: _text(about.get("layout")) and _whole(about.get("committed")),
    "query": lambda about, blobs: _text(about.get("layout")),
}
