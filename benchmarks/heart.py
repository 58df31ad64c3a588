"""The heart study of `examples/heart`: against pooled data, against sites alone, and what privacy costs.

Ten seeds, each with its own split of every hospital's subjects. All policies have the same simulated time, learning
rate, momentum, batch and local epochs; what is different is what the paper says of each (FedAsync pulls back with rho =
0.005, adaptive learners decide themselves after how many epochs they send). The learning rate was chosen once for all
policies, as the one of 0.01, 0.03, 0.1, 0.3 with the best mean of all of them on two other seeds. Two hospitals compute
four times slower. Baselines train on the validation subjects, too, for as many epochs as the busiest site.
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

from abaton.benchmark import Measure, at_least, at_most
from abaton.cli.output import note
from abaton.controller import POLICIES
from abaton.engines import Profile
from abaton.federation import COMMUNITY, POOLED, Reading, StudyOptions, read_sites, run_readings
from abaton.lab.strategy_comparison import interval
from abaton.site import load_site
from abaton.store import Store
from abaton.study import Study, load_study, write_toml

DATA = Path(os.environ.get("ABATON_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "heart"
SEEDS = range(1, int(os.environ.get("ABATON_SEEDS", "10")) + 1)
NOW = datetime(2026, 11, 16, tzinfo=UTC)
SECONDS, MANY = 20.0, 10**6  # simulated; the time is what ends a run
CHOSEN = "AsyncDVW(na)"
_FAST, _SLOW = Profile(speed=100, group="fast"), Profile(speed=25, group="slow")
PROFILES = {"cleveland": _FAST, "hungary": _SLOW, "long-beach": _FAST, "switzerland": _SLOW}
BANDS = {"age": 10, "pressure": 10, "cholesterol": 25}

Result = Mapping[str, Any]


def run() -> list[Measure]:
    """Policies against baselines, bytes, and the AUROC by how much is hidden."""
    if not (DATA / "heart" / "processed.cleveland.data").is_file() or not EXAMPLE.is_dir():
        note("heart: left out: it needs examples/heart of the sources, and the heart files in ABATON_DATA")
        return []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write(folder)
        with Store(folder / "store") as store:
            return [*_policies(folder, store), *_privacy(folder, store)]


def _write(folder: Path) -> None:
    """The example with its files and a key."""
    shutil.copytree(EXAMPLE / "sites", folder / "sites")
    shutil.copy(EXAMPLE / "mapping.toml", folder / "mapping.toml")
    shutil.copytree(DATA / "heart", folder / "files")
    (folder / "study.key").touch(mode=0o600)
    (folder / "study.key").write_bytes(secrets.token_bytes(32))


def _document() -> dict[str, Any]:
    """The example's study in the long form."""
    return tomllib.loads(write_toml(load_study(EXAMPLE / "study.toml")))


def _study(policy: str = CHOSEN, **parts: Any) -> Study:
    """The example's study with a policy, the same time for all, and other parts of the document."""
    document = _document()
    training = dict(document["learning"]["training"])
    if policy == "FedAsync":
        training["proximal"] = 0.005
    if policy == "AsyncDVW(a)":
        training["epochs"] = 50
    learning = {"policy": policy, "rounds": MANY, "seconds": SECONDS, "training": training}
    return Study.model_validate({**document, "learning": {**document["learning"], **learning}, **parts})


def _read(folder: Path, study: Study) -> list[Reading]:
    return read_sites(study, [load_site(file) for file in sorted((folder / "sites").glob("*.toml"))], NOW)


def _run(study: Study, readings: Sequence[Reading], store: Store, seed: int, *, baselines: bool) -> Result:
    options = StudyOptions(seed, PROFILES, baselines, resamples=0)
    row = run_readings(study, readings, store, options, now=NOW)
    lines = [line for line in row.result["evaluation"]["lines"] if line["of"] == "all"]
    return {
        "auroc": {line["model"]: line["measures"]["auroc"]["value"] for line in lines},
        "traffic": row.result["traffic"],
    }


def _policies(folder: Path, store: Store) -> list[Measure]:
    readings = _read(folder, _study())
    runs: dict[str, list[Result]] = {}
    for policy in POLICIES:
        note(f"heart: {policy}")
        study = _study(policy)
        runs[policy] = [_run(study, readings, store, seed, baselines=policy == CHOSEN) for seed in SEEDS]
    ours = [each["auroc"] for each in runs[CHOSEN]]
    pooled = [each[POOLED] for each in ours]
    alone = [
        sum(values) / len(values)
        for each in ours
        if (values := [value for name, value in each.items() if name.endswith(" alone")])
    ]
    community = [each[COMMUNITY] for each in ours]
    made = [
        line
        for policy, each in runs.items()
        for line in _lines(f"AUROC {policy}", [one["auroc"][COMMUNITY] for one in each])
    ]
    made += [*_lines("AUROC all data pooled", pooled), *_lines("AUROC mean of sites alone", alone)]
    for name in sorted(PROFILES):
        made += _lines(f"AUROC {name} alone", [each[f"{name} alone"] for each in ours])
    gap = [a - b for a, b in zip(pooled, community, strict=True)]
    gain = [a - b for a, b in zip(community, alone, strict=True)]
    made.append(at_most(f"pooled minus {CHOSEN}, AUROC", _mean(gap), 0.02, ""))
    made.append(at_least(f"{CHOSEN} minus mean of sites alone, AUROC", _mean(gain), 0.0, ""))
    return [*made, *_bytes(runs[CHOSEN])]


def _bytes(runs: Sequence[Result]) -> list[Measure]:
    made = []
    for name in sorted(PROFILES):
        sent = [each["traffic"][name] for each in runs]
        made.append(Measure(f"{name}: bytes sent", _mean([each["bytes_up"] for each in sent]), "bytes"))
        made.append(Measure(f"{name}: updates sent", _mean([each["updates"] for each in sent]), ""))
    up = sum(each["bytes_up"] for one in runs for each in one["traffic"].values())
    raw = sum(each["uncompressed"] for one in runs for each in one["traffic"].values())
    return [*made, Measure("uncompressed / sent", raw / up, "x")]


def _privacy(folder: Path, store: Store) -> list[Measure]:
    """AUROC of the federated and the pooled model by how much is hidden."""
    document = _document()
    features, deidentification = document["features"], document["deidentification"]
    kept = [{"path": f"nodesByType('{kind}')", "method": "keep"} for kind in ("date", "dateTime", "Quantity")]
    banded = [
        {**each, **({"band": BANDS[each["name"]]} if each["name"] in BANDS else {})}
        for each in features["inputs"]
    ]
    none: dict[str, Any] = {"privacy": {}}
    variants = {
        "raw": _study(**none, deidentification={**deidentification, "rules": kept}),
        "de-identified": _study(**none),
        "in bands": _study(**none, features={**features, "inputs": banded}),
        "k = 5 enforced": _study(),
    }
    made = []
    for name, study in variants.items():
        note(f"heart: {name}")
        readings = _read(folder, study)
        runs = [_run(study, readings, store, seed, baselines=True)["auroc"] for seed in SEEDS]
        made += _lines(f"privacy: {name}, {CHOSEN}", [each[COMMUNITY] for each in runs])
        made += _lines(f"privacy: {name}, pooled", [each[POOLED] for each in runs])
    return made


def _lines(name: str, values: Sequence[float]) -> list[Measure]:
    """The mean over the seeds, and the half width of its 95 % interval."""
    found = interval(values)
    made = [Measure(name, found.mean, "")]
    return made if found.reach is None else [*made, Measure(f"{name}, ±", found.reach, "")]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
