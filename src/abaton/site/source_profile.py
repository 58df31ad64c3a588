"""Profile of a record source, and how well it covers the inputs and the outcome of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from abaton.deid.settings import DataRequest, DataRequirement
from abaton.errors import SettingsError
from abaton.features.data_quality import releasable_system, suppress_count
from abaton.features.specification import (
    Category,
    FollowUpSpec,
    InputKind,
    InputSpec,
    LabelSpec,
    RowFilter,
    ViewColumn,
    matches_code,
)
from abaton.fhir.ucum import convertible
from abaton.records.profile import Code, ProfileEntry, RecordProfile, suppress_parts
from abaton.site.config_reader import load_site
from abaton.site.factory import open_source
from abaton.site.sources.base import FileSource, RecordSource
from abaton.study import Coding, Study
from abaton.study.shorthand import SYSTEMS
from abaton.study.shorthand.codes import CommonInput, common_inputs

_PROGRESS_EVERY = 1000  # records
_MIN_SIMILARITY, _MAX_SUGGESTIONS = 0.6, 3
_SYSTEM_NAMES = {system: name for name, system in SYSTEMS.items()}
_FAMILY_PREFIX_LENGTH = (
    3  # characters; ICD and ATC codes with a common prefix of this length are of one family
)
_HIERARCHICAL_SYSTEMS = ("icd10", "icd10cm", "icd10gm", "icd9cm", "atc")
Source = ViewColumn | FollowUpSpec


@dataclass(frozen=True, slots=True)
class ProfiledCode:
    """Code of a source with the number of its records, by unit and by coded value."""

    code: str
    records: str
    units: tuple[tuple[str, str, bool], ...] = ()
    coded_values: tuple[tuple[str, str, str], ...] = ()

    @property
    def is_convertible(self) -> bool:
        """Whether a unit of the source's code can be converted to the study's; true without units."""
        return not self.units or any(is_convertible for *_, is_convertible in self.units)

    def to_row(self) -> dict[str, Any]:
        """Return a code of the source profile as JSON values."""
        units = [
            {"unit": unit, "records": records, "is_convertible": is_convertible}
            for unit, records, is_convertible in self.units
        ]
        coded_values = [
            {"code": code, "records": records, "category": category}
            for code, records, category in self.coded_values
        ]
        return {"code": self.code, "records": self.records, "units": units, "coded_values": coded_values}


@dataclass(frozen=True, slots=True)
class InputCoverage:
    """Coverage of one input, outcome, index date or follow-up of a study by a source."""

    name: str
    role: str
    required_codes: str
    codes: tuple[ProfiledCode, ...]
    missing: tuple[str, ...] = ()
    closest_codes: tuple[tuple[str, str], ...] = ()

    @property
    def state(self) -> str:
        """Coverage of a study's input by the source: ``filled``, ``partly`` or ``empty``."""
        if not any(code.is_convertible for code in self.codes):
            return "empty"
        return "partly" if self.missing else "filled"

    def to_row(self) -> dict[str, Any]:
        """Return the source's coverage of a study's input as JSON values."""
        return {
            "name": self.name,
            "role": self.role,
            "state": self.state,
            "required_codes": self.required_codes,
            "codes": [code.to_row() for code in self.codes],
            "missing": [*self.missing],
            "closest_codes": [{"code": code, "records": records} for code, records in self.closest_codes],
        }


@dataclass(frozen=True, slots=True)
class SourceProfile:
    """Profile of a source, its skipped records by reason, and its coverage of a study."""

    profile: RecordProfile
    skipped: dict[str, str]
    study: str = ""
    coverage: tuple[InputCoverage, ...] = field(default=())

    def to_row(self) -> dict[str, Any]:
        """Return the source profile as JSON values with suppressed counts."""
        profile = self.profile
        codes = [
            _entry_row(profile, resource_type, code, entry)
            for (resource_type, code), entry in _sorted_entries(profile)
            if profile.is_releasable(resource_type, code)
        ]
        inputs = {"study": self.study, "inputs": [coverage.to_row() for coverage in self.coverage]}
        return {
            "min_cell_count": profile.min_cell_count,
            "records": profile.released_types(),
            "codes": codes,
            "suppressed_codes": len(profile.entries) - len(codes),
            "uncounted_records": sum(profile.uncounted.values()),
            "skipped": self.skipped,
            **(inputs if self.study else {}),
        }


