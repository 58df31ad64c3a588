"""What a site of a study can tell of a model, and what none can: a lie is found out, or is no larger than a site.

Answers have been read into their forms before (`network.messages`). Here they are held against the study: which groups
there are, of what a measure can be, and that no part is larger than the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from abaton.features import columns, group_names
from abaton.metrics.classification import Estimate
from abaton.metrics.regression import ValueSums
from abaton.metrics.survival import PairSums
from abaton.study import Study
from abaton.study_run.evaluation import EVERYBODY, Counted, Subset, Told, measure_names
from abaton.study_run.interpretability import SiteExplained
from abaton.study_run.local_benefit import SiteGain, Standing
from abaton.study_run.messages import PEOPLE, unreadable

_ALL = Subset(EVERYBODY, "all")
_SLACK = 1.0  # how far an interval may reach beyond what a measure can be: those for large samples do
_ANYTHING = (-1e150, 1e150)  # squares of it are numbers, too
_RANGES: Mapping[str, tuple[float, float]] = {
    "rmse": (0.0, 1e150),
    "mae": (0.0, 1e150),
    "r2": (-1e150, 1.0),
    "calibration slope": _ANYTHING,
    "calibration intercept": _ANYTHING,
}
_SHARE = (0.0, 1.0)  # what every other measure is


def check_told(told: Told, site: str, study: Study) -> Told:
    """What a site tells of a model, if a site of this study can tell it; nothing, if it tells nothing.

    Raises:
        PayloadError: It tells of others' people, of groups that there are not, or of more of a group than of all.
    """
    if not told:
        return told
    allowed = {_ALL, Subset(site, "site"), *_groups(study)}
    if _ALL not in told or not told.keys() <= allowed:
        raise unreadable()
    whole = _sizes(told[_ALL], study)
    for what in told.values():
        if any(some > most for some, most in zip(_sizes(what, study), whole, strict=True)):
            raise unreadable()
    return told


def check_explained(told: SiteExplained, site: str, study: Study) -> SiteExplained:
    """What a site tells of what a model goes by, if a site of this study can tell it.

    Raises:
        PayloadError: It cannot.
    """
    check_told(told.told, site, study)
    whole = _sizes(told.told[_ALL], study)
    again = [_sizes(each, study) for times in told.shuffled.values() for each in times]
    low, high = _SHARE if study.plan().label.names else _ANYTHING
    means = [mean for points in told.means.values() for point in points for mean in point]
    if any(sizes != whole for sizes in again) or not all(low <= mean <= high for mean in means):
        raise unreadable()
    return told


def check_gain(gain: SiteGain, study: Study) -> SiteGain:
    """What a site gains, if it is what the study's measure can be.

    Raises:
        PayloadError: It is not.
    """
    assert study.learning is not None
    bounds = _RANGES.get(measure_names(study.learning)[0], _SHARE)
    width = bounds[1] - bounds[0]
    for each in (gain.told or {}).values():
        fits = _fits(each.value, bounds) and all(
            _fits(apart, (-width, width)) for apart in (each.over_own, each.over_community)
        )
        if not fits or not _can_be_chosen(each):
            raise unreadable()
    return gain


def _groups(study: Study) -> Iterator[Subset]:
    assert study.learning is not None
    known = columns(study.plan())
    for group in study.learning.evaluation.groups:
        for name in group_names(known, group.input, group.bands):
            yield Subset(f"{group.input}: {name}", group.input)


def _sizes(what: Counted, study: Study) -> list[int]:
    """Of how many people is told, for each case; in the form that the study's outcome has."""
    assert study.learning is not None
    form = {"value": ValueSums, "time": PairSums}.get(study.learning.task)
    if isinstance(what, ValueSums | PairSums) != (form is not None):
        raise unreadable()
    if form is not None and not isinstance(what, form):
        raise unreadable()
    sizes = [what.subjects] if isinstance(what, ValueSums | PairSums) else [each.subjects for each in what]
    if max(sizes) > PEOPLE:
        raise unreadable()
    return sizes


def _fits(told: Estimate, bounds: tuple[float, float]) -> bool:
    low, high = bounds
    known = [each for each in (told.low, told.high) if math.isfinite(each)]
    return (
        (math.isnan(told.value) or low <= told.value <= high)
        and known == sorted(known)
        and all(low - _SLACK <= each <= high + _SLACK for each in known)
    )


def _can_be_chosen(told: Standing) -> bool:
    return 0 <= told.chosen.get("weight", 0) <= 1 and all(
        _ANYTHING[0] <= each <= _ANYTHING[1] for each in told.chosen.values()
    )
