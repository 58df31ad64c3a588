"""From tables to members of a federation: k enforced over the union, subjects dealt, columns scaled together.

Invariants:
(1) a subject is in exactly one of a site's training, validation and test rows;
(2) what scales the columns comes from rows that are trained or validated on, never from the test;
(3) only sums and masked counts of a site are used outside of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import Choice, Histogram, choose
from abaton.errors import AbatonError, Refused
from abaton.features import (
    Column,
    Moments,
    Scaled,
    Statistics,
    Table,
    groups,
    hidden,
    histogram,
    pooled,
    scaled,
    statistics,
)
from abaton.models.sampling import stratified
from abaton.site import SiteFile, smallest_count
from abaton.study import Learning, Study
from abaton.study_run.consented_learner import Rows, some
from abaton.study_run.ingest import ONE_CLASS, Reading
from abaton.study_run.preparation_state import (
    Entry,
    Places,
    Prepared,
    Scale,
    deal_fingerprint,
    dealt_again,
    entries,
)
from abaton.study_run.task_contract import Contract, small

FEWEST = 2  # sites; with one there is nobody to learn with
NOTHING_TOLD = "it has no combination of enough people to tell of"
NOBODY_HIDES = "with what it tells, nobody could hide"


@dataclass(frozen=True, slots=True)
class Member:
    """A site that takes part.

    Attributes:
        file: Its document.
        people: How rows name people, and the Patient's id of each; never leaves the site.
        rows: For training and validation.
        test: Rows that nobody trains on.
        groups: For each input by which results are told apart, the group of every test row.
        floor: The smallest number of people that may be told.
        digest: The fingerprint of its rows, under a key of the site.
        lessened: Whether people have left since the run was begun.
    """

    file: SiteFile
    people: Mapping[str, str] = field(repr=False)
    rows: Rows
    test: Scaled
    groups: Mapping[str, tuple[str, ...]] = field(repr=False)
    floor: int
    digest: str
    lessened: bool = False

    @property
    def name(self) -> str:
        """The site's id."""
        return self.file.document.site.id

    @property
    def everybody(self) -> tuple[str, ...]:
        """Whose rows there are, as rows name them."""
        return (*self.rows.train.subjects, *self.rows.validation.subjects, *self.test.subjects)


@dataclass(frozen=True, slots=True)
class Members:
    """The sites that take part in a study, and what they share.

    Attributes:
        each: In the order of their ids.
        left_out: Why other sites do not take part.
        columns, classes: The same at every site; no classes for values.
        prepared: Ranges, scale and deals, for a run that is resumed.
        anonymity: What was asked of the union of all tables and what was chosen, masked; none if nothing was asked.
        told: What there is to tell of every site, masked.
    """

    each: tuple[Member, ...]
    left_out: Mapping[str, str]
    columns: tuple[Column, ...]
    classes: tuple[str, ...]
    prepared: Prepared
    anonymity: Mapping[str, Any] | None
    told: Mapping[str, Mapping[str, Any]]

    @property
    def label(self) -> tuple[float, float]:
        """Mean and deviation by which values were scaled; 0 and 1 for classes."""
        return self.prepared.scale.label


