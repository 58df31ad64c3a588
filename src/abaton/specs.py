"""Component specs such as ``adam(rate=0.02)``: their grammar, and building a component from its settings.

The same grammar names codecs, models, server optimisers, robust aggregators, schedulers and weightings, in a study
document and on the command line. A spec is parsed as data and never executed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from abaton.errors import SettingsError, did_you_mean

Value = bool | int | float | str

_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z]\w*)|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<mark>[(),=|]))",
    re.ASCII,
)
_MAX_LENGTH = 400
_TYPE_TEXTS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class ComponentCall:
    """Component of a spec.

    Attributes:
        name: Name of the component.
        settings: Settings by name.
        positional: Integers without a name, such as the widths of layers.
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)
    positional: tuple[int, ...] = ()


class ComponentSettingError(SettingsError):
    """Invalid setting of a component; `setting` is its name, empty if the component itself is invalid."""

    def __init__(self, what: str, remedy: str, setting: str = "") -> None:
        super().__init__(what, remedy=remedy)
        self.setting = setting


def parse_spec(text: str) -> list[ComponentCall]:
    """Parse a component spec into its components, which are separated by ``|``.

    >>> [call.name for call in parse_spec("clip(norm=1.0) | mlp(16, 8)")]
    ['clip', 'mlp']
    >>> parse_spec("mlp(16, 8)")
    [ComponentCall(name='mlp', settings={}, positional=(16, 8))]
    """
    if len(text) > _MAX_LENGTH:
        raise SettingsError(f"the spec has {len(text)} characters", remedy=f"use at most {_MAX_LENGTH}")
    return _SpecParser(text).parse()


def parse_component(text: str) -> ComponentCall:
    """Parse a component spec with exactly one component.

    >>> parse_component("krum(byzantine=1)").settings
    {'byzantine': 1}
    """
    components = parse_spec(text)
    if len(components) > 1:
        raise SettingsError(f"the spec has {len(components)} components", remedy="use one")
    return components[0]


class _SpecParser:
    """Recursive-descent parser of a spec."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        end, text = 0, text.strip()
        while end < len(text):
            match = _TOKEN.match(text, end)
            if match is None:
                raise _syntax_error(f"'{text[end]}' at character {end + 1}")
            self.tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            end = match.end()
        self.tokens.append(("end", ""))
        self.position = 0

    def parse(self) -> list[ComponentCall]:
        """Return the components of a parsed spec with their settings."""
        components = [self._component()]
        while self._take("|"):
            components.append(self._component())
        if self.tokens[self.position][0] != "end":
            raise _syntax_error(f"'{self.tokens[self.position][1]}'")
        return components

    def _component(self) -> ComponentCall:
        name, settings, numbers = self._word(), dict[str, Value](), list[int]()
        if self._take("(") and not self._take(")"):
            self._setting(settings, numbers)
            while self._take(","):
                self._setting(settings, numbers)
            if not self._take(")"):
                raise _syntax_error("no ')' after the settings")
        return ComponentCall(name, settings, tuple(numbers))

    def _setting(self, settings: dict[str, Value], numbers: list[int]) -> None:
        kind, token = self.tokens[self.position]
        if kind == "number" and token.isdigit() and not settings:
            numbers.append(int(token))
            self.position += 1
            return
        if kind != "end" and self.tokens[self.position + 1][1] != "=":
            raise SettingsError("a setting has no name", remedy="write settings as name=value")
        key = self._word()
        if key in settings:
            raise SettingsError(f"the setting '{key}' is given twice", remedy="give each setting once")
        self.position += 1
        kind, token = self.tokens[self.position]
        if kind not in ("word", "number"):
            raise _syntax_error(f"no value for '{key}'")
        self.position += 1
        settings[key] = (
            token if kind == "word" else float(token) if re.search(r"[.eE]", token) else int(token)
        )

    def _word(self) -> str:
        kind, token = self.tokens[self.position]
        if kind != "word":
            raise _syntax_error("a name is missing" if token else "it ends too early")
        self.position += 1
        return token

    def _take(self, mark: str) -> bool:
        if self.tokens[self.position] != ("mark", mark):
            return False
        self.position += 1
        return True


def resolve_name(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """Return the component that a spec names; raise a `ComponentSettingError` with the closest name otherwise.

    >>> resolve_name("server optimiser", "adm", {"sgd": 1, "adam": 2})
    Traceback (most recent call last):
    abaton.specs.ComponentSettingError: there is no server optimiser 'adm': did you mean 'adam'? use one of sgd, adam
    """
    if name not in known:
        names = f"{did_you_mean(name, known)} use one of {', '.join(known)}".strip()
        remedy = names if known else f"Abaton has no built-in {kind}"
        raise ComponentSettingError(f"there is no {kind} '{name}'", remedy)
    return known[name]


def build_component(
    name: str, component: Callable[..., Any], settings: Mapping[str, Value], /, **extra: Any
) -> Any:
    """Build a component from the settings of its spec; raise a `ComponentSettingError` for invalid ones.

    Args:
        name: Name of the component, for errors.
        component: Class or function whose parameters are the settings.
        settings: The settings.
        extra: Further arguments that are not settings.

    >>> from abaton.controller import Krum
    >>> build_component("krum", Krum, {"byzantine": 2})
    Krum(byzantine=2, keep=1)
    >>> build_component("krum", Krum, {"bizantine": 2})
    Traceback (most recent call last):
    abaton.specs.ComponentSettingError: krum has no setting 'bizantine': its settings are byzantine, keep
    """
    parameters = component_parameters(component)
    accepted = {key: parameter for key, parameter in parameters.items() if key not in extra}
    remedy = f"its settings are {', '.join(accepted)}" if accepted else "it has no settings"
    if unknown := next((key for key in settings if key not in accepted), None):
        raise ComponentSettingError(f"{name} has no setting '{unknown}'", remedy, unknown)
    for key, parameter in accepted.items():
        if key not in settings and parameter.default is inspect.Parameter.empty:
            raise ComponentSettingError(f"{name} needs '{key}'", remedy)
    hints = _hints(component)
    arguments = {key: _convert(name, key, value, hints.get(key)) for key, value in settings.items()}
    return component(**arguments, **{key: value for key, value in extra.items() if key in parameters})


def component_parameters(component: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings that a component's spec may have: the parameters of its class or function."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        key: parameter
        for key, parameter in inspect.signature(component).parameters.items()
        if parameter.kind in kinds
    }


def _hints(component: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(
            vars(component).get("__init__", component) if isinstance(component, type) else component
        )
    except (NameError, TypeError):  # hints under TYPE_CHECKING cannot be resolved
        return {}


def _convert(name: str, key: str, value: Value, hint: Any) -> Value:
    """Convert a spec's value to the parameter's type: an integer to a float, `true` and `false` to a boolean."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    types = [accepted for accepted in alternatives if accepted is not type(None)]
    if not all(accepted in _TYPE_TEXTS for accepted in types):
        return value  # the component checks it
    if bool in types and value in ("true", "false"):
        return value == "true"
    if float in types and type(value) is int:
        return float(value)
    if type(value) in types:
        return value
    expected = " or ".join(_TYPE_TEXTS[accepted] for accepted in types)
    raise ComponentSettingError(f"'{key}' is not {expected}", f"use {expected} for {key} of {name}", key)


def _syntax_error(what: str) -> SettingsError:
    return SettingsError(
        f"the spec is invalid: {what}",
        remedy="write it as stc(sparsity=0.01), with transforms before it and |",
    )
