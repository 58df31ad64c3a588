"""Rows that the worst-case centre reconstructs, against rows that it guesses: heart study and demonstration.

The centre has the study document, the seed, every model that it sent and every update that it received
(`abaton.lab.reconstruction_attack`). It sends the first model repeatedly, which isolates the effect of the rows. Each
attack is measured twice: at a site without a policy that shuffles its rows by the run's seed (positive control), and at
the same site with the default policy. Updates are sent uncompressed, the worst case, and as the study sends them. The
guess samples as many rows from the sums that sites release for scaling; it is the best of twenty.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from abaton.benchmark import BenchmarkResult, at_least, at_most
from abaton.cli.output import note
from abaton.codecs import CodecKey
from abaton.engines import MachineProfile, TrainTask
from abaton.engines.task_handler import TaskHandler
from abaton.features import FeatureColumn
from abaton.federation import LearnerContext
from abaton.lab.demo import NOW, make_demo
from abaton.lab.reconstruction_attack import (
    ObservedUpdate,
    batches_from_seed,
    class_difference,
    count_determined,
    count_reconstructed,
    random_guesses,
    read_from_gradient,
    reconstruct_rows,
    singling_out_models,
    with_class_difference,
)
from abaton.layout import Vector
from abaton.learners import AllowAllPolicy
from abaton.site import load_site
from abaton.study import Study, load_study
from abaton.study_run import ingest_sites
from abaton.study_run.coordinator import StudyParticipant
from abaton.study_run.preparation import PreparedSite, prepare_sites
from abaton.study_run.task_contract import TaskContract
from abaton.training import round_key

SEED = 1
MAX_SEARCHED_ROWS = 150  # of larger sites there are fewer updates than rows
LOW_LEARNING_RATE = 0.005  # an update is then nearly a sum over rows
MAX_LOGIT = 30.0  # its probability is 1 as a 32-bit number
BUDGET = {"epsilon": 50, "delta": 1e-3, "noise_multiplier": 5}


def run() -> list[BenchmarkResult]:
    """Count rows reconstructed with and without the default policy, and rows guessed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        results = [*_study("demonstration", *_demonstration(folder / "demonstration"))]
        heart = _load_heart()
        if (heart.DATA / "heart" / "processed.cleveland.data").is_file() and heart.EXAMPLE.is_dir():
            study, members, columns = _heart_study(heart, folder / "heart")
            results += [*_study("heart", study, members, columns, heart.NOW)]
            results += [
                *_small_sites(study, members[0], columns, heart.NOW),
                *_determined(study, members[-1]),
            ]
        else:
            note("reconstruction: the heart study is skipped: it needs its files in ABATON_DATA")
        return results


class AttackedSite:
    """A site that replies to a centre's training requests in one run."""

    def __init__(self, study: Study, member: PreparedSite, now: datetime, *, policy: bool) -> None:
        self.study, self.member, self.now, self.policy = study, member, now, policy
        assert self.study.learning is not None
        train = self.member.rows.train
        self.model = self.study.learning.build_model(features=train.x.shape[1], classes=2)
        context = LearnerContext(
            self.member.name, "run", self.model, self.study.learning.build_codec(), SEED, b"the site's own"
        )
        site = StudyParticipant(self.member, self.study, lambda seconds: self.now, MachineProfile())
        self.learner, self.rows = site.learner(context), len(train.y)
        if not self.policy:
            self.learner.policy, self.learner.has_secret_order = AllowAllPolicy(), False
        self.handler, self.updates_sent = TaskHandler(self.learner), 0
        self.settings = self.study.learning.training.to_settings()

    def update(self, version: int, model: Vector) -> Vector | None:
        """Return the decoded update of a version; nothing if the site refuses."""
        task = TrainTask(f"{version}.{self.member.name}", self.member.name, version, model, self.settings)
        reply = self.handler.handle(task)
        if "reason" in reply.header:
            assert self.policy, "a site without a policy replies to every request"
            return None
        self.updates_sent += 1
        key = CodecKey(round_key(SEED, version), self.member.name)
        return self.learner.codec.decode(reply.payload, self.model.layout, key)

    def reconstruct(self, versions: int) -> np.ndarray[Any, Any]:
        """Return the rows reconstructed from repeated updates of one model, as many as the study has versions."""
        start, updates = self.model.initial(SEED), []
        for version in range(versions):
            if (update := self.update(version, start)) is not None:
                task = f"{version}.{self.member.name}"
                batches = batches_from_seed(
                    self.member.name, self.model, SEED, task, self.rows, self.settings
                )
                updates.append(ObservedUpdate.of(start, update, batches))
        if not updates:
            return np.zeros((0, self.member.rows.train.x.shape[1]))
        return reconstruct_rows(
            updates,
            self.rows,
            self.settings,
            iterations=10 if self.rows <= min(MAX_SEARCHED_ROWS, len(updates)) else 0,
        )

    def single_out(self) -> np.ndarray[Any, Any]:
        """Return rows read from updates of models that are wrong about one row only, with half of the versions."""
        train, start = self.member.rows.train, self.model.initial(SEED)
        rows = [np.zeros((0, train.x.shape[1]))]
        self.update(0, start)
        version = TaskContract(self.study).max_versions // 2
        for wanted in singling_out_models(train.x.astype(np.float64), train.y, MAX_LOGIT):
            if (update := self.update(version, with_class_difference(start, wanted))) is not None:
                rows.append(read_from_gradient(class_difference(update)))
            version += 1
        return np.concatenate(rows)


