"""The engine for networks, with everything that a network can do to messages, and no network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engines.flower.federation import CANARY, CODEC, FEATURES, MODEL, check, open_learner
from tests.engines.flower.loop import LoopPost, TwoDesks

from abaton.controller import Arrived, Failed, Joined, Left, Noted, Scored, Thresholds, Tick, TrainSettings
from abaton.engines import EvaluateTask, TrainTask
from abaton.engines.flower import FlowerEngine, Lost, Network, Parcel
from abaton.engines.flower.site_worker import Desk, Place
from abaton.errors import LayoutError
from abaton.learners import Learner

SETTINGS = TrainSettings(epochs=1, batch_size=20)
ZEROS = np.zeros(FEATURES + 1, np.float32)
NODE = 1
TRAINER = (NODE, "train")


class Federation:
    """One site, its node, an engine, and a clock that moves when the engine sleeps."""

    def __init__(self, folder: Path, learner: Learner | None = None, **network) -> None:
        self.learner, self.folder, self.time, self.kept = learner or open_learner("a"), folder, 0.0, []
        self.post = LoopPost({NODE: TwoDesks(self.desk)})
        self.network = Network("run", MODEL.layout.digest, "s", **network)
        self.engine = FlowerEngine(
            self.post, self.network, keep=self.keep, check=check, clock=lambda: self.time, sleep=self.sleep
        )

    def desk(self, role: str, terms: str = "s") -> Desk:
        return Desk(self.learner, Place(role, self.folder, terms))

    def keep(self, payload: bytes) -> str:
        self.kept.append(payload)
        return str(len(self.kept) - 1)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def train(self, key: str, model: np.ndarray = ZEROS, **settings) -> None:
        self.engine.submit([TrainTask(key, "a", 0, model, replace(SETTINGS, **settings))])

    def until(self, kind: type) -> list:
        """Everything up to an event of a kind."""
        events: list = []
        while not any(isinstance(e, kind) for e in events):
            events += self.engine.events()
        return events

    def pause(self, seconds: float) -> list:
        """Everything that is heard in some time."""
        self.engine.set_timer("pause", self.engine.now() + seconds)
        return self.until(Tick)[:-1]

    def sent(self, kind: str) -> list[Parcel]:
        return [parcel for _, parcel in self.post.sent if parcel.kind == kind]


@pytest.fixture
def federation(tmp_path) -> Federation:
    made = Federation(tmp_path)
    made.until(Joined)
    return made


def words(events: list) -> list[str]:
    return [e.what for e in events if isinstance(e, Noted)]


@pytest.mark.parametrize("code", [3, 4, 5, 8])
def test_what_is_lost_on_the_way_is_sent_again_and_answered_from_the_sites_disk(federation, code):
    lost = []

    def fate(desk: Desk, parcel: Parcel) -> Lost | None:
        if parcel.kind == "train" and not lost:
            lost.append(desk.answer(parcel))  # the site did its work; the answer never arrives
            return Lost(code)
        return None

    federation.post.fate = fate
    federation.train("t")
    events = federation.until(Arrived)
    gone_and_back = 2 if code == 5 else 1
    assert len(words(events)) == gone_and_back, "the journal says why it took longer"
    assert federation.kept == [lost[0].blobs["update"]], "the same bytes"
    alone = open_learner("a")
    assert federation.kept[0] == alone.train("t", 0, ZEROS, SETTINGS).payload
    assert all((federation.learner.kept[k] == v).all() for k, v in alone.kept.items()), "moved once"


def test_a_node_that_comes_back_gets_its_task_again_and_one_that_stays_away_has_left(federation):
    desk = federation.post.desks.pop(NODE)
    federation.train("t")
    assert federation.pause(100.0)
    federation.post.desks[77] = desk  # without keys, Flower gives a restarted node a new number
    events = federation.until(Arrived)
    assert words(events) == ["node is back"]
    del federation.post.desks[77]
    federation.train("u")
    events = federation.until(Left)
    assert [e.reason for e in events if isinstance(e, Failed)] == ["learner is gone"]
    federation.train("v")
    assert [e.reason for e in federation.until(Failed) if isinstance(e, Failed)] == ["learner is gone"]
    federation.post.desks[NODE] = desk
    assert federation.until(Joined)
    federation.train("w")
    assert federation.until(Arrived)


def test_tasks_for_a_site_that_is_still_to_come_wait_for_it(tmp_path):
    late = Federation(tmp_path)
    desks, late.post.desks = late.post.desks, {}
    late.train("t")
    assert late.pause(60.0) == []
    late.post.desks = desks
    assert [type(e) for e in late.until(Arrived)] == [Joined, Arrived]


def test_a_node_with_a_new_number_takes_the_seat_of_one_that_flower_still_lists(federation):
    federation.post.busy = {TRAINER}
    federation.train("t")
    federation.pause(5.0)
    federation.post.desks[77] = TwoDesks(federation.desk)
    assert words(federation.until(Arrived)) == ["node is back"]


def test_an_answer_that_does_not_come_is_given_up(tmp_path):
    made = Federation(tmp_path, patience=5.0)
    made.until(Joined)
    made.post.busy = {TRAINER}
    made.train("t", budget=1.0)
    (event,) = made.until(Failed)
    assert event.reason == "no answer in time"
    assert 6.0 < event.at < 6.5
    made.post.busy = set()
    assert made.pause(1.0) == [], "and is not heard of when it comes late"


class Talkative(Learner):
    """A learner whose errors speak of patients."""

    error: Exception = ZeroDivisionError(CANARY)

    def train(self, *_: object):
        raise self.error

    def evaluate(self, *_: object):
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ZeroDivisionError(CANARY), "learner failed"), (LayoutError(CANARY), "task was refused")],
)
def test_no_text_of_an_error_leaves_the_site(tmp_path, error, reason):
    learner = Talkative("a", MODEL, open_learner("a").examples, CODEC, 0)
    learner.error = error
    made, answers = Federation(tmp_path, learner), []
    made.post.fate = lambda desk, parcel: answers.append(desk.answer(parcel)) or answers[-1]
    made.until(Joined)
    made.train("t")
    made.engine.submit([EvaluateTask("x@a", "a", ZEROS)])
    failed = [e for e in [*made.until(Failed), *made.pause(5.0)] if isinstance(e, Failed)]
    assert [e.reason for e in failed] == [reason, reason]
    assert CANARY not in repr(answers)


GARBAGE = {
    "a text": Parcel("answer", {"reason": f"{CANARY} is not finite"}),
    "nothing": Parcel("answer", {}),
    "not a number": Parcel("answer", {"steps": 1, "examples": 1, "loss": float("nan"), "score": []}),
    "a huge count": Parcel("answer", {"steps": 10**400, "examples": 1, "loss": None, "score": []}),
    "a truth": Parcel("answer", {"steps": True, "examples": 1, "loss": None, "score": []}),
    "no update": Parcel("answer", {"steps": 1, "examples": 1, "loss": None, "score": []}),
    "a bomb": Parcel("answer", {"steps": 1, "examples": 1, "loss": None, "score": []}, {"update": b"\xff" * 9999}),
    "words for counts": Parcel("answer", {"steps": 1, "examples": 1, "loss": 0.1, "score": "aaaa"}),
}  # fmt: skip


@pytest.mark.parametrize("name", GARBAGE)
def test_rubbish_is_a_failed_task(federation, name):
    federation.post.fate = lambda desk, parcel: GARBAGE[name]
    federation.train("t")
    federation.engine.submit([EvaluateTask("x@a", "a", ZEROS)])
    failed = [e for e in federation.pause(5.0) if isinstance(e, Failed)]
    assert sorted(e.task for e in failed) == ["t", "x@a"]
    assert {e.reason for e in failed} <= {"learner failed", "unreadable update", "unreadable answer"}
    assert federation.kept == []


def test_evaluations_that_wait_travel_together(federation):
    models = [np.full_like(ZEROS, i) for i in range(20)]
    for i, model in enumerate(models):
        federation.engine.submit([EvaluateTask(f"{i}@a", "a", model)])
    scored = [e for e in federation.pause(10.0) if isinstance(e, Scored)]
    assert [len(p.about["tasks"]) for p in federation.sent("evaluate")] == [8, 8, 4]
    assert {e.task: e.score for e in scored} == {
        f"{i}@a": open_learner("a").evaluate(m) for i, m in enumerate(models)
    }


def test_a_site_is_sent_what_changed_and_the_full_model_if_its_base_is_gone(federation, tmp_path):
    draw = np.random.default_rng(0)
    first = draw.normal(size=len(ZEROS)).astype(np.float32)
    second, third = first.copy(), first.copy()
    second[:5] += 1
    third[7:9] -= 1
    federation.train("t", first)
    federation.until(Arrived)
    federation.train("u", second)
    federation.until(Arrived)
    federation.engine.submit([EvaluateTask("x@a", "a", third)])
    federation.until(Scored)
    full, change = (p.size for p in federation.sent("train"))
    assert full > 1200
    assert change < 60
    assert federation.sent("evaluate")[0].size < 60, (
        "its evaluator measures against what its trainer was sent"
    )
    for path in tmp_path.rglob("*.model"):
        path.unlink()
    federation.train("v", third)
    events = federation.until(Arrived)
    assert words(events) == ["base is gone, the full model is sent"]
    assert [p.size > 1200 for p in federation.sent("train")] == [True, False, False, True]
    alone = open_learner("a")
    made = [alone.train(k, 0, m, SETTINGS).payload for k, m in (("t", first), ("u", second), ("v", third))]
    assert federation.kept == made, "whatever way a model came, it is the same to the bit"


def test_what_others_committed_reaches_a_site_through_its_evaluator_while_it_trains(federation):
    federation.post.busy = {TRAINER}
    federation.train("t", adaptive=Thresholds(0.0, 50), epochs=5)
    federation.pause(5.0)
    federation.engine.tell(10)
    federation.pause(5.0)
    federation.engine.tell(30)
    federation.pause(5.0)
    assert [p.about["committed"] for p in federation.sent("tell")] == [10, 30]
    (written,) = federation.folder.rglob("committed.json")
    assert written.read_text() == "30"
    federation.post.busy = set()
    federation.until(Arrived)
    federation.train("u")
    federation.engine.tell(50)
    federation.pause(5.0)
    assert len(federation.sent("tell")) == 2, "a site that does not ask for it is left in peace"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"terms": "other"}, "other terms"),
        ({"layout": "another"}, "another layout"),
        ({"admitted": {1: "b"}}, "not the site its key belongs to"),
        ({"admitted": {2: "a"}}, "not the site its key belongs to"),
    ],
)
def test_a_node_that_does_not_belong_here_is_turned_away_and_not_asked_again(tmp_path, wrong, why):
    made = Federation(tmp_path)
    if "admitted" in wrong:
        wrong = {"admitted": lambda table=wrong["admitted"]: table}
    made.engine = FlowerEngine(
        made.post,
        replace(made.network, **wrong),
        keep=made.keep,
        check=check,
        clock=lambda: made.time,
        sleep=made.sleep,
    )
    events = made.pause(60.0)
    assert f"node 1 is turned away: {why}" in words(events)
    assert not [e for e in events if isinstance(e, Joined)]
    assert len(made.sent("query")) == 1


def test_a_site_that_is_revoked_is_out_at_the_next_look(tmp_path):
    table = {NODE: "a"}
    made = Federation(tmp_path, admitted=lambda: table)
    made.until(Joined)
    made.post.busy = {TRAINER}
    made.train("t")
    made.pause(5.0)
    table.clear()
    events = made.until(Left)
    assert words(events) == ["node was revoked"]
    assert [e.reason for e in events if isinstance(e, Failed)] == ["learner is gone"]
    made.post.busy = set()
    assert made.pause(30.0) == [], "what it still sends is not heard"


def test_what_a_trainer_builds_upon_is_not_taken_away_by_its_evaluator(federation):
    models = [np.full_like(ZEROS, i) for i in range(30)]
    federation.train("t", models[0])
    federation.until(Arrived)
    federation.post.busy = {TRAINER}
    federation.train("u", models[1])
    federation.engine.submit([EvaluateTask(f"{i}@a", "a", m) for i, m in enumerate(models)])
    federation.pause(20.0)
    federation.post.busy = set()
    federation.until(Arrived)
    federation.train("v", models[2])
    assert words(federation.until(Arrived)) == []


def test_a_name_is_no_way_to_another_folder(tmp_path):
    made = Federation(tmp_path)
    about = {"run": "../../x", "terms": "s", "layout": MODEL.layout.digest, "committed": 0}
    about |= {"key": "k", "version": 0, "settings": {}, "model": "m", "base": "../../../etc/passwd"}
    answer = made.desk("train").answer(Parcel("train", about, {"model": b""}))
    assert answer.reason == "base is gone"
    assert made.desk("train").answer(Parcel("rm", about)).reason == "unknown message"


def test_a_site_evaluates_while_it_trains(federation):
    federation.post.busy = {TRAINER}
    federation.train("t")
    federation.engine.submit([EvaluateTask("x@a", "a", ZEROS)])
    assert [type(e) for e in federation.pause(5.0)] == [Scored]
    federation.post.busy = set()
    assert federation.until(Arrived)


def test_the_journal_tells_that_the_network_was_silent(federation):
    federation.post.silent = 30.0
    (event,) = federation.engine.events()
    assert isinstance(event, Noted)
    assert event.what == "the network did not answer for 30 s"
