"""What a source holds, and what a study would find in it: inputs that are filled, from which codes, what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from abaton.deid.settings import Need, Want
from abaton.errors import SettingsError
from abaton.features.data_quality import known_system, masked
from abaton.features.specification import Category, FollowUp, Input, Kind, Label, Source, Where, means
from abaton.fhir.ucum import convertible
from abaton.records.profile import Code, Inventory, Line, told_parts
from abaton.site.config_reader import load_site
from abaton.site.factory import open_source
from abaton.site.sources.base import FileSource
from abaton.site.sources.base import Source as RecordSource
from abaton.study import Study, Term
from abaton.study.shorthand import SYSTEMS
from abaton.study.shorthand.codes import Common, common

_EVERY = 1000  # records between two reports of progress
_NEAR, _MOST_NEAR = 0.6, 3
_NAMES = {system: name for name, system in SYSTEMS.items()}
_ALIKE = 3  # signs: codes of ICD and ATC that begin with as many are of one family
_FAMILIES = ("icd10", "icd10cm", "icd10gm", "icd9cm", "atc")


@dataclass(frozen=True, slots=True)
class Found:
    """A code that was found: how it is called, and how often it is there."""

    code: str
    records: str
    units: tuple[tuple[str, str, bool], ...] = ()
    answers: tuple[tuple[str, str, str], ...] = ()

    def row(self) -> dict[str, Any]:
        """As plain values."""
        units = [{"unit": unit, "records": n, "converts": yes} for unit, n, yes in self.units]
        answers = [{"answer": code, "records": n, "category": name} for code, n, name in self.answers]
        return {"code": self.code, "records": self.records, "units": units, "answers": answers}


def _usable(found: Found) -> bool:
    """Whether a number could become what the study asks for; whatever has no unit can."""
    return not found.units or any(converts for *_, converts in found.units)


@dataclass(frozen=True, slots=True)
class Filling:
    """One part of a study: what it looks for, what was found, what is missing, and what is nearest to it."""

    name: str
    part: str
    looks_for: str
    found: tuple[Found, ...]
    missing: tuple[str, ...] = ()
    nearest: tuple[tuple[str, str], ...] = ()

    @property
    def state(self) -> str:
        """Whether the part would be filled."""
        if not any(_usable(each) for each in self.found):
            return "empty"
        return "partly" if self.missing else "filled"

    def row(self) -> dict[str, Any]:
        """As plain values."""
        near = [{"code": code, "records": records} for code, records in self.nearest]
        head = {"name": self.name, "part": self.part, "state": self.state, "looks_for": self.looks_for}
        found = [each.row() for each in self.found]
        return {**head, "found": found, "missing": [*self.missing], "nearest": near}


@dataclass(frozen=True, slots=True)
class SourceInventory:
    """An inventory of a source with what could not be read, and what a study would find in it."""

    inventory: Inventory
    set_aside: dict[str, str]
    study: str = ""
    fillings: tuple[Filling, ...] = field(default=())

    def row(self) -> dict[str, Any]:
        """As plain values, masked."""
        made = self.inventory
        lines = [
            _row(made, kind, code, line) for (kind, code), line in _ordered(made) if made.shown(kind, code)
        ]
        return {
            "floor": made.floor,
            "records": made.told_types(),
            "codes": lines,
            "hidden": len(made.lines) - len(lines),
            "beyond": sum(made.beyond.values()),
            "set_aside": self.set_aside,
            **({"study": self.study, "inputs": [each.row() for each in self.fillings]} if self.study else {}),
        }


def opened_source(place: Path, study: Study | None, need: Need | None) -> RecordSource:
    """The records of a file, a folder, or whatever a site's document names."""
    if place.suffix != ".toml":
        _not_tables(place)
        return FileSource([place])
    return open_source(load_site(place), study, need or Need("inventory"))


def _not_tables(place: Path) -> None:
    """Tables say nothing of themselves: a site's document says what they are."""
    files = [place] if place.is_file() else list(place.iterdir()) if place.is_dir() else []
    ends = {end for path in files if path.is_file() for end in path.suffixes[-2:]}
    if ends & {".csv", ".tsv", ".parquet"} and not ends & {".json", ".ndjson"}:
        raise SettingsError(
            "these are tables, and no FHIR records",
            where=str(place),
            remedy="write what they are with abaton site new --kind csv or omop, and give its site.toml",
        )


