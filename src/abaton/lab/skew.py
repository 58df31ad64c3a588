"""Label skew and size skew, in the notation of the Metis paper.

Label skew: `IID`, `Non-IID(3)`, `Non-IID(8x1,4x1,3x8)`, `Dirichlet(alpha)`. Size skew: equal, skewed or power-law
sizes, in descending order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.models.sampling import largest_remainder

_TERM = re.compile(r"(\d{1,6})(?:\s*[x×]\s*(\d{1,6}))?")
_DIRICHLET = re.compile(r"dirichlet\s*\(\s*([0-9.eE+-]{1,16})\s*\)")

# Full forms of abbreviations in section VI of the paper, by (learners, classes in the data): "to preserve scale
# invariance" the largest learners have more classes than the abbreviation states.
_FULL_FORMS: Mapping[tuple[int, int], Mapping[tuple[int, int], tuple[tuple[int, int], ...]]] = {
    (10, 10): {(5, 7): ((8, 1), (7, 1), (6, 1), (5, 7)), (3, 8): ((8, 1), (4, 1), (3, 8))},
    (10, 100): {(50, 5): ((84, 1), (76, 1), (68, 1), (64, 1), (55, 1), (50, 5))},
}


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """Label skew: how many classes each learner has, or a Dirichlet concentration.

    Attributes:
        class_counts: number of classes of each learner, the largest learner first; empty if it is not fixed.
        alpha: concentration of the Dirichlet distribution; None without one.
    """

    class_counts: tuple[int, ...] = ()
    alpha: float | None = None

    def __str__(self) -> str:
        if self.alpha is not None:
            return f"Dirichlet({self.alpha:g})"
        if not self.class_counts:
            return "IID"
        if len(set(self.class_counts)) == 1:
            return f"Non-IID({self.class_counts[0]})"
        runs: list[list[int]] = []
        for count in self.class_counts:
            if runs and runs[-1][0] == count:
                runs[-1][1] += 1
            else:
                runs.append([count, 1])
        return f"Non-IID({','.join(f'{count}x{times}' for count, times in runs)})"


def parse_classes(text: str, *, learners: int, classes: int, power_law: bool = False) -> LabelSkew:
    """Parse a label skew for a number of learners and classes.

    With power-law sizes, `Non-IID(x)` stands for the paper's full form where the paper defines one.

    >>> str(parse_classes("Non-IID(3x8)", learners=10, classes=10))
    'Non-IID(8x1,4x1,3x8)'
    >>> parse_classes("2x1, 1x2", learners=3, classes=5).class_counts
    (2, 1, 1)
    """
    normalised = text.strip().lower()
    if normalised == "iid":
        return LabelSkew()
    if match := _DIRICHLET.fullmatch(normalised):
        return LabelSkew(alpha=_parse_alpha(match[1], text))
    if normalised.startswith("non-iid"):
        normalised = normalised.removeprefix("non-iid").strip()
        if not (normalised.startswith("(") and normalised.endswith(")")):
            raise _invalid_skew(text)
        normalised = normalised[1:-1]
    matches = [_TERM.fullmatch(term.strip()) for term in normalised.split(",")]
    if not all(matches):
        raise _invalid_skew(text)
    terms = [(int(m[1]), None if m[2] is None else int(m[2])) for m in matches if m]
    class_counts = _expand(text, terms, learners, classes, power_law=power_law)
    if min(class_counts) < 1 or max(class_counts) > classes:
        invalid = min(class_counts) if min(class_counts) < 1 else max(class_counts)
        raise SettingsError(
            f"'{text}' gives a learner {invalid} classes, but the data has {classes}",
            where="classes",
            remedy=f"use numbers from 1 to {classes}",
        )
    return LabelSkew(class_counts)


def _expand(
    text: str, terms: list[tuple[int, int | None]], learners: int, classes: int, *, power_law: bool
) -> tuple[int, ...]:
    known = _FULL_FORMS.get((learners, classes), {})
    pairs: list[tuple[int, int]] = [(count, times) for count, times in terms if times is not None]
    if len(terms) == 1:
        count, times = terms[0]
        if times is None:
            full = [form for short, form in known.items() if power_law and short[0] == count]
            pairs = list(full[0]) if full else [(count, learners)]
        elif (count, times) in known:
            pairs = list(known[count, times])
    elif len(pairs) < len(terms):
        raise _invalid_skew(text)
    # Checked first, so that a large number in the text does not become a large tuple.
    total = sum(times for _, times in pairs)
    if total != learners or not all(times for _, times in pairs):
        raise SettingsError(
            f"'{text}' describes {total} learners, but there are {learners}",
            where="classes",
            remedy="list each learner once, the largest first, like Non-IID(8x1,4x1,3x8) for ten learners",
        )
    return tuple(count for count, times in pairs for _ in range(times))


def _parse_alpha(number: str, text: str) -> float:
    try:
        alpha = float(number)
    except ValueError:
        alpha = 0.0
    if not 1e-3 <= alpha <= 1e6:
        raise SettingsError(
            f"the concentration in '{text}' is out of range",
            where="classes",
            remedy="use a number from 0.001 (one class each) to 1000000 (nearly IID), like Dirichlet(0.5)",
        )
    return alpha


def _invalid_skew(text: str) -> SettingsError:
    return SettingsError(
        f"'{text[:60]}' is not a label skew",
        where="classes",
        remedy="write IID, Non-IID(3), Non-IID(8x1,4x1,3x8) or Dirichlet(0.5)",
    )


Counts = NDArray[np.int64]

_FORM = re.compile(r"([a-z-]+)(?:\(([0-9.]{1,12})\))?")


def partition_sizes(form: str, learners: int, total: int) -> Counts:
    """Return how many of `total` examples each learner gets by the size skew, the largest first.

    Forms:
        `uniform`: the same number for every learner; fewer than `learners` examples stay unused.
        `skewed`: the quantiles of a log-normal distribution: a few are large and no two are equal.
        `power-law`: each learner 1.5 times the next one, which the original experiments call a power law.
        `power-law-true`: the learner of rank k has a fraction proportional to k^-1.5.

    A number in brackets replaces the 1.5, or the standard deviation 0.5 of the log-normal distribution: `power-law(2)`.

    >>> partition_sizes("power-law", 10, 10_000).tolist()
    [3392, 2261, 1508, 1005, 670, 447, 298, 199, 132, 88]
    >>> partition_sizes("power-law-true", 4, 1000).tolist()
    [598, 212, 115, 75]
    """
    if learners < 2:
        raise SettingsError(
            f"learners is {learners}", where="partition", remedy="a federation needs two learners or more"
        )
    if total < learners:
        raise SettingsError(
            f"{total} examples are too few for {learners} learners",
            where="partition",
            remedy="use fewer learners or more data",
        )
    match = _FORM.fullmatch(form.strip().lower())
    if match is None or match[1] not in _LAWS:
        raise SettingsError(
            f"there is no size distribution '{form}'",
            where="sizes",
            remedy=f"use {', '.join(_LAWS)}, with a number in brackets if you like: power-law(1.5)",
        )
    sizes = _LAWS[match[1]](learners, total, _parse_parameter(match[2], form))
    if sizes[-1] < 1:
        raise SettingsError(
            f"{total} examples are too few: by '{form}' the smallest of {learners} learners gets none",
            where="sizes",
            remedy="use fewer learners, more data or a flatter distribution",
        )
    return sizes


def _parse_parameter(text: str | None, form: str) -> float | None:
    try:
        number = None if text is None else float(text)
    except ValueError:
        number = 0.0
    if number is not None and not 0 < number <= 100:
        raise SettingsError(
            f"the number in '{form}' is out of range",
            where="sizes",
            remedy="use one above 0 and at most 100, like 1.5",
        )
    return number


def _uniform(learners: int, total: int, number: float | None) -> Counts:
    if number is not None:
        raise SettingsError("uniform takes no number", where="sizes", remedy="write uniform without a number")
    return np.full(learners, total // learners, dtype=np.int64)


def _skewed(learners: int, total: int, number: float | None) -> Counts:
    std, normal = 0.5 if number is None else number, NormalDist()
    quantiles = (np.arange(learners) + 0.5) / learners
    weights = np.exp(std * np.array([normal.inv_cdf(1 - p) for p in quantiles]))
    # Each learner first gets its rank from the smallest, so that no two sizes are equal; the rest is log-normal.
    rank = np.arange(learners, 0, -1)
    remaining = total - int(rank.sum())
    if remaining < 0:
        raise SettingsError(
            f"{total} examples are too few for {learners} learners of different sizes",
            where="sizes",
            remedy=f"use at least {rank.sum()} examples, fewer learners, or uniform sizes",
        )
    above = np.maximum(weights / weights.sum() * total - rank, 0)
    above = np.maximum.accumulate(above[::-1])[::-1]
    return rank + (largest_remainder(above, remaining) if remaining else 0)


def _geometric(learners: int, total: int, number: float | None) -> Counts:
    factor = 1.5 if number is None else number
    if factor <= 1:
        raise SettingsError(
            f"the factor of the power law is {factor}", where="sizes", remedy="use a factor above 1, like 1.5"
        )
    return largest_remainder(factor ** -np.arange(learners, dtype=np.float64), total)


def _ranked(learners: int, total: int, number: float | None) -> Counts:
    exponent = 1.5 if number is None else number
    return largest_remainder(np.arange(1, learners + 1, dtype=np.float64) ** -exponent, total)


_LAWS: Mapping[str, Callable[[int, int, float | None], Counts]] = {
    "uniform": _uniform,
    "skewed": _skewed,
    "power-law": _geometric,
    "power-law-true": _ranked,
}
