"""The methods of a rule: each is a small function made once for one place in the record.

``docs/deidentification.md`` gives every method as Input, Output and Steps. A method's maker is called with
the rule's settings and the place; it returns a handler, or refuses settings and types it cannot work with.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from abaton.deid.ages import OLDEST, death_of, earliest
from abaton.deid.coded_values import terminology
from abaton.deid.context import Handler, Node, Scope
from abaton.deid.free_text import scrub
from abaton.deid.pseudonyms import as_uuid, token_of
from abaton.deid.quantities import QUANTITIES, measure
from abaton.deid.references import remap
from abaton.errors import SettingsError
from abaton.fhir.elements import is_primitive
from abaton.fhir.partial_dates import moved, year_of

Settings = Mapping[str, str]
Maker = Callable[[Settings, Node], Handler]

NUMBERS = frozenset({"integer", "positiveInt", "unsignedInt", "decimal"})
_ZIP = re.compile(r"[0-9]{3}|[0-9]{5}(?:-?[0-9]{4})?")
DATES = frozenset({"date", "dateTime", "instant"})


def refuse(method: str, node: Node, why: str) -> NoReturn:
    """Refuse a rule when it is loaded."""
    raise SettingsError(
        f"the method '{method}' cannot be used on {node.path}: {why}", remedy="correct the rule"
    )


def _number(settings: Settings, name: str, node: Node, *, least: float = 0.0) -> float:
    try:
        value = float(settings[name])
    except (KeyError, ValueError):
        refuse("setting", node, f"'{name}' must be a number")
    if not math.isfinite(value) or value < least:
        refuse("setting", node, f"'{name}' must be at least {least:g}")
    return value


def keep(settings: Settings, node: Node) -> Handler:
    """Keep a plain value if it has the JSON type that R4 gives it, and a number if it is not too long."""
    if "digits" in settings and node.type not in NUMBERS:
        refuse("keep", node, "only a number has a number of digits")
    if "among" in settings:
        return _kept_among(frozenset(settings["among"].split("|")), node)
    if node.type == "boolean":
        return lambda v, scope: v if v is True or v is False else scope.drop(node, "malformed")
    if node.type in NUMBERS:
        return _kept_number(settings, node)
    return lambda v, scope: v if v.__class__ is str else scope.drop(node, "malformed")


def _kept_among(listed: frozenset[str], node: Node) -> Handler:
    if not is_primitive(node.type) or node.type in NUMBERS | DATES | {"boolean"}:
        refuse("keep", node, "only a text can be one among others")
    return lambda v, scope: (
        v if v.__class__ is str and v in listed else scope.drop(node, "not among what may stay")
    )


def _kept_number(settings: Settings, node: Node) -> Handler:
    # A telephone, insurance or record number may stand where a count belongs; it is longer than a count.
    most = 10.0 ** _number(settings, "digits", node, least=1) if "digits" in settings else math.inf
    wide = node.type == "decimal"

    def number(v: Any, scope: Scope) -> Any:
        if v.__class__ is int or (wide and v.__class__ is float):
            return v if -most < v < most else scope.drop(node, "number too long")
        return scope.drop(node, "malformed")

    return number


def redact(_: Settings, node: Node) -> Handler:
    """Drop the element and everything in it."""
    return lambda v, scope: scope.drop(node, "redact")


def pseudonymise(_: Settings, node: Node) -> Handler:
    """Replace a name by one that only the study key can make."""
    if node.type == "Identifier":
        return _identifier(node)
    if node.type not in ("id", "string", "markdown", "uri", "url", "canonical", "oid", "uuid", "code"):
        refuse("pseudonymise", node, "it is not a name or an identifier")
    address = node.type in ("uri", "url", "canonical", "oid", "uuid")

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not str:
            return scope.drop(node, "malformed")
        if not address:
            return scope.names.identity("name", value)
        scope.document.settle()
        entry = scope.document.targets.get(value)
        return entry["reference"] if entry is not None else _address(value, scope)

    return run


def _address(value: str, scope: Scope) -> str:
    token = token_of(scope.names.identity("name", value))
    return as_uuid(token if token is not None else scope.names.token("name", value))


def _identifier(node: Node) -> Handler:
    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict or value.get("value").__class__ is not str:
            return scope.drop(node, "malformed")
        system = value.get("system")
        old = value["value"] if system == scope.names.system else f"{system}|{value['value']}"
        return {"system": scope.names.system, "value": scope.names.identity("Identifier", old)}

    return run


def generalise(settings: Settings, node: Node) -> Handler:
    """Make a value coarser: a year, an age band, the start of a text or code, a bin."""
    makers: dict[str, Maker] = {
        "year": _year,
        "age-band": _band,
        "prefix": _prefix,
        "code-prefix": _code_prefix,
        "bins": _bins,
        "zip3": _zip3,
    }
    maker = makers.get(settings.get("to", ""))
    if maker is None:
        refuse("generalise", node, f"'to' must be one of {', '.join(makers)}")
    return maker(settings, node)


def _year(settings: Settings, node: Node) -> Handler:
    if node.type not in DATES:
        refuse("generalise", node, "only a date has a year")
    tail = "-01-01T00:00:00Z" if node.type == "instant" else ""
    cap = int(_number(settings, "cap", node)) if "cap" in settings else None
    years = {f"{year}-": (year, f"{year}{tail}") for year in range(1900, 2100)}
    reach = 9999 if cap is None else cap + 1
    is_birth = node.name in ("birthDate", "bornDate") or ".bornPeriod." in node.path

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is str and (found := years.get(value[:5])) is not None:
            known, made = found
            if known >= scope.year - reach:  # for the dead the cap reaches back further still
                return made
        year = year_of(value)
        if year is None:
            return scope.drop(node, "malformed")
        if cap is not None and year < (first := earliest(scope, cap)):
            if is_birth and death_of(scope.raw) is True:
                return scope.drop(node, "age at death not known")
            year = first
        return f"{year:04d}{tail}"

    return run


def _band(settings: Settings, node: Node) -> Handler:
    width = _number(settings, "width", node, least=1)
    return _on_value(node, lambda v: math.floor(v / width) * width)


def _bins(settings: Settings, node: Node) -> Handler:
    width = _number(settings, "width", node, least=1e-9)
    return _on_value(node, lambda v: round(math.floor(v / width) * width, 9))


def _on_value(node: Node, change: Callable[[float], float]) -> Handler:
    if node.type in NUMBERS:
        whole = node.type != "decimal"

        def run(value: Any, scope: Scope) -> Any:
            if value.__class__ is not int and value.__class__ is not float:
                return scope.drop(node, "malformed")
            made = change(value)
            return int(made) if whole or made == int(made) else made

        return run
    if node.type not in QUANTITIES:
        refuse("generalise", node, "it is neither a number nor a quantity")
    inner, number = measure({}, node), _on_value(node._replace(type="decimal"), change)

    def quantity(value: Any, scope: Scope) -> Any:
        made = inner(value, scope)
        if made is not None and "value" in made:
            made["value"] = number(made["value"], scope)
        return made

    return quantity


def _prefix(settings: Settings, node: Node) -> Handler:
    length = int(_number(settings, "length", node, least=1))
    if not is_primitive(node.type) or node.type in NUMBERS | DATES | {"boolean"}:
        refuse("generalise", node, "only a text has a prefix")
    return lambda v, scope: v[:length] if v.__class__ is str else scope.drop(node, "malformed")


@cache
def small_areas() -> tuple[int, frozenset[str]]:
    """The year of the census, and the beginnings of ZIP codes that too few people share.

    >>> year, small = small_areas()
    >>> year, len(small), "036" in small
    (2000, 17, True)
    """
    text = files("abaton.deid").joinpath("zip3.txt").read_text(encoding="utf-8")
    _, year, *small = [word for line in text.splitlines() for word in line.partition("#")[0].split()]
    return int(year), frozenset(small)


def _zip3(_: Settings, node: Node) -> Handler:
    if node.type != "string":
        refuse("generalise", node, "only a text holds a ZIP code")
    small = small_areas()[1]

    def run(value: Any, scope: Scope) -> Any:
        # Five digits, or nine; three are what an earlier run left.
        if value.__class__ is not str or not _ZIP.fullmatch(value):
            return scope.drop(node, "no ZIP code of the United States")
        return "000" if value[:3] in small else value[:3]

    return run


def _code_prefix(settings: Settings, node: Node) -> Handler:
    length = int(_number(settings, "length", node, least=1))
    if node.type != "Coding":
        refuse("generalise", node, "only a Coding has a code prefix")
    inner = terminology({}, node)

    def run(value: Any, scope: Scope) -> Any:
        made = inner(value, scope)
        if made is not None:
            made["code"] = made["code"][:length].rstrip(".-/")
        return made

    return run


def shift(_: Settings, node: Node) -> Handler:
    """Move a date back by the subject's own number of days."""
    if node.type not in DATES:
        refuse("shift", node, "it is not a date")
    tail = "T00:00:00Z" if node.type == "instant" else ""

    def run(value: Any, scope: Scope) -> Any:
        year = year_of(value)
        if year is None:
            return scope.drop(node, "malformed")
        if scope.ours:
            return _same_form(value, node, scope)
        days = scope.document.offset(scope.subject())
        if not days:
            return scope.drop(node, "shift without a known subject")
        first = earliest(scope, OLDEST)
        if year <= first:  # a day so long ago tells an age over 89: its year must do
            return f"{first:04d}" + ("-01-01T00:00:00Z" if tail else "")
        try:
            return moved(value, days) + tail
        except (ValueError, OverflowError):
            return scope.drop(node, "malformed")

    return run


