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
LIMIT = 20.0  # seconds of processor time of a whole demonstration

_DEMO = "from abaton.cli import main; main()"


def run() -> list[BenchmarkResult]:
    """Measure local benefits by hospital over ten seeds, and the cost of the demonstration."""
    benefits_by_site: dict[str, list[dict[str, Any]]] = {}
    for seed in SEEDS:
        for benefit in _gains(seed):
            note(
                f"demo: seed {seed}: {benefit['site']}: {format_difference(benefit['gain'])}, {benefit['verdict']}"
            )
            benefits_by_site.setdefault(benefit["site"], []).append(benefit)
    lines = [line for site, benefits in benefits_by_site.items() for line in _site(site, benefits)]
    return [*lines, at_most("abaton demo, warm: processor time", _cost(), LIMIT, "s")]


def _gains(seed: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary, Store(Path(temporary, "store")) as store:
        demonstration = make_demo(Path(temporary, "demo"), seed)
        options = StudyOptions(seed, demonstration.profiles)
        ended = run_study(
            demonstration.study, demonstration.sites, store, options, watch=demonstration.watch, now=NOW
        )
        return local_benefits(ended.result["evaluation"])


def _site(site: str, benefits: list[dict[str, Any]]) -> list[BenchmarkResult]:
    known = [benefit for benefit in benefits if benefit["gain"] is not None]
    gain = confidence_interval([benefit["gain"]["value"] for benefit in known])
    reach = gain.half_width or 0.0
    verdicts = [benefit["verdict"] for benefit in known]
    return [
        at_least(f"{site}: seeds that can be evaluated", len(known), len(benefits), ""),
        *(
            BenchmarkResult(
                f"{site}: AUROC {model}",
                confidence_interval([benefit[model]["value"] for benefit in known]).mean,
                "",
            )
            for model in ("local_only", "community")
        ),
        BenchmarkResult(f"{site}: gain", gain.mean, ""),
        at_least(f"{site}: gain, lower 95 % limit", gain.mean - reach, 0.0, ""),
        BenchmarkResult(f"{site}: gain, upper 95 % limit", gain.mean + reach, ""),
        BenchmarkResult(f"{site}: seeds in which it gains clearly", verdicts.count(BETTER), ""),
        at_most(f"{site}: seeds in which it is clearly better alone", verdicts.count(WORSE), 0, ""),
    ]


def _cost() -> float:
    """Return the processor time (user and system) of the second of two demonstrations."""
    with tempfile.TemporaryDirectory() as temporary:
        program = [sys.executable, "-c", _DEMO, "demo", "--store", "store", "-o", "demo.html"]
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
        for _ in range(2):
            before = _children()
            subprocess.run(program, cwd=temporary, env=environment, check=True, capture_output=True)
        return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