def _study(
    name: str, study: Study, members: Sequence[PreparedSite], columns: Sequence[FeatureColumn], now: datetime
) -> Iterator[BenchmarkResult]:
    flags, versions = _flags(columns), TaskContract(study).max_versions
    for member in members:
        note(f"reconstruction: {name}, {member.name}")
        x = member.rows.train.x.astype(np.float64)
        label, guess = f"{name}, {member.name}", _guessed(x, flags)
        yield BenchmarkResult(f"{label}: rows", len(x), "")
        yield BenchmarkResult(f"{label}: rows guessed", guess, "")
        for codec in ("raw", _codec(study)):
            sent = "uncompressed" if codec == "raw" else "as the study sends"
            if (
                len(x) <= MAX_SEARCHED_ROWS
            ):  # without a policy the centre chooses the settings and the requests
                slow = _learning(study, codec=codec, learning_rate=LOW_LEARNING_RATE)
                site = AttackedSite(slow, _fresh(member), now, policy=False)
                reconstructed = count_reconstructed(x, site.reconstruct(3 * len(x) // 2), flags)
                yield _result(f"{label}, {sent}: rows reconstructed", reconstructed, guess, policy=False)
            site = AttackedSite(_learning(study, codec=codec), _fresh(member), now, policy=True)
            reconstructed = count_reconstructed(x, site.reconstruct(versions), flags)
            yield BenchmarkResult(f"{label}, {sent}: updates sent, default policy", site.updates_sent, "")
            yield _result(f"{label}, {sent}: rows reconstructed", reconstructed, guess, policy=True)
        for policy in (False, True):
            site = AttackedSite(_learning(study, codec="raw"), _fresh(member), now, policy=policy)
            yield _result(
                f"{label}: rows singled out",
                count_reconstructed(x, site.single_out(), flags),
                guess,
                policy=policy,
            )


def _small_sites(
    study: Study, member: PreparedSite, columns: Sequence[FeatureColumn], now: datetime
) -> Iterator[BenchmarkResult]:
    """Measure sites with few rows: batches of two without a policy, and the study's own under the default policy."""
    flags = _flags(columns)
    for rows in (5, 8, 12, 60):
        note(f"reconstruction: a site of {rows} rows")
        small_member = _first(member, rows)
        x = small_member.rows.train.x.astype(np.float64)
        guess, versions = _guessed(x, flags), 20 if rows < 60 else 80
        open_study = _learning(study, codec="raw")
        if rows < 60:
            open_study = _learning(open_study, batch_size=2)
        reconstructed = count_reconstructed(
            x, AttackedSite(open_study, small_member, now, policy=False).reconstruct(versions), flags
        )
        yield at_least(f"a site of {rows}, without a policy: rows reconstructed", reconstructed, rows, "")
        reconstructed = count_reconstructed(
            x,
            AttackedSite(_learning(study, codec="raw"), _fresh(small_member), now, policy=True).reconstruct(
                versions
            ),
            flags,
        )
        yield _result(f"a site of {rows}: rows reconstructed", reconstructed, guess, policy=True)
        if rows < 60:
            noisy = _learning(study, codec="raw", strategy="SyncFedAvg", privacy=BUDGET)
            site = AttackedSite(noisy, _fresh(small_member), now, policy=True)
            yield _result(f"a site of {rows}, under a privacy budget: rows reconstructed",
                        count_reconstructed(x, site.reconstruct(versions), flags), guess, policy=True)  # fmt: skip


def _determined(study: Study, member: PreparedSite) -> Iterator[BenchmarkResult]:
    """Return how many rows the updates of the smallest site determine, without the order of rows."""
    note(f"reconstruction: rows that the updates of {member.name} determine")
    assert study.learning is not None
    train, settings = member.rows.train, study.learning.training.to_settings()
    site = AttackedSite(_learning(study, codec="raw"), _fresh(member), NOW, policy=False)
    starts, model = [], site.model.initial(SEED)
    for version in range(study.learning.rounds):
        starts.append(class_difference(model))
        update = site.update(version, model)
        assert update is not None
        model = (model + np.float32(0.25) * update).astype(np.float32)
    reconstructed = count_determined(train.x.astype(np.float64), train.y, starts, settings)
    yield at_most(
        f"heart, {member.name}: rows that updates determine if the order is unknown", reconstructed, 0, ""
    )


def _result(name: str, reconstructed: int, guess: int, *, policy: bool) -> BenchmarkResult:
    return (
        at_most(f"{name}, default policy", reconstructed, guess, "")
        if policy
        else BenchmarkResult(f"{name}, no policy", reconstructed, "")
    )


def _flags(columns: Sequence[FeatureColumn]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([not column.is_numeric for column in columns])


def _guessed(x: np.ndarray[Any, Any], flags: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    rng = np.random.default_rng(0)
    return max(
        count_reconstructed(x, random_guesses(x.mean(0), x.std(0), flags, len(x), rng), flags)
        for _ in range(20)
    )


def _codec(study: Study) -> str:
    assert study.learning is not None
    return study.learning.codec


def _learning(study: Study, **parts: Any) -> Study:
    """Return the study with other settings of its learning section."""
    content = study.model_dump(mode="json", exclude_none=True)
    for name in {"batch_size", "learning_rate"} & parts.keys():
        content["learning"]["training"][name] = parts.pop(name)
    content["learning"] |= parts
    return type(study).model_validate(content)


def _first(member: PreparedSite, rows: int) -> PreparedSite:
    train = member.rows.train
    subset = replace(train, x=train.x[:rows], y=train.y[:rows], subjects=train.subjects[:rows])
    return _fresh(replace(member, rows=replace(member.rows, train=subset)))


def _fresh(member: PreparedSite) -> PreparedSite:
    """Return the site with an empty release log and the default policy."""
    file = member.file
    file.path(f"{member.name}.releases").unlink(missing_ok=True)
    default = type(file.config.policy)()
    return replace(member, file=replace(file, config=file.config.model_copy(update={"policy": default})))


def _demonstration(folder: Path) -> tuple[Study, Sequence[PreparedSite], Sequence[FeatureColumn], datetime]:
    demonstration = make_demo(folder, 3)
    for path in demonstration.sites:  # the consents are for a document with another codec
        path.write_text(
            path.read_text().replace('registry = "consents.db"', 'legal_basis = "synthetic subjects"')
        )
    study = _learning(
        demonstration.study, model="logistic"
    )  # the attacks are on models without hidden layers
    ingests = ingest_sites(study, [load_site(path) for path in demonstration.sites], NOW)
    members = prepare_sites(study, ingests, SEED)
    return study, members.sites, members.columns, NOW


def _heart_study(
    heart: ModuleType, folder: Path
) -> tuple[Study, Sequence[PreparedSite], Sequence[FeatureColumn]]:
    folder.mkdir()
    heart._write(folder)
    study = load_study(heart.EXAMPLE / "study.toml")
    members = prepare_sites(study, heart._ingest(folder, study), SEED)
    return study, members.sites, members.columns


def _load_heart() -> ModuleType:
    path = Path(__file__).with_name("heart.py")
    spec = importlib.util.spec_from_file_location("abaton_benchmark_heart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
