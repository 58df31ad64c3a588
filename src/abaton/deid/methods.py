"""Methods of rules: factories of handlers for one element position.

``docs/deidentification.md`` describes every method. A factory is called with
the rule's settings and the position; it returns a handler, or refuses settings and types that do not fit.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn

from abaton.deid.ages import MAX_AGE, death_year, earliest_year
from abaton.deid.coded_values import terminology
from abaton.deid.context import ElementPosition, Handler, TransformContext
from abaton.deid.free_text import scrub
from abaton.deid.pseudonyms import decode_base32, uuid_url
from abaton.deid.quantities import QUANTITIES, measure
from abaton.deid.references import remap
from abaton.errors import SettingsError
from abaton.fhir.elements import is_primitive
from abaton.fhir.partial_dates import parse_year, shift_date

Settings = Mapping[str, str]
HandlerFactory = Callable[[Settings, ElementPosition], Handler]

NUMBERS = frozenset({"integer", "positiveInt", "unsignedInt", "decimal"})
_ZIP = re.compile(r"[0-9]{3}|[0-9]{5}(?:-?[0-9]{4})?")
DATES = frozenset({"date", "dateTime", "instant"})


def refuse_rule(method: str, node: ElementPosition, problem: str) -> NoReturn:
    """Raise an error for a de-identification method that does not fit the element of its rule."""
    raise SettingsError(
        f"the method '{method}' does not apply to {node.path}: {problem}", remedy="correct the rule"
    )


def _number(settings: Settings, name: str, node: ElementPosition, *, minimum: float = 0.0) -> float:
    try:
        value = float(settings[name])
    except (KeyError, ValueError):
        refuse_rule("setting", node, f"'{name}' must be a number")
    if not math.isfinite(value) or value < minimum:
        refuse_rule("setting", node, f"'{name}' must be at least {minimum:g}")
    return value


def keep(settings: Settings, node: ElementPosition) -> Handler:
    """De-identification method: keep a primitive value of R4's JSON type, and a number if it is not too long."""
    if "digits" in settings and node.type not in NUMBERS:
        refuse_rule("keep", node, "only a number has a number of digits")
    if "among" in settings:
        return _keep_listed(frozenset(settings["among"].split("|")), node)
    if node.type == "boolean":
        return lambda v, context: v if v is True or v is False else context.drop(node, "malformed")
    if node.type in NUMBERS:
        return _keep_number(settings, node)
    return lambda v, context: v if v.__class__ is str else context.drop(node, "malformed")


def _keep_listed(listed: frozenset[str], node: ElementPosition) -> Handler:
    if not is_primitive(node.type) or node.type in NUMBERS | DATES | {"boolean"}:
        refuse_rule("keep", node, "only a text can be one of a list")
    return lambda v, context: (
        v if v.__class__ is str and v in listed else context.drop(node, "value not in the list of the rule")
    )


def _keep_number(settings: Settings, node: ElementPosition) -> Handler:
    # A telephone, insurance or record number may occur in place of a count; it is longer than a count.
    limit = 10.0 ** _number(settings, "digits", node, minimum=1) if "digits" in settings else math.inf
    is_decimal = node.type == "decimal"

    def keep_number(v: Any, context: TransformContext) -> Any:
        if v.__class__ is int or (is_decimal and v.__class__ is float):
            return v if -limit < v < limit else context.drop(node, "number too long")
        return context.drop(node, "malformed")

    return keep_number


def redact(_: Settings, node: ElementPosition) -> Handler:
    """De-identification method: drop the element and everything in it."""
    return lambda v, context: context.drop(node, "redact")


def pseudonymise(_: Settings, node: ElementPosition) -> Handler:
    """De-identification method: replace an identifier by a pseudonym that depends on the study key."""
    if node.type == "Identifier":
        return _identifier(node)
    if node.type not in ("id", "string", "markdown", "uri", "url", "canonical", "oid", "uuid", "code"):
        refuse_rule("pseudonymise", node, "it is not an identifier")
    is_address = node.type in ("uri", "url", "canonical", "oid", "uuid")

    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not str:
            return context.drop(node, "malformed")
        if not is_address:
            return context.pseudonyms.identity("name", value)
        context.document.resolve_pending()
        entry = context.document.targets.get(value)
        return entry["reference"] if entry is not None else _address(value, context)

    return run


def _address(value: str, context: TransformContext) -> str:
    token = decode_base32(context.pseudonyms.identity("name", value))
    return uuid_url(token if token is not None else context.pseudonyms.token("name", value))


