"""The heart study of `examples/heart`: against pooled data, against local-only models, and the cost of privacy.

Ten seeds, each with its own split of every hospital's subjects. All strategies have the same simulated time, learning
rate, momentum, batch size and local epochs; they differ as in the paper (FedAsync has a proximal term with rho = 0.005,
adaptive learners choose their update frequency). The learning rate was chosen once for all strategies: of 0.01, 0.03,
0.1 and 0.3 the one with the best mean over all strategies on two other seeds. Two hospitals are four times slower.
Baselines also train on the validation subjects, for as many epochs as the busiest site.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.cli.output import note
from abaton.controller import STRATEGIES
from abaton.engines import MachineProfile
from abaton.federation import COMMUNITY
from abaton.lab.strategy_comparison import confidence_interval
from abaton.site import load_site
from abaton.store import Store
from abaton.study import Study, load_study, write_toml
from abaton.study_run import POOLED, SiteIngest, StudyOptions, ingest_sites, run_prepared_study

DATA = Path(os.environ.get("ABATON_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "heart"
SEEDS = range(1, int(os.environ.get("ABATON_SEEDS", "10")) + 1)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
SECONDS, MANY = 20.0, 10**6  # simulated; the time is what ends a run
STRATEGY = "AsyncDVW(na)"
_FAST, _SLOW = MachineProfile(speed=100, group="fast"), MachineProfile(speed=25, group="slow")
PROFILES = {"cleveland": _FAST, "hungary": _SLOW, "long-beach": _FAST, "switzerland": _SLOW}
BANDS = {"age": 10, "pressure": 10, "cholesterol": 25}

Result = Mapping[str, Any]


def run() -> list[BenchmarkResult]:
    """Measure strategies against baselines, bytes, and the AUROC by level of anonymity."""
    if not (DATA / "heart" / "processed.cleveland.data").is_file() or not EXAMPLE.is_dir():
        note("heart: skipped: it needs examples/heart of the sources, and the heart files in ABATON_DATA")
        return []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write(folder)
        with Store(folder / "store") as store:
            return [*_policies(folder, store), *_privacy(folder, store)]


def _write(folder: Path) -> None:
    """Write the example with its files and a key."""
    shutil.copytree(EXAMPLE / "sites", folder / "sites")
    shutil.copy(EXAMPLE / "mapping.toml", folder / "mapping.toml")
    shutil.copytree(DATA / "heart", folder / "files")
    (folder / "study.key").touch(mode=0o600)
    (folder / "study.key").write_bytes(secrets.token_bytes(32))


def _document() -> dict[str, Any]:
    """Return the example's study in full form."""
    return tomllib.loads(write_toml(load_study(EXAMPLE / "study.toml")))


def _study(policy: str = STRATEGY, **parts: Any) -> Study:
    """Return the example's study with a strategy, the same time for all, and other sections."""
    document = _document()
    training = dict(document["learning"]["training"])
    if policy == "FedAsync":
        training["proximal_mu"] = 0.005
    if policy == "AsyncDVW(a)":
        training["epochs"] = 50
    learning = {"strategy": policy, "rounds": MANY, "max_seconds": SECONDS, "training": training}
    return Study.model_validate({**document, "learning": {**document["learning"], **learning}, **parts})


def _read(folder: Path, study: Study) -> list[SiteIngest]:
    return ingest_sites(study, [load_site(file) for file in sorted((folder / "sites").glob("*.toml"))], NOW)


def _run(study: Study, readings: Sequence[SiteIngest], store: Store, seed: int, *, baselines: bool) -> Result:
    options = StudyOptions(seed, PROFILES, baselines, bootstrap_resamples=0)
    row = run_prepared_study(study, readings, store, options, now=NOW)
    lines = [line for line in row.result["evaluation"]["lines"] if line["of"] == "all"]
    return {
        "auroc": {line["model"]: line["measures"]["auroc"]["value"] for line in lines},
        "traffic": row.result["traffic"],
    }


