"""Four synthetic hospitals, and a centre that may send any message to a site."""

from __future__ import annotations

import shutil
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cached_files import _cached_ingest  # noqa: F401

from abaton.engines.flower import Message
from abaton.engines.flower.flower_messages import encode_model
from abaton.engines.flower.flower_messages import model_digest as transfer_digest
from abaton.engines.flower.site_worker import WorkerSettings
from abaton.features import feature_columns
from abaton.governance.keys import KeyKind, PrivateKey
from abaton.lab.demo import Demonstration, make_demo, open_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.learners import SignedModel
from abaton.site import load_site
from abaton.store import model_digest
from abaton.study_run import StudySiteService
from abaton.study_run.messages import make_message, message_body, sums_from_row
from abaton.study_run.model_signatures import SignedContent
from abaton.study_run.outbound_preview import _single_site_recoding
from abaton.study_run.preparation import common_scale


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    """Write the hospitals once, with the default policy of a site."""
    folder = tmp_path_factory.mktemp("attacked") / "all"
    demo = make_demo(folder, 3, 0.5, rounds=16, cohort=FOUR_HOSPITALS)
    for site in demo.sites:
        text = site.read_text()
        site.write_text(text[: text.index("[policy]")])
    return folder


@pytest.fixture
def four(written, tmp_path) -> Demonstration:
    """Return the hospitals in a folder of the test."""
    shutil.copytree(written, tmp_path / "hospitals")
    return open_demo(tmp_path / "hospitals", cohort=FOUR_HOSPITALS)


@dataclass
class Centre:
    """Sends requests to one site with the centre's keys."""

    demo: Demonstration
    folder: Path
    site: str = "athens"
    run: str = "run"

    def __post_init__(self) -> None:
        file = load_site(next(path for path in self.demo.sites if path.parent.name == self.site))
        self.study = self.demo.study
        self.service = StudySiteService(
            file, self.study, WorkerSettings("train", self.folder / "site", self.study.hash)
        )
        plan = self.study.feature_spec()
        self.model = self.study.learning.build_model(
            features=len(feature_columns(plan)), classes=len(plan.label.class_names)
        )
        self.header: dict[str, Any] = {"run": self.run, "study_hash": self.study.hash}

    def ask(self, message_type: str, **body: Any) -> dict[str, Any]:
        """Return the JSON body of a reply, or the reason of a refusal."""
        reply = self.service.reply(make_message(message_type, self.header, body))
        return {"reason": reply.reason} if reply.reason is not None else message_body(reply)

    def prepare(self, seed: int = 1) -> dict[str, Any]:
        """Ingest, split and scale as an honest centre does; return what the site released."""
        ingest = self.ask("ingest")
        self.body = {"seed": seed, **_single_site_recoding(self.study, ingest)}
        split = self.ask("split", **self.body)
        scale = common_scale(self.study.learning, [sums_from_row(split["sums"])])
        scaled = self.ask("scale", **self.body, scale=scale.to_row())
        assert "reason" not in scaled
        self.seed = seed
        return {"ingest": ingest, "sums": split["sums"]}

    def start(self) -> np.ndarray:
        return self.model.initial(self.seed)

    def train(self, version: int, start: np.ndarray, task_id: str = "", **settings: Any) -> Message:
        train_settings = {**asdict(self.study.learning.training.to_settings()), **settings}
        model_header = {"model": transfer_digest(start), "base": None}
        header = {**self.header, "layout": self.model.layout.digest, "committed_steps": 0}
        task = {
            **header,
            "task_id": task_id or f"{version}.athens",
            "version": version,
            "settings": train_settings,
            **model_header,
        }
        return self.service.reply(Message("train", task, {"model": encode_model(start)}))

    def signed(
        self, author: str, version: int, model: np.ndarray, key: PrivateKey, **other: str
    ) -> SignedModel:
        """Return a valid signature with a key."""
        content = SignedContent(self.study.hash, self.run, author, version, model_digest(model))._replace(
            **other
        )
        return SignedModel(author, version, content.sign(key))

    def score(
        self,
        message_type: str,
        models: list[np.ndarray],
        task_id: str = "task",
        signed_models: list[SignedModel | None] | None = None,
    ) -> Message:
        """Request evaluations; by default of invented sites, each with a key."""
        header = {**self.header, "layout": self.model.layout.digest, "committed_steps": 0}
        if signed_models is None:
            invented_key = PrivateKey.of(KeyKind.SIGN, bytes(32), "")
            signed_models = [
                self.signed(f"{task_id}{i}", 0, model, invented_key) for i, model in enumerate(models)
            ]
        evaluations = [
            {"task_id": f"{task_id}{i}", "model": transfer_digest(model), "base": None}
            for i, model in enumerate(models)
        ]
        if message_type == "evaluate":
            pairs = zip(evaluations, signed_models, strict=True)
            evaluations = [
                task | ({} if signed_model is None else {"signed_model": list(astuple(signed_model))})
                for task, signed_model in pairs
            ]
        attachments = {f"model/{i}": encode_model(model) for i, model in enumerate(models)}
        return self.service.reply(Message(message_type, {**header, "evaluations": evaluations}, attachments))


@pytest.fixture
def centre(four, tmp_path) -> Centre:
    """Return a centre and one of its sites."""
    return Centre(four, tmp_path)


@pytest.fixture(scope="session")
def prepared_folder(written, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """Return a folder with a prepared site, and the request body; built once because it takes a second."""
    folder = tmp_path_factory.mktemp("prepared")
    shutil.copytree(written, folder / "hospitals")
    centre = Centre(open_demo(folder / "hospitals", cohort=FOUR_HOSPITALS), folder)
    centre.prepare()
    return folder, centre.body


@pytest.fixture
def ready(prepared_folder, tmp_path) -> Centre:
    """Return a centre with a prepared site, in a folder of the test."""
    folder, body = prepared_folder
    for name in ("hospitals", "site"):
        shutil.copytree(folder / name, tmp_path / name)
    centre = Centre(open_demo(tmp_path / "hospitals", cohort=FOUR_HOSPITALS), tmp_path)
    centre.body, centre.seed = body, body["seed"]
    return centre
