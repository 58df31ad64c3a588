"""The demonstration over ten seeds that were not used to design it.

Rule, written before these seeds were run:

* Hospitals, outcome model, inputs, knots and training settings are frozen; they were chosen on other seeds. Each seed
  gives other patients, consents, splits and initial weights. The ten seeds are run once, and all are reported.
* A hospital's local-only model is the better of the study's model and a penalised spline regression by cross-validated
  loss on its own rows (`abaton.study_run.baselines`); the pooled model is chosen likewise on all rows. Models are
  evaluated on the hospital's own test subjects, by AUROC.
* Federating helps if the lower 95 % limit of the mean local benefit over hospitals, by Student's t over the seeds, is
  above 0; it helps one hospital only if its own limit is. The community model is expected within .01 of the pooled one.
* A hospital that miscodes the outcome joins as a seventh; its weight is compared with its fraction of the rows.

The seed of `abaton demo` is none of these.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.cli.output import note
from abaton.lab.demo import NOW, make_demo
from abaton.lab.strategy_comparison import confidence_interval
from abaton.lab.synthetic_hospitals import SEVEN_HOSPITALS, SIX_HOSPITALS, Cohort
from abaton.report.findings import BETTER, OVERALL, WORSE, local_benefits
from abaton.store import Store, latest_weights
from abaton.study_run import StudyOptions, run_study
from abaton.study_run.baselines import POOLED

SEEDS = range(3001, 3011)
MAX_SECONDS = 20.0  # processor time of a demonstration
MAX_LOSS_TO_POOLED, MAX_MISCODING_WEIGHT = 0.01, 0.06

_DEMO = "from abaton.cli import main; main()"


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Results of one seed: AUROC of models on all test subjects, local benefits by hospital, and latest weights."""

    auroc: Mapping[str, float]
    benefits: Mapping[str, Mapping[str, Any]]
    weights: Mapping[str, float]


def run() -> list[BenchmarkResult]:
    """Measure local benefits over ten seeds, the weight of a hospital that miscodes, and the processor time."""
    results = []
    for seed in SEEDS:
        results.append(_run_seed(seed, SIX_HOSPITALS))
        note(f"demo: seed {seed}: {_describe(results[-1])}")
    return [
        *_overall(results),
        *(line for site in SIX_HOSPITALS.hospitals for line in _site(site, results)),
        *_miscoding(),
        at_most("abaton demo, warm: processor time", _cost(), MAX_SECONDS, "s"),
    ]


def _run_seed(seed: int, cohort: Cohort) -> SeedResult:
    with tempfile.TemporaryDirectory() as temporary, Store(Path(temporary, "store")) as store:
        demonstration = make_demo(Path(temporary, "demo"), seed, cohort=cohort)
        options = StudyOptions(seed, demonstration.profiles, baselines=True)
        study_run = run_study(
            demonstration.study, demonstration.sites, store, options, watch=demonstration.watch, now=NOW
        )
        evaluation = study_run.result["evaluation"]
        return SeedResult(
            {
                row["model"]: row["metrics"]["auroc"]["value"]
                for row in evaluation["rows"]
                if row["grouping"] == "all"
            },
            {benefit["site"]: benefit for benefit in local_benefits(evaluation)},
            latest_weights(store, study_run.row.run),
        )


def _describe(result: SeedResult) -> str:
    benefits = [
        f"{site} {benefit['benefit']['value']:+.3f} {benefit['verdict']}"
        for site, benefit in result.benefits.items()
        if benefit["benefit"] is not None
    ]
    models = f"community {result.auroc['community']:.3f}, pooled {result.auroc[POOLED]:.3f}"
    return f"{models}; {'; '.join(benefits)}"