def _identifier(node: ElementPosition) -> Handler:
    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not dict or value.get("value").__class__ is not str:
            return context.drop(node, "malformed")
        system = value.get("system")
        old = value["value"] if system == context.pseudonyms.system else f"{system}|{value['value']}"
        return {"system": context.pseudonyms.system, "value": context.pseudonyms.identity("Identifier", old)}

    return run


def generalise(settings: Settings, node: ElementPosition) -> Handler:
    """De-identification method: generalise to a year, an age band, a prefix of a text or code, or a bin."""
    factories: dict[str, HandlerFactory] = {
        "year": _year,
        "age-band": _band,
        "prefix": _prefix,
        "code-prefix": _code_prefix,
        "bins": _bins,
        "zip3": _zip3_area,
    }
    factory = factories.get(settings.get("to", ""))
    if factory is None:
        refuse_rule("generalise", node, f"'to' must be one of {', '.join(factories)}")
    return factory(settings, node)


def _year(settings: Settings, node: ElementPosition) -> Handler:
    if node.type not in DATES:
        refuse_rule("generalise", node, "only a date has a year")
    tail = "-01-01T00:00:00Z" if node.type == "instant" else ""
    cap = int(_number(settings, "cap", node)) if "cap" in settings else None
    years = {f"{year}-": (year, f"{year}{tail}") for year in range(1900, 2100)}
    max_age = 9999 if cap is None else cap + 1
    is_birth = node.name in ("birthDate", "bornDate") or ".bornPeriod." in node.path

    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is str and (cached := years.get(value[:5])) is not None:
            year_number, year_text = cached
            if year_number >= context.year - max_age:  # for deceased subjects the cap is earlier
                return year_text
        year = parse_year(value)
        if year is None:
            return context.drop(node, "malformed")
        if cap is not None and year < (min_year := earliest_year(context, cap)):
            if is_birth and death_year(context.raw) is True:
                return context.drop(node, "unknown age at death")
            year = min_year
        return f"{year:04d}{tail}"

    return run


def _band(settings: Settings, node: ElementPosition) -> Handler:
    width = _number(settings, "width", node, minimum=1)
    return _change_number(node, lambda v: math.floor(v / width) * width)


def _bins(settings: Settings, node: ElementPosition) -> Handler:
    width = _number(settings, "width", node, minimum=1e-9)
    return _change_number(node, lambda v: round(math.floor(v / width) * width, 9))


def _change_number(node: ElementPosition, change: Callable[[float], float]) -> Handler:
    if node.type in NUMBERS:
        is_integer = node.type != "decimal"

        def run(value: Any, context: TransformContext) -> Any:
            if value.__class__ is not int and value.__class__ is not float:
                return context.drop(node, "malformed")
            transformed = change(value)
            return int(transformed) if is_integer or transformed == int(transformed) else transformed

        return run
    if node.type not in QUANTITIES:
        refuse_rule("generalise", node, "it is neither a number nor a quantity")
    inner, number = measure({}, node), _change_number(node._replace(type="decimal"), change)

    def quantity(value: Any, context: TransformContext) -> Any:
        transformed = inner(value, context)
        if transformed is not None and "value" in transformed:
            transformed["value"] = number(transformed["value"], context)
        return transformed

    return quantity


def _prefix(settings: Settings, node: ElementPosition) -> Handler:
    length = int(_number(settings, "length", node, minimum=1))
    if not is_primitive(node.type) or node.type in NUMBERS | DATES | {"boolean"}:
        refuse_rule("generalise", node, "only a text has a prefix")
    return lambda v, context: v[:length] if v.__class__ is str else context.drop(node, "malformed")


@cache
def small_zip3_areas() -> tuple[int, frozenset[str]]:
    """Return, to generalise ZIP codes, the census year and the prefixes of areas with few inhabitants.

    >>> year, small = small_zip3_areas()
    >>> year, len(small), "036" in small
    (2000, 17, True)
    """
    text = files("abaton.deid").joinpath("zip3.txt").read_text(encoding="utf-8")
    _, year, *small = [token for line in text.splitlines() for token in line.partition("#")[0].split()]
    return int(year), frozenset(small)


def _zip3_area(_: Settings, node: ElementPosition) -> Handler:
    if node.type != "string":
        refuse_rule("generalise", node, "only a text can be a ZIP code")
    small = small_zip3_areas()[1]

    def run(value: Any, context: TransformContext) -> Any:
        # Five or nine digits; three digits are the output of an earlier run.
        if value.__class__ is not str or not _ZIP.fullmatch(value):
            return context.drop(node, "not a US ZIP code")
        return "000" if value[:3] in small else value[:3]

    return run