def _policies(folder: Path, store: Store) -> list[BenchmarkResult]:
    readings = _read(folder, _study())
    runs: dict[str, list[Result]] = {}
    for policy in STRATEGIES:
        note(f"heart: {policy}")
        study = _study(policy)
        runs[policy] = [_run(study, readings, store, seed, baselines=policy == STRATEGY) for seed in SEEDS]
    ours = [metrics["auroc"] for metrics in runs[STRATEGY]]
    pooled = [metrics[POOLED] for metrics in ours]
    alone = [
        sum(values) / len(values)
        for metrics in ours
        if (values := [value for name, value in metrics.items() if name.endswith(" alone")])
    ]
    community = [metrics[COMMUNITY] for metrics in ours]
    results = [
        line
        for policy, metrics in runs.items()
        for line in _lines(f"AUROC {policy}", [one["auroc"][COMMUNITY] for one in metrics])
    ]
    results += [*_lines("AUROC all data pooled", pooled), *_lines("AUROC mean of sites alone", alone)]
    for name in sorted(PROFILES):
        results += _lines(f"AUROC {name} alone", [metrics[f"{name} alone"] for metrics in ours])
    gap = [a - b for a, b in zip(pooled, community, strict=True)]
    gain = [a - b for a, b in zip(community, alone, strict=True)]
    results.append(at_most(f"pooled minus {STRATEGY}, AUROC", _mean(gap), 0.02, ""))
    results.append(at_least(f"{STRATEGY} minus mean of sites alone, AUROC", _mean(gain), 0.0, ""))
    return [*results, *_bytes(runs[STRATEGY])]


def _bytes(runs: Sequence[Result]) -> list[BenchmarkResult]:
    results = []
    for name in sorted(PROFILES):
        sent = [metrics["traffic"][name] for metrics in runs]
        results.append(
            BenchmarkResult(f"{name}: bytes sent", _mean([metrics["bytes_up"] for metrics in sent]), "bytes")
        )
        results.append(
            BenchmarkResult(f"{name}: updates sent", _mean([metrics["updates"] for metrics in sent]), "")
        )
    up = sum(metrics["bytes_up"] for one in runs for metrics in one["traffic"].values())
    raw = sum(metrics["uncompressed"] for one in runs for metrics in one["traffic"].values())
    return [*results, BenchmarkResult("uncompressed / sent", raw / up, "x")]


def _privacy(folder: Path, store: Store) -> list[BenchmarkResult]:
    """Return the AUROC of the federated and the pooled model by level of anonymity."""
    document = _document()
    features, deidentification = document["features"], document["deidentification"]
    keep_rules = [
        {"path": f"nodesByType('{kind}')", "method": "keep"} for kind in ("date", "dateTime", "Quantity")
    ]
    banded = [
        {**spec, **({"band": BANDS[spec["name"]]} if spec["name"] in BANDS else {})}
        for spec in features["inputs"]
    ]
    none: dict[str, Any] = {"privacy": {}}
    variants = {
        "raw": _study(**none, deidentification={**deidentification, "rules": keep_rules}),
        "de-identified": _study(**none),
        "in bands": _study(**none, features={**features, "inputs": banded}),
        "k = 5 enforced": _study(),
    }
    results = []
    for name, study in variants.items():
        note(f"heart: {name}")
        readings = _read(folder, study)
        runs = [_run(study, readings, store, seed, baselines=True)["auroc"] for seed in SEEDS]
        results += _lines(f"privacy: {name}, {STRATEGY}", [spec[COMMUNITY] for spec in runs])
        results += _lines(f"privacy: {name}, pooled", [spec[POOLED] for spec in runs])
    return results


def _lines(name: str, values: Sequence[float]) -> list[BenchmarkResult]:
    """Return the mean over the seeds and the half width of its 95 % interval."""
    estimate = confidence_interval(values)
    results = [BenchmarkResult(name, estimate.mean, "")]
    return (
        results
        if estimate.half_width is None
        else [*results, BenchmarkResult(f"{name}, ±", estimate.half_width, "")]
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
