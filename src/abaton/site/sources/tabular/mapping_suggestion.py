"""A first mapping of tables, guessed from the names of columns and from what stands in them; every guess is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from abaton.site.sources.tabular import data_dictionary
from abaton.site.sources.tabular.cell_parser import NO, SEXES, YES, CellError, plain, unit_of
from abaton.site.sources.tabular.column_profile import Sample, Seen, sample
from abaton.site.sources.tabular.data_dictionary import THINGS, Form, Names, Thing, words
from abaton.site.sources.tabular.mapping import mapping_from_toml
from abaton.site.sources.tabular.table_reader import tables_in

_UNIT = re.compile(r"[(\[]([^()]+)[)\]]\s*$")
_TYPES = (
    ("encounter", {"visit", "visits", "encounter", "encounters", "stay", "stays", "admissions", "contacts"}),
    ("procedure", {"procedure", "procedures", "operation", "operations", "ops"}),
    ("prescription", {"prescription", "prescriptions", "order", "orders", "rezepte"}),
    ("condition", {"diagnosis", "diagnoses", "condition", "conditions", "problems", "diagnosen"}),
    ("medication", {"medication", "medications", "medicine", "medicines", "drug", "drugs"}),
)
_BY_SYSTEM = {"icd10": "condition", "atc": "medication", "loinc": "observation", "snomed": "condition"}


@dataclass(frozen=True, slots=True)
class Guess:
    """One guess: of which file and column, what it was taken for, and why; or that nothing was."""

    file: str
    column: str
    means: str
    why: str


@dataclass
class Proposal:
    """A mapping that was guessed: its text, which passes the check, and every guess in it."""

    text: str = ""
    guesses: list[Guess] = field(default_factory=list)


def propose(
    paths: Iterable[Path], things: Iterable[Thing] = (), asked: frozenset[str] = frozenset()
) -> Proposal:
    """Guess a mapping of the tables in some files and folders.

    Args:
        paths: The files and folders.
        things: What else columns may hold, such as a study's inputs; the usual ones are known.
        asked: The codes that a study names: what is usual and asked for goes before the study's own names, because
            its unit is told by the numbers.
    """
    made = Proposal()
    usual = [(thing, "a usual name") for thing in THINGS]
    first = [(thing, why) for thing, why in usual if any(form.code in asked for form in thing.forms)]
    candidates = [*first, *((thing, "the study") for thing in things), *usual]
    samples = [sample(path) for path in tables_in(list(paths))]
    parts = [_Table(each, candidates, made.guesses).text() for each in samples]
    kept = [part for part in parts if part]
    if not kept:
        from abaton.errors import SettingsError

        raise SettingsError(
            "no column was understood",
            where=", ".join(each.file for each in samples[:3]),
            remedy="name a column 'patient' and others as in docs/sources.md, or write the mapping by hand",
        )
    made.text = "\n".join(
        [
            "# Guessed: read every line, and correct it. docs/sources.md explains the keys.",
            *_files(samples),
            "",
            *kept,
        ]
    )
    mapping_from_toml(made.text)
    return made


def _files(samples: Sequence[Sample]) -> list[str]:
    """How the files are written, as far as they agree."""
    lines = ["[files]"]
    signs, codes = {each.delimiter for each in samples}, {each.encoding for each in samples}
    decimals = {seen.decimal for each in samples for seen in each.columns if seen.decimal and not seen.system}
    if len(signs) == 1:
        lines.append(f"delimiter = {json.dumps(signs.pop())}")
    if codes == {"cp1252"}:
        lines.append('encoding = "cp1252"')
    if decimals - {"."}:
        lines.append('decimal = ","')
    forms = [form for each in samples for seen in each.columns for form in seen.dates]
    if set(forms) - {"iso"}:
        listed = [
            form for each in dict.fromkeys(forms) for form in (("%Y-%m-%d",) if each == "iso" else (each,))
        ]
        lines.append(f"dates = {json.dumps(listed)}")
    if any("%H" in form for form in forms) or "iso" in forms:
        lines.append('timezone = "Z"                  # of times of day; write yours, such as "+02:00"')
    return lines


class _Table:
    """Guesses what one table is."""

    def __init__(self, seen: Sample, things: Sequence[tuple[Thing, str]], guesses: list[Guess]) -> None:
        self._things, self._guesses = things, guesses
        self._used: set[str] = set()
        names = [each.name for each in seen.columns]
        alone = tuple(each for each in seen.columns if each.name and names.count(each.name) == 1)
        self._seen = replace(seen, columns=alone)
        for name in dict.fromkeys(name for name in names if name and names.count(name) > 1):
            self._note(name, "left out", "two columns are called so: give each a name of its own")

    def text(self) -> str:
        """The table's part of the mapping; empty if nothing of it was understood."""
        subject = self._take(data_dictionary.SUBJECT, "whom a row is about")
        lines = ["[[tables]]", f"file = {json.dumps(self._seen.file)}"]
        if subject is None:
            self._note(
                "", "left out", "no column says whom a row is about; write subject = '…' and map it by hand"
            )
            return ""
        lines.append(f"subject = {json.dumps(subject)}")
        lines += self._person()
        end = self._take(data_dictionary.END, "when it ended", dates=True)
        recorded = self._take(data_dictionary.RECORDED, "when it was written down", dates=True)
        when = self._when()
        if when:
            lines.append(f"when = {json.dumps(when)}")
        lines += self._long(end, recorded) or self._wide()
        for each in self._seen.columns:
            if each.name not in self._used:
                self._note(each.name, "left out", "neither its name nor what stands in it is known")
        return "\n".join([*lines, ""]) if len(lines) > 3 else ""

    def _person(self) -> list[str]:
        lines = []
        sex = self._seen.named(data_dictionary.SEX)
        if (
            sex
            and all(word.lower() in SEXES for word in self._seen.column(sex).words)
            and self._seen.column(sex).words
        ):
            self._use(sex, "sex", "its name, and its words are sexes")
            lines.append(f"sex = {json.dumps(sex)}")
        elif sex:
            self._use(
                sex, "left out", "a sex by number or letter: write sex and sexes = { '1' = 'male' } yourself"
            )
        for key, names, told in (
            ("born", data_dictionary.BORN, "when somebody was born"),
            ("died", data_dictionary.DIED, "when they died"),
        ):
            if column := self._take(names, told, dates=True):
                lines.append(f"{key} = {json.dumps(column)}")
        return lines

    def _when(self) -> str | None:
        dated = [each for each in self._seen.columns if each.dates and each.name not in self._used]
        if not dated:
            return None
        unsure = "; day and month may be the other way round" if dated[0].unsure else ""
        self._use(dated[0].name, "when it was", f"the first column of dates{unsure}")
        return dated[0].name

    def _long(self, end: str | None, recorded: str | None) -> list[str]:
        code = next(
            (e for e in self._seen.columns if e.system and words(e.name) in data_dictionary.CODE), None
        )
        code = code or next(
            (
                e
                for e in self._seen.columns
                if words(e.name) in data_dictionary.CODE and e.name not in self._used
            ),
            None,
        )
        system = self._seen.named(data_dictionary.SYSTEM)
        if code is None or not (code.system or system):
            return []
        value, unit = self._seen.named(data_dictionary.VALUE), self._seen.named(data_dictionary.UNIT)
        kind = self._kind(code.system, value)
        self._use(
            code.name,
            f"codes; each row is one {kind}",
            f"its name, and codes of {code.system or 'the named system'}",
        )
        lines = ["[tables.rows]", f"type = {json.dumps(kind)}", f"code = {json.dumps(code.name)}"]
        if system:
            self._use(system, "the code system", "its name")
            lines.append(f"system_column = {json.dumps(system)}")
        else:
            lines.append(f"system = {json.dumps(code.system)}")
        for key, column in (("value", value), ("unit", unit)):
            if column and kind == "observation":
                self._use(column, f"the {key}", "its name")
                lines.append(f"{key} = {json.dumps(column)}")
        for key, column in (("end", end), ("recorded", recorded if kind == "condition" else None)):
            if column:
                lines.append(f"{key} = {json.dumps(column)}")
        return lines

    def _kind(self, system: str, value: str | None) -> str:
        if value:
            return "observation"
        said = words(self._seen.file) | {word for each in self._seen.columns for word in words(each.name)}
        found = next((kind for kind, names in _TYPES if names & said), None)
        return found or _BY_SYSTEM.get(system, "condition").replace("observation", "condition")

    def _wide(self) -> list[str]:
        lines = [
            f"{json.dumps(each.name)} = {{ {told} }}"
            for each in self._seen.columns
            if each.name not in self._used and (told := self._meaning(each))
        ]
        return ["[tables.columns]", *lines] if lines else []

    def _meaning(self, seen: Seen) -> str:
        bare = _UNIT.sub("", seen.name)
        for thing, source in self._things:
            if not (thing.called(seen.name) or thing.called(bare)):
                continue
            if thing.type == "condition":
                if seen.words and all(plain(word).lower() in YES | NO for word in seen.words):
                    self._use(seen.name, f"condition {thing.forms[0].code}", f"{source}; yes or no")
                    return f'code = "{thing.forms[0].code}", type = "condition"'
            elif thing.values:
                if seen.words and all(word.lower() in thing.values for word in seen.words):
                    told = ", ".join(
                        f"{json.dumps(w)} = {json.dumps(thing.values[w.lower()])}" for w in seen.words
                    )
                    self._use(
                        seen.name,
                        f"observation {thing.forms[0].code} in words",
                        f"{source}; all words are known",
                    )
                    return f'code = "{thing.forms[0].code}", values = {{ {told} }}'
            elif seen.decimal and (form := self._form(thing, seen)):
                self._use(
                    seen.name,
                    f"observation {form.code} in {form.unit or 'no unit'}",
                    f"{source}; {self._why(seen)}",
                )
                return f'code = "{form.code}"' + (f', unit = "{form.unit}"' if form.unit else "")
        return ""

    def _form(self, thing: Thing, seen: Seen) -> Form | None:
        """The form whose unit stands in the column's name, or else whose usual numbers the column has."""
        if match := _UNIT.search(seen.name):
            try:
                unit = unit_of(match[1].strip(), ())
            except CellError:
                unit = ""
            return next((form for form in thing.forms if form.unit == unit), None)
        return next((form for form in thing.forms if form.low <= seen.middle <= form.high), None)

    @staticmethod
    def _why(seen: Seen) -> str:
        return "the unit stands in its name" if _UNIT.search(seen.name) else "the unit was guessed: check it"

    def _take(self, names: Names, means: str, *, dates: bool | None = None) -> str | None:
        found = self._seen.named(names, dates=dates)
        if found is None or found in self._used:
            return None
        self._use(found, means, "its name, and it holds dates" if dates else "its name")
        return found

    def _use(self, column: str, means: str, why: str) -> None:
        self._used.add(column)
        self._note(column, means, why)

    def _note(self, column: str, means: str, why: str) -> None:
        self._guesses.append(Guess(self._seen.file, column, means, why))