def take_inventory(
    place: Path,
    study: Study | None = None,
    need: Need | None = None,
    *,
    floor: int = 5,
    step: Callable[[int], None] = lambda count: None,
) -> SourceInventory:
    """Read a source once and count what is in it.

    Args:
        place: A file, a folder, or a ``site.toml``.
        study: What to compare it with.
        need: What the study may know; the source is asked for its resource types, whatever their codes.
        floor: The smallest number of people that may be told.
        step: Told how many documents have been read.
    """
    asked = replace(need, wants=tuple(map(Want, sorted(need.types)))) if need is not None else None
    made = Inventory(floor)
    with closing(opened_source(place, study, asked)) as source:
        for number, record in enumerate(source.records(), 1):
            made.note(record.content)
            if number % _EVERY == 0:
                step(number)
        aside = {why: masked(count, floor) for why, count in source.faults.reasons.items()}
    fillings = tuple(_fillings(made, study)) if study is not None else ()
    return SourceInventory(made, aside, study.study.title if study else "", fillings)


def _ordered(made: Inventory) -> list[tuple[tuple[str, Code], Line]]:
    """By type, the most frequent first; the order of what few people have tells nothing."""

    def place(item: tuple[tuple[str, Code], Line]) -> tuple[str, int, Code]:
        (kind, code), line = item
        return kind, -line.records if len(line.people) >= made.floor else 0, code

    return sorted(made.lines.items(), key=place)


def _row(made: Inventory, kind: str, code: Code, line: Line) -> dict[str, Any]:
    floor, span = made.floor, line.span(made.floor)
    return {
        "type": kind,
        "code": _called(kind, code),
        "label": _label(code),
        "records": line.told(floor),
        "years": list(span) if span else [],
        "units": dict(sorted(told_parts(line.units, floor).items())),
        "answers": {_named(each): records for each, records in _answers(line, floor)},
        "other_values": dict(sorted(told_parts(line.forms, floor).items())),
    }


def _named(code: Code) -> str:
    """A code with the short name of its system, or the system's address.

    >>> _named(("http://loinc.org", "8480-6")), _named(("", ""))
    ('loinc 8480-6', 'no code')
    """
    system, text = code
    return f"{_NAMES.get(system, system)} {text}".strip() or "no code"


def _called(kind: str, code: Code) -> str:
    return "every Patient" if kind == "Patient" and not code[1] else _named(code)


def _answers(line: Line, floor: int) -> Iterator[tuple[Code, str]]:
    """The answers that may be told, most frequent first: public codes, and any that enough people gave."""
    told = told_parts(line.answers, floor)
    for each, count in sorted(line.answers.items(), key=lambda item: (-item[1].records, item[0])):
        if not each[0] or known_system(each[0]) == each[0] or len(count.people) >= floor:
            yield each, told[each]


def _label(code: Code) -> str:
    each = _entry(code)
    return each.label if each is not None else ""


def _entry(code: Code) -> Common | None:
    """The entry of the list of common codes that a code belongs to."""
    name = _NAMES.get(code[0])
    if name is None:
        return None
    for each in common():
        told = each.line.get(name, ())
        for text in [told] if isinstance(told, str) else told:
            if text == code[1] or (text.endswith("*") and code[1].startswith(text[:-1])):
                return each
    return None


def _fillings(made: Inventory, study: Study) -> Iterator[Filling]:
    features = study.features
    if features is None:
        return
    resources = {view.name: view.resource for view in study.views}
    parts: list[tuple[str, str, Source | FollowUp]] = [(each.name, "input", each) for each in features.inputs]
    parts.append((features.label.name, "outcome", features.label))
    if features.index is not None:
        parts.append(("index date", "index", features.index))
    if features.label.follow_up is not None:
        parts.append(("follow-up", "follow-up", features.label.follow_up))
    for name, part, source in parts:
        if source.view in resources:
            counted = features.index is not None and source.when is not None
            own = isinstance(source, Input) and source.kind is Kind.AGE
            dates = counted or own or part in ("index", "follow-up")
            yield _filling(made, name, part, source, resources[source.view], dates=dates)


