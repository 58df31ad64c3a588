"""A hostile centre that wants a model scored which no site has learned, and a hostile site that hides its own.

Each model here lies near the last one, so that its distance is no reason; each is scored if nobody asks who signed it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.attacks.conftest import Centre

from abaton.engines import TrainTask
from abaton.engines.base import UNREADABLE_UPDATE
from abaton.engines.reply_validation import Reader
from abaton.governance.keys import PrivateKey
from abaton.lab.demo import opened
from abaton.learners import Reply, Signed
from abaton.site import load_site
from abaton.store import digest_of
from abaton.study_run import site_service as network_desk
from abaton.study_run.messages import sums_from
from abaton.study_run.model_signatures import Signatories, key_place, learned_model, new_key, signing_key
from abaton.study_run.preparation import scale_of

REFUSED = "task was refused"


@dataclass
class Honest:
    """What kos has learned, and signed."""

    centre: Centre
    model: np.ndarray
    signed: Signed
    update: bytes
    key: PrivateKey


@pytest.fixture(scope="session")
def kos(begun, tmp_path_factory) -> Callable[[Centre], Honest]:
    """Another hospital has trained once in the same run; its model as it reaches an evaluator."""
    folder = tmp_path_factory.mktemp("kos")
    shutil.copytree(begun[0] / "hospitals", folder / "hospitals")
    there = Centre(opened(folder / "hospitals"), folder, site="kos")
    there.prepare(begun[1]["seed"])
    start = there.start()
    made = there.train(0, start, key="0.kos")
    assert made.reason is None
    model = learned_model(
        there.study.learning.pipeline(), there.model.layout, there.seed, "kos", 0, start, made.blobs["update"]
    )
    signed = Signed("kos", 0, made.about["signature"])
    return lambda centre: Honest(centre, model, signed, made.blobs["update"], signing_key(there.desk.file))


@pytest.fixture
def honest(ready, kos) -> Honest:
    ready.train(0, ready.start())
    return kos(ready)


def told(centre: Centre, model: np.ndarray, signed: Signed | None, key: str = "task") -> bool:
    """Whether a model is scored."""
    (said,) = centre.score("evaluate", [model], key, [signed]).about["scores"]
    assert said == REFUSED or isinstance(said, tuple | list)
    return said != REFUSED


def near(honest: Honest) -> np.ndarray:
    """A model of the centre's own making."""
    model = honest.model.copy()
    model[0] += np.float32(0.25)
    return model


def other_bit(honest: Honest) -> np.ndarray:
    model = honest.model.copy()
    model[0] = np.nextafter(model[0], np.float32(9))
    return model


ATTACKS: dict[str, Callable[[Honest], tuple[np.ndarray, Signed | None]]] = {
    "a model of the centre's own, unsigned": lambda h: (near(h), None),
    "under a true signature of another model": lambda h: (near(h), h.signed),
    "one bit was changed": lambda h: (other_bit(h), h.signed),
    "in another site's name": lambda h: (h.model, replace(h.signed, author="pergamon")),
    "in the evaluator's own name": lambda h: (near(h), h.centre.signed("athens", 0, near(h), new_key())),
    "as of another version": lambda h: (h.model, replace(h.signed, version=1)),
    "learned in another run": lambda h: (
        h.model,
        h.centre.signed("kos", 0, h.model, h.key, run="another run"),
    ),
    "learned in another study": lambda h: (
        h.model,
        h.centre.signed("kos", 0, h.model, h.key, study="0" * 64),
    ),
    "signed by a key that is not the site's": lambda h: (
        near(h),
        h.centre.signed("kos", 1, near(h), new_key()),
    ),
    "no signature": lambda h: (h.model, replace(h.signed, signature="")),
    "no digits": lambda h: (h.model, replace(h.signed, signature="zz" * 96)),
    "no key": lambda h: (h.model, replace(h.signed, signature="ff" * 96)),
    "cut short": lambda h: (h.model, replace(h.signed, signature=h.signed.signature[:-2])),
    "too long": lambda h: (h.model, replace(h.signed, signature=h.signed.signature + "00")),
    "spaces between": lambda h: (h.model, replace(h.signed, signature=h.signed.signature[:-4] + " 0 0")),
    "a name that has no form": lambda h: (h.model, replace(h.signed, author="\ud800")),
}