def _overall(results: Sequence[SeedResult]) -> list[BenchmarkResult]:
    """Return the mean local benefit over hospitals, unweighted and by cases, and the difference to the pooled model."""
    means = [
        np.mean([b["benefit"]["value"] for s, b in r.benefits.items() if s != OVERALL and b["benefit"]])
        for r in results
    ]
    weighted = [result.benefits[OVERALL]["benefit"]["value"] for result in results]
    clear = [result.benefits[OVERALL]["verdict"] for result in results]
    to_pooled = [result.auroc["community"] - result.auroc[POOLED] for result in results]
    spread = [max(result.weights.values()) - min(result.weights.values()) for result in results]
    return [
        *(
            BenchmarkResult(
                f"all hospitals: AUROC {name}", float(np.mean([r.auroc[name] for r in results])), ""
            )
            for name in ("community", POOLED)
        ),
        *_with_limits("community minus pooled", to_pooled),
        at_least("community minus pooled, mean", float(np.mean(to_pooled)), -MAX_LOSS_TO_POOLED, ""),
        *_with_limits("mean of hospitals: local benefit", means, least=0.0),
        *_with_limits("mean weighted by cases: local benefit", weighted, least=0.0),
        BenchmarkResult("seeds in which the weighted mean is clearly above 0", clear.count(BETTER), ""),
        at_most("seeds in which the weighted mean is clearly below 0", clear.count(WORSE), 0, ""),
        at_least("smallest difference of two hospitals' weights in a run", min(spread), 0.01, ""),
    ]


def _site(site: str, results: Sequence[SeedResult]) -> list[BenchmarkResult]:
    benefits = [result.benefits[site] for result in results]
    evaluable = [benefit for benefit in benefits if benefit["benefit"] is not None]
    verdicts = [benefit["verdict"] for benefit in evaluable]
    return [
        BenchmarkResult(f"{site}: seeds with enough test subjects", len(evaluable), ""),
        *(
            BenchmarkResult(
                f"{site}: AUROC {model}", float(np.mean([b[model]["value"] for b in evaluable])), ""
            )
            for model in ("local_only", "community")
        ),
        *_with_limits(f"{site}: local benefit", [b["benefit"]["value"] for b in evaluable]),
        BenchmarkResult(f"{site}: seeds with a clearly better community model", verdicts.count(BETTER), ""),
        BenchmarkResult(f"{site}: seeds with a clearly worse community model", verdicts.count(WORSE), ""),
    ]


def _with_limits(
    name: str, values: Sequence[float | np.floating[Any]], least: float | None = None
) -> list[BenchmarkResult]:
    """Return a mean over seeds with its 95 % limits; `least` is the target of the lower one."""
    interval = confidence_interval([float(value) for value in values])
    low = interval.mean - (interval.half_width or 0.0)
    lower_name = f"{name}, lower 95 % limit"
    return [
        BenchmarkResult(name, interval.mean, ""),
        BenchmarkResult(lower_name, low, "") if least is None else at_least(lower_name, low, least, ""),
        BenchmarkResult(f"{name}, upper 95 % limit", interval.mean + (interval.half_width or 0.0), ""),
    ]


def _miscoding() -> list[BenchmarkResult]:
    """Return the mean weight of the hospital that miscodes the outcome, and its fraction of the patients."""
    (miscoding,) = set(SEVEN_HOSPITALS.hospitals) - set(SIX_HOSPITALS.hospitals)
    weights = []
    for seed in SEEDS:
        weights.append(_run_seed(seed, SEVEN_HOSPITALS).weights[miscoding])
        note(f"demo: seed {seed}: weight of {miscoding} {weights[-1]:.3f}")
    patients = {name: hospital.patients for name, hospital in SEVEN_HOSPITALS.hospitals.items()}
    return [
        BenchmarkResult(
            f"{miscoding}, which miscodes: fraction of patients",
            patients[miscoding] / sum(patients.values()),
            "",
        ),
        at_most(f"{miscoding}: mean weight", float(np.mean(weights)), MAX_MISCODING_WEIGHT, ""),
        BenchmarkResult(f"{miscoding}: largest weight", max(weights), ""),
    ]


def _cost() -> float:
    """Return the processor time (user and system) of the second of two demonstrations."""
    with tempfile.TemporaryDirectory() as temporary:
        program = [sys.executable, "-c", _DEMO, "demo", "--store", "store", "-o", "demo.html"]
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
        for _ in range(2):
            before = _child_seconds()
            subprocess.run(program, cwd=temporary, env=environment, check=True, capture_output=True)
        return _child_seconds() - before


def _child_seconds() -> float:
    """Return the processor time of the child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