def _filling(
    made: Inventory, name: str, part: str, source: Source | FollowUp, kind: str, *, dates: bool
) -> Filling:
    lines = {
        code: (place, line)
        for (place, code), line in _ordered(made)
        if place in (kind, f"{kind}.component") and (kind != "Patient" or not code[1])
    }
    where = source.where
    chosen = {code: each for code, each in lines.items() if where is None or _means(where, code)}
    found = tuple(
        _found(made, place, code, line, source)
        for code, (place, line) in chosen.items()
        if made.shown(place, code)
    )
    dateless = dates and not any(line.years for _, line in chosen.values())
    missing = tuple(_missing(found, source, kind, dateless=dateless))
    others = {code: each for code, each in lines.items() if code not in chosen and made.shown(each[0], code)}
    near = tuple(_nearest(made, name, where, others)) if where is not None and not found else ()
    return Filling(name, part, f"{kind}: {_wanted(where)}", found, missing, near)


def _means(where: Where, code: Code) -> bool:
    return means(where, code[0] if where.system_column is not None else None, code[1])


def _wanted(where: Where | None) -> str:
    if where is None:
        return "any"
    return " or ".join([*(_term(term) for term in where.codes), *where.values])


def _term(term: Term) -> str:
    return _named((term.system, term.code)) + ("*" if term.match == "startsWith" else "")


def _found(made: Inventory, kind: str, code: Code, line: Line, source: Source | FollowUp) -> Found:
    unit = source.unit if isinstance(source, Input | Label) else None
    mass = source.molar_mass if isinstance(source, Input | Label) else None
    units = tuple(
        (each, records, convertible(each, unit, molar_mass=mass))
        for each, records in sorted(told_parts(line.units, made.floor).items())
        if unit is not None
    )
    buckets = _buckets(source)
    answers = tuple(
        (_named(each), records, _category(buckets, each))
        for each, records in _answers(line, made.floor)
        if buckets
    )
    return Found(_called(kind, code), line.told(made.floor), units, answers)


def _buckets(source: Source | FollowUp) -> tuple[Category, ...]:
    if isinstance(source, Input):
        return source.categories
    return source.classes if isinstance(source, Label) else ()


def _category(buckets: tuple[Category, ...], code: Code) -> str:
    return next((each.name for each in buckets if means(each, code[0] or None, code[1])), "other")


def _missing(
    found: tuple[Found, ...], source: Source | FollowUp, kind: str, *, dateless: bool
) -> Iterator[str]:
    if not found:
        yield f"no {kind} that is looked for"
        return
    if isinstance(source, Input | Label) and source.unit and not any(each.units for each in found):
        yield "no number with a unit"
    if _buckets(source) and not any(each.answers for each in found):
        yield "no coded answer"
    if dateless:
        yield "no dates"
    wrong = sorted({unit for each in found for unit, _, converts in each.units if not converts})
    if wrong and isinstance(source, Input | Label):
        yield f"{', '.join(wrong)} cannot become {source.unit}"
    answers = [answer for each in found for answer in each.answers]
    met = {name for _, _, name in answers}
    if answers and met == {"other"}:
        yield "every answer would count as 'other'"
    elif answers:
        yield from (f"nobody is '{each.name}'" for each in _buckets(source) if each.name not in met)


def _nearest(
    made: Inventory, name: str, where: Where, others: dict[Code, tuple[str, Line]]
) -> Iterator[tuple[str, str]]:
    """Codes that may mean what is looked for: of one entry, of one family, or with words that are alike."""
    entries = {entry.name: entry for term in where.codes if (entry := _entry((term.system, term.code)))}
    said = [name.replace("_", " "), *(entry.label for entry in entries.values())]
    said += [term.display for term in where.codes if term.display]
    ranked = []
    for code, (_, line) in others.items():
        entry = _entry(code)
        same = entry is not None and entry.name in entries
        score = 1.0 if same else max(_family(where, code), _alike(said, line.words))
        if code[1] and score >= _NEAR:
            ranked.append((-score, -line.records, _named(code), line.told(made.floor)))
    yield from ((code, records) for _, _, code, records in sorted(ranked)[:_MOST_NEAR])


def _family(where: Where, code: Code) -> float:
    named = _NAMES.get(code[0])
    alike = any(
        _NAMES.get(term.system) in _FAMILIES and named in _FAMILIES and term.code[:_ALIKE] == code[1][:_ALIKE]
        for term in where.codes
    )
    return 0.9 if alike else 0.0


def _alike(said: list[str], words: str) -> float:
    found = words.lower()
    return (
        max((SequenceMatcher(None, each.lower(), found).ratio() for each in said), default=0.0)
        if found
        else 0.0
    )