def _same_form(value: str, node: Node, scope: Scope) -> Any:
    # Already shifted by an earlier run: only the forms that shifting writes may stay.
    head = value.removesuffix("T00:00:00Z")
    try:
        moved(head, 0)
    except ValueError:
        return scope.drop(node, "malformed")
    return value if len(head) in (4, 7, 10) else scope.drop(node, "malformed")


def cap(settings: Settings, node: Node) -> Handler:
    """Replace an age over a limit by the limit plus one."""
    if node.type in QUANTITIES:
        return measure({"cap": settings.get("over", "89")}, node)
    if node.type not in NUMBERS:
        refuse("cap", node, "it is neither a number nor a quantity")
    over = int(_number(settings, "over", node)) if "over" in settings else 89
    inner = keep({}, node)

    def run(value: Any, scope: Scope) -> Any:
        made = inner(value, scope)
        return made if made is None or made <= over else over + 1

    return run


def substitute(settings: Settings, node: Node) -> Handler:
    """Put a fixed value in place of whatever was there."""
    if "value" not in settings:
        refuse("substitute", node, "'value' is missing")
    text = settings["value"]
    try:
        fixed = json.loads(text)
    except ValueError:
        fixed = text
    frozen = json.dumps(fixed)
    return lambda v, scope: json.loads(frozen)


