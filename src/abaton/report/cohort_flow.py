"""How people came into a study, stage by stage: pure functions from what sites told to a picture's numbers.

Small counts are masked where they were made, as '<5' or '≥5': sums keep that, and say 'at least'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abaton.report.run_tables import STAGES

_WORDS = {
    "read": "people whose records were read",
    "eligible": "fit the study's criteria",
    "consented": "agreed, and still do",
    "kept": "kept after de-identification",
    "rows": "rows that the model learns from or is tested on",
}


def cohort_flow(sites: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each stage how many people of all sites, each site's part, and who was left out on the way to it.

    Args:
        sites: What every site told: its funnel.
    """
    funnels = {
        site: {step["stage"]: step for step in told.get("funnel", ())}
        for site, told in sites.items()
        if told.get("funnel")
    }
    first = {site: _least(funnel["read"]["subjects"]) for site, funnel in funnels.items() if "read" in funnel}
    whole = max(sum(first.values()), 1)
    made = []
    for stage in STAGES:
        there = {site: funnel[stage] for site, funnel in funnels.items() if stage in funnel}
        if not there:
            continue
        left: dict[str, list[str]] = {}
        for step in there.values():
            for each in step["left_out"]:
                left.setdefault(each["reason"], []).append(each["subjects"])
        counts = {site: step["subjects"] for site, step in there.items()}
        made.append(
            {
                "stage": stage,
                "words": _WORDS[stage],
                "people": added(counts.values()),
                "bars": _bars(counts, first, whole),
                "left_out": [(reason.replace("_", " "), added(numbers)) for reason, numbers in left.items()],
            }
        )
    return made


def _bars(counts: Mapping[str, str], first: Mapping[str, int], whole: int) -> list[dict[str, Any]]:
    """Each site's part of a bar, in hundredths of all who were read; a masked number is drawn as all of its site."""
    bars, begin = [], 0.0
    for site, count in counts.items():
        exact = str(count).isdigit()
        room = 100 * first.get(site, 0) / whole
        wide = 100 * int(count) / whole if exact else room
        bars.append(
            {"site": site, "x": round(begin, 2), "width": round(wide, 2), "exact": exact, "people": count}
        )
        begin += room
    return bars


def added(counts: Iterable[str]) -> str:
    """The sum of counts some of which are masked.

    >>> added(["40", "2"]), added(["40", "<5"]), added(["≥5", "40"]), added(["<5", "<5"])
    ('42', '≥40', '≥45', '≤8')
    """
    listed = [str(count) for count in counts]
    if len(listed) == 1:
        return listed[0]
    if all(each.startswith("<") for each in listed):
        return f"≤{sum(int(each[1:]) - 1 for each in listed)}"
    total = f"{sum(map(_least, listed)):,}"
    return total if all(each.isdigit() for each in listed) else f"≥{total}"


def _least(count: str) -> int:
    """The least that a count can be.

    >>> _least("12"), _least("≥5"), _least("<5")
    (12, 5, 0)
    """
    text = str(count)
    return int(text.removeprefix("≥")) if text.removeprefix("≥").isdigit() else 0
