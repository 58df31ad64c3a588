"""Whether a model fits new people: their units, their columns, and whether they resemble those whom it learned from.

What it learned from is known by what sites told for scaling: of every column the mean and the deviation, and how often
an input was known; nothing of few people. What does not fit is either a remark or a reason to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.features import Column, Reason
from abaton.deployment.new_patients import Newcomers

_UNITS = (Reason.NO_UNIT, Reason.UNKNOWN_UNIT, Reason.OTHER_UNIT)
_CODES = (Reason.OTHER_CODE, Reason.OTHER_SYSTEM)
_ALMOST_ALL = 0.9  # an input that so many had must be there
_MANY = 0.2  # values for so many people in a wrong unit are no slip
_RARER = 0.3  # so much more often missing is another way of recording
_SHIFT, _SURE = 0.5, 3.0  # how many deviations a mean may move, and how sure that must be
_FAR, _SOME = 3.0, 5  # so far away is another unit or another population, if so many people say so
_IMPOSSIBLE = 5.0  # deviations: for whomever
_UNUSUAL = 4.0


@dataclass(frozen=True, slots=True)
class Misfit:
    """Something that does not fit: about what, what it is, and whether nothing should be foretold because of it."""

    about: str
    what: str
    refuses: bool = False

    def __str__(self) -> str:
        return f"{self.about}: {self.what}"


def misfits(people: Newcomers, use: Mapping[str, Any]) -> list[Misfit]:
    """Everything in which new people do not fit a model, the worst first.

    Args:
        people: Who was read.
        use: What the run says of its columns: `scale` and `known`.
    """
    found = [
        *_on_population(people),
        *_on_findings(people),
        *(_on_columns(people, use) if people.table is not None else ()),
    ]
    return sorted(found, key=lambda each: not each.refuses)


def unusual(x: NDArray[np.float64], columns: Sequence[Column], use: Mapping[str, Any]) -> list[list[str]]:
    """For each row the measured columns whose value is far outside of what the model has learned from."""
    made: list[list[str]] = [[] for _ in x]
    for i, column in enumerate(columns):
        if column.measured:
            mean, deviation, _ = use["scale"][column.name]
            for row in np.flatnonzero(np.abs(x[:, i] - mean) > _UNUSUAL * deviation):
                made[row].append(column.name)
    return made


def _on_population(people: Newcomers) -> Iterator[Misfit]:
    nobody = people.table is None
    for reason, count in people.not_eligible.items():
        yield Misfit(
            "population", f"{_people(count)} left out, whom the study would not take: {reason}", nobody
        )
    for reason, count in people.no_row.items():
        yield Misfit("columns", f"{_people(count)} left out: {reason}", nobody)
    for reason, count in people.set_aside.items():
        yield Misfit("records", f"{reason}, {count} times", nobody)
    if nobody and not people.not_eligible and not people.no_row:
        yield Misfit("records", "there is nobody whom the model could be asked about", refuses=True)


def _on_findings(people: Newcomers) -> Iterator[Misfit]:
    everybody = 0 if people.table is None else len(people.table)
    for each in people.report.findings:
        if each.reason in _UNITS:
            grave = int(each.count) >= _MANY * everybody
            words = each.remedy if grave else "they count as missing"
            yield Misfit(each.about, f"{each.reason.value}, {each.count} times; {words}", grave)
        elif each.reason in _CODES:
            system = f" ({each.system})" if each.system else ""
            yield Misfit(each.about, f"{each.reason.value}{system}, {each.count} times")


def _on_columns(people: Newcomers, use: Mapping[str, Any]) -> Iterator[Misfit]:
    table = people.table
    assert table is not None
    seen = set()
    for i, column in enumerate(table.columns):
        if column.name not in use["scale"]:
            continue
        values = table.x[:, i]
        known = values[~np.isnan(values)]
        if column.input not in seen:
            seen.add(column.input)
            yield from _on_gaps(column.input, len(known), len(values), use["known"].get(column.input, 1.0))
        if len(known):
            yield from _on_shift(column, known, use["scale"][column.name])


def _on_gaps(name: str, known: int, people: int, before: float) -> Iterator[Misfit]:
    share = known / people
    if not known and before >= _ALMOST_ALL:
        yield Misfit(
            name, f"nobody has a value, and {before:.0%} had one of those whom it learned from", True
        )
    elif before - share > _RARER and (not known or people >= _SOME):
        yield Misfit(
            name, f"{share:.0%} have a value, {before:.0%} had one of those whom the model learned from"
        )


def _on_shift(column: Column, known: NDArray[np.float64], scale: Sequence[Any]) -> Iterator[Misfit]:
    mean, deviation, _ = scale
    if not column.measured and not mean:
        if yes := int(np.count_nonzero(known)):
            yield Misfit(column.name, f"{_people(yes)}, and nobody was of those whom the model learned from")
        return
    away, several = float(known.mean() - mean) / deviation, len(known) >= _SOME
    far = column.measured and abs(away) > (_FAR if several else _IMPOSSIBLE)
    sure = several and abs(away) > _SHIFT and abs(away) * np.sqrt(len(known)) > _SURE
    if not far and not sure:
        return
    why = "another unit, or another population" if far else "the model knows such people less well"
    if column.measured:
        words = f"the mean is {known.mean():.4g}, it was {mean:.4g} ({away:+.1f} deviations): {why}"
    else:
        words = f"{known.mean():.0%} are, {mean:.0%} were of those whom the model learned from: {why}"
    yield Misfit(column.name, words, far)


def _people(count: int) -> str:
    return "1 person" if count == 1 else f"{count:,} people"
