"""From short inputs, outcome and index date to the features of the long form.

The standard views: those that a short study uses, with the columns that it uses, and what they need to know.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from abaton.documents.line_numbers import KeyPath
from abaton.features.specification import Join, Kind
from abaton.fhir.terminology import is_known
from abaton.study.shorthand.codes import Codes, term
from abaton.study.shorthand.schema import Rows, ShortFollowUp, ShortIndex, ShortInput, ShortOutcome
from abaton.views.required_elements import elements

_SUBJECT = ("subject", "patient")
Terms = list[dict[str, str]]


@cache
def standard_views() -> Mapping[str, Mapping[str, Any]]:
    """Every view that ships, by its name."""
    text = files("abaton.study.shorthand").joinpath("views.toml").read_text(encoding="utf-8")
    return {view["name"]: view for view in tomllib.loads(text)["views"]}


@dataclass
class Use:
    """What a study uses of one view: columns, and the codes that it looks for; all records if it names none.

    ``answers`` are codes of no public system that stand in the value, which the study has to name to keep them;
    ``key`` is the first key of the document that uses it.
    """

    columns: set[str] = field(default_factory=lambda: {"subject"})
    codes: Terms = field(default_factory=list)
    whole: bool = False
    answers: Terms = field(default_factory=list)
    asked: Terms = field(default_factory=list)
    key: KeyPath = ("inputs",)

    def look_for(self, codes: Terms, answers: Terms) -> None:
        """Note what one part of the study looks for."""
        self.whole = self.whole or not codes
        strange = [each for each in answers if not is_known(each["system"], each["code"])]
        _add(self.asked if strange else self.codes, codes)
        _add(self.answers, answers if strange else [])


def _add(known: Terms, more: Terms) -> None:
    known += [each for each in more if each not in known]


def trimmed(name: str, columns: Collection[str]) -> dict[str, Any]:
    """A standard view with only some of its columns."""
    view = standard_views()[name]
    made = {key: value for key, value in view.items() if key != "codes"}
    return {**made, "select": [_trimmed(each, columns) for each in view["select"]]}


def _trimmed(select: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    made = dict(select)
    if "column" in select:
        made["column"] = [each for each in select["column"] if each["name"] in columns]
    if "unionAll" in select:
        made["unionAll"] = [_trimmed(each, columns) for each in select["unionAll"]]
    return made


def requirements(view: Mapping[str, Any], use: Use) -> Iterator[dict[str, Any]]:
    """What has to be known for a view: its resource type, the elements that it reads, and the codes it looks for."""
    path = standard_views()[view["name"]].get("codes")
    reads = sorted(elements(view) - set(_SUBJECT)) or ["id"]
    line = {"type": view["resource"], "function": "element"}
    if path is None or use.whole:
        yield {**line, "elements": reads}
        return
    forms = [(path, [each for each in reads if each != "component"])]
    if "component" in reads:
        # The components beside the one that is meant come along: an element is known as a whole.
        forms.append((f"component.{path}", [each for each in reads if each != "value"]))
    for place, names in forms:
        if use.codes:
            yield {**line, "elements": names, "codes": [{"path": place, "any": use.codes}]}
        if use.asked:
            value = place.removesuffix(path) + "value"
            filters = [{"path": place, "any": use.asked}, {"path": value, "any": use.answers}]
            yield {**line, "elements": names, "codes": filters}


def joined(lines: Iterable[tuple[dict[str, Any], KeyPath]]) -> list[tuple[dict[str, Any], KeyPath]]:
    """The same needs in fewer lines: those that ask for the same elements by one filter share its codes."""
    made: list[tuple[dict[str, Any], KeyPath]] = []
    for line, key in lines:
        rest = {key: value for key, value in line.items() if key != "codes"}
        rules = line.get("codes", [])
        for other, _ in made:
            same = {key: value for key, value in other.items() if key != "codes"} == rest
            theirs = other.get("codes", [])
            if same and len(rules) == len(theirs) == 1 and rules[0]["path"] == theirs[0]["path"]:
                _add(theirs[0]["any"], rules[0]["any"])
                break
        else:
            own = [{**rule, "any": [*rule["any"]]} for rule in rules]
            made.append(({**line, **({"codes": own} if own else {})}, key))
    return made


_WATCHED = "visits"  # whose records show that a person was still there, if the study says nothing else
_SEX = [{"name": "female", "values": ["female"]}, {"name": "male", "values": ["male"]}]
_SAME = ("unit", "molar_mass", "wrong_unit", "band", "indicator", "after_index")
_PLACES = "where", "codes"


@dataclass
class Making:
    """The features while they are made, which views they use, and from which key each part of them comes.

    Args:
        systems: The code system of every short name.
        dated: Whether the study has an index date.
    """

    systems: Mapping[str, str]
    dated: bool
    uses: dict[str, Use] = field(default_factory=dict)
    origins: dict[KeyPath, KeyPath] = field(default_factory=dict)

    def input(self, name: str, short: ShortInput, at: KeyPath, key: KeyPath) -> dict[str, Any]:
        """One input, as the long form has it."""
        if short.patient is not None:
            return self._of_patient(name, short, key)
        kind, view = short.what, short.origin
        made: dict[str, Any] = {"name": name, "kind": kind.value, "view": view}
        buckets = self._categories(short.categories) if short.categories is not None else []
        made |= self._where(short, view, at, key, [code for each in buckets for code in each["codes"]])
        join = short.take
        if buckets:
            made |= {"column": "answer", "system_column": "answer_system", "categories": buckets}
            self._origins(at, key, buckets, "categories")
        elif short.column is not None or kind is Kind.NUMBER:
            made["column"] = short.column or "value"
        if short.unit is not None:
            made["unit_column"] = "unit"
        if join is None and kind in (Kind.NUMBER, Kind.CATEGORY):
            join = Join.LATEST
        if join is not None and kind is not Kind.COUNT:
            made["join"] = join.value
        if self.dated or join in (Join.LATEST, Join.EARLIEST):
            made["when"] = "date"
        return self._used(view, {**made, **_rest(short)})

    def index(self, short: ShortIndex, at: KeyPath, key: KeyPath) -> dict[str, Any]:
        """The index date."""
        view = short.found_in()
        made = {"view": view, "column": "date", "join": short.take}
        return self._used(view, {**made, **self._where(short, view, at, key)})

    def label(self, name: str, short: ShortOutcome, at: KeyPath, key: KeyPath) -> dict[str, Any]:
        """What is learned."""
        view = short.origin
        made: dict[str, Any] = {"name": name, "kind": _outcome(short), "view": view}
        buckets = self._categories(short.classes) if short.classes is not None else []
        made |= self._where(short, view, at, key, [code for each in buckets for code in each["codes"]])
        if short.within is not None:
            made |= {"window": short.within, "when": "date"}
        if short.up_to is not None:
            made |= {"window": short.up_to, "when": "date"}
            if short.patient != "death":
                made["death"] = self._watched("deaths", at, key)
        if buckets:
            made |= {"column": "answer", "system_column": "answer_system", "classes": buckets}
            self._origins(at, key, buckets, "classes")
        if short.unit is not None:
            made |= {"column": "value", "unit": short.unit, "unit_column": "unit"}
        made |= {k: v for k in ("above", "molar_mass") if (v := getattr(short, k)) is not None}
        if buckets or short.unit is not None:
            join = short.take or Join.LATEST
            made |= {"join": join.value, **({"when": "date"} if join in (Join.LATEST, Join.EARLIEST) else {})}
        elif short.take is not None:
            made["join"] = short.take.value
        if short.follow_up is not None:
            made["follow_up"] = self._watched(short.follow_up, (*at, "follow_up"), (*key, "follow_up"))
        elif short.up_to is not None:
            made["follow_up"] = self._watched(_WATCHED, at, key)
        return self._used(view, made)

    def _watched(self, short: str | ShortFollowUp, at: KeyPath, key: KeyPath) -> dict[str, Any]:
        rows = ShortFollowUp(view=short) if isinstance(short, str) else short
        view = rows.found_in()
        return self._used(view, {"view": view, "when": "date", **self._where(rows, view, at, key)})

    def _of_patient(self, name: str, short: ShortInput, key: KeyPath) -> dict[str, Any]:
        made: dict[str, Any] = {"name": name, "view": "patients"}
        if short.patient == "sex":
            made |= {"kind": "category", "column": "sex", "categories": _SEX}
        else:
            made |= {"kind": "age", "column": "born"}
            made |= {"at": short.at.isoformat()} if short.at is not None else {}
        self._use("patients", key).whole = True
        return self._used("patients", {**made, **_rest(short)})

    def _where(
        self, rows: Rows, view: str, at: KeyPath, key: KeyPath, answers: Terms | None = None
    ) -> dict[str, Any]:
        """The filter by codes; whose use of a view it is, is noted."""
        terms = rows.terms
        self._use(view, key).look_for([each for _, each in terms], answers or [])
        if not terms:
            return {}
        for i, (name, _) in enumerate(terms):
            self.origins[(*at, *_PLACES, i)] = (*key, name)
        return {"where": {"column": "code", "system_column": "system", "codes": [each for _, each in terms]}}

    def _categories(self, given: Mapping[str, Mapping[str, Codes]]) -> list[dict[str, Any]]:
        """Categories in the order in which their names are first met, each with its codes of all systems."""
        made: dict[str, Terms] = {}
        for system, names in given.items():
            for name, codes in names.items():
                made.setdefault(name, []).extend(term(self.systems[system], text) for text in codes)
        return [{"name": name, "codes": codes} for name, codes in made.items()]

    def _origins(self, at: KeyPath, key: KeyPath, buckets: list[dict[str, Any]], name: str) -> None:
        for i in range(len(buckets)):
            self.origins[(*at, name, i)] = (*key, name)

    def _use(self, view: str, key: KeyPath) -> Use:
        return self.uses.setdefault(view, Use(key=key))

    def _used(self, view: str, made: dict[str, Any]) -> dict[str, Any]:
        """Note which columns of a view are used."""
        where = made.get("where", {})
        names = [made.get(key) for key in ("column", "system_column", "unit_column", "when")]
        names += [where.get("column"), where.get("system_column")]
        self.uses[view].columns.update(name for name in names if name is not None)
        return made


def _outcome(short: ShortOutcome) -> str:
    if short.within is not None:
        return "event"
    if short.up_to is not None:
        return "time"
    if short.classes is not None:
        return "classes"
    if short.unit is not None:
        return "threshold" if short.above is not None else "value"
    return "any"


def _rest(short: ShortInput) -> dict[str, Any]:
    """What the long form has under the same name; a value to fill in says by itself that it is a constant."""
    made = {key: value for key in _SAME if (value := getattr(short, key)) not in (None, False)}
    missing = short.missing or ("constant" if short.fill is not None else None)
    made |= {"missing": missing} if missing is not None else {}
    return made | ({"fill": short.fill} if short.fill is not None else {})
