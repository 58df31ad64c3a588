"""Proposal of a mapping from column names, formats and value ranges, with the reason of every guess."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from abaton.errors import SettingsError
from abaton.site.sources.tabular import data_dictionary
from abaton.site.sources.tabular.cell_parser import (
    FALSE_VALUES,
    SEX_SPELLINGS,
    TRUE_VALUES,
    CellError,
    normalise_text,
    to_ucum,
)
from abaton.site.sources.tabular.column_profile import ColumnProfile, FileProfile, profile_file
from abaton.site.sources.tabular.data_dictionary import (
    DICTIONARY,
    DictionaryEntry,
    DictionaryUnit,
    Names,
    name_tokens,
)
from abaton.site.sources.tabular.mapping import mapping_from_toml
from abaton.site.sources.tabular.table_reader import find_tables

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
class MappingGuess:
    """Meaning that was guessed for a column, or ``omitted``, with the reason."""

    file: str
    column: str
    meaning: str
    reason: str


@dataclass
class MappingProposal:
    """Text of a proposed mapping, which is valid, and every guess in it."""

    text: str = ""
    guesses: list[MappingGuess] = field(default_factory=list)


def suggest_mapping(
    paths: Iterable[Path], entries: Iterable[DictionaryEntry] = (), codes: frozenset[str] = frozenset()
) -> MappingProposal:
    """Suggest a mapping document for tables from column names, formats and value ranges.

    Args:
        paths: Files and folders of tables.
        entries: Further variables that columns may contain, such as the inputs of a study.
        codes: Codes of a study. Dictionary entries with these codes come before `entries`, because they identify the
            unit by the range of the values.

    Raises:
        SettingsError: No table was recognised.
    """
    proposal = MappingProposal()
    common = [(entry, "common name") for entry in DICTIONARY]
    preferred = [
        (entry, source) for entry, source in common if any(unit.code in codes for unit in entry.units)
    ]
    candidates = [*preferred, *((entry, "study input") for entry in entries), *common]
    profiles = [profile_file(path) for path in find_tables(list(paths))]
    texts = [_TableSuggestion(profile, candidates, proposal.guesses).text() for profile in profiles]
    tables = [text for text in texts if text]
    if not tables:
        raise SettingsError(
            "no column was recognised",
            where=", ".join(profile.file for profile in profiles[:3]),
            remedy="name the subject column 'patient' and others as in docs/sources.md, or write the mapping by hand",
        )
    proposal.text = "\n".join(
        [
            "# Proposed mapping: verify every line. docs/sources.md explains the keys.",
            *_files_section(profiles),
            "",
            *tables,
        ]
    )
    mapping_from_toml(proposal.text)
    return proposal


def _files_section(profiles: Sequence[FileProfile]) -> list[str]:
    """Return the lines of ``[files]`` in a suggested mapping, on which all files agree."""
    lines = ["[files]"]
    delimiters, encodings = {file.delimiter for file in profiles}, {file.encoding for file in profiles}
    columns = [column for file in profiles for column in file.columns]
    decimals = {column.decimal for column in columns if column.decimal and not column.code_system}
    if len(delimiters) == 1:
        lines.append(f"delimiter = {json.dumps(delimiters.pop())}")
    if encodings == {"cp1252"}:
        lines.append('encoding = "cp1252"')
    if decimals - {"."}:
        lines.append('decimal = ","')
    formats = [text for column in columns for text in column.date_formats]
    if set(formats) - {"iso"}:
        listed = ["%Y-%m-%d" if text == "iso" else text for text in dict.fromkeys(formats)]
        lines.append(f"dates = {json.dumps(listed)}")
    if any("%H" in text for text in formats) or "iso" in formats:
        lines.append('timezone = "Z"                  # time zone of the tables, such as "+02:00"')
    return lines


class _TableSuggestion:
    """Proposal for one table."""

    def __init__(
        self,
        profile: FileProfile,
        candidates: Sequence[tuple[DictionaryEntry, str]],
        guesses: list[MappingGuess],
    ) -> None:
        self._candidates, self._guesses = candidates, guesses
        self._used: set[str] = set()
        names = [column.name for column in profile.columns]
        unique = tuple(column for column in profile.columns if column.name and names.count(column.name) == 1)
        self._profile = replace(profile, columns=unique)
        for name in dict.fromkeys(name for name in names if name and names.count(name) > 1):
            self._add_guess(name, "omitted", "two columns have this name; rename one of them")

    def text(self) -> str:
        """Return the table's section of the suggested mapping; empty if no column was recognised."""
        subject = self._claim(data_dictionary.SUBJECT, "subject of a row")
        lines = ["[[tables]]", f"file = {json.dumps(self._profile.file)}"]
        if subject is None:
            self._add_guess(
                "", "omitted", "no subject column was recognised; set subject = '…' and map it by hand"
            )
            return ""
        lines.append(f"subject = {json.dumps(subject)}")
        lines += self._demographics()
        end = self._claim(data_dictionary.END, "end date", dates=True)
        recorded = self._claim(data_dictionary.RECORDED, "recording date", dates=True)
        date_column = self._date_column()
        if date_column:
            lines.append(f"date_column = {json.dumps(date_column)}")
        lines += self._code_rows(end, recorded) or self._columns()
        for column in self._profile.columns:
            if column.name not in self._used:
                self._add_guess(column.name, "omitted", "neither its name nor its values are known")
        return "\n".join([*lines, ""]) if len(lines) > 3 else ""

    def _demographics(self) -> list[str]:
        lines = []
        sex = self._profile.find_column(data_dictionary.SEX)
        categories = self._profile.column(sex).categories if sex else ()
        if sex and categories and all(category.lower() in SEX_SPELLINGS for category in categories):
            self._use(sex, "sex", "its name and its values")
            lines.append(f"sex = {json.dumps(sex)}")
        elif sex:
            self._use(sex, "omitted", "its values are not sexes; set sex and sex_values = { '1' = 'male' }")
        for key, names, meaning in (
            ("birth_date", data_dictionary.BIRTH_DATE, "date of birth"),
            ("death_date", data_dictionary.DEATH_DATE, "date of death"),
        ):
            if column := self._claim(names, meaning, dates=True):
                lines.append(f"{key} = {json.dumps(column)}")
        return lines

    def _date_column(self) -> str | None:
        dated = [
            column
            for column in self._profile.columns
            if column.date_formats and column.name not in self._used
        ]
        if not dated:
            return None
        doubt = "; day and month may be exchanged" if dated[0].is_ambiguous else ""
        self._use(dated[0].name, "date", f"the first column of dates{doubt}")
        return dated[0].name

    def _code_rows(self, end: str | None, recorded: str | None) -> list[str]:
        named = [
            column for column in self._profile.columns if name_tokens(column.name) in data_dictionary.CODE
        ]
        code = next((column for column in named if column.code_system), None)
        code = code or next((column for column in named if column.name not in self._used), None)
        system = self._profile.find_column(data_dictionary.SYSTEM)
        if code is None or not (code.code_system or system):
            return []
        value = self._profile.find_column(data_dictionary.VALUE)
        unit = self._profile.find_column(data_dictionary.UNIT)
        event_type = self._event_type(code.code_system, value)
        self._use(
            code.name,
            f"codes; each row is one {event_type}",
            f"its name, and codes of {code.code_system or 'the system column'}",
        )
        lines = [
            "[tables.code_rows]",
            f"type = {json.dumps(event_type)}",
            f"code = {json.dumps(code.name)}",
        ]
        if system:
            self._use(system, "code system", "its name")
            lines.append(f"system_column = {json.dumps(system)}")
        else:
            lines.append(f"system = {json.dumps(code.code_system)}")
        for key, column in (("value", value), ("unit", unit)):
            if column and event_type == "observation":
                self._use(column, key, "its name")
                lines.append(f"{key} = {json.dumps(column)}")
        for key, column in (("end", end), ("recorded", recorded if event_type == "condition" else None)):
            if column:
                lines.append(f"{key} = {json.dumps(column)}")
        return lines

    def _event_type(self, code_system: str, value: str | None) -> str:
        if value:
            return "observation"
        tokens = name_tokens(self._profile.file)
        tokens |= {token for column in self._profile.columns for token in name_tokens(column.name)}
        match = next((event_type for event_type, names in _TYPES if names & tokens), None)
        return match or _BY_SYSTEM.get(code_system, "condition").replace("observation", "condition")

    def _columns(self) -> list[str]:
        lines = [
            f"{json.dumps(column.name)} = {{ {mapping} }}"
            for column in self._profile.columns
            if column.name not in self._used and (mapping := self._column_mapping(column))
        ]
        return ["[tables.columns]", *lines] if lines else []

    def _column_mapping(self, column: ColumnProfile) -> str:
        name_without_unit = _UNIT.sub("", column.name)
        for entry, source in self._candidates:
            if not (entry.matches(column.name) or entry.matches(name_without_unit)):
                continue
            code = entry.units[0].code
            if entry.type == "condition":
                if column.categories and all(
                    normalise_text(text).lower() in TRUE_VALUES | FALSE_VALUES for text in column.categories
                ):
                    self._use(column.name, f"condition {code}", f"{source}; boolean values")
                    return f'code = "{code}", type = "condition"'
            elif entry.values:
                if column.categories and all(text.lower() in entry.values for text in column.categories):
                    values = ", ".join(
                        f"{json.dumps(text)} = {json.dumps(entry.values[text.lower()])}"
                        for text in column.categories
                    )
                    self._use(
                        column.name, f"categorical observation {code}", f"{source}; all values are known"
                    )
                    return f'code = "{code}", values = {{ {values} }}'
            elif column.decimal and (unit := self._find_unit(entry, column)):
                self._use(
                    column.name,
                    f"observation {unit.code} in {unit.unit or 'no unit'}",
                    f"{source}; {self._unit_reason(column)}",
                )
                return f'code = "{unit.code}"' + (f', unit = "{unit.unit}"' if unit.unit else "")
        return ""

    def _find_unit(self, entry: DictionaryEntry, column: ColumnProfile) -> DictionaryUnit | None:
        """Suggest the unit in the column's name, or the one whose plausible range contains the median."""
        if match := _UNIT.search(column.name):
            try:
                unit = to_ucum(match[1].strip(), ())
            except CellError:
                unit = ""
            return next((item for item in entry.units if item.unit == unit), None)
        return next(
            (item for item in entry.units if item.min_median <= column.median <= item.max_median), None
        )

    @staticmethod
    def _unit_reason(column: ColumnProfile) -> str:
        return (
            "unit from its name" if _UNIT.search(column.name) else "unit guessed from the median: verify it"
        )

    def _claim(self, names: Names, meaning: str, *, dates: bool | None = None) -> str | None:
        column = self._profile.find_column(names, dates=dates)
        if column is None or column in self._used:
            return None
        self._use(column, meaning, "its name and its dates" if dates else "its name")
        return column

    def _use(self, column: str, meaning: str, reason: str) -> None:
        self._used.add(column)
        self._add_guess(column, meaning, reason)

    def _add_guess(self, column: str, meaning: str, reason: str) -> None:
        self._guesses.append(MappingGuess(self._profile.file, column, meaning, reason))
