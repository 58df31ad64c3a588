"""The codec line of a study, for example ``clip(norm=1.0) | error_feedback | stc(sparsity=0.01)``.

Steps come first, the codec last, ``|`` between them. Settings are given by name; their values are numbers
or plain words. The line is read as data and never run. A new codec or step is one file and one line below.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from abaton.codecs.chain import Pipeline, chain
from abaton.codecs.raw import Raw
from abaton.errors import SettingsError

CODECS: Mapping[str, type[Any]] = {codec.name: codec for codec in (Raw,)}
STEPS: Mapping[str, type[Any]] = {}

_LONGEST = 400


def parse(text: str) -> Pipeline:
    """The pipeline that a codec line names.

    >>> parse("raw").spec
    'raw'
    >>> parse("rar")
    Traceback (most recent call last):
        ...
    abaton.errors.SettingsError: there is no codec 'rar' (codec line 'rar'): choose one of raw
    """
    try:
        if len(text) > _LONGEST:
            raise SettingsError(f"the line has {len(text)} characters", remedy=f"use at most {_LONGEST}")
        *steps, codec = _parts(_tree(text))
        return chain(*(_make(step, STEPS, "step") for step in steps), _make(codec, CODECS, "codec"))
    except SettingsError as error:
        shown = text if len(text) <= 80 else text[:77] + "..."
        raise SettingsError(error.what, where=f"codec line '{shown}'", remedy=error.remedy) from None


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SettingsError(
            "the line cannot be read", remedy="write it as stc(sparsity=0.01), steps in front with |"
        ) from None


def _parts(tree: ast.expr) -> list[ast.expr]:
    parts: list[ast.expr] = []
    while isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        parts.append(tree.right)
        tree = tree.left
    return [tree, *reversed(parts)]


def _make(tree: ast.expr, known: Mapping[str, type[Any]], what: str) -> Any:
    call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
    if not isinstance(call.func, ast.Name):
        raise SettingsError(
            f"'{ast.unparse(tree)}' is not the name of a {what}", remedy=f"choose one of {', '.join(known)}"
        )
    name = call.func.id
    if name not in known:
        raise SettingsError(f"there is no {what} '{name}'", remedy=f"choose one of {', '.join(known)}")
    if call.args:
        raise SettingsError(f"{name} has a setting without a name", remedy=_settings_of(known[name]))
    given = {k.arg or "**": _value(name, k.arg or "**", k.value) for k in call.keywords}
    allowed = {f.name: f for f in fields(known[name])}
    for setting in given:
        if setting not in allowed:
            raise SettingsError(f"{name} has no setting '{setting}'", remedy=_settings_of(known[name]))
    for setting, field in allowed.items():
        if setting not in given and field.default is MISSING:
            raise SettingsError(f"{name} needs '{setting}'", remedy=_settings_of(known[name]))
    return known[name](**given)


def _value(name: str, setting: str, tree: ast.expr) -> int | float | str:
    if isinstance(tree, ast.Name):
        return tree.id
    sign = 1
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        sign, tree = -1, tree.operand
    value = tree.value if isinstance(tree, ast.Constant) else None
    if type(value) in (int, float):
        return sign * value  # type: ignore[operator, return-value]
    if isinstance(value, str) and sign == 1:
        return value
    raise SettingsError(f"{name} has an unusable value for '{setting}'", remedy="give a number or a word")


def _settings_of(part: type[Any]) -> str:
    names = [f.name for f in fields(part)]
    return f"its settings are {', '.join(names)}" if names else "it has no settings"