def _code_prefix(settings: Settings, node: ElementPosition) -> Handler:
    length = int(_number(settings, "length", node, minimum=1))
    if node.type != "Coding":
        refuse_rule("generalise", node, "only a Coding has a code prefix")
    inner = terminology({}, node)

    def run(value: Any, context: TransformContext) -> Any:
        transformed = inner(value, context)
        if transformed is not None:
            transformed["code"] = transformed["code"][:length].rstrip(".-/")
        return transformed

    return run


def shift(_: Settings, node: ElementPosition) -> Handler:
    """De-identification method: shift a date back by the subject's offset in days."""
    if node.type not in DATES:
        refuse_rule("shift", node, "it is not a date")
    tail = "T00:00:00Z" if node.type == "instant" else ""

    def run(value: Any, context: TransformContext) -> Any:
        year = parse_year(value)
        if year is None:
            return context.drop(node, "malformed")
        if context.is_deidentified:
            return _check_shifted(value, node, context)
        days = context.document.date_offset(context.subject())
        if not days:
            return context.drop(node, "shift without a known subject")
        min_year = earliest_year(context, MAX_AGE)
        if year <= min_year:  # so early a date implies an age over 89
            return f"{min_year:04d}" + ("-01-01T00:00:00Z" if tail else "")
        try:
            return shift_date(value, days) + tail
        except (ValueError, OverflowError):
            return context.drop(node, "malformed")

    return run


def _check_shifted(value: str, node: ElementPosition, context: TransformContext) -> Any:
    # Already shifted by an earlier run: only forms that shifting writes are kept.
    head = value.removesuffix("T00:00:00Z")
    try:
        shift_date(head, 0)
    except ValueError:
        return context.drop(node, "malformed")
    return value if len(head) in (4, 7, 10) else context.drop(node, "malformed")


def cap(settings: Settings, node: ElementPosition) -> Handler:
    """De-identification method: replace a number over a limit by the limit plus one."""
    if node.type in QUANTITIES:
        return measure({"cap": settings.get("over", "89")}, node)
    if node.type not in NUMBERS:
        refuse_rule("cap", node, "it is neither a number nor a quantity")
    over = int(_number(settings, "over", node)) if "over" in settings else 89
    inner = keep({}, node)

    def run(value: Any, context: TransformContext) -> Any:
        transformed = inner(value, context)
        return transformed if transformed is None or transformed <= over else over + 1

    return run


def substitute(settings: Settings, node: ElementPosition) -> Handler:
    """De-identification method: replace the element by a fixed value."""
    if "value" not in settings:
        refuse_rule("substitute", node, "'value' is missing")
    text = settings["value"]
    try:
        fixed = json.loads(text)
    except ValueError:
        fixed = text
    frozen = json.dumps(fixed)
    return lambda v, context: json.loads(frozen)


def perturb(settings: Settings, node: ElementPosition) -> Handler:
    """De-identification method: add noise to a number, the same for the same resource and study."""
    max_noise = _number(settings, "range", node, minimum=1e-9)
    digits = int(_number(settings, "digits", node)) if "digits" in settings else 3

    def add_noise(value: Any, context: TransformContext) -> float:
        if context.is_deidentified:
            return float(value)
        uniform = (
            context.pseudonyms.secret_integer("perturb", f"{context.identity}|{node.path}|{value!r}") / 2**64
        )
        return float(round(value + max_noise * (2 * uniform - 1), digits))

    if node.type in NUMBERS:
        inner = keep({}, node)

        def run(value: Any, context: TransformContext) -> Any:
            perturbed = inner(value, context)
            if perturbed is None:
                return None
            noisy = add_noise(perturbed, context)
            return round(noisy) if node.type != "decimal" else noisy

        return run
    if node.type not in QUANTITIES:
        refuse_rule("perturb", node, "it is neither a number nor a quantity")
    measured = measure({}, node)

    def quantity(value: Any, context: TransformContext) -> Any:
        perturbed = measured(value, context)
        if perturbed is not None and "value" in perturbed:
            perturbed["value"] = add_noise(perturbed["value"], context)
        return perturbed

    return quantity


METHODS: Mapping[str, HandlerFactory] = {
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
WHOLE_ELEMENT = frozenset({"substitute", "redact"})
"""Methods that apply to a repeating element as a whole."""
