"""Findings of a study run as sentences and rows: the main metric with its interval, and the local benefit of each site.

The report, the dashboard and the command line start with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.evaluation_figures import complete_estimate, format_interval
from abaton.report.run_tables import Row, Table
from abaton.report.training_curves import is_error_metric, metric_label

BETTER, WORSE, UNCLEAR, TOO_FEW = "better", "worse", "unclear", "too few"
"""Verdicts on a site: the community model compared with its local-only model."""

OVERALL = "all sites, weighted by cases"
"""Row of the mean local benefit over the sites."""

_UNINFORMATIVE_VALUE = {"auroc": 0.5, "concordance": 0.5, "r2": 0.0}  # value of a model without information
_WIDTHS = (
    (0.05, "The interval is narrow"),
    (0.1, "The interval is fairly narrow"),
    (0.2, "The interval is wide"),
)


def main_finding(
    study: Mapping[str, Any], evaluation: Mapping[str, Any], confidence_level: float = 0.95
) -> dict[str, Any] | None:
    """Return the main finding of a run: its metric with interval, and a sentence; `None` if not evaluated.

    Args:
        study: Study facts of the run.
        evaluation: Evaluation results of the run.
        confidence_level: Confidence level of the intervals.
    """
    community = next(
        (
            row
            for row in evaluation.get("rows", ())
            if row["grouping"] == "all" and row["model"] == "community"
        ),
        None,
    )
    if community is None or not community["metrics"]:
        return None
    metric = next(iter(community["metrics"]))
    estimate = community["metrics"][metric]
    if estimate["value"] is None:
        return None
    interval = ""
    if estimate["low"] is not None:
        interval = (
            f" ({100 * confidence_level:g}\u00a0% interval {estimate['low']:.3f} to {estimate['high']:.3f})"
        )
    _, _, positive_class = community["group"].partition(", ")
    outcome = " ".join(str(study.get("outcome") or "the outcome").replace("_", " ").split())
    target = f"{outcome} ({positive_class})" if positive_class else outcome
    sites = f"{community['sites']} sites" if community["sites"] != 1 else "one site"
    return {
        "metric": metric,
        "name": metric_label(metric),
        "value": estimate["value"],
        "low": estimate["low"],
        "high": estimate["high"],
        "subjects": community["subjects"],
        "sites": community["sites"],
        "text": f"The community model predicts {target} with {_article(metric)} {metric_label(metric)} of "
        f"{estimate['value']:.3f}{interval}, in {community['subjects']} held-out test subjects of {sites}.",
        "certainty": _certainty(metric, estimate),
    }


def _article(metric: str) -> str:
    return "an" if metric in ("auroc", "auprc", "accuracy", "r2") else "a"


def _certainty(metric: str, estimate: Mapping[str, Any]) -> str:
    """Return a sentence of the main finding on the width of the interval and on a model without information."""
    if estimate["low"] is None:
        return "There is no confidence interval."
    width = estimate["high"] - estimate["low"]
    statement = next((text for limit, text in _WIDTHS if width <= limit), "The interval is very wide")
    if metric in _UNINFORMATIVE_VALUE:
        if estimate["low"] <= _UNINFORMATIVE_VALUE[metric]:
            return f"{statement} and includes the value of a model without information."
        statement += " and excludes the value of a model without information"
    return f"{statement}. It does not extend to other hospitals."


def local_benefits(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the finding of each site: local-only and community model on its test subjects, with a verdict.

    The benefit is an improvement: a decrease of error metrics, an increase of others.

    >>> estimate = {"value": 0.2, "low": 0.1, "high": 0.3}
    >>> pair = {"local_only": estimate, "community": estimate, "difference": estimate}
    >>> evaluation = {"local_benefit": {"metric": "auroc", "sites": {"kos": pair}}}
    >>> local_benefits(evaluation)[0]["verdict"]
    'better'
    """
    benefits = evaluation.get("local_benefit") or {"metric": "", "sites": {}}
    subjects = {
        row["group"]: row["subjects"]
        for row in evaluation.get("rows", ())
        if row["grouping"] == "site" and row["model"] == "community"
    }
    rows = []
    for site, pair in benefits["sites"].items():
        benefit = None if pair is None else _improvement(pair["difference"], benefits["metric"])
        rows.append(
            {
                "site": site, "subjects": subjects.get(site, "–"), "metric": benefits["metric"], "benefit": benefit,
                "local_only": pair and pair["local_only"], "community": pair and pair["community"],
                "baseline": format_baseline((pair or {}).get("baseline")), "verdict": _verdict(benefit),
            }
        )  # fmt: skip
    if overall := benefits.get("overall"):
        benefit = _improvement(overall, benefits["metric"])
        rows.append(
            {
                "site": OVERALL, "sites": overall["sites"], "subjects": "–", "metric": benefits["metric"],
                "benefit": benefit, "local_only": None, "community": None, "baseline": "", "verdict": _verdict(benefit),
            }
        )  # fmt: skip
    return rows


