"""What a run found, for whom, and how sure that is: pure functions from a run's result to sentences and rows.

The report, the dashboard and the command line begin with exactly this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from abaton.report.evaluation_figures import estimate, said
from abaton.report.run_tables import Row, Table
from abaton.report.training_curves import less_is_better, measure_name

GAINS, LOSES, UNCLEAR, FEW = "gains", "better alone", "no clear difference", "too few people to tell"
"""What can be said of a site: its community model against its own."""

_CHANCE = {"auroc": 0.5, "concordance": 0.5, "r2": 0.0}  # what a model reaches that knows nothing
_WIDTHS = (
    (0.05, "The interval is narrow"),
    (0.1, "The interval is fairly narrow"),
    (0.2, "The interval is wide"),
)


def finding(
    study: Mapping[str, Any], evaluation: Mapping[str, Any], level: float = 0.95
) -> dict[str, Any] | None:
    """The one number that a run found, in a sentence: with its interval, for whom, and how sure; None if there is none.

    Args:
        study: What the run tells of its study.
        evaluation: How its models were judged.
        level: Of the intervals.
    """
    line = next(
        (
            each
            for each in evaluation.get("lines", ())
            if each["of"] == "all" and each["model"] == "community"
        ),
        None,
    )
    if line is None or not line["measures"]:
        return None
    measure = next(iter(line["measures"]))
    found = line["measures"][measure]
    if found["value"] is None:
        return None
    interval = ""
    if found["low"] is not None:
        interval = f" ({100 * level:g}\u00a0% interval {found['low']:.3f} to {found['high']:.3f})"
    _, _, case = line["subset"].partition(", ")
    outcome = " ".join(str(study.get("outcome") or "the outcome").replace("_", " ").split())
    what = f"{outcome} ({case})" if case else outcome
    sites = f"{line['sites']} sites" if line["sites"] != 1 else "one site"
    return {
        "measure": measure,
        "name": measure_name(measure),
        "value": found["value"],
        "low": found["low"],
        "high": found["high"],
        "people": line["subjects"],
        "sites": line["sites"],
        "words": f"The community model predicts {what} with {_article(measure)} {measure_name(measure)} of "
        f"{found['value']:.3f}{interval}, in {line['subjects']} people of {sites} from whom it did not learn.",
        "sure": _sure(measure, found),
    }


def _article(measure: str) -> str:
    return "an" if measure in ("auroc", "auprc", "accuracy", "r2") else "a"


def _sure(measure: str, found: Mapping[str, Any]) -> str:
    """How far the number can be trusted, in words."""
    if found["low"] is None:
        return "There is no interval, so nothing says how sure this is."
    wide = found["high"] - found["low"]
    words = next((text for most, text in _WIDTHS if wide <= most), "The interval is very wide")
    if measure in _CHANCE:
        if found["low"] <= _CHANCE[measure]:
            return f"{words}, and reaches what a model without knowledge would have: this may be chance."
        return f"{words}; all of it is better than chance. It says nothing about other hospitals."
    return f"{words}. It says nothing about other hospitals."


def site_gains(evaluation: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each site its own model and the community model on its own people, what it gains, and a verdict.

    A gain is an improvement: for errors it is how much smaller they are.

    >>> told = {"value": 0.2, "low": 0.1, "high": 0.3}
    >>> made = {"gains": {"measure": "auroc", "sites": {"kos": {"own": told, "community": told, "difference": told}}}}
    >>> site_gains(made)[0]["verdict"]
    'gains'
    """
    told = evaluation.get("gains") or {"measure": "", "sites": {}}
    people = {
        line["subset"]: line["subjects"]
        for line in evaluation.get("lines", ())
        if line["of"] == "site" and line["model"] == "community"
    }
    made = []
    for site, each in told["sites"].items():
        gain = None if each is None else _gain(each["difference"], told["measure"])
        made.append(
            {
                "site": site, "people": people.get(site, "–"), "measure": told["measure"], "gain": gain,
                "own": each and each["own"], "community": each and each["community"], "verdict": _verdict(gain),
            }
        )  # fmt: skip
    return made


def _gain(difference: Mapping[str, Any], measure: str) -> dict[str, Any]:
    if not less_is_better(measure):
        return dict(difference)
    turned = {"value": difference["value"], "low": difference["high"], "high": difference["low"]}
    return {key: None if value is None else -value for key, value in turned.items()}


def _verdict(gain: Mapping[str, Any] | None) -> str:
    if gain is None or estimate({"gain": gain}, "gain") is None:
        return FEW
    return GAINS if gain["low"] > 0 else LOSES if gain["high"] < 0 else UNCLEAR


def gains_words(gains: Sequence[Mapping[str, Any]]) -> str:
    """What sites gain in a sentence.

    >>> gains_words([{"verdict": GAINS}, {"verdict": UNCLEAR}])
    "Against each site's own model, the community model is clearly better at 1 of 2 sites and clearly worse at none."
    """
    if not gains:
        return ""
    number = {verdict: sum(each["verdict"] == verdict for each in gains) for verdict in (GAINS, LOSES, FEW)}
    better = f"{number[GAINS] or 'none'} of {len(gains)} sites"
    few = f"; at {number[FEW]} too few people were tested to tell" if number[FEW] else ""
    return (
        f"Against each site's own model, the community model is clearly better at {better} "
        f"and clearly worse at {number[LOSES] or 'none'}{few}."
    )


def gains_table(gains: Sequence[Mapping[str, Any]]) -> Table:
    """What each site gains, as a table."""
    name = gains[0]["measure"] if gains else ""
    rows: list[Row] = [
        (g["site"], g["people"], said(g["own"]), said(g["community"]), signed(g["gain"]), g["verdict"]) for g in gains
    ]  # fmt: skip
    return ("site", "people", f"{name}, own model", "community model", "gain", "verdict"), rows


def signed(found: Mapping[str, Any] | None) -> str:
    """A difference with its sign and its interval.

    >>> signed({"value": 0.031, "low": -0.01, "high": 0.07})
    '+0.031 (−0.010 to +0.070)'
    """
    if found is None or found["value"] is None:
        return "–"
    if found["low"] is None:
        return _sign(found["value"])
    return f"{_sign(found['value'])} ({_sign(found['low'])} to {_sign(found['high'])})"


def _sign(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def gains_axis(gains: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Where a picture of gains begins and ends, with zero inside; for :func:`on_axis`."""
    known = [each["gain"] for each in gains if each["verdict"] != FEW]
    low = min([0.0, *(each["low"] for each in known)])
    high = max([0.0, *(each["high"] for each in known)])
    room = 0.08 * ((high - low) or 1.0)
    return {"low": low - room, "high": high + room}


def on_axis(value: float, axis: Mapping[str, float]) -> float:
    """Where a value lies between the ends of an axis, in hundredths.

    >>> on_axis(0.5, {"low": 0.0, "high": 2.0})
    25.0
    """
    return round(100 * (value - axis["low"]) / (axis["high"] - axis["low"]), 2)
