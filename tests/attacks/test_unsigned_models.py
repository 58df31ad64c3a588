"""A hostile centre that requests the evaluation of models that no site trained, and a site without valid signatures.

Each model is close to the last one, so that its distance is no reason; without the signature check it is evaluated.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.attacks.conftest import Centre

from abaton.engines import TrainTask
from abaton.engines.base import INVALID_UPDATE
from abaton.engines.reply_validation import ReplyValidator
from abaton.governance.keys import PrivateKey
from abaton.lab.demo import open_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.learners import SignedModel, SiteReply
from abaton.site import load_site
from abaton.store import content_digest
from abaton.study_run import site_service as site_service
from abaton.study_run.messages import sums_from_row
from abaton.study_run.model_signatures import (
    TrustedSigners,
    learned_model,
    new_key,
    signing_key,
    signing_key_path,
)
from abaton.study_run.preparation import common_scale

REFUSED = "refused"


@dataclass
class Honest:
    """Trained and signed model of kos."""

    centre: Centre
    model: np.ndarray
    signed: SignedModel
    update: bytes
    key: PrivateKey


@pytest.fixture(scope="session")
def kos(prepared_folder, tmp_path_factory) -> Callable[[Centre], Honest]:
    """Let another hospital train once in the same run; return its model as an evaluator receives it."""
    folder = tmp_path_factory.mktemp("kos")
    shutil.copytree(prepared_folder[0] / "hospitals", folder / "hospitals")
    there = Centre(open_demo(folder / "hospitals", cohort=FOUR_HOSPITALS), folder, site="kos")
    there.prepare(prepared_folder[1]["seed"])
    start = there.start()
    trained = there.train(0, start, task_id="0.kos")
    assert trained.reason is None
    model = learned_model(
        there.study.learning.build_codec(),
        there.model.layout,
        there.seed,
        "kos",
        0,
        start,
        trained.attachments["update"],
    )
    signed = SignedModel("kos", 0, trained.header["signature"])
    return lambda centre: Honest(
        centre, model, signed, trained.attachments["update"], signing_key(there.service.file)
    )


@pytest.fixture
def honest(ready, kos) -> Honest:
    ready.train(0, ready.start())
    return kos(ready)


def is_evaluated(centre: Centre, model: np.ndarray, signed: SignedModel | None, key: str = "task") -> bool:
    """Return whether a model is evaluated."""
    (counts,) = centre.score("evaluate", [model], key, [signed]).header["counts_list"]
    assert counts == REFUSED or isinstance(counts, tuple | list)
    return counts != REFUSED


def crafted_model(honest: Honest) -> np.ndarray:
    """Return a model crafted by the centre."""
    model = honest.model.copy()
    model[0] += np.float32(0.25)
    return model


def with_changed_bit(honest: Honest) -> np.ndarray:
    model = honest.model.copy()
    model[0] = np.nextafter(model[0], np.float32(9))
    return model


ATTACKS: dict[str, Callable[[Honest], tuple[np.ndarray, SignedModel | None]]] = {
    "an unsigned model of the centre": lambda h: (crafted_model(h), None),
    "a valid signature of another model": lambda h: (crafted_model(h), h.signed),
    "a changed bit": lambda h: (with_changed_bit(h), h.signed),
    "the name of another site": lambda h: (h.model, replace(h.signed, trained_by="pergamon")),
    "the name of the evaluator": lambda h: (
        crafted_model(h),
        h.centre.signed("athens", 0, crafted_model(h), new_key()),
    ),
    "another version": lambda h: (h.model, replace(h.signed, version=1)),
    "another run": lambda h: (
        h.model,
        h.centre.signed("kos", 0, h.model, h.key, run="another run"),
    ),
    "another study": lambda h: (
        h.model,
        h.centre.signed("kos", 0, h.model, h.key, study="0" * 64),
    ),
    "a key that is not the site's": lambda h: (
        crafted_model(h),
        h.centre.signed("kos", 1, crafted_model(h), new_key()),
    ),
    "an empty signature": lambda h: (h.model, replace(h.signed, signature="")),
    "no hexadecimal digits": lambda h: (h.model, replace(h.signed, signature="zz" * 96)),
    "an invalid key": lambda h: (h.model, replace(h.signed, signature="ff" * 96)),
    "a short signature": lambda h: (h.model, replace(h.signed, signature=h.signed.signature[:-2])),
    "a long signature": lambda h: (h.model, replace(h.signed, signature=h.signed.signature + "00")),
    "spaces in the signature": lambda h: (
        h.model,
        replace(h.signed, signature=h.signed.signature[:-4] + " 0 0"),
    ),
    "an invalid name": lambda h: (h.model, replace(h.signed, trained_by="\ud800")),
}


@pytest.mark.parametrize("has_list", [False, True], ids=["first seen", "listed"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_models_without_a_valid_signature_are_not_evaluated(honest, attack, has_list, monkeypatch):
    centre = honest.centre
    if has_list:
        list_signers(centre, {"kos": honest.key.id})
    assert is_evaluated(centre, honest.model, honest.signed), "the model of kos is evaluated"
    model, signed = ATTACKS[attack](honest)
    assert not is_evaluated(centre, model, signed, "attack")
    monkeypatch.setattr(site_service, "SiteSigner", lambda *given: None)
    assert is_evaluated(centre, model, signed, "attack"), "only the signature was the reason"


def list_signers(centre: Centre, signers: dict[str, str]) -> None:
    """Add trusted signers to the site's configuration."""
    path = centre.demo.sites[0]
    lines = "".join(f'{name} = "{key}"\n' for name, key in signers.items())
    path.write_text(f"{path.read_text()}\n[policy.trusted_signers]\n{lines}")
    centre.service.file = load_site(path)


