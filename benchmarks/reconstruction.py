"""How many rows the worst centre rebuilds, against how many it guesses: the heart study and the demonstration.

The centre knows the study document, the seed, every model that it sent and every update that came back
(`abaton.lab.reconstruction_attack`). It sends the first model again and again, the best that it can do to rebuild rows: what it
changed itself cannot hide what the rows change. Each way is measured twice: at a site that answers everything and
shuffles its rows by the run's seed, and at the same site with the default policy. Without the first, a small second
number would prove nothing. Updates travel uncompressed, the worst case, and as the study sends them. The guess draws
as many rows from the sums that sites tell for scaling; it is the best of twenty.
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

from abaton.benchmark import Measure, at_least, at_most
from abaton.cli.output import note
from abaton.codecs import Key
from abaton.engines import Profile, TrainTask
from abaton.engines.task_handler import Worker
from abaton.features import Column
from abaton.federation import Making, read_sites
from abaton.kernels import Vector
from abaton.lab.demo import NOW, demonstration
from abaton.lab.reconstruction_attack import (
    Overheard,
    batches_of,
    determined,
    difference,
    guesses,
    matched,
    read_off,
    rebuild,
    singling_out,
    with_difference,
)
from abaton.learners import AdmitsAll
from abaton.site import load_site
from abaton.study import Study, load_study
from abaton.study_run.coordinator import StudySite
from abaton.study_run.preparation import Member, federate
from abaton.study_run.task_contract import Contract
from abaton.training import round_key

SEED = 1
LARGEST = 150  # rows that the search is worth its time for; beyond, there are fewer updates than rows anyway
SLOW = 0.005  # a learning rate by which an update is nearly a sum over rows
SHARP = 30.0  # logits: as sure as a 32-bit number can be
BUDGET = {"epsilon": 50, "delta": 1e-3, "noise": 5}


def run() -> list[Measure]:
    """Rows rebuilt with and without the default policy, and rows guessed."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made = [*_study("demonstration", *_demonstration(folder / "demonstration"))]
        heart = _heart()
        if (heart.DATA / "heart" / "processed.cleveland.data").is_file() and heart.EXAMPLE.is_dir():
            study, members, columns = _hearts(heart, folder / "heart")
            made += [*_study("heart", study, members, columns, heart.NOW)]
            made += [*_small(study, members[0], columns, heart.NOW), *_fixed(study, members[-1])]
        else:
            note("reconstruction: the heart study is left out: it needs its files in ABATON_DATA")
        return made


class Site:
    """A site that a centre asks for updates in one run."""

    def __init__(self, study: Study, member: Member, now: datetime, *, policy: bool) -> None:
        self.study, self.member, self.now, self.policy = study, member, now, policy
        assert self.study.learning is not None
        train = self.member.rows.train
        self.model = self.study.learning.model(features=train.x.shape[1], classes=2)
        making = Making(
            self.member.name, "run", self.model, self.study.learning.pipeline(), SEED, b"the site's own"
        )
        site = StudySite(self.member, self.study, lambda at: self.now, Profile())
        self.learner, self.rows = site.learner(making), len(train.y)
        if not self.policy:
            self.learner.policy, self.learner.own_order = AdmitsAll(), False
        self.worker, self.given = Worker(self.learner), 0
        self.settings = self.study.learning.training.plain()

    def update(self, version: int, model: Vector) -> Vector | None:
        """The update for a version, decoded; nothing if the site refuses."""
        task = TrainTask(f"{version}.{self.member.name}", self.member.name, version, model, self.settings)
        reply = self.worker.answer(task)
        if "reason" in reply.about:
            assert self.policy, "a site without a policy answers everything"
            return None
        self.given += 1
        key = Key(round_key(SEED, version), self.member.name)
        return self.learner.codec.decode(reply.payload, self.model.layout, key)

    def same_again(self, versions: int) -> np.ndarray[Any, Any]:
        """What is rebuilt from as many updates of one and the same model as the study has versions."""
        start, heard = self.model.initial(SEED), []
        for version in range(versions):
            if (update := self.update(version, start)) is not None:
                task = f"{version}.{self.member.name}"
                known = batches_of(self.member.name, self.model, SEED, task, self.rows, self.settings)
                heard.append(Overheard.of(start, update, known))
        if not heard:
            return np.zeros((0, self.member.rows.train.x.shape[1]))
        return rebuild(
            heard, self.rows, self.settings, turns=10 if self.rows <= min(LARGEST, len(heard)) else 0
        )

    def singled_out(self) -> np.ndarray[Any, Any]:
        """What is read off updates of models that are wrong about one row alone, half of the versions away."""
        train, start = self.member.rows.train, self.model.initial(SEED)
        found = [np.zeros((0, train.x.shape[1]))]
        self.update(0, start)
        version = Contract(self.study).versions // 2
        for wanted in singling_out(train.x.astype(np.float64), train.y, SHARP):
            if (update := self.update(version, with_difference(start, wanted))) is not None:
                found.append(read_off(difference(update)))
            version += 1
        return np.concatenate(found)