def profile_source(
    path: Path,
    study: Study | None = None,
    request: DataRequest | None = None,
    *,
    min_cell_count: int = 5,
    on_progress: Callable[[int], None] = lambda count: None,
) -> SourceProfile:
    """Read a record source once and return its profile and its coverage of a study.

    Args:
        path: A file, a folder, or a ``site.toml``.
        study: Study to compare with.
        request: Data that the study needs; a server is queried for these resource types without filters.
        min_cell_count: Minimum cell count.
        on_progress: Called with the number of documents read.
    """
    unfiltered = (
        replace(request, requirements=tuple(map(DataRequirement, sorted(request.types))))
        if request is not None
        else None
    )
    profile = RecordProfile(min_cell_count)
    with closing(open_records(path, study, unfiltered)) as source:
        for number, record in enumerate(source.records(), 1):
            profile.add(record.content)
            if number % _PROGRESS_EVERY == 0:
                on_progress(number)
        skipped = {
            reason: suppress_count(count, min_cell_count) for reason, count in source.errors.reasons.items()
        }
    coverage = tuple(_input_coverages(profile, study)) if study is not None else ()
    return SourceProfile(profile, skipped, study.study.title if study else "", coverage)


def open_records(path: Path, study: Study | None, request: DataRequest | None) -> RecordSource:
    """Open the records to profile: a file, a folder, or the source of a site configuration."""
    if path.suffix != ".toml":
        _refuse_tables(path)
        return FileSource([path])
    return open_source(load_site(path), study, request or DataRequest("profile"))


def _refuse_tables(path: Path) -> None:
    """Refuse to profile tables as a record source; they need a site configuration with a mapping."""
    files = [path] if path.is_file() else list(path.iterdir()) if path.is_dir() else []
    suffixes = {suffix for file in files if file.is_file() for suffix in file.suffixes[-2:]}
    if suffixes & {".csv", ".tsv", ".parquet"} and not suffixes & {".json", ".ndjson"}:
        raise SettingsError(
            "the files are tables and not FHIR records",
            where=str(path),
            remedy="run 'abaton site new --source csv' or '--source omop', and use its site.toml",
        )


def _sorted_entries(profile: RecordProfile) -> list[tuple[tuple[str, Code], ProfileEntry]]:
    """Return the entries of a source profile by type and frequency; suppressed counts do not affect the order."""

    def sort_key(item: tuple[tuple[str, Code], ProfileEntry]) -> tuple[str, int, Code]:
        (resource_type, code), entry = item
        return resource_type, -entry.records if len(entry.subjects) >= profile.min_cell_count else 0, code

    return sorted(profile.entries.items(), key=sort_key)


def _entry_row(profile: RecordProfile, resource_type: str, code: Code, entry: ProfileEntry) -> dict[str, Any]:
    threshold = profile.min_cell_count
    common = _common_input(code)
    return {
        "type": resource_type,
        "code": _entry_name(resource_type, code),
        "label": common.label if common is not None else "",
        "records": entry.released(threshold),
        "years": list(entry.year_range(threshold) or ()),
        "units": dict(sorted(suppress_parts(entry.units, threshold).items())),
        "coded_values": {
            _format_code(value): records for value, records in _released_values(entry, threshold)
        },
        "other_values": dict(sorted(suppress_parts(entry.value_types, threshold).items())),
    }


