"""The heart study of `examples/heart`: against pooled data, against local-only models, and the cost of privacy.

Ten seeds, each with its own split of every hospital's subjects. All strategies have the same simulated time, learning
rate, momentum, batch size and local epochs; they differ as in the paper (FedAsync has a proximal term with rho = 0.005,
adaptive learners choose their update frequency). The learning rate was chosen once for all strategies: of 0.01, 0.03,
0.1 and 0.3 the one with the best mean over all strategies on two other seeds. Two hospitals are four times slower.
Baselines also train on the validation subjects and are tuned by cross-validation (`abaton.study_run.baselines`).
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
from abaton.study_run import (
    POOLED,
    SiteIngest,
    StudyOptions,
    ingest_sites,
    local_only_name,
    run_prepared_study,
)

DATA = Path(os.environ.get("ABATON_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "heart"
SEEDS = range(1, int(os.environ.get("ABATON_SEEDS", "10")) + 1)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
SECONDS, MAX_ROUNDS = 20.0, 10**6  # simulated time; it ends a run before the rounds do
STRATEGY = "AsyncDVW(na)"
_FAST, _SLOW = MachineProfile(speed=100, group="fast"), MachineProfile(speed=25, group="slow")
PROFILES = {"cleveland": _FAST, "hungary": _SLOW, "long-beach": _FAST, "switzerland": _SLOW}
BAND_WIDTHS = {"age": 10, "pressure": 10, "cholesterol": 25}

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
            return [*_strategies(folder, store), *_privacy(folder, store)]


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


def _study(strategy: str = STRATEGY, **sections: Any) -> Study:
    """Return the example's study with a strategy, the simulated time of all, and other sections."""
    document = _document()
    training = dict(document["learning"]["training"])
    if strategy == "AsyncDVW(a)":
        training["epochs"] = 50
    learning = {"strategy": strategy, "rounds": MAX_ROUNDS, "max_seconds": SECONDS, "training": training}
    return Study.model_validate({**document, "learning": {**document["learning"], **learning}, **sections})


def _ingest(folder: Path, study: Study) -> list[SiteIngest]:
    return ingest_sites(study, [load_site(file) for file in sorted((folder / "sites").glob("*.toml"))], NOW)


def _run(study: Study, ingests: Sequence[SiteIngest], store: Store, seed: int, *, baselines: bool) -> Result:
    options = StudyOptions(seed, PROFILES, baselines, bootstrap_resamples=0)
    study_run = run_prepared_study(study, ingests, store, options, now=NOW)
    rows = [row for row in study_run.result["evaluation"]["rows"] if row["grouping"] == "all"]
    return {
        "auroc": {row["model"]: row["metrics"]["auroc"]["value"] for row in rows},
        "traffic": study_run.result["traffic"],
    }


def _strategies(folder: Path, store: Store) -> list[BenchmarkResult]:
    ingests = _ingest(folder, _study())
    runs: dict[str, list[Result]] = {}
    for strategy in STRATEGIES:
        note(f"heart: {strategy}")
        study = _study(strategy)
        has_baselines = strategy == STRATEGY
        runs[strategy] = [_run(study, ingests, store, seed, baselines=has_baselines) for seed in SEEDS]
    aurocs = [run["auroc"] for run in runs[STRATEGY]]
    pooled = [auroc[POOLED] for auroc in aurocs]
    local_only = [_mean([auroc[local_only_name(site)] for site in PROFILES]) for auroc in aurocs]
    community = [auroc[COMMUNITY] for auroc in aurocs]
    results = [
        result
        for strategy, trials in runs.items()
        for result in _estimate(f"AUROC {strategy}", [trial["auroc"][COMMUNITY] for trial in trials])
    ]
    results += [*_estimate("AUROC pooled", pooled), *_estimate("AUROC local only, mean of sites", local_only)]
    for site in sorted(PROFILES):
        results += _estimate(f"AUROC {site}, local only", [auroc[local_only_name(site)] for auroc in aurocs])
    below_pooled = [a - b for a, b in zip(pooled, community, strict=True)]
    above_local_only = [a - b for a, b in zip(community, local_only, strict=True)]
    results.append(at_most(f"pooled minus {STRATEGY}, AUROC", _mean(below_pooled), 0.02, ""))
    results.append(at_least(f"{STRATEGY} minus local only, AUROC", _mean(above_local_only), 0.0, ""))
    return [*results, *_bytes(runs[STRATEGY])]


def _bytes(runs: Sequence[Result]) -> list[BenchmarkResult]:
    results = []
    for site in sorted(PROFILES):
        traffic = [run["traffic"][site] for run in runs]
        bytes_up, updates = (_mean([row[key] for row in traffic]) for key in ("bytes_up", "updates"))
        results.append(BenchmarkResult(f"{site}: bytes sent", bytes_up, "bytes"))
        results.append(BenchmarkResult(f"{site}: updates sent", updates, ""))
    sent = sum(row["bytes_up"] for run in runs for row in run["traffic"].values())
    uncompressed = sum(row["uncompressed"] for run in runs for row in run["traffic"].values())
    return [*results, BenchmarkResult("uncompressed / sent", uncompressed / sent, "x")]


def _privacy(folder: Path, store: Store) -> list[BenchmarkResult]:
    """Return the AUROC of the federated and the pooled model by level of anonymity."""
    document = _document()
    features, deidentification = document["features"], document["deidentification"]
    keep_rules = [
        {"path": f"nodesByType('{fhir_type}')", "method": "keep"}
        for fhir_type in ("date", "dateTime", "Quantity")
    ]
    banded = [
        {**spec, **({"band_width": BAND_WIDTHS[spec["name"]]} if spec["name"] in BAND_WIDTHS else {})}
        for spec in features["inputs"]
    ]
    without_anonymity: dict[str, Any] = {"privacy": {"disclosure": "exact"}}
    variants = {
        "raw": _study(**without_anonymity, deidentification={**deidentification, "rules": keep_rules}),
        "de-identified": _study(**without_anonymity),
        "in bands": _study(**without_anonymity, features={**features, "inputs": banded}),
        "k = 5 enforced": _study(),
    }
    results = []
    for name, study in variants.items():
        note(f"heart: {name}")
        ingests = _ingest(folder, study)
        runs = [_run(study, ingests, store, seed, baselines=True)["auroc"] for seed in SEEDS]
        results += _estimate(f"privacy: {name}, {STRATEGY}", [auroc[COMMUNITY] for auroc in runs])
        results += _estimate(f"privacy: {name}, pooled", [auroc[POOLED] for auroc in runs])
    return results


def _estimate(name: str, values: Sequence[float]) -> list[BenchmarkResult]:
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
