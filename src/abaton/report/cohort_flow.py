"""CONSORT-style flow of subjects through the stages of a study, summed over sites.

Small counts are suppressed ('<5'); sums that contain one are bounds ('≥'). Counts may contain noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from abaton.report.run_tables import STAGES

_LABELS = {
    "consented": "eligible, with a consent or another legal basis",
    "retained": "kept after de-identification",
    "rows": "in the feature table",
    "anonymous": "in the common k-anonymous table",
    "in_force": "with a consent in force at the end of the run",
    "evaluated": "held-out test subjects, evaluated",
}


def complete_cohorts(
    cohort_reports: Mapping[str, Mapping[str, Any]], result: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """Return the cohort reports with the flow up to the evaluated subjects, where the run's result has it.

    One attrition of a site is shown: two with different suppressed counts could be compared.
    """
    complete = ((result or {}).get("cohort_description") or {}).get("attrition", {})
    return {
        site: {**cohort, "attrition": complete[site]} if site in complete else dict(cohort)
        for site, cohort in cohort_reports.items()
    }


def cohort_flow_data(sites: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return each stage of the cohort flow: subjects of all sites, a bar per site, and exclusions before it.

    Args:
        sites: Released data of each site with its attrition.
    """
    attritions = {
        site: {step["stage"]: step for step in released.get("attrition", ())}
        for site, released in sites.items()
        if released.get("attrition")
    }
    initial = {
        site: _lower_bound(next(iter(attrition.values()))["subjects"])
        for site, attrition in attritions.items()
    }
    total = max(sum(initial.values()), 1)
    stages = []
    for stage in STAGES:
        steps = {site: attrition[stage] for site, attrition in attritions.items() if stage in attrition}
        if not steps:
            continue
        excluded: dict[str, list[str]] = {}
        for step in steps.values():
            for exclusion in step["excluded"]:
                excluded.setdefault(exclusion["reason"], []).append(exclusion["subjects"])
        counts = {site: step["subjects"] for site, step in steps.items()}
        stages.append(
            {
                "stage": stage,
                "text": _LABELS[stage],
                "subjects": sum_counts(counts.values()),
                "bars": _bars(counts, initial, total),
                "excluded": [
                    (reason.replace("_", " "), sum_counts(counts_by_site))
                    for reason, counts_by_site in excluded.items()
                ],
            }
        )
    return stages


def noise_text(sites: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a sentence on the noise in the counts of a cohort flow; empty if they are exact.

    >>> noise_text({"kos": {"sd": 3.0, "threshold": 10}})
    'Counts contain noise: each count of a site by reason has a standard deviation of 3; counts below 10 are not shown.'
    """
    noisy = [released for released in sites.values() if released.get("sd")]
    if not noisy:
        return ""
    sd, threshold = max(site["sd"] for site in noisy), max(site["threshold"] for site in noisy)
    return (
        f"Counts contain noise: each count of a site by reason has a standard deviation of {sd:g}; counts below "
        f"{threshold} are not shown."
    )


def _bars(counts: Mapping[str, str], initial: Mapping[str, int], total: int) -> list[dict[str, Any]]:
    """Return each site's bar of the cohort flow in percent of all subjects; suppressed counts at their maximum."""
    bars, offset = [], 0.0
    for site, count in counts.items():
        is_exact = str(count).isdigit()
        max_width = 100 * initial.get(site, 0) / total
        width = 100 * int(count) / total if is_exact else max_width
        bars.append(
            {
                "site": site,
                "x": round(offset, 2),
                "width": round(width, 2),
                "is_exact": is_exact,
                "subjects": count,
            }
        )
        offset += max_width
    return bars


def sum_counts(counts: Iterable[str]) -> str:
    """Return the sum of cohort flow counts of which some are suppressed.

    >>> [sum_counts(counts) for counts in (["40", "2"], ["40", "<5"], ["≥5", "40"], ["<5", "<5"])]
    ['42', '≥40', '≥45', '≤8']
    """
    texts = [str(count) for count in counts]
    if len(texts) == 1:
        return texts[0]
    if all(text.startswith("<") for text in texts):
        return f"≤{sum(int(text[1:]) - 1 for text in texts)}"
    total = f"{sum(map(_lower_bound, texts)):,}"
    return total if all(text.isdigit() for text in texts) else f"≥{total}"


def _lower_bound(count: str) -> int:
    """Return the lower bound of a cohort flow count that may be suppressed.

    >>> _lower_bound("12"), _lower_bound("≥5"), _lower_bound("<5")
    (12, 5, 0)
    """
    text = str(count)
    return int(text.removeprefix("≥")) if text.removeprefix("≥").isdigit() else 0
