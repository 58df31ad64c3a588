"""What is learned: the label of every subject, or the reason why a subject has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from abaton.features import extraction
from abaton.features.data_quality import Reason
from abaton.features.extraction import Cells, Counts, Gathered, Index, of_subject
from abaton.features.specification import FollowUp, Join, Label, Outcome
from abaton.fhir.partial_dates import Moment, plus, within

Labelled = float | tuple[float, float] | Reason
"""A class, a value, or days with 1 for an event and 0 for nothing until then; or why there is none."""


def labels(
    label: Label, rows: Gathered, subjects: Sequence[str], index: Mapping[str, Index], counts: Counts
) -> list[Labelled]:
    """The label of every subject, in their order."""
    return [_label(label, rows, subject, index.get(subject), counts) for subject in subjects]


def _label(label: Label, rows: Gathered, subject: str, index: Index | None, counts: Counts) -> Labelled:
    mine = extraction.chosen(of_subject(rows, label, subject), label, None, counts)
    match label.kind:
        case Outcome.ANY:
            return float(any(True for _ in mine))
        case Outcome.CLASSES:
            places = extraction.category(
                extraction.categories(mine, label, label.classes, counts), label.join
            )
            place = min(places) if places else len(label.classes)
            return float(place) if place < len(label.classes) else Reason.NO_LABEL
        case Outcome.THRESHOLD | Outcome.VALUE:
            found = extraction.numbers(mine, label, counts)
            value = extraction.number(found, label.join or Join.MEAN)
            if value is None:
                return Reason.NO_LABEL
            return value if label.above is None else float(value > label.above)
        case Outcome.EVENT:
            watched = None if label.follow_up is None else _dates(rows, label.follow_up, subject)
            return _event(label, list(mine), watched, index)
        case Outcome.TIME:
            contacts, deaths = (
                [] if source is None else _dates(rows, source, subject)
                for source in (label.follow_up, label.death)
            )
            return _time(label, list(mine), contacts, deaths, index)


def _dates(rows: Gathered, source: FollowUp, subject: str) -> list[Moment]:
    found = (
        extraction.when(row, source)
        for row in extraction.chosen(of_subject(rows, source, subject), source, None, Counts())
    )
    return [then for then in found if then is not None]


def _event(
    label: Label, rows: Sequence[Cells], watched: list[Moment] | None, index: Index | None
) -> Labelled:
    """Whether an event fell in the window after the index date; who was not watched to its end is left out."""
    if index is None or label.days is None:
        return Reason.NO_DATE
    events = [extraction.when(row, label) for row in rows]
    if None in events:
        return Reason.NO_DATE
    known = [then for then in events if then is not None]
    if any(then.last <= index.at.first for then in known):
        return Reason.BEFORE
    answers = [within(then, index.at, label.days) for then in known]
    if True in answers:
        return 1.0
    if None in answers:
        return Reason.COARSE_DATE
    end = plus(index.at.last, label.days)
    if known or watched is None or any(then.first >= end for then in watched):
        return 0.0
    return Reason.CENSORED


def _time(
    label: Label,
    rows: Sequence[Cells],
    contacts: Sequence[Moment],
    deaths: Sequence[Moment],
    index: Index | None,
) -> Labelled:
    """How many days after the index date the first event was, or until when there was none.

    Nobody is watched longer than the window, beyond a death, or beyond the last contact; an event is a contact, too,
    and counts on the day of a death. Who has had the event by the index date, or was not watched for a day, is left
    out.
    """
    if index is None or label.days is None:
        return Reason.NO_DATE
    start, events = index.at, [extraction.when(row, label) for row in rows]
    known = sorted(then for then in events if then is not None)
    if len(known) < len(events):
        return Reason.NO_DATE
    if any(then.last <= start.first for then in known):
        return Reason.BEFORE
    end = plus(start.last, label.days)
    seen = [then for then in known if then.first <= end]
    dying = sorted(then for then in deaths if then.first <= end)
    if any(then.first != then.last for then in (start, *seen[:1], *dying[:1])):
        return Reason.COARSE_DATE
    died = min((then.first for then in dying), default=end)
    if seen and seen[0].first <= died:
        return float((seen[0].first - start.first).days), 1.0
    last = max((then.first for then in (*contacts, *known)), default=start.first)
    watched = (min(end, died, last) - start.first).days
    return (float(watched), 0.0) if watched > 0 else Reason.CENSORED
