"""Anonymity enforced on tables of features: every person hides among k over all sites, before anything is learned.

Sites tell how many of their subjects have each combination of quasi-identifiers (the study's ``[privacy.anonymity]``,
whose columns are inputs or the label), on the finest levels on which nobody stands out at the site alone;
:func:`~abaton.anonymity.federated_recoding.choose` finds the ranges that lose least over all of them; every site shows
its table in these ranges. A number becomes the middle of its range, and what
lies in a range without an end its edge; what is not told at all is missing; who does not hide among k is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.equivalence_classes import Table as Combinations
from abaton.anonymity.federated_recoding import Choice, Histogram, show, site_histogram
from abaton.anonymity.release import Release, recoded_as
from abaton.anonymity.table_encoding import encode
from abaton.anonymity.table_files import recoded_frame
from abaton.disclosure.histograms import affordable, leaving
from abaton.errors import Refused, SettingsError
from abaton.features.table import Table, groups

Floats = NDArray[np.float64]

_ROW, _WHOSE = "subject row", "whose row"
_WHOLE = re.compile(r"(-?\d+)-(-?\d+)")
_HALF_OPEN = re.compile(r"\[(\S+), (\S+)\)")
_OPEN = re.compile(r"(?:<|>=)(\S+)")


def histogram(table: Table, settings: AnonymitySettings) -> Histogram:
    """What a site tells: how many of its subjects have each combination, nothing of fewer than its smallest count."""
    counted, floor = encode(_frame(table, settings), _by_subject(settings)), _floor(table, settings)
    return leaving(site_histogram(counted, affordable(counted, settings, floor)), floor)


def hidden(table: Table, told: Histogram, choice: Choice, settings: AnonymitySettings) -> Table:
    """A site's table in the ranges that were chosen for all sites; who does not hide in them is left out.

    Args:
        table: The site's rows.
        told: What the site has told of them.
        choice: What was chosen.
        settings: The study's.

    Raises:
        Refused: The ranges are finer than what the site has told.
    """
    frame = _frame(table, settings)
    counted = encode(frame, _by_subject(settings))
    return _renamed(table, frame, counted, show(counted, told, choice, _floor(table, settings)), settings)


def _floor(table: Table, settings: AnonymitySettings) -> int:
    return max(table.floor, settings.local_floor or 1)


def in_ranges(table: Table, node: Sequence[int], settings: AnonymitySettings) -> Table:
    """A table in ranges that were chosen before, nobody left out: new rows, for a model that learned in these ranges.

    Args:
        table: The rows.
        node: The level of every quasi-identifier.
        settings: The study's.
    """
    frame = _frame(table, settings)
    counted = encode(frame, _by_subject(settings))
    shown = recoded_as(counted, node, np.ones(len(counted.counts), bool))
    return _renamed(table, frame, counted, shown, settings)


def _renamed(
    table: Table, frame: pl.DataFrame, counted: Combinations, shown: Release, settings: AnonymitySettings
) -> Table:
    """The rows that are shown, each with its ranges."""
    assert shown.node is not None
    asked = replace(settings, keep=(*settings.keep, _ROW))
    rows = recoded_frame(frame.lazy(), counted, shown, asked).collect()
    kept = rows[_ROW].to_numpy()
    x = table.x[kept]
    for quasi, level in zip(settings.quasi_identifiers, shown.node, strict=True):
        if level and quasi.column == table.label:
            raise Refused(
                "nobody hides with what is to be learned as it is, and it cannot be coarsened",
                where="privacy.anonymity",
                remedy="name it under sensitive, not under quasi_identifiers",
            )
        if level:
            _coarsen(table, x, quasi.column, rows[quasi.column].to_list())
    subjects = tuple(table.subjects[i] for i in kept)
    return replace(table, x=x, y=table.y[kept], subjects=subjects)


def _by_subject(settings: AnonymitySettings) -> AnonymitySettings:
    """A table of features knows its subjects, whatever the study calls their column elsewhere."""
    return replace(settings, subject=_WHOSE, rows_are_people=False)


def _frame(table: Table, settings: AnonymitySettings) -> pl.DataFrame:
    """The columns that the study's anonymity speaks of, one row per subject."""
    made: dict[str, object] = {}
    for name in settings.columns:
        if name == table.label:
            made[name] = _labels(table)
        else:
            made[name] = _cells(table, name)
    return pl.DataFrame({**made, _ROW: np.arange(len(table)), _WHOSE: list(table.subjects)})


def _labels(table: Table) -> list[str]:
    if table.timed:
        return ["yes" if happened else "no" for happened in table.y[:, 1]]
    return [table.classes[y] if table.classes else f"{y:.15g}" for y in table.y]


def _cells(table: Table, name: str) -> list[str | None]:
    places = _places(table, name)
    if len(places) == 1 and table.columns[places[0]].measured:
        return [None if np.isnan(value) else f"{value:.15g}" for value in table.x[:, places[0]]]
    return [None if group == "missing" else group for group in groups(table, name)]


def _places(table: Table, name: str) -> list[int]:
    found = [
        i
        for i, column in enumerate(table.columns)
        if column.input == name and column.name != f"{name} missing"
    ]
    if not found:
        raise SettingsError(
            f"'{name}' is neither an input nor the label",
            where="privacy.anonymity",
            remedy="name inputs of [features]",
        )
    return found


def _coarsen(table: Table, x: Floats, name: str, labels: list[str | None]) -> None:
    """Put what a subject's range says in the place of the value; the indicator says no more than the range."""
    places = _places(table, name)
    names = [table.columns[i].name.removeprefix(f"{name}=") for i in places]
    measured = len(places) == 1 and table.columns[places[0]].measured
    flag = {"yes": [1.0], "no": [0.0]} if names == [name] else {}
    meant = flag or {each: [float(each == other) for other in names] for each in names}
    for row, label in enumerate(labels):
        x[row, places] = middle(label) if measured else meant.get(label or "", np.nan)
    untold = np.isnan(x[:, places]).any(axis=1)
    for i, column in enumerate(table.columns):
        if column.name == f"{name} missing":
            x[:, i] = untold
        elif i in places and not column.pooled:
            x[untold, i] = 0.0


def middle(label: str | None) -> float:
    """The number that stands for a range; not a number if the range says nothing.

    >>> middle("30-39"), middle("[0.5, 1)"), middle(">=70"), middle("41"), middle("*")
    (35.0, 0.75, 70.0, 41.0, nan)
    """
    text = label or ""
    if match := _WHOLE.fullmatch(text):
        return (float(match[1]) + float(match[2]) + 1) / 2
    if match := _HALF_OPEN.fullmatch(text):
        return (float(match[1]) + float(match[2])) / 2
    try:
        return float(match[1] if (match := _OPEN.fullmatch(text)) else text)
    except ValueError:
        return float("nan")
