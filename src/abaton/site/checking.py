"""What ``abaton site check`` tells: the funnel with its reasons, what was set aside, and remarks; never a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from abaton.records.stages import Deidentified
from abaton.site.funnel import Stage
from abaton.site.masking import Steps, masked, told
from abaton.site.queries import types_of
from abaton.site.reading import smallest_count
from abaton.site.site import Site


class RowCount(NamedTuple):
    """How many subjects give a row of the study's table, why others do not, and what is missing for the plan."""

    rows: int
    reasons: Counter[str]
    remarks: tuple[str, ...] = ()


RowCounter = Callable[[Iterable[Deidentified]], RowCount]
"""Makes the study's table from de-identified records and counts its rows."""


@dataclass(frozen=True)
class Check:
    """The outcome of a check, masked: it can be shown to anybody at the site.

    Attributes:
        steps: The funnel.
        read: How many records of each type that the study needs were read, and of all others, masked.
        set_aside: What could not be read or placed, masked, with places to look at.
        left_out: Records that the site or the consent keeps back, masked.
        remarks: What else there is to know.
        floor: The smallest number that is told.
        usable: Whether anybody reaches the last stage.
    """

    steps: Steps
    read: dict[str, str]
    set_aside: dict[str, tuple[str, tuple[str, ...]]]
    left_out: dict[str, str]
    remarks: tuple[str, ...]
    floor: int
    usable: bool

    def row(self) -> dict[str, Any]:
        """The outcome in the form that is printed as JSON."""
        return {
            "funnel": [
                {
                    "stage": step.stage.value,
                    "subjects": step.reached.text,
                    "left_out": [
                        {"reason": why, "subjects": cell.text} for why, cell in step.reasons.items()
                    ],
                }
                for step in self.steps
            ],
            "records": self.read,
            "set_aside": [
                {"reason": why, "count": count, "places": list(places)}
                for why, (count, places) in self.set_aside.items()
            ],
            "kept_back": self.left_out,
            "remarks": list(self.remarks),
            "smallest_count": self.floor,
            "usable": self.usable,
        }


def check_site(site: Site, count_rows: RowCounter | None = None) -> Check:
    """Run a site's pipeline to its end, keep nothing, and tell how many people came how far.

    Args:
        site: The site, opened for a study.
        count_rows: Makes the study's table; nothing if the study has none.
    """
    remarks: tuple[str, ...] = ()
    if count_rows is None:
        for _ in site.kept():
            pass
        funnel = site.funnel
        remarks = ("the study has no features, so no rows are counted",)
    else:
        counted = count_rows(site.records())
        funnel = site.funnel.with_rows(counted.rows, counted.reasons)
        remarks = counted.remarks
    assert funnel.adds_up
    floor = smallest_count(site.document, site.study)
    faults = site.faults
    return Check(
        masked(funnel, floor),
        _read(site, floor),
        {
            why: (told(count, floor), tuple(faults.places.get(why, ())))
            for why, count in sorted(faults.reasons.items())
        },
        {why: told(count, floor) for why, count in sorted(site.left_out.items())},
        (*_on(site, funnel.reached[Stage.READ], funnel.reached[funnel.stages[-1]]), *remarks),
        floor,
        funnel.reached[funnel.stages[-1]] > 0,
    )


def _read(site: Site, floor: int) -> dict[str, str]:
    needed = sorted(types_of(site.need, site.study.eligibility))
    found = {kind: told(site.read[kind], floor) for kind in needed}
    others = sum(count for kind, count in site.read.items() if kind not in found)
    return {**found, "other types, not needed": told(others, floor)} if others else found


def _on(site: Site, read: int, last: int) -> Iterable[str]:
    if not site.read:
        yield "no record was read: check [records]"
    elif not read:
        yield "no Patient was read, so there is nobody: check that Patients are among the records"
    elif not last:
        yield "nobody comes through: the reasons above say where people are lost"
    if any("another system" in why for why in site.funnel.stopped.get(Stage.ELIGIBLE, ())):
        yield "records are coded in another system than the study's: ask for those codes to be added to the study"
    if any("half-written" in why or "gzip" in why for why in site.faults.reasons):
        yield "a file was cut off, so people may be missing: export or copy it again"
