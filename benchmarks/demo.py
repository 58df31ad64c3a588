"""Local benefit of each hospital of the demonstration, over ten seeds that were not used to design it.

Sizes, case mix and the outcome model were chosen on other seeds (1990, 1 to 6, and some in a sketch of the
generator) and then frozen; these ten seeds were run once. Each seed gives other patients, consents, splits and
initial weights. The local benefit is the AUROC of the community model minus that of the hospital's local-only model
on the hospital's test subjects; its interval is over the seeds. The cost of a warm demonstration is the processor
time of a process after kernels are compiled.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.cli.output import note
from abaton.lab.demo import NOW, make_demo
from abaton.lab.strategy_comparison import confidence_interval
from abaton.report.findings import BETTER, WORSE, format_difference, local_benefits
from abaton.store import Store
from abaton.study_run import StudyOptions, run_study

SEEDS = range(2001, 2011)
LIMIT = 20.0  # seconds of processor time of a demonstration

_DEMO = "from abaton.cli import main; main()"


def run() -> list[BenchmarkResult]:
    """Measure local benefits by hospital over ten seeds, and the cost of the demonstration."""
    benefits_by_site: dict[str, list[dict[str, Any]]] = {}
    for seed in SEEDS:
        for benefit in _benefits(seed):
            difference = format_difference(benefit["benefit"])
            note(f"demo: seed {seed}: {benefit['site']}: {difference}, {benefit['verdict']}")
            benefits_by_site.setdefault(benefit["site"], []).append(benefit)
    results = [result for site, benefits in benefits_by_site.items() for result in _site(site, benefits)]
    return [*results, at_most("abaton demo, warm: processor time", _cost(), LIMIT, "s")]


def _benefits(seed: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary, Store(Path(temporary, "store")) as store:
        demonstration = make_demo(Path(temporary, "demo"), seed)
        options = StudyOptions(seed, demonstration.profiles)
        study_run = run_study(
            demonstration.study, demonstration.sites, store, options, watch=demonstration.watch, now=NOW
        )
        return local_benefits(study_run.result["evaluation"])


def _site(site: str, benefits: list[dict[str, Any]]) -> list[BenchmarkResult]:
    evaluable = [benefit for benefit in benefits if benefit["benefit"] is not None]
    benefit = confidence_interval([benefit["benefit"]["value"] for benefit in evaluable])
    half_width = benefit.half_width or 0.0
    verdicts = [benefit["verdict"] for benefit in evaluable]
    return [
        at_least(f"{site}: seeds that can be evaluated", len(evaluable), len(benefits), ""),
        *(
            BenchmarkResult(
                f"{site}: AUROC {model}",
                confidence_interval([benefit[model]["value"] for benefit in evaluable]).mean,
                "",
            )
            for model in ("local_only", "community")
        ),
        BenchmarkResult(f"{site}: local benefit", benefit.mean, ""),
        at_least(f"{site}: local benefit, lower 95 % limit", benefit.mean - half_width, 0.0, ""),
        BenchmarkResult(f"{site}: local benefit, upper 95 % limit", benefit.mean + half_width, ""),
        BenchmarkResult(f"{site}: seeds with a clearly better community model", verdicts.count(BETTER), ""),
        at_most(f"{site}: seeds with a clearly worse community model", verdicts.count(WORSE), 0, ""),
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