def perturb(settings: Settings, node: Node) -> Handler:
    """Add noise to a number, always the same for the same resource and study."""
    reach = _number(settings, "range", node, least=1e-9)
    digits = int(_number(settings, "digits", node)) if "digits" in settings else 3

    def noisy(value: Any, scope: Scope) -> float:
        if scope.ours:
            return float(value)
        unit = scope.names.number("perturb", f"{scope.identity}|{node.path}|{value!r}") / 2**64
        return float(round(value + reach * (2 * unit - 1), digits))

    if node.type in NUMBERS:
        inner = keep({}, node)

        def run(value: Any, scope: Scope) -> Any:
            made = inner(value, scope)
            if made is None:
                return None
            changed = noisy(made, scope)
            return round(changed) if node.type != "decimal" else changed

        return run
    if node.type not in QUANTITIES:
        refuse("perturb", node, "it is neither a number nor a quantity")
    measured = measure({}, node)

    def quantity(value: Any, scope: Scope) -> Any:
        made = measured(value, scope)
        if made is not None and "value" in made:
            made["value"] = noisy(made["value"], scope)
        return made

    return quantity


METHODS: Mapping[str, Maker] = {
    "cap": cap,
    "generalise": generalise,
    "keep": keep,
    "mask": redact,
    "measure": measure,
    "perturb": perturb,
    "pseudonymise": pseudonymise,
    "redact": redact,
    "remap": remap,
    "scrub": scrub,
    "shift": shift,
    "substitute": substitute,
    "terminology": terminology,
}
SETTINGS: Mapping[str, frozenset[str]] = {
    "cap": frozenset({"over"}),
    "generalise": frozenset({"to", "cap", "width", "length"}),
    "keep": frozenset({"among", "digits"}),
    "measure": frozenset({"cap", "digits"}),
    "perturb": frozenset({"range", "digits"}),
    "substitute": frozenset({"value"}),
}
WHOLE = frozenset({"substitute", "redact"})
"""Methods that treat a repeating element as one."""
