"""What each hospital of the demonstration gains, over ten seeds that nobody had seen when it was made.

Sizes, case mix and the rule that makes people ill were chosen while looking at other seeds (1990, 1 to 6, and some in a
sketch of the generator); then all of it was left as it is, and these ten were run once. Each seed invents other people,
consents, splits and first weights. A gain is the AUROC of the community model less that of the hospital's own model, on
the hospital's own test people; its interval here is over the seeds. What a warm demonstration costs is processor time
of a process of its own, after one that compiled what is compiled once.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from abaton.benchmark import Measure, at_least, at_most
from abaton.cli.output import note
from abaton.federation import StudyOptions, run_study
from abaton.lab.strategy_comparison import interval
from abaton.lab.demo import NOW, demonstration
from abaton.report.findings import GAINS, LOSES, signed, site_gains
from abaton.store import Store

SEEDS = range(2001, 2011)
LIMIT = 20.0  # seconds of processor time of a whole demonstration

_DEMO = "from abaton.cli import main; main()"


def run() -> list[Measure]:
    """Gains by hospital over ten fresh seeds, and what the demonstration costs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in SEEDS:
        for each in _gains(seed):
            note(f"demo: seed {seed}: {each['site']}: {signed(each['gain'])}, {each['verdict']}")
            found.setdefault(each["site"], []).append(each)
    lines = [line for site, told in found.items() for line in _site(site, told)]
    return [*lines, at_most("abaton demo, warm: processor time", _cost(), LIMIT, "s")]


def _gains(seed: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place, Store(Path(place, "store")) as store:
        made = demonstration(Path(place, "demo"), seed)
        options = StudyOptions(seed, made.profiles)
        ended = run_study(made.study, made.sites, store, options, watch=made.watch, now=NOW)
        return site_gains(ended.result["evaluation"])


def _site(site: str, told: list[dict[str, Any]]) -> list[Measure]:
    known = [each for each in told if each["gain"] is not None]
    gain = interval([each["gain"]["value"] for each in known])
    reach = gain.reach or 0.0
    verdicts = [each["verdict"] for each in known]
    return [
        at_least(f"{site}: seeds that can be told", len(known), len(told), ""),
        *(
            Measure(f"{site}: AUROC {model}", interval([each[model]["value"] for each in known]).mean, "")
            for model in ("own", "community")
        ),
        Measure(f"{site}: gain", gain.mean, ""),
        at_least(f"{site}: gain, lower 95 % limit", gain.mean - reach, 0.0, ""),
        Measure(f"{site}: gain, upper 95 % limit", gain.mean + reach, ""),
        Measure(f"{site}: seeds in which it gains clearly", verdicts.count(GAINS), ""),
        at_most(f"{site}: seeds in which it is clearly better alone", verdicts.count(LOSES), 0, ""),
    ]


def _cost() -> float:
    """Processor time of the second of two demonstrations, user and system."""
    with tempfile.TemporaryDirectory() as place:
        program = [sys.executable, "-c", _DEMO, "demo", "--store", "store", "-o", "demo.html"]
        environment = {**os.environ, "NUMBA_NUM_THREADS": "1"}
        for _ in range(2):
            before = _children()
            subprocess.run(program, cwd=place, env=environment, check=True, capture_output=True)
        return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