def test_a_second_model_of_one_site_and_version_is_not_evaluated(honest):
    """Also with a valid signature: the key may be stolen, or the site may collude with the centre."""
    centre, other = honest.centre, crafted_model(honest)
    assert is_evaluated(centre, honest.model, honest.signed)
    again = centre.signed("kos", 0, other, honest.key)
    assert not is_evaluated(centre, other, again, "another task")
    assert is_evaluated(centre, honest.model, honest.signed, "another task"), (
        "what got lost is answered again"
    )
    assert is_evaluated(centre, other, centre.signed("kos", 1, other, honest.key)), (
        "as a version of its own it counts"
    )
    one, two = (centre.score("evaluate", [honest.model], key, [honest.signed]) for key in "ab")
    assert one.header["counts_list"] == two.header["counts_list"]


def test_a_site_with_trusted_signers_evaluates_no_others(honest):
    """Without a list a centre can invent sites, limited by distance and number of models."""
    centre, other = honest.centre, crafted_model(honest)
    invented = centre.signed("made up", 0, other, new_key())
    assert is_evaluated(centre, other, invented)
    list_signers(centre, {"kos": honest.key.id})
    assert not is_evaluated(centre, other, invented)
    assert is_evaluated(centre, honest.model, honest.signed)


def test_the_first_key_of_a_site_holds_for_all_runs_of_a_study(honest, tmp_path):
    centre, other = honest.centre, crafted_model(honest)
    assert is_evaluated(centre, honest.model, honest.signed)
    later = Centre(centre.demo, centre.folder, run="later")
    later.ask("ingest")
    assert "reason" not in later.ask("scale", **centre.body, scale=scale_of_run(later, centre))
    later.seed = centre.seed
    later.train(0, later.start())
    assert not is_evaluated(later, other, later.signed("kos", 0, other, new_key()))
    assert is_evaluated(later, other, later.signed("kos", 0, other, honest.key))


def scale_of_run(later: Centre, centre: Centre):
    split = later.ask("split", **centre.body)
    return common_scale(later.study.learning, [sums_from_row(split["sums"])]).to_row()


def test_a_site_signs_an_update_once(ready):
    """A repeated request with another model must not give a second signature."""
    key, given = signing_key(ready.service.file), ready.start() + np.float32(0.01)
    ready.train(0, ready.start())
    first = ready.train(1, given)
    assert first.header["signature"] == _by_hand(ready, given, first.attachments["update"], key)
    other = given + np.float32(0.01)
    again = ready.train(1, other)
    assert again.attachments["update"] == first.attachments["update"]
    assert again.header["signature"] == first.header["signature"]
    assert _by_hand(ready, other, first.attachments["update"], key) != first.header["signature"]


def _by_hand(centre: Centre, start: np.ndarray, update: bytes, key: PrivateKey) -> str:
    codec, layout = centre.study.learning.build_codec(), centre.model.layout
    model = learned_model(codec, layout, centre.seed, "athens", 1, start, update)
    return centre.signed("athens", 1, model, key).signature


def test_the_signing_key_belongs_to_the_site_and_is_created_once(ready):
    file = ready.service.file
    ready.train(0, ready.start())
    path = signing_key_path(file)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent == ready.demo.sites[0].parent
    assert signing_key(file).id == signing_key(file).id
    assert not list(path.parent.glob(".abaton-*"))
    path.chmod(0o644)
    assert ready.train(1, ready.start() + np.float32(0.01)).reason is not None, (
        "other accounts can read the key"
    )


def test_an_update_without_a_valid_signature_is_refused(honest):
    """No evaluator would accept its models, and only its own evaluation would count."""
    centre, learning = honest.centre, honest.centre.study.learning
    arguments = (centre.study.hash, centre.run, centre.seed, learning.build_codec(), centre.model.layout)
    task = TrainTask("t", "kos", 0, centre.start(), learning.training.to_settings())
    header = {"task_id": "t", "steps": 8, "examples": 40, "loss": 0.5, "counts": [], "cohort": ""}
    signature, other_signature = (
        honest.signed.signature,
        centre.signed("kos", 0, honest.model, new_key()).signature,
    )
    signed = TrustedSigners(*arguments)
    for spoilt in ({}, {"signature": ""}, {"signature": "0" * 192}, {"signature": signature[::-1]}):
        assert problem(task, {**header, **spoilt}, honest, signed) == INVALID_UPDATE
        assert problem(task, {**header, **spoilt}, honest, None) == "", "only the signature is the reason"
    assert problem(replace(task, learner="pergamon"), {**header, "signature": signature}, honest, signed)
    assert problem(task, {**header, "signature": signature}, honest, signed) == ""
    assert problem(task, {**header, "signature": other_signature}, honest, signed), (
        "a site has one key in a run"
    )
    resumed = TrustedSigners(*arguments, signatures=[("kos", signature)])
    assert problem(task, {**header, "signature": other_signature}, honest, resumed), "also after a restart"
    assert problem(task, {**header, "signature": other_signature}, honest, TrustedSigners(*arguments)) == ""


def problem(task: TrainTask, header, honest: Honest, signed: TrustedSigners | None) -> str:
    validator = ReplyValidator(content_digest, lambda learner, version, payload: None, signed)
    return validator.problem(task, SiteReply(header, honest.update))
