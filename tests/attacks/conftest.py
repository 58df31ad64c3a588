"""Four invented hospitals, and a centre that may send a site whatever it likes."""

from __future__ import annotations

import shutil
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reading_once import _reading_once  # noqa: F401

from abaton.engines.flower import Parcel
from abaton.engines.flower.site_worker import Place
from abaton.engines.flower.flower_messages import encode, model_name
from abaton.study_run.preparation import scale_of
from abaton.study_run import StudyDesk
from abaton.study_run.invitation import _choice
from abaton.study_run.messages import body_of, sums_from, worded
from abaton.study_run.model_signatures import Learned
from abaton.governance.keys import Kind, PrivateKey
from abaton.lab.demo import Demonstration, demonstration, opened
from abaton.learners import Signed
from abaton.features import columns
from abaton.site import load_site
from abaton.store import model_digest


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """The hospitals, written once, with the policy that a site has by default."""
    folder = tmp_path_factory.mktemp("attacked") / "all"
    made = demonstration(folder, 3, 0.5, rounds=16)
    for site in made.sites:
        text = site.read_text()
        site.write_text(text[: text.index("[policy]")])
    return folder


@pytest.fixture
def four(written, tmp_path) -> Demonstration:
    """The hospitals in a folder of the test's own."""
    shutil.copytree(written, tmp_path / "hospitals")
    return opened(tmp_path / "hospitals")


@dataclass
class Centre:
    """Asks one site, as whoever holds the centre's keys can."""

    made: Demonstration
    folder: Path
    site: str = "athens"
    run: str = "run"

    def __post_init__(self) -> None:
        file = load_site(next(path for path in self.made.sites if path.parent.name == self.site))
        self.study = self.made.study
        self.desk = StudyDesk(file, self.study, Place("train", self.folder / "member", self.study.hash))
        plan = self.study.plan()
        self.model = self.study.learning.model(features=len(columns(plan)), classes=len(plan.label.names))
        self.about: dict[str, Any] = {"run": self.run, "terms": self.study.hash}

    def ask(self, kind: str, **body: Any) -> dict[str, Any]:
        """The plain values of an answer to a question; its reason if it is refused."""
        answer = self.desk.answer(worded(kind, self.about, body))
        return {"reason": answer.reason} if answer.reason is not None else body_of(answer)

    def prepare(self, seed: int = 1) -> dict[str, Any]:
        """Read, deal and scale, as an honest centre does; what the site told."""
        read = self.ask("read")
        self.body = {"seed": seed, **_choice(self.study, read)}
        dealt = self.ask("deal", **self.body)
        scale = scale_of(self.study.learning, [sums_from(dealt["sums"])])
        scaled = self.ask("scale", **self.body, scale=scale.row())
        assert "reason" not in scaled
        self.seed = seed
        return {"read": read, "sums": dealt["sums"]}

    def start(self) -> np.ndarray:
        return self.model.initial(self.seed)

    def train(self, version: int, start: np.ndarray, key: str = "", **settings: Any) -> Parcel:
        told = {**asdict(self.study.learning.training.plain()), **settings}
        named = {"model": model_name(start), "base": None}
        about = {**self.about, "layout": self.model.layout.digest, "committed": 0}
        task = {**about, "key": key or f"{version}.athens", "version": version, "settings": told, **named}
        return self.desk.answer(Parcel("train", task, {"model": encode(start)}))

    def signed(self, author: str, version: int, model: np.ndarray, key: PrivateKey, **other: str) -> Signed:
        """A true signature of whoever holds a key."""
        learned = Learned(self.study.hash, self.run, author, version, model_digest(model))._replace(**other)
        return Signed(author, version, learned.signed(key))

    def score(
        self,
        kind: str,
        models: list[np.ndarray],
        key: str = "task",
        signed: list[Signed | None] | None = None,
    ) -> Parcel:
        """Ask for scores; unless told otherwise by sites that the centre has made up, each with a key."""
        about = {**self.about, "layout": self.model.layout.digest, "committed": 0}
        if signed is None:
            made_up = PrivateKey.of(Kind.SIGN, bytes(32), "")
            signed = [self.signed(f"{key}{i}", 0, each, made_up) for i, each in enumerate(models)]
        tasks = [
            {"key": f"{key}{i}", "model": model_name(each), "base": None} for i, each in enumerate(models)
        ]
        if kind == "evaluate":
            pairs = zip(tasks, signed, strict=True)
            tasks = [task | ({} if by is None else {"signed": list(astuple(by))}) for task, by in pairs]
        blobs = {f"model/{i}": encode(each) for i, each in enumerate(models)}
        return self.desk.answer(Parcel(kind, {**about, "tasks": tasks}, blobs))


@pytest.fixture
def centre(four, tmp_path) -> Centre:
    """A centre and one of its sites."""
    return Centre(four, tmp_path)


@pytest.fixture(scope="session")
def begun(written, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A folder in which the site has read, dealt and scaled, and what it was asked: done once, as it takes a second."""
    folder = tmp_path_factory.mktemp("begun")
    shutil.copytree(written, folder / "hospitals")
    asking = Centre(opened(folder / "hospitals"), folder)
    asking.prepare()
    return folder, asking.body


@pytest.fixture
def ready(begun, tmp_path) -> Centre:
    """A centre whose site is ready to train, in a folder of the test's own."""
    folder, body = begun
    for part in ("hospitals", "member"):
        shutil.copytree(folder / part, tmp_path / part)
    made = Centre(opened(tmp_path / "hospitals"), tmp_path)
    made.body, made.seed = body, body["seed"]
    return made
