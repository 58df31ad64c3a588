"""The codec line of a study, for example ``clip(norm=1.0) | error_feedback | stc(sparsity=0.01)``.

Steps come first, the codec last, ``|`` between them. Settings are given by name; their values are numbers
or plain words. The line is read as data and never run. A new codec or step is one file and one name below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from abaton.codecs.chain import Pipeline, chain
from abaton.codecs.ecdq import Ecdq
from abaton.codecs.eden import Drive, Eden
from abaton.codecs.fp16 import Fp16
from abaton.codecs.hadamard import Hadamard
from abaton.codecs.kashin import Kashin
from abaton.codecs.qsgd import Qsgd
from abaton.codecs.quicfl import QuicFL
from abaton.codecs.raw import Raw
from abaton.codecs.sstc import Sstc
from abaton.codecs.stc import Stc
from abaton.codecs.steps import Clip, ErrorFeedback, GaussianNoise
from abaton.errors import SettingsError

CODECS: Mapping[str, type[Any]] = {
    codec.name: codec for codec in (Raw, Fp16, Stc, Sstc, QuicFL, Ecdq, Eden, Drive, Hadamard, Kashin, Qsgd)
}
STEPS: Mapping[str, type[Any]] = {step.name: step for step in (Clip, GaussianNoise, ErrorFeedback)}

_LONGEST = 400
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z]\w*)|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<mark>[(),=|]))",
    re.ASCII,
)


def parse(text: str) -> Pipeline:
    """The pipeline that a codec line names.

    >>> parse("stc(sparsity=0.01, coding=context)").spec
    'stc(sparsity=0.01, coding=context)'
    >>> parse("stc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    abaton.errors.SettingsError: stc needs 'sparsity' (codec line 'stc'): its settings are sparsity, ...
    """
    try:
        if len(text) > _LONGEST:
            raise SettingsError(f"the line has {len(text)} characters", remedy=f"use at most {_LONGEST}")
        *steps, codec = _Line(text).parts()
        return chain(*(_make(step, STEPS, "step") for step in steps), _make(codec, CODECS, "codec"))
    except SettingsError as error:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise SettingsError(error.what, where=f"codec line '{shown}'", remedy=error.remedy) from None


class _Line:
    """The words, numbers and marks of a line, taken one after the other."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        end, text = 0, text.strip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                raise _unreadable(f"'{text[end]}' at character {end + 1}")
            self.tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            end = match.end()
        self.tokens.append(("end", ""))
        self.at = 0

    def parts(self) -> list[tuple[str, dict[str, int | float | str]]]:
        """Each name with its settings."""
        found = [self._part()]
        while self._take("|"):
            found.append(self._part())
        if self.tokens[self.at][0] != "end":
            raise _unreadable(f"'{self.tokens[self.at][1]}'")
        return found

    def _part(self) -> tuple[str, dict[str, int | float | str]]:
        name, settings = self._word(), dict[str, int | float | str]()
        if self._take("(") and not self._take(")"):
            self._setting(name, settings)
            while self._take(","):
                self._setting(name, settings)
            if not self._take(")"):
                raise _unreadable(f"no ')' after the settings of {name}")
        return name, settings

    def _setting(self, name: str, settings: dict[str, int | float | str]) -> None:
        if self.tokens[self.at][0] != "end" and self.tokens[self.at + 1][1] != "=":
            raise SettingsError(
                f"{name} has a setting without a name", remedy="write settings as sparsity=0.01"
            )
        key = self._word()
        if key in settings:
            raise SettingsError(f"{name} has '{key}' twice", remedy="give each setting once")
        self.at += 1
        kind, token = self.tokens[self.at]
        if kind not in ("word", "number"):
            raise _unreadable(f"no value for '{key}'")
        self.at += 1
        settings[key] = (
            token if kind == "word" else float(token) if re.search(r"[.eE]", token) else int(token)
        )

    def _word(self) -> str:
        kind, token = self.tokens[self.at]
        if kind != "word":
            raise _unreadable(f"'{token}' where a name was expected" if token else "it ends too early")
        self.at += 1
        return token

    def _take(self, mark: str) -> bool:
        if self.tokens[self.at] != ("mark", mark):
            return False
        self.at += 1
        return True


def _make(part: tuple[str, dict[str, int | float | str]], known: Mapping[str, type[Any]], what: str) -> Any:
    name, given = part
    if name not in known:
        raise SettingsError(f"there is no {what} '{name}'", remedy=f"choose one of {', '.join(known)}")
    allowed = {f.name: f for f in fields(known[name]) if f.init}
    remedy = f"its settings are {', '.join(allowed)}" if allowed else "it has no settings"
    for setting, value in given.items():
        if setting not in allowed:
            raise SettingsError(f"{name} has no setting '{setting}'", remedy=remedy)
        if allowed[setting].type == "float" and isinstance(value, int):
            given[setting] = float(value)
    for setting, field in allowed.items():
        if setting not in given and field.default is MISSING:
            raise SettingsError(f"{name} needs '{setting}'", remedy=remedy)
    return known[name](**given)


def _unreadable(what: str) -> SettingsError:
    return SettingsError(
        f"the line cannot be read: {what}", remedy="write it as stc(sparsity=0.01), steps in front with |"
    )
