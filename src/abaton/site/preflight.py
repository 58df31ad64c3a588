"""What ``abaton site check`` tells: the funnel with its reasons, what was set aside, and remarks; never a value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from abaton.disclosure.attrition import Stage
from abaton.disclosure.suppression import Steps, masked
from abaton.features import Finding, Reason, Report, data_quality
from abaton.site.config_reader import smallest_count
from abaton.site.record_pipeline import Site
from abaton.site.sources.queries import types_of

# These say how many people there are, which the funnel tells better: here they are told without a number.
_PEOPLE = frozenset(
    {
        Reason.BEFORE,
        Reason.CENSORED,
        Reason.DROPPED,
        Reason.EMPTY_COHORT,
        Reason.NO_LABEL,
        Reason.ONE_CLASS,
        Reason.TOO_FEW,
    }
)


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


def check_site(site: Site) -> Check:
    """Run a site's pipeline to its end, keep nothing, and tell how many people came how far.

    Args:
        site: The site, opened for a study.
    """
    if site.study.features is not None:
        return checked(site, site.table().report)
    for _ in site.kept():
        pass
    return checked(site)


def checked(site: Site, report: Report | None = None) -> Check:
    """What there is to tell of a site whose records have been read, and of the report on its table if one was made."""
    usable = True
    remarks: tuple[str, ...] = ("the study has no features, so no rows are counted",)
    if report is not None:
        usable, remarks = report.usable, tuple(dict.fromkeys(_told(each) for each in report.findings))
    funnel, floor, faults = site.funnel, smallest_count(site.document, site.study), site.faults
    assert funnel.adds_up
    read, last = funnel.reached[Stage.READ], funnel.reached[funnel.stages[-1]]
    aside = {
        why: (data_quality.masked(count, floor), tuple(faults.places.get(why, ())))
        for why, count in sorted(faults.reasons.items())
    }
    return Check(
        masked(funnel, floor),
        _read(site, floor),
        aside,
        {why: data_quality.masked(count, floor) for why, count in sorted(site.left_out.items())},
        (*_on(site, read, last), *remarks, site.gate.words()),
        floor,
        usable and last > 0,
    )


def _told(finding: Finding) -> str:
    """What the site's records lack, in words; rows are counted, people are not."""
    found = f" ({finding.system})" if finding.system else ""
    number = "" if finding.reason in _PEOPLE else f", {finding.count}"
    return f"{finding.about}: {finding.reason.value}{found}{number}; {finding.remedy}"


def _read(site: Site, floor: int) -> dict[str, str]:
    needed = sorted(types_of(site.need, site.study.eligibility))
    found = {kind: data_quality.masked(site.read[kind], floor) for kind in needed}
    others = sum(count for kind, count in site.read.items() if kind not in found)
    return {**found, "other types, not needed": data_quality.masked(others, floor)} if others else found


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