@dataclass(frozen=True, slots=True)
class Dealt:
    """A site's table with the places of its rows."""

    reading: Reading
    table: Table
    floor: int
    train: Places
    validation: Places
    test: Places

    @property
    def seen(self) -> Table:
        """Without the test."""
        return self.table.without(frozenset(self.table.subjects[i] for i in self.test))

    def entries(self) -> list[Entry]:
        """The site's rows as they are kept while a run goes on."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return entries(self.table, parts, self.reading.key, self.reading.tag)


@dataclass(frozen=True, slots=True)
class Sums:
    """What a site tells so that columns, and values to be learned, can be scaled together."""

    columns: Statistics
    label: Moments


def federate(
    study: Study,
    readings: Sequence[Reading],
    seed: int,
    kept: Prepared | None = None,
    tell: Callable[[Dealt], Sums] | None = None,
) -> Members:
    """Make members of the sites that can take part.

    Args:
        study: The study.
        readings: What the sites have.
        seed: Decides who is dealt where.
        kept: What the run was prepared with, if it is resumed.
        tell: What a site tells for scaling; its sums as they are if not given.

    Raises:
        Refused: Too few sites are left, anonymity cannot be had, or what a site has is not what the run was begun
            with; nothing was trained.
    """
    assert study.learning is not None
    learning = study.learning
    told = {each.name: each.told for each in readings}
    ready, anonymity, choice, combinations = _hide(sorted(readings, key=lambda each: each.name), kept)
    if kept is None:
        dealt, ready = _deal(study, ready, seed)
    else:
        tables = [each.table for each in ready if each.table is not None]
        dealt = [
            _again(study, each, kept.deals[each.name], tables) for each in ready if each.name in kept.deals
        ]
    left_out = {each.name: each.problem for each in ready if each.problem}
    check_enough([each.reading.name for each in dealt], left_out)
    told_by = tell or (lambda each: sums(learning, each))
    scale = scale_of(learning, [told_by(each) for each in dealt]) if kept is None else kept.scale
    deals = {each.reading.name: each.entries() for each in dealt} if kept is None else kept.deals
    members = tuple(member(study, each, scale, deals[each.reading.name]) for each in dealt)
    first = dealt[0].table
    prepared = Prepared(choice, combinations, scale, deals)
    return Members(members, left_out, first.columns, first.classes, prepared, anonymity, told)


def check_enough(names: Sequence[str], left_out: Mapping[str, str]) -> None:
    """Refuse a federation of too few sites.

    Raises:
        Refused: With every site that is left out, and why.
    """
    if len(names) < FEWEST:
        raise Refused(
            f"{len(names)} of {len(names) + len(left_out)} sites can take part, {FEWEST} are needed",
            where="; ".join(f"{name}: {why}" for name, why in left_out.items()),
            remedy="mend the sites, or add others",
        )


def strictest(asked: Iterable[AnonymitySettings | None]) -> AnonymitySettings | None:
    """What is asked of the union of all tables: the settings with the largest k; none if nobody asks."""
    return max((each for each in asked if each is not None), key=lambda each: each.k, default=None)


def told_of(
    choice: Choice, asked: AnonymitySettings, floor: int, told: Mapping[str, Histogram]
) -> dict[str, Any]:
    """What there is to tell of how people hide, with small numbers masked, and on which levels each site could tell."""
    few = 0 < choice.suppressed < floor
    return {
        "k": asked.k,
        "columns": [quasi.column for quasi in asked.quasi_identifiers],
        "levels": list(choice.node),
        "records": choice.records,
        "left_out": f"<{floor}" if few else str(choice.suppressed),
        "loss": choice.loss,
        "finest": {name: list(each.base) for name, each in told.items()},
    }


def deal(study: Study, reading: Reading, table: Table, seed: int) -> Dealt:
    """Deal a site's subjects: rows to train on, to validate with, and to test with.

    Raises:
        Refused: The site is too small for that.
    """
    assert study.learning is not None
    learning, floor = study.learning, smallest_count(reading.file.document, study)
    if table.classes and len(np.unique(table.y)) < 2:
        raise Refused(ONE_CLASS)
    rng = np.random.default_rng([seed, zlib.crc32(reading.name.encode())])
    labels = table.y if table.classes else np.zeros(len(table), np.int64)
    if table.timed:
        labels = table.y[:, 1].astype(np.int64)
    places = np.arange(len(table), dtype=np.int64)
    rest, test = stratified(labels, places, rng=rng, share=learning.evaluation.test, learner=reading.name)
    train, held = stratified(labels, rest, rng=rng, share=learning.validation, learner=reading.name)
    if len(train) < floor:
        raise Refused(f"fewer than {floor} subjects are left to train on")
    terms = reading.file.document.policy
    if len(train) < terms.fewest_rows and not Contract(study).small_sites:
        raise Refused(small(terms))
    return Dealt(reading, table, floor, train, held, test)


def sums(learning: Learning, dealt: Dealt) -> Sums:
    """What a site tells for scaling; of classes and times nothing has to be told.

    Raises:
        Refused: So few subjects are left that nothing may be told of them.
    """
    y = dealt.seen.y
    label = Moments() if learning.task != "value" else Moments(len(y), float(y.sum()), float(np.dot(y, y)))
    return Sums(statistics(dealt.seen), label)


def scale_of(learning: Learning, told: Sequence[Sums]) -> Scale:
    """What all scale by; classes and times are not scaled by what sites tell."""
    shared = pooled(each.columns for each in told)
    if learning.task != "value":
        return Scale(shared, (0.0, 1.0))
    both = pooled(Statistics({"label": each.label}) for each in told).of["label"]
    return Scale(shared, (both.mean, both.deviation))


def member(study: Study, each: Dealt, scale: Scale, deal: Sequence[Entry]) -> Member:
    """A site that takes part, with its rows scaled, and what its rows were when the run was begun."""
    assert study.learning is not None
    assert study.features is not None
    learning, days = study.learning, study.features.label.days
    made, label = scaled(each.table, scale.columns), scale.label
    if learning.task == "time" and days:
        made = replace(made, y=(each.table.y / (days, 1)).astype(np.float32))  # shares of the follow-up
    if learning.task == "value":
        made = replace(made, y=((each.table.y - label[0]) / label[1]).astype(np.float32))
    told = {g.input: groups(each.table, g.input, g.bands) for g in learning.evaluation.groups}
    return Member(
        each.reading.file,
        {subject: each.reading.people[subject] for subject in each.table.subjects},  # nobody without a row
        Rows(some(made, each.train), some(made, each.validation)),
        some(made, each.test),
        {name: tuple(of[i] for i in each.test) for name, of in told.items()},
        each.floor,
        deal_fingerprint(deal, [column.name for column in each.table.columns], each.reading.key),
        lessened=len(each.table) < len(deal),
    )


def chosen(
    told: Mapping[str, Histogram], k: Mapping[str, int], asked: AnonymitySettings
) -> tuple[Choice, AnonymitySettings, str]:
    """The ranges in which everybody hides, by the strictest k, and who is left out if there are none with them.

    Args:
        told: What each site tells.
        k: What each site asks for.
        asked: What the study asks for.

    Raises:
        AbatonError: Nobody could hide, whichever site is left out.
    """

    def of(names: Iterable[str]) -> tuple[Choice, AnonymitySettings]:
        settings = replace(asked, k=max(k[name] for name in names))
        return choose([told[name] for name in sorted(names)], settings), settings

    try:
        return *of(told), ""
    except AbatonError:
        for name in sorted(told, key=lambda each: (-k[each], each)):
            others = [each for each in told if each != name]
            if len(others) >= FEWEST:
                with suppress(AbatonError):
                    return *of(others), name
        raise


def _hide(
    readings: Sequence[Reading], kept: Prepared | None
) -> tuple[list[Reading], Mapping[str, Any] | None, Choice | None, Mapping[str, Histogram]]:
    """Enforce anonymity over the union of the tables, by the strictest k of all sites, or by ranges that are kept.

    On one machine nothing of this is told to anybody, so each run counts anew what it begins with.
    """
    asked = strictest(each.anonymity for each in readings if each.table is not None)
    tables = {each.name: each.table for each in readings if each.table is not None}
    if asked is None:
        return list(readings), None, None, {}
    problems: dict[str, str] = {}
    if kept is not None and kept.choice is not None:
        choice, told = kept.choice, dict(kept.told)
    else:
        told = {name: histogram(table, asked) for name, table in tables.items()}
        problems = dict.fromkeys((name for name, each in told.items() if not each.cells), NOTHING_TOLD)
        told = {name: each for name, each in told.items() if each.cells}
        check_enough(list(told), {each.name: each.problem for each in readings if each.problem} | problems)
        strict = {each.name: each.anonymity.k for each in readings if each.anonymity is not None}
        choice, asked, left = chosen(told, strict, asked)
        if left:
            problems[left] = NOBODY_HIDES
            del told[left]
    shown = {name: hidden(table, told[name], choice, asked) for name, table in tables.items() if name in told}
    made = [
        each.without(problems[each.name])
        if each.name in problems
        else replace(each, table=shown.get(each.name))
        for each in readings
    ]
    return made, told_of(choice, asked, min(table.floor for table in tables.values()), told), choice, told


def _again(study: Study, reading: Reading, deal: Sequence[Entry], tables: Sequence[Table]) -> Dealt:
    """A site's rows where they were dealt when the run was begun, without those of who has left since.

    Of a site that so many have left that nothing may be told of it there are no rows, and the others go on.
    """
    floor = smallest_count(reading.file.document, study)
    if reading.table is not None:
        parts = dealt_again(deal, reading.table, reading.key, reading.tag, reading.has_left, reading.name)
        return Dealt(reading, reading.table, floor, **parts)
    left = set(map(reading.tagged, reading.refused)) - {""}
    if not tables or sum(entry.tag not in left for entry in deal) >= floor:
        raise Refused(
            f"what {reading.name} has for the study is not what the run was started with",
            where=reading.problem,
            remedy="mend the site, or start a new run",
        )
    nobody = tables[0].without(frozenset(tables[0].subjects))
    none = np.arange(0, dtype=np.int64)
    return Dealt(reading, nobody, floor, none, none, none)


def _deal(study: Study, readings: Sequence[Reading], seed: int) -> tuple[list[Dealt], list[Reading]]:
    """Deal every site's subjects; a site that is too small for that is left out."""
    dealt, seen = [], []
    for each in readings:
        if each.table is None:
            seen.append(each)
            continue
        try:
            dealt.append(deal(study, each, each.table, seed))
            seen.append(each)
        except AbatonError as error:
            seen.append(each.without(error.what))
    return dealt, seen
