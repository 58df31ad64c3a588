"""Parts of a run by their names: one line such as ``adam(rate=0.02)``, and how a part is made of its settings.

The same grammar names a codec, a network, a server optimiser, a robust mixing, a pacing and a part of the weighting, in
a study document and on the command line. A line is read as data and never run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from abaton.errors import SettingsError

Value = bool | int | float | str

_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z]\w*)|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<mark>[(),=|]))",
    re.ASCII,
)
_LONGEST = 400
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


@dataclass(frozen=True, slots=True)
class Named:
    """A part as a line names it.

    Attributes:
        name: what it is called.
        settings: its settings by their names.
        numbers: numbers without a name, such as the widths of layers.
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()


class SettingError(SettingsError):
    """A setting that a part does not have, or cannot use; `setting` is its name, empty if it is the part's own."""

    def __init__(self, what: str, remedy: str, setting: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.setting = setting


def read_line(text: str) -> list[Named]:
    """The parts that a line names, in its order, with ``|`` between them.

    >>> read_line("clip(norm=1.0) | mlp(16, 8)")
    [Named(name='clip', settings={'norm': 1.0}, numbers=()), Named(name='mlp', settings={}, numbers=(16, 8))]
    """
    if len(text) > _LONGEST:
        raise SettingsError(f"the line has {len(text)} characters", remedy=f"use at most {_LONGEST}")
    return _Line(text).parts()


def read_part(text: str) -> Named:
    """The one part that a line names.

    >>> read_part("krum(liars=1)").settings
    {'liars': 1}
    """
    parts = read_line(text)
    if len(parts) > 1:
        raise SettingsError(f"the line names {len(parts)} parts", remedy="name one")
    return parts[0]


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

    def parts(self) -> list[Named]:
        """Each name with its settings."""
        found = [self._part()]
        while self._take("|"):
            found.append(self._part())
        if self.tokens[self.at][0] != "end":
            raise _unreadable(f"'{self.tokens[self.at][1]}'")
        return found

    def _part(self) -> Named:
        name, settings, numbers = self._word(), dict[str, Value](), list[int]()
        if self._take("(") and not self._take(")"):
            self._setting(name, settings, numbers)
            while self._take(","):
                self._setting(name, settings, numbers)
            if not self._take(")"):
                raise _unreadable(f"no ')' after the settings of {name}")
        return Named(name, settings, tuple(numbers))

    def _setting(self, name: str, settings: dict[str, Value], numbers: list[int]) -> None:
        kind, token = self.tokens[self.at]
        if kind == "number" and token.isdigit() and not settings:
            numbers.append(int(token))
            self.at += 1
            return
        if kind != "end" and self.tokens[self.at + 1][1] != "=":
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


def find(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """What a name stands for.

    >>> find("server optimiser", "adm", {"plain": 1, "adam": 2})
    Traceback (most recent call last):
    abaton.specs.SettingError: there is no server optimiser 'adm': did you mean 'adam'? choose one of plain, adam
    """
    if name not in known:
        close = get_close_matches(name, known, n=1)
        guess = f"did you mean '{close[0]}'? " if close else ""
        choose = f"{guess}choose one of {', '.join(known)}" if known else f"none ships as a {kind} by name"
        raise SettingError(f"there is no {kind} '{name}'", choose)
    return known[name]


def make(name: str, part: Callable[..., Any], given: Mapping[str, Value], /, **rest: Any) -> Any:
    """A part with its settings; what it does not know, lacks or cannot take is refused by the setting's name.

    Args:
        name: what the part is called, for the words.
        part: a class or a function; its parameters are the settings.
        given: the settings.
        rest: what whoever makes it adds; no setting.

    >>> from abaton.controller import Krum
    >>> make("krum", Krum, {"liars": 2})
    Krum(liars=2, keep=1)
    >>> make("krum", Krum, {"lairs": 2})
    Traceback (most recent call last):
    abaton.specs.SettingError: krum has no setting 'lairs': its settings are liars, keep
    """
    known = settings_of(part)
    own = {key: each for key, each in known.items() if key not in rest}
    remedy = f"its settings are {', '.join(own)}" if own else "it has no settings"
    if strange := next((key for key in given if key not in own), None):
        raise SettingError(f"{name} has no setting '{strange}'", remedy, strange)
    for key, each in own.items():
        if key not in given and each.default is inspect.Parameter.empty:
            raise SettingError(f"{name} needs '{key}'", remedy)
    hints = _hints(part)
    taken = {key: _taken(name, key, value, hints.get(key)) for key, value in given.items()}
    return part(**taken, **{key: value for key, value in rest.items() if key in known})


def settings_of(part: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The settings of a part: the parameters of the class or function that makes it."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: each for key, each in inspect.signature(part).parameters.items() if each.kind in kinds}


def _hints(part: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(vars(part).get("__init__", part) if isinstance(part, type) else part)
    except (NameError, TypeError):  # a hint that is only there for a checker tells nothing here
        return {}


def _taken(name: str, key: str, value: Value, hint: Any) -> Value:
    """A value as the part wants it: a whole number may stand for a number, `true` in a line for a truth value."""
    either = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [each for each in either if each is not type(None)]
    if not all(each in _KINDS for each in kinds):
        return value  # the part itself says what it takes
    if bool in kinds and value in ("true", "false"):
        return value == "true"
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) in kinds:
        return value
    wanted = " or ".join(_KINDS[each] for each in kinds)
    raise SettingError(f"{key}={value} is not {wanted}", f"give {key} of {name} {wanted}", key)


def _unreadable(what: str) -> SettingsError:
    return SettingsError(
        f"the line cannot be read: {what}", remedy="write it as stc(sparsity=0.01), steps in front with |"
    )