def _study(
    name: str, study: Study, members: Sequence[Member], columns: Sequence[Column], now: datetime
) -> Iterator[Measure]:
    flags, versions = _flags(columns), Contract(study).versions
    for member in members:
        note(f"reconstruction: {name}, {member.name}")
        x = member.rows.train.x.astype(np.float64)
        about, guess = f"{name}, {member.name}", _guessed(x, flags)
        yield Measure(f"{about}: rows", len(x), "")
        yield Measure(f"{about}: rows guessed", guess, "")
        for codec in ("raw", _codec(study)):
            sent = "uncompressed" if codec == "raw" else "as the study sends"
            if (
                len(x) <= LARGEST
            ):  # without a policy the centre asks as often as it likes, by the steps that it likes
                slow = _learning(study, codec=codec, learning_rate=SLOW)
                site = Site(slow, _fresh(member), now, policy=False)
                found = matched(x, site.same_again(3 * len(x) // 2), flags)
                yield _line(f"{about}, {sent}: rows rebuilt", found, guess, policy=False)
            site = Site(_learning(study, codec=codec), _fresh(member), now, policy=True)
            found = matched(x, site.same_again(versions), flags)
            yield Measure(f"{about}, {sent}: updates given, default policy", site.given, "")
            yield _line(f"{about}, {sent}: rows rebuilt", found, guess, policy=True)
        for policy in (False, True):
            site = Site(_learning(study, codec="raw"), _fresh(member), now, policy=policy)
            yield _line(
                f"{about}: rows singled out", matched(x, site.singled_out(), flags), guess, policy=policy
            )


def _small(study: Study, member: Member, columns: Sequence[Column], now: datetime) -> Iterator[Measure]:
    """Sites of few rows: batches of two without a policy, and the study's own under the default one."""
    flags = _flags(columns)
    for rows in (5, 8, 12, 60):
        note(f"reconstruction: a site of {rows} rows")
        few = _first(member, rows)
        x = few.rows.train.x.astype(np.float64)
        guess, versions = _guessed(x, flags), 20 if rows < 60 else 80
        open_study = _learning(study, codec="raw")
        if rows < 60:
            open_study = _learning(open_study, batch_size=2)
        found = matched(x, Site(open_study, few, now, policy=False).same_again(versions), flags)
        yield at_least(f"a site of {rows}, without a policy: rows rebuilt", found, rows, "")
        found = matched(
            x, Site(_learning(study, codec="raw"), _fresh(few), now, policy=True).same_again(versions), flags
        )
        yield _line(f"a site of {rows}: rows rebuilt", found, guess, policy=True)
        if rows < 60:
            noisy = _learning(study, codec="raw", policy="SyncFedAvg", privacy=BUDGET)
            site = Site(noisy, _fresh(few), now, policy=True)
            yield _line(f"a site of {rows}, under a privacy budget: rows rebuilt",
                        matched(x, site.same_again(versions), flags), guess, policy=True)  # fmt: skip


def _fixed(study: Study, member: Member) -> Iterator[Measure]:
    """How many rows the smallest site's own updates fix, for somebody who does not know their order."""
    note(f"reconstruction: what the updates of {member.name} fix")
    assert study.learning is not None
    train, settings = member.rows.train, study.learning.training.plain()
    site = Site(_learning(study, codec="raw"), _fresh(member), NOW, policy=False)
    starts, model = [], site.model.initial(SEED)
    for version in range(study.learning.rounds):
        starts.append(difference(model))
        update = site.update(version, model)
        assert update is not None
        model = (model + np.float32(0.25) * update).astype(np.float32)
    found = determined(train.x.astype(np.float64), train.y, starts, settings)
    yield at_most(f"heart, {member.name}: rows that updates fix if the order is unknown", found, 0, "")


def _line(name: str, found: int, guess: int, *, policy: bool) -> Measure:
    return (
        at_most(f"{name}, default policy", found, guess, "")
        if policy
        else Measure(f"{name}, no policy", found, "")
    )


def _flags(columns: Sequence[Column]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([not column.measured for column in columns])


def _guessed(x: np.ndarray[Any, Any], flags: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    rng = np.random.default_rng(0)
    return max(matched(x, guesses(x.mean(0), x.std(0), flags, len(x), rng), flags) for _ in range(20))


def _codec(study: Study) -> str:
    assert study.learning is not None
    return study.learning.codec


def _learning(study: Study, **parts: Any) -> Study:
    """The study with other parts of how it learns."""
    content = study.model_dump(mode="json", exclude_none=True)
    for name in {"batch_size", "learning_rate"} & parts.keys():
        content["learning"]["training"][name] = parts.pop(name)
    content["learning"] |= parts
    return type(study).model_validate(content)


def _first(member: Member, rows: int) -> Member:
    train = member.rows.train
    few = replace(train, x=train.x[:rows], y=train.y[:rows], subjects=train.subjects[:rows])
    return _fresh(replace(member, rows=replace(member.rows, train=few)))


def _fresh(member: Member) -> Member:
    """The site without what it remembers of having told, and with the policy that a site has by default."""
    file = member.file
    file.path(f"{member.name}.ledger").unlink(missing_ok=True)
    default = type(file.document.policy)()
    return replace(member, file=replace(file, document=file.document.model_copy(update={"policy": default})))


def _demonstration(folder: Path) -> tuple[Study, Sequence[Member], Sequence[Column], datetime]:
    made = demonstration(folder, 3)
    for path in made.sites:  # people answered another document than those with other codecs
        path.write_text(
            path.read_text().replace('registry = "consents.db"', 'ground = "nobody here is real"')
        )
    study = _learning(made.study, network="logistic")  # what the attacks are on: hidden layers hide more
    readings = read_sites(study, [load_site(path) for path in made.sites], NOW)
    members = federate(study, readings, SEED)
    return study, members.each, members.columns, NOW


def _hearts(heart: ModuleType, folder: Path) -> tuple[Study, Sequence[Member], Sequence[Column]]:
    folder.mkdir()
    heart._write(folder)
    study = load_study(heart.EXAMPLE / "study.toml")
    members = federate(study, heart._read(folder, study), SEED)
    return study, members.each, members.columns


def _heart() -> ModuleType:
    path = Path(__file__).with_name("heart.py")
    spec = importlib.util.spec_from_file_location("abaton_benchmark_heart", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
