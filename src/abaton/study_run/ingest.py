"""What each site has for a study: its table and what there is to tell, or why it cannot take part.

A site that cannot take part never stops the others. Everything that is told is masked; nothing holds a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from abaton.errors import AbatonError, SettingsError
from abaton.study_run.consent_roster import StillIn, key_of
from abaton.anonymity import AnonymitySettings
from abaton.features import Report, Table
from abaton.site import ConsentGate, Site, SiteFile, checked, gate_of, open_site, subject_tag
from abaton.study import Study

Step = Callable[[str], None]
GateOf = Callable[[SiteFile, Study], ConsentGate]
"""Opens the gate of a site: who knows its consents."""

ONE_CLASS = "only one class: a model of this outcome can neither be trained nor judged here alone"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one site had.

    Attributes:
        file: The site's document.
        table: Its rows, in an order that depends on their content alone; none if it cannot take part.
        people: How rows name people, and the Patient's id of each; never leaves the site.
        anonymity: What is asked of the whole table, with the site's own k.
        told: The funnel, what was set aside and remarks, masked.
        problem: Why it cannot take part; empty if it can.
        key: The site's own, under which its rows are fingerprinted.
        tagged: How the site's registry names a person, given the Patient's id; nothing if it has none.
        refused: The Patient's ids of those who were read but have not agreed, or not any more.
        read: Whose rows there were before people were hidden among others.
    """

    file: SiteFile
    table: Table | None
    people: Mapping[str, str] = field(default_factory=dict, repr=False)
    anonymity: AnonymitySettings | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    key: bytes = field(default=b"", repr=False)
    tagged: Callable[[str], str] = field(default=lambda person: "", repr=False)
    refused: frozenset[str] = field(default=frozenset(), repr=False)
    read: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def name(self) -> str:
        """The site's id."""
        return self.file.document.site.id

    def tag(self, subject: str) -> str:
        """How the site's registry names a person, given how rows do."""
        return self.tagged(self.people[subject])

    def has_left(self, tag: str) -> bool:
        """Whether somebody has no row because they do not agree any more, or do not hide among others any more."""
        assert self.table is not None
        hidden = self.read - frozenset(self.table.subjects)
        return tag in {*map(self.tagged, self.refused), *map(self.tag, hidden)}

    def without(self, problem: str) -> Reading:
        """The same site, left out."""
        return replace(self, table=None, problem=problem)


def read_sites(
    study: Study,
    files: Sequence[SiteFile],
    now: datetime,
    step: Step = lambda words: None,
    gate: GateOf = gate_of,
) -> list[Reading]:
    """Read every site: consent, de-identification, views and features, one site after the other.

    Args:
        study: The study.
        files: The sites' documents.
        now: The moment for which consents are asked and ages counted.
        step: Told of progress, in words without content.
        gate: Opens the gate of a site, which knows the consents.

    Raises:
        SettingsError: Two sites have the same id, or the study has nothing to learn.
    """
    names = [file.document.site.id for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SettingsError(f"two sites are called '{twice}'", where="sites", remedy="give each its own id")
    if study.features is None or study.learning is None:
        raise SettingsError(
            "the study has nothing to learn",
            where="study document",
            remedy="add [[views]], [features] and [learning]",
        )
    made = []
    for file in files:
        step(f"reading {file.document.site.id}")
        made.append(_read(study, file, now, step, gate))
    return made


def _read(study: Study, file: SiteFile, now: datetime, step: Step, gate: GateOf) -> Reading:
    try:
        file.document.limits.check_hours(now)
        site = open_site(file, study, now, gate=gate(file, study), step=step)
        return _reading(file, site)
    except AbatonError as error:
        return Reading(file, None, problem=" ".join(str(error).split()))


def _reading(file: SiteFile, site: Site) -> Reading:
    made = site.table()
    told = checked(site, made.report)
    table, problem = made.table, ""
    begun = isinstance(
        site.gate, StillIn
    )  # what a run was begun with is compared row by row, however little is left
    if table is None or not (told.usable or begun):
        table, problem = None, _problem(made.report, told.remarks)
    elif not begun and table.classes and len(np.unique(table.y)) < 2:
        table, problem = None, ONE_CLASS
    kept = None if table is None else ordered(table)
    rows = frozenset(() if kept is None else kept.subjects)
    reading = Reading(file, kept, site.people, site.anonymity, told.row(), problem, read=rows)
    key = key_of(site.gate)
    if key is None:
        return reading
    tagged = partial(subject_tag, key)
    return replace(reading, key=key, tagged=tagged, refused=frozenset(site.refused))


def _problem(report: Report, remarks: Sequence[str]) -> str:
    """Why a site has no table: what is fatal, and otherwise the first remark."""
    fatal = [f"{each.about}: {each.reason.value}" for each in report.findings if each.fatal]
    found = [remark for remark in remarks if remark.startswith(tuple(fatal))] if fatal else list(remarks[:1])
    return "; ".join(found) or "nobody comes through"


def ordered(table: Table) -> Table:
    """The rows in an order that depends on their content alone, not on the keys that pseudonyms are made with."""
    known = np.where(np.isnan(table.x), -np.inf, table.x)
    labels = table.y.T[::-1] if table.timed else [table.y]
    places = np.lexsort((*known.T[::-1], *labels)) if len(table) else np.arange(0)
    names = tuple(table.subjects[i] for i in places)
    return replace(table, x=table.x[places], y=table.y[places], subjects=names)


def problems(readings: Iterable[Reading]) -> dict[str, str]:
    """Why sites are left out, by site."""
    return {each.name: each.problem for each in readings if each.problem}