def format_baseline(baseline: Mapping[str, Any] | None) -> str:
    """Return the kind of a local-only model in a finding and its setting, both chosen by cross-validation.

    >>> format_baseline({"kind": "study model", "epochs": 8})
    'study model, 8 epochs'
    >>> format_baseline({"kind": "spline regression", "penalty": 10.0})
    'spline regression, penalty 10'
    """
    if baseline is None:
        return ""
    epochs = baseline.get("epochs")
    setting = f"penalty {baseline['penalty']:g}" if epochs is None else f"{epochs} epoch{'s' * (epochs != 1)}"
    return f"{baseline['kind']}, {setting}"


def _improvement(difference: Mapping[str, Any], metric: str) -> dict[str, Any]:
    value, low, high = (difference[key] for key in ("value", "low", "high"))
    if not is_error_metric(metric):
        return {"value": value, "low": low, "high": high}
    negated = {"value": value, "low": high, "high": low}
    return {key: None if limit is None else -limit for key, limit in negated.items()}


def _verdict(benefit: Mapping[str, Any] | None) -> str:
    if benefit is None or complete_estimate({"benefit": benefit}, "benefit") is None:
        return TOO_FEW
    return BETTER if benefit["low"] > 0 else WORSE if benefit["high"] < 0 else UNCLEAR


def local_benefit_text(benefits: Sequence[Mapping[str, Any]]) -> str:
    """Return the local benefit of all sites as a sentence of the findings; it counts sites that were evaluated.

    >>> local_benefit_text([{"verdict": BETTER}, {"verdict": UNCLEAR}, {"verdict": TOO_FEW}])[64:]
    'is clearly better at 1 of 2 sites and clearly worse at none. 1 other site has too few test subjects.'
    """
    sites = [benefit for benefit in benefits if benefit.get("site") != OVERALL]
    if not sites:
        return ""
    counts = {
        verdict: sum(benefit["verdict"] == verdict for benefit in sites)
        for verdict in (BETTER, WORSE, TOO_FEW)
    }
    evaluated, others = len(sites) - counts[TOO_FEW], counts[TOO_FEW]
    overall = "".join(
        f"Weighted by cases over {_site_count(benefit['sites'], len(sites))}, the local benefit of the community "
        f"model is {format_difference(benefit['benefit'])}. "
        for benefit in benefits
        if benefit not in sites
    )
    if not evaluated:
        return f"{overall}No site has enough test subjects to compare the two models by itself."
    better = f"{counts[BETTER] or 'none'} of {evaluated} {'site' if evaluated == 1 else 'sites'}"
    not_evaluated = (
        f" {others} other {'site has' if others == 1 else 'sites have'} too few test subjects."
        if others
        else ""
    )
    return (
        f"{overall}Compared with each site's local-only model, the community model is clearly better at {better} "
        f"and clearly worse at {counts[WORSE] or 'none'}.{not_evaluated}"
    )


def _site_count(count: int, total: int) -> str:
    """Return the number of sites of a finding as text.

    >>> _site_count(6, 6), _site_count(4, 6)
    ('all sites', '4 of 6 sites')
    """
    return "all sites" if count == total else f"{count} of {total} sites"


def local_benefit_table(benefits: Sequence[Mapping[str, Any]]) -> Table:
    """Return the local benefit of each site as a table of the findings."""
    metric = benefits[0]["metric"] if benefits else ""
    rows: list[Row] = [
        (benefit["site"], benefit["subjects"], benefit["baseline"] or "–", format_interval(benefit["local_only"]),
         format_interval(benefit["community"]), format_difference(benefit["benefit"]), benefit["verdict"])
        for benefit in benefits
    ]  # fmt: skip
    return (
        "site",
        "test subjects",
        "local-only model",
        f"{metric}, local-only model",
        "community model",
        "local benefit",
        "verdict",
    ), rows


def format_difference(estimate: Mapping[str, Any] | None) -> str:
    """Return the difference in a local benefit finding with its sign and its interval as text.

    >>> format_difference({"value": 0.031, "low": -0.01, "high": 0.07})
    '+0.031 (−0.010 to +0.070)'
    """
    if estimate is None or estimate["value"] is None:
        return "–"
    if estimate["low"] is None:
        return _format_sign(estimate["value"])
    return f"{_format_sign(estimate['value'])} ({_format_sign(estimate['low'])} to {_format_sign(estimate['high'])})"


def _format_sign(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def local_benefit_axis(benefits: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the limits of an axis of local benefits, which includes zero; for :func:`axis_percent`."""
    estimates = [benefit["benefit"] for benefit in benefits if benefit["verdict"] != TOO_FEW]
    low = min([0.0, *(benefit["low"] for benefit in estimates)])
    high = max([0.0, *(benefit["high"] for benefit in estimates)])
    margin = 0.08 * ((high - low) or 1.0)
    return {"low": low - margin, "high": high + margin}


def axis_percent(value: float, axis: Mapping[str, float]) -> float:
    """Return the position of a local benefit on the axis of the findings in percent.

    >>> axis_percent(0.5, {"low": 0.0, "high": 2.0})
    25.0
    """
    return round(100 * (value - axis["low"]) / (axis["high"] - axis["low"]), 2)