@pytest.mark.parametrize("peers", [False, True], ids=["first seen", "listed"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_no_site_has_learned_is_not_scored(honest, attack, peers, monkeypatch):
    centre = honest.centre
    if peers:
        listed(centre, {"kos": honest.key.id})
    assert told(centre, honest.model, honest.signed), "what kos has learned is scored"
    model, signed = ATTACKS[attack](honest)
    assert not told(centre, model, signed, "attack")
    monkeypatch.setattr(network_desk, "Signing", lambda *given: None)
    assert told(centre, model, signed, "attack"), "nothing but the signature was the reason"


def listed(centre: Centre, peers: dict[str, str]) -> None:
    """Let the site list its peers, as somebody who edits its document does."""
    path = centre.made.sites[0]
    lines = "".join(f'{name} = "{key}"\n' for name, key in peers.items())
    path.write_text(f"{path.read_text()}\n[policy.peers]\n{lines}")
    centre.desk.file = load_site(path)


def test_a_second_model_of_one_site_and_version_is_not_scored(honest):
    """Also not if the site's key has signed it: somebody has stolen it, or the site is the centre's friend."""
    centre, other = honest.centre, near(honest)
    assert told(centre, honest.model, honest.signed)
    again = centre.signed("kos", 0, other, honest.key)
    assert not told(centre, other, again, "another task")
    assert told(centre, honest.model, honest.signed, "another task"), "what got lost is answered again"
    assert told(centre, other, centre.signed("kos", 1, other, honest.key)), (
        "as a version of its own it counts"
    )
    one, two = (centre.score("evaluate", [honest.model], key, [honest.signed]) for key in "ab")
    assert one.about["scores"] == two.about["scores"]


def test_a_site_that_lists_its_peers_scores_no_others(honest):
    """Without a list a centre can make up sites; what it gains by that is what distance and number leave it."""
    centre, other = honest.centre, near(honest)
    made_up = centre.signed("made up", 0, other, new_key())
    assert told(centre, other, made_up)
    listed(centre, {"kos": honest.key.id})
    assert not told(centre, other, made_up)
    assert told(centre, honest.model, honest.signed)


def test_a_key_is_remembered_over_the_runs_of_a_study(honest, tmp_path):
    centre, other = honest.centre, near(honest)
    assert told(centre, honest.model, honest.signed)
    later = Centre(centre.made, centre.folder, run="later")
    later.ask("read")
    assert "reason" not in later.ask("scale", **centre.body, scale=scale_of_run(later, centre))
    later.seed = centre.seed
    later.train(0, later.start())
    assert not told(later, other, later.signed("kos", 0, other, new_key()))
    assert told(later, other, later.signed("kos", 0, other, honest.key))


def scale_of_run(later: Centre, centre: Centre):
    dealt = later.ask("deal", **centre.body)
    return scale_of(later.study.learning, [sums_from(dealt["sums"])]).row()


def test_a_site_signs_what_it_has_learned_and_nothing_that_comes_after(ready):
    """Asked once more with another model, it would otherwise sign what the centre makes of its update."""
    key, given = signing_key(ready.desk.file), ready.start() + np.float32(0.01)
    ready.train(0, ready.start())
    first = ready.train(1, given)
    assert first.about["signature"] == _by_hand(ready, given, first.blobs["update"], key)
    other = given + np.float32(0.01)
    again = ready.train(1, other)
    assert again.blobs["update"] == first.blobs["update"]
    assert again.about["signature"] == first.about["signature"]
    assert _by_hand(ready, other, first.blobs["update"], key) != first.about["signature"]


def _by_hand(centre: Centre, start: np.ndarray, update: bytes, key: PrivateKey) -> str:
    codec, layout = centre.study.learning.pipeline(), centre.model.layout
    model = learned_model(codec, layout, centre.seed, "athens", 1, start, update)
    return centre.signed("athens", 1, model, key).signature


def test_the_key_is_the_sites_own_and_made_once(ready):
    file = ready.desk.file
    ready.train(0, ready.start())
    path = key_place(file)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent == ready.made.sites[0].parent
    assert signing_key(file).id == signing_key(file).id
    assert not list(path.parent.glob(".abaton-*"))
    path.chmod(0o644)
    assert ready.train(1, ready.start() + np.float32(0.01)).reason is not None, "a key that others can read"


def test_a_site_that_signs_otherwise_sends_no_update(honest):
    """Its models would be scored by nobody, and it would be believed what it says of them itself."""
    centre, learning = honest.centre, honest.centre.study.learning
    given = (centre.study.hash, centre.run, centre.seed, learning.pipeline(), centre.model.layout)
    task = TrainTask("t", "kos", 0, centre.start(), learning.training.plain())
    about = {"key": "t", "steps": 8, "examples": 40, "loss": 0.5, "score": [], "cohort": ""}
    mine, others = honest.signed.signature, centre.signed("kos", 0, honest.model, new_key()).signature
    signed = Signatories(*given)
    for spoilt in ({}, {"signature": ""}, {"signature": "0" * 192}, {"signature": mine[::-1]}):
        assert problem(task, {**about, **spoilt}, honest, signed) == UNREADABLE_UPDATE
        assert problem(task, {**about, **spoilt}, honest, None) == "", "the signature alone is the reason"
    assert problem(replace(task, learner="pergamon"), {**about, "signature": mine}, honest, signed)
    assert problem(task, {**about, "signature": mine}, honest, signed) == ""
    assert problem(task, {**about, "signature": others}, honest, signed), "a site has one key in a run"
    resumed = Signatories(*given, known=[("kos", mine)])
    assert problem(task, {**about, "signature": others}, honest, resumed), "also after a restart"
    assert problem(task, {**about, "signature": others}, honest, Signatories(*given)) == ""


def problem(task: TrainTask, about, honest: Honest, signed: Signatories | None) -> str:
    reader = Reader(digest_of, lambda learner, version, payload: None, signed)
    return reader.problem(task, Reply(about, honest.update))