def _format_code(code: Code) -> str:
    """Return a code of the source profile with the short name of its system, or with the system's URL.

    >>> _format_code(("http://loinc.org", "8480-6")), _format_code(("", ""))
    ('loinc 8480-6', 'no code')
    """
    system, text = code
    return f"{_SYSTEM_NAMES.get(system, system)} {text}".strip() or "no code"


def _entry_name(resource_type: str, code: Code) -> str:
    return "every Patient" if resource_type == "Patient" and not code[1] else _format_code(code)


def _released_values(entry: ProfileEntry, min_cell_count: int) -> Iterator[tuple[Code, str]]:
    """Yield coded values of a source profile by frequency: public codes, and codes that enough subjects have."""
    released = suppress_parts(entry.coded_values, min_cell_count)
    for code, count in sorted(entry.coded_values.items(), key=lambda item: (-item[1].records, item[0])):
        if not code[0] or releasable_system(code[0]) == code[0] or len(count.subjects) >= min_cell_count:
            yield code, released[code]


def _common_input(code: Code) -> CommonInput | None:
    """Return the entry of the list of common inputs that contains a code of the source profile."""
    system = _SYSTEM_NAMES.get(code[0])
    if system is None:
        return None
    for common in common_inputs():
        codes = common.shorthand.get(system, ())
        for text in [codes] if isinstance(codes, str) else codes:
            if text == code[1] or (text.endswith("*") and code[1].startswith(text[:-1])):
                return common
    return None


def _input_coverages(profile: RecordProfile, study: Study) -> Iterator[InputCoverage]:
    features = study.features
    if features is None:
        return
    resources = {view.name: view.resource for view in study.views}
    roles: list[tuple[str, str, Source]] = [(spec.name, "input", spec) for spec in features.inputs]
    roles.append((features.label.name, "outcome", features.label))
    if features.index_date is not None:
        roles.append(("index date", "index", features.index_date))
    if features.label.follow_up is not None:
        roles.append(("follow-up", "follow-up", features.label.follow_up))
    for name, role, source in roles:
        if source.view in resources:
            is_relative = features.index_date is not None and source.date_column is not None
            is_age = isinstance(source, InputSpec) and source.kind is InputKind.AGE
            needs_dates = is_relative or is_age or role in ("index", "follow-up")
            yield _input_coverage(
                profile, name, role, source, resources[source.view], needs_dates=needs_dates
            )


def _input_coverage(
    profile: RecordProfile, name: str, role: str, source: Source, resource_type: str, *, needs_dates: bool
) -> InputCoverage:
    entries = {
        code: (entry_type, entry)
        for (entry_type, code), entry in _sorted_entries(profile)
        if entry_type in (resource_type, f"{resource_type}.component")
        and (resource_type != "Patient" or not code[1])
    }
    where = source.where
    matches = {code: item for code, item in entries.items() if where is None or _matches_filter(where, code)}
    codes = tuple(
        _profiled_code(profile, entry_type, code, entry, source)
        for code, (entry_type, entry) in matches.items()
        if profile.is_releasable(entry_type, code)
    )
    lacks_dates = needs_dates and not any(entry.years for _, entry in matches.values())
    missing = tuple(_missing_items(codes, source, resource_type, lacks_dates=lacks_dates))
    others = {
        code: entry
        for code, (entry_type, entry) in entries.items()
        if code not in matches and profile.is_releasable(entry_type, code)
    }
    closest = tuple(_closest_codes(profile, name, where, others)) if where is not None and not codes else ()
    return InputCoverage(name, role, f"{resource_type}: {_format_filter(where)}", codes, missing, closest)


def _matches_filter(where: RowFilter, code: Code) -> bool:
    return matches_code(where, code[0] if where.system_column is not None else None, code[1])


def _format_filter(where: RowFilter | None) -> str:
    if where is None:
        return "any"
    return " or ".join([*(_format_coding(coding) for coding in where.codes), *where.values])


def _format_coding(coding: Coding) -> str:
    return _format_code((coding.system, coding.code)) + ("*" if coding.match == "startsWith" else "")


