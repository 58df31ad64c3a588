"""The standard views: those that a short study uses, with the columns that it uses, and what they need to know."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from abaton.documents.line_numbers import KeyPath
from abaton.records.fhir.vocabulary import is_known
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