def _profiled_code(
    profile: RecordProfile, resource_type: str, code: Code, entry: ProfileEntry, source: Source
) -> ProfiledCode:
    threshold = profile.min_cell_count
    unit = source.unit if isinstance(source, InputSpec | LabelSpec) else None
    molar_mass = source.molar_mass if isinstance(source, InputSpec | LabelSpec) else None
    units = tuple(
        (text, records, convertible(text, unit, molar_mass=molar_mass))
        for text, records in sorted(suppress_parts(entry.units, threshold).items())
        if unit is not None
    )
    categories = _categories(source)
    coded_values = tuple(
        (_format_code(value), records, _category(categories, value))
        for value, records in _released_values(entry, threshold)
        if categories
    )
    return ProfiledCode(_entry_name(resource_type, code), entry.released(threshold), units, coded_values)


def _categories(source: Source) -> tuple[Category, ...]:
    if isinstance(source, InputSpec):
        return source.categories
    return source.classes if isinstance(source, LabelSpec) else ()


def _category(categories: tuple[Category, ...], code: Code) -> str:
    matches = (item.name for item in categories if matches_code(item, code[0] or None, code[1]))
    return next(matches, "other")


def _missing_items(
    codes: tuple[ProfiledCode, ...], source: Source, resource_type: str, *, lacks_dates: bool
) -> Iterator[str]:
    if not codes:
        yield f"no {resource_type} with a required code"
        return
    if isinstance(source, InputSpec | LabelSpec) and source.unit and not any(code.units for code in codes):
        yield "no number with a unit"
    if _categories(source) and not any(code.coded_values for code in codes):
        yield "no coded value"
    if lacks_dates:
        yield "no dates"
    units = sorted({unit for code in codes for unit, _, is_convertible in code.units if not is_convertible})
    if units and isinstance(source, InputSpec | LabelSpec):
        yield f"{', '.join(units)} cannot be converted to {source.unit}"
    present = {category for code in codes for _, _, category in code.coded_values}
    if present == {"other"}:
        yield "every coded value counts as 'other'"
    elif present:
        yield from (f"no '{item.name}'" for item in _categories(source) if item.name not in present)


def _closest_codes(
    profile: RecordProfile, name: str, where: RowFilter, others: dict[Code, ProfileEntry]
) -> Iterator[tuple[str, str]]:
    """Yield codes of the source that are close to a missing input: same common input, family or similar text."""
    common = {
        item.name: item for coding in where.codes if (item := _common_input((coding.system, coding.code)))
    }
    texts = [name.replace("_", " "), *(item.label for item in common.values())]
    texts += [coding.display for coding in where.codes if coding.display]
    ranked = []
    for code, entry in others.items():
        match = _common_input(code)
        if match is not None and match.name in common:
            similarity = 1.0
        else:
            similarity = max(_family_similarity(where, code), _text_similarity(texts, entry.display))
        if code[1] and similarity >= _MIN_SIMILARITY:
            released = entry.released(profile.min_cell_count)
            ranked.append((-similarity, -entry.records, _format_code(code), released))
    yield from ((code, records) for _, _, code, records in sorted(ranked)[:_MAX_SUGGESTIONS])


def _family_similarity(where: RowFilter, code: Code) -> float:
    system = _SYSTEM_NAMES.get(code[0])
    is_same_family = any(
        _SYSTEM_NAMES.get(coding.system) in _HIERARCHICAL_SYSTEMS
        and system in _HIERARCHICAL_SYSTEMS
        and coding.code[:_FAMILY_PREFIX_LENGTH] == code[1][:_FAMILY_PREFIX_LENGTH]
        for coding in where.codes
    )
    return 0.9 if is_same_family else 0.0


def _text_similarity(texts: list[str], display: str) -> float:
    if not display:
        return 0.0
    ratios = (SequenceMatcher(None, text.lower(), display.lower()).ratio() for text in texts)
    return max(ratios, default=0.0)
