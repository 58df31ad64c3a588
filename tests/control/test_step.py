"""The numbered invariants of controller/state_machine.py, each tested, by hand and over random orders of events."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from abaton.controller import (
    POLICIES,
    Arrived,
    Asynchronous,
    Buffered,
    ByStaleness,
    ByValidation,
    Cancel,
    Commit,
    Evaluate,
    Failed,
    Joined,
    Latest,
    Left,
    Noted,
    Publish,
    Retire,
    Rules,
    Scored,
    SemiSynchronous,
    State,
    Stop,
    Synchronous,
    Thresholds,
    Tick,
    Train,
    TrainSettings,
    Wake,
    from_row,
    step,
    to_row,
)

DVW = (ByValidation(),)


def arrived(task: Train, at: float = 1.0, steps: int = 10, score: tuple = (4, 4, 5, 5, 5, 5)) -> Arrived:
    return Arrived(at, task.learner, task.task, f"payload-{task.task}", 100, steps, 50, {"loss": 0.5}, score)


def scored(task: Evaluate, at: float = 1.0, right: int = 3) -> Scored:
    return Scored(at, task.learner, task.task, (right, right, 5, 5, 5, 5))


def joined(rules: Rules, groups: str = "") -> tuple[State, tuple]:
    state, said = State(), ()
    for i in range(rules.learners):
        state, said = step(rules, state, Joined(0.0, f"site{i}", 10 * (i + 1), groups))
    return state, said


def of(kind: type, said: tuple) -> list:
    return [s for s in said if isinstance(s, kind)]


# synchronous


def test_a_round_begins_when_all_have_joined_and_ends_in_a_mix_of_all():
    rules = Rules(learners=3, rounds=1)
    state, tasks = joined(rules)
    assert [t.learner for t in tasks] == ["site0", "site1", "site2"]
    for task in reversed(tasks[1:]):
        state, said = step(rules, state, arrived(task))
        assert said == ()
    state, said = step(rules, state, arrived(tasks[0]))
    assert [type(s) for s in said] == [Commit, Commit, Commit, Publish, Stop]
    assert [s.learner for s in said[:3]] == ["site0", "site1", "site2"], "invariant 5"


def test_invariant_1_nothing_passed_in_is_changed():
    rules = Rules(learners=2, rounds=2, weighting=DVW)
    state, tasks = joined(rules)
    before = repr(state)
    assert step(rules, state, arrived(tasks[0])) == step(rules, state, arrived(tasks[0]))
    assert repr(state) == before


def test_a_failed_round_is_tried_again_and_keeps_what_arrived():
    rules = Rules(learners=2, rounds=1, pacing=Synchronous(quorum=2))
    state, tasks = joined(rules)
    state, _ = step(rules, state, arrived(tasks[0]))
    state, said = step(rules, state, Failed(1.0, tasks[1].learner, tasks[1].task, "dropped out"))
    assert [s.learner for s in said] == [tasks[1].learner]
    state, said = step(rules, state, arrived(said[0]))
    assert len(of(Commit, said)) == 2


def test_the_run_stops_when_a_round_keeps_failing_or_too_few_are_left():
    rules = Rules(learners=1, rounds=1, pacing=Synchronous(attempts=3))
    state, said = joined(rules)
    for _ in range(3):
        state, said = step(rules, state, Failed(1.0, "site0", said[0].task, "dropped out"))
    assert "failed 3 times" in said[0].reason
    two = Rules(learners=2, rounds=1, pacing=Synchronous(quorum=2))
    state, tasks = joined(two)
    state, said = step(two, state, Left(1.0, "site0"))
    assert said == ()
    _, said = step(two, state, arrived(tasks[1]))
    assert said == (Stop("too few learners are left"),)


def test_a_deadline_closes_the_round_with_a_quorum_and_waits_for_one_otherwise():
    rules = Rules(learners=3, rounds=2, pacing=Synchronous(deadline=5.0, quorum=2))
    state, said = joined(rules)
    (wake,) = of(Wake, said)
    assert wake.at == 5.0
    first, second, third = of(Train, said)
    state, _ = step(rules, state, arrived(first))
    state, said = step(rules, state, Tick(5.0, wake.name))
    assert said == (), "one update is no quorum"
    state, said = step(rules, state, arrived(second, at=6.0))
    assert (len(of(Commit, said)), of(Cancel, said)) == (2, [Cancel(third.task)])
    assert of(Wake, said)[0].at == 11.0
    assert step(rules, state, arrived(third))[1] == (), "too late: invariant 2"
    assert step(rules, state, Tick(7.0, wake.name))[1] == (), "the deadline of a round that is over"


def test_over_selection_does_not_wait_for_the_slowest():
    rules = Rules(learners=5, rounds=1, pacing=Synchronous(participants=2, extra=2))
    state, tasks = joined(rules)
    assert len(tasks) == 4
    state, _ = step(rules, state, arrived(tasks[0]))
    state, said = step(rules, state, arrived(tasks[3]))
    assert (len(of(Commit, said)), len(of(Cancel, said))) == (2, 2)


def test_validation_weights_wait_for_all_evaluators_of_a_round():
    rules = Rules(learners=3, rounds=1, weighting=DVW)
    state, tasks = joined(rules)
    asked = []
    for task in tasks:
        state, said = step(rules, state, arrived(task))
        asked += of(Evaluate, said)
        assert [e.learner for e in of(Evaluate, said)] == [t.learner for t in tasks if t is not task], (
            "invariant 7"
        )
    for task in asked[:-1]:
        state, said = step(rules, state, scored(task, right=2 if task.model == tasks[0].task else 5))
        assert said == ()
    state, said = step(rules, state, scored(asked[-1], right=5))
    weights = [c.weight for c in of(Commit, said)]
    assert weights == pytest.approx([(4 + 2 + 2) * 2 / 30, (4 + 5 + 5) * 2 / 30, (4 + 5 + 5) * 2 / 30])


def test_sampled_evaluators_are_as_many_as_asked_for():
    rules = Rules(learners=9, rounds=1, weighting=(ByValidation(evaluators=3),))
    state, tasks = joined(rules)
    _, said = step(rules, state, arrived(tasks[4]))
    assert len(said) == 3
    assert tasks[4].learner not in {e.learner for e in said}


def test_sampling_is_a_function_of_the_seed_and_gives_everybody_a_chance():
    def chosen(seed: int) -> list[str]:
        return [t.learner for t in joined(Rules(20, 1, pacing=Synchronous(participants=3), seed=seed))[1]]

    assert chosen(1) == chosen(1)
    assert len({name for seed in range(60) for name in chosen(seed)}) == 20


def test_the_time_of_a_run_can_be_limited():
    rules = Rules(learners=2, rounds=100, seconds=3.0)
    state, tasks = joined(rules)
    state, _ = step(rules, state, arrived(tasks[0], at=2.9))
    _, said = step(rules, state, arrived(tasks[1], at=3.1))
    assert said == (Stop("the time is up"),)


# asynchronous


def test_invariant_6_every_commit_is_answered_at_once_with_the_next_task():
    rules = Rules(learners=3, rounds=100, pacing=Asynchronous())
    state, tasks = joined(rules)
    assert len(tasks) == 3
    state, said = step(rules, state, arrived(tasks[2]))
    assert [type(s) for s in said] == [Commit, Publish, Train]
    assert (said[2].learner, said[2].version) == ("site2", 1)
    state, said = step(rules, state, arrived(said[2]))
    assert said[1] == Publish(2), "the others are still at their first task"


def test_evaluations_hold_up_nobody_but_the_learner_that_is_scored():
    rules = Rules(learners=3, rounds=100, pacing=Asynchronous(), weighting=DVW)
    state, tasks = joined(rules)
    state, first = step(rules, state, arrived(tasks[0], at=1.0))
    state, second = step(rules, state, arrived(tasks[1], at=2.0))
    state, _ = step(rules, state, scored(second[0]))
    state, said = step(rules, state, scored(second[1]))
    assert [s.learner for s in of(Commit, said)] == ["site1"], "site0's evaluators are still at work"
    state, said = step(rules, state, Failed(3.0, first[0].learner, first[0].task, "lost"))
    assert said == ()
    state, said = step(rules, state, Left(3.0, first[1].learner))
    assert [s.learner for s in of(Commit, said)] == ["site0"], "a lost evaluator is not waited for"


@pytest.mark.parametrize("pacing", [Synchronous(), Asynchronous()])
def test_names_may_hold_the_sign_that_joins_a_task_and_its_evaluator(pacing):
    rules = Rules(learners=2, rounds=9, pacing=pacing, weighting=DVW)
    state, said = State(), ()
    for name in ("a@b", "c@d"):
        state, said = step(rules, state, Joined(0.0, name, 10))
    first, second = said
    state, asked = step(rules, state, arrived(first))
    state, said = step(rules, state, scored(asked[0]))
    state, more = step(rules, state, arrived(second))
    state, last = step(rules, state, Failed(2.0, more[0].learner, more[0].task, "lost"))
    assert [c.learner for c in of(Commit, (*said, *last))] == ["a@b", "c@d"], "each was heard"
    training = of(Train, (*said, *last))[0]
    state, said = step(rules, state, Failed(3.0, training.learner, training.task, "lost"))
    assert training.task not in state.open, "training that fails is no evaluation"


def test_a_commit_says_what_is_known_of_it():
    rules = Rules(learners=3, rounds=9, pacing=Asynchronous(), weighting=DVW)
    state, (one, two, _) = joined(rules)
    state, asked = step(rules, state, arrived(one, steps=7, score=(4, 4, 5, 5, 5, 5, 2.0)))
    state, others = step(rules, state, arrived(two, steps=5, score=(4, 4, 5, 5, 5, 5, 1.0)))
    for task in others:
        state, said = step(rules, state, Scored(2.0, task.learner, task.task, (1, 1, 5, 5, 5, 5, 3.0)))
    (commit,) = of(Commit, said)
    assert (commit.learner, commit.task, commit.version) == ("site1", two.task, 0)
    assert (commit.missed, commit.staleness) == (0, 5)
    assert commit.validation == pytest.approx((1.0 + 3.0 + 3.0) / 30)
    for task in asked:
        state, said = step(rules, state, Failed(3.0, task.learner, task.task, "lost"))
    (commit,) = of(Commit, said)
    assert (commit.missed, commit.staleness) == (0, 7), "as it was when the update arrived"
    assert commit.validation == pytest.approx(2.0 / 10), "nobody but its own learner was heard"
    (again,) = of(Train, said)
    late = next(task for task in joined(rules)[1] if task.learner == "site2")
    state, asked = step(rules, state, arrived(late, steps=4, score=()))
    for task in asked:
        state, said = step(rules, state, Failed(4.0, task.learner, task.task, "lost"))
    (commit,) = of(Commit, said)
    assert (commit.version, commit.missed, commit.staleness, commit.validation) == (0, 2, 5 + 7 + 4, None)
    assert again.version == 2


def test_staleness_counts_the_steps_and_versions_that_others_committed():
    rules = Rules(learners=2, rounds=100, pacing=Asynchronous(), training=TrainSettings(epochs=3))
    state, tasks = joined(rules)
    state, said = step(rules, state, arrived(tasks[0], steps=30))
    state, said = step(rules, state, arrived(of(Train, said)[0], steps=12))
    state, said = step(rules, state, arrived(tasks[1], steps=5))
    assert state.cycles["site0"] == (30, 12)
    assert state.cycles["site1"] == (47,), "S_c(t') - S_c(t) + s_k"


def test_fedasync_discounts_by_versions_missed():
    rules = Rules(learners=2, rounds=100, **POLICIES["FedAsync"])
    state, tasks = joined(rules)
    state, said = step(rules, state, arrived(tasks[0]))
    for _ in range(2):
        state, said = step(rules, state, arrived(of(Train, said)[0]))
    _, said = step(rules, state, arrived(tasks[1]))
    assert of(Commit, said)[0].weight == pytest.approx((3 + 1) ** -0.5)


def test_a_learner_that_keeps_failing_is_left_out_and_one_that_joins_starts_at_once():
    rules = Rules(learners=1, rounds=100, pacing=Asynchronous(attempts=2))
    state, said = joined(rules)
    state, more = step(rules, state, Joined(1.0, "late", 5))
    assert [t.learner for t in more] == ["late"]
    state, said = step(rules, state, Failed(1.0, "site0", said[0].task, "lost"))
    assert [t.learner for t in said] == ["site0"]
    state, said = step(rules, state, Failed(1.0, "site0", said[0].task, "lost"))
    assert said == ()
    state, said = step(rules, state, arrived(more[0]))
    assert of(Publish, said) == [Publish(1)]
    assert step(rules, state, Joined(1.0, "late", 5))[1] == (), "it is there already"


def test_a_leavers_share_stays_or_is_taken_out():
    for leavers, said in (("stay", ()), ("subtract", (Retire("site0"),))):
        rules = Rules(learners=2, rounds=9, pacing=Asynchronous(), mixing=Latest(leavers))
        state, _ = joined(rules)
        assert step(rules, state, Left(1.0, "site0"))[1] == said


def test_adaptive_learners_get_their_groups_thresholds_and_after_twenty_cycles_their_median():
    rules = Rules(learners=1, rounds=1000, pacing=POLICIES["AsyncDVW(a)"]["pacing"])
    state, (task,) = joined(rules, "fast")
    assert task.settings.adaptive == Thresholds(0.0, 4)
    assert task.settings.staleness_limit == float("inf")
    for i in range(20):
        state, said = step(rules, state, arrived(task, steps=i + 1))
        (task,) = of(Train, said)
    assert task.settings.staleness_limit == 10.5
    assert task.settings.committed == 210
    _, (slow,) = joined(rules, "slow")
    assert slow.settings.adaptive == Thresholds(1.0, 1)


def test_events_survive_the_journal():
    import json

    task = Train("t", "a", 0, TrainSettings())
    events = [
        Joined(0.5, "a", 3, "fast"),
        Left(1.0, "a"),
        Failed(2.0, "a", "t", "lost"),
        arrived(task),
        Tick(3.0, "x"),
        Noted(4.0, "a", "node is back"),
    ]
    for event in [*events, Scored(1.0, "b", "t@b", (1, 2, 3))]:
        kind, body = to_row(event)
        assert from_row(kind, json.loads(json.dumps(body))) == event


def test_what_is_noted_changes_nothing():
    state, _ = joined(Rules(learners=1, rounds=3), "a")
    assert step(Rules(learners=1, rounds=3), state, Noted(9.0, "a", "node is gone, its task waits")) == (
        state,
        (),
    )


TOLD = (4, 4, 5, 5, 5, 5, 2.0)


class Federation(RuleBasedStateMachine):
    """Invariants 2 to 12 under random joins, leaves, answers, scores, duplicates, stale and foreign updates, failures.

    The numbers are those of docs/controller.md.
    """

    policy = Rules(learners=3, rounds=6, pacing=Synchronous(participants=2, attempts=50), seed=7)

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.asked: list[Train] = []
        self.evaluations: list[Evaluate] = []
        self.answered: set[str] = set()
        self.committed: list[str] = []
        self.cancelled: set[str] = set()
        self.wakes: list[str] = ["deadline.0.0"]
        self.versions: list[int] = []
        self.weights: dict[str, float] = {}
        self.decay = 1.0
        self.stopped = False

    def tell(self, event) -> tuple:
        before = self.state
        self.state, said = step(self.policy, self.state, event)
        assert not (self.stopped and said), "invariant 8"
        commits = of(Commit, said)
        finishing = bool(self.policy.finishing) and before.version >= self.policy.rounds
        self.check_finishing(said, finishing)
        self.check_told(said)
        if isinstance(self.policy.pacing, Synchronous):
            assert [c.learner for c in commits] == sorted(c.learner for c in commits), "invariant 5"
        elif isinstance(self.policy.pacing, Buffered):
            self.check_buffer(before, said)
        elif not self.policy.finishing:
            assert len(of(Train, said)) >= len(commits) - len(of(Stop, said)) - len(
                [c for c in commits if c.learner not in self.state.present]
            ), "invariant 6"
        assert bool(commits) == bool(of(Publish, said)), "invariant 4"
        assert all(0 <= c.weight < float("inf") for c in commits), "invariant 9"
        self.committed += [c.task for c in commits]
        self.versions += [p.version for p in of(Publish, said)]
        self.asked += of(Train, said)
        self.evaluations += of(Evaluate, said)
        self.cancelled |= {c.task for c in of(Cancel, said)}
        self.wakes += [w.name for w in of(Wake, said)]
        self.stopped |= bool(of(Stop, said))
        return said

    def check_buffer(self, before: State, said: tuple) -> None:
        size, sizes, count = self.policy.pacing.fewest(self.policy), [], 0
        for each in said:
            count += isinstance(each, Commit)
            if isinstance(each, Publish):
                sizes.append(count)
                count = 0
        full = sizes[:-1] if of(Stop, said) else sizes
        assert all(each == size for each in full), "invariant 18"
        assert len(self.state.ready) < size, "invariant 18"
        if self.state.stopped is not None:
            assert not self.state.ready, "invariant 18: nothing stays behind"
        elif not self.policy.finishing:
            went = {task for task in before.open if task not in self.state.open}
            settled = (set(before.scoring) | went) - set(self.state.scoring)
            members = {task.partition(".")[2] for task in settled} & set(self.state.present)
            trained = {t.learner for t in of(Train, said)}
            failing = {name for name, often in self.state.failures.items() if often >= 50}
            assert members - trained <= failing, "invariant 19"

    def check_finishing(self, said: tuple, finishing: bool) -> None:
        if finishing:
            assert not of(Evaluate, said), "invariant 11"
            scored = {e.model for e in self.evaluations}
            for commit in of(Commit, said):
                if commit.task not in scored:
                    known = self.weights.get(commit.learner)
                    mean = sum(self.weights.values()) / len(self.weights)
                    assert commit.weight == pytest.approx(mean if known is None else known), "invariant 11"
        self.weights |= {c.learner: c.weight for c in of(Commit, said)}
        after = self.state.version >= self.policy.rounds
        assert all(t.settings.complete == after for t in of(Train, said)), "invariant 11"

    def check_told(self, said: tuple) -> None:
        pacing = self.policy.pacing
        budget = pacing.budget if isinstance(pacing, SemiSynchronous) else 0.0
        for task in of(Train, said):
            assert (task.settings.budget, task.settings.steps) == (budget, 0), "invariant 10"
            if self.policy.training.schedule == "driven":
                assert task.settings.decay <= self.decay, "invariant 12"
                self.decay = task.settings.decay

    @rule(site=st.integers(0, 5))
    def join(self, site: int) -> None:
        labels = tuple(int(j == site % 3) for j in range(3))
        self.tell(Joined(0.0, f"site{site}", site + 1, labels=labels))

    @rule(site=st.integers(0, 5))
    def leave(self, site: int) -> None:
        self.tell(Left(0.0, f"site{site}"))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def answer(self, data) -> None:
        task = data.draw(st.sampled_from(self.asked))
        fresh = task.task in self.state.open and not self.stopped
        before = self.state
        self.tell(arrived(task, score=TOLD))
        if fresh:
            self.answered.add(task.task)
        else:
            assert self.state == before, "invariant 2"

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def duplicate(self, data) -> None:
        again = data.draw(st.sampled_from([t for t in self.asked if t.task in self.answered]))
        before = self.state
        assert self.tell(arrived(again, steps=99, score=TOLD)) == ()
        assert self.state == before, "invariant 2"

    @precondition(lambda self: any(t.version < self.state.version for t in self.asked))
    @rule(data=st.data())
    def stale(self, data) -> None:
        old = data.draw(st.sampled_from([t for t in self.asked if t.version < self.state.version]))
        fresh = old.task in self.state.open and not self.stopped
        before = self.state
        said = self.tell(arrived(old, score=TOLD))
        if fresh:
            self.answered.add(old.task)
            assert not isinstance(self.policy.pacing, Synchronous), "a round's tasks start from its version"
        else:
            assert (self.state, said) == (before, ()), "invariant 2"

    @precondition(lambda self: self.evaluations)
    @rule(data=st.data(), right=st.integers(0, 5))
    def score(self, data, right: int) -> None:
        task = data.draw(st.sampled_from(self.evaluations))
        counts = scored(task, right=right).score
        self.tell(Scored(1.0, task.learner, task.task, (*counts, float(5 - right))))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def fail(self, data) -> None:
        task = data.draw(st.sampled_from([*self.asked, *self.evaluations]))
        self.tell(Failed(0.0, task.learner, task.task, "lost"))

    @rule(data=st.data())
    def tick(self, data) -> None:
        self.tell(Tick(0.0, data.draw(st.sampled_from(self.wakes))))

    @rule()
    def stranger(self) -> None:
        before = self.state
        for event in (
            arrived(Train("no such task", "site0", 0, None)),
            Scored(0.0, "site0", "none@site0", (1,)),
        ):
            assert self.tell(event) == ()
        assert self.state == before

    @invariant()
    def holds(self) -> None:
        assert len(set(self.committed)) == len(self.committed), "invariant 3: no update counts twice"
        waiting = {made.update.task for made in (*self.state.ready.values(), *self.state.scoring.values())}
        assert self.answered <= set(self.committed) | waiting | self.cancelled, (
            "invariant 3: no update is lost"
        )
        assert self.versions == list(range(1, len(self.versions) + 1)), "invariant 4"
        keys = [e.task for e in self.evaluations]
        assert len(set(keys)) == len(keys), "invariant 7"
        assert all(e.learner != e.model.split(".")[-1] for e in self.evaluations), "invariant 7"


RULES = {
    "Rounds": Federation.policy,
    "Deadlines": Rules(
        3, 6, pacing=Synchronous(participants=2, extra=1, deadline=5.0, attempts=50), weighting=DVW
    ),
    "Asynchrony": Rules(3, 40, pacing=Asynchronous(attempts=50)),
    "Validation": Rules(3, 40, pacing=Asynchronous(attempts=50), weighting=(ByValidation(evaluators=2),)),
    "SemiSynchrony": Rules(
        3,
        6,
        pacing=SemiSynchronous(budget=2.0, participants=2, extra=1, deadline=5.0, attempts=50),
        weighting=(ByValidation(evaluators=1, choice="labels"),),
        training=TrainSettings(schedule="driven", decay=0.5),
    ),
    "FinishingRounds": Rules(3, 2, pacing=Synchronous(attempts=50), weighting=DVW, finishing=2),
    "FinishingAsynchrony": Rules(3, 4, pacing=Asynchronous(attempts=3), weighting=DVW, finishing=2),
    "Buffer": Rules(3, 30, pacing=Buffered(attempts=50), weighting=(ByStaleness(),)),
    "BufferedValidation": Rules(
        3, 30, pacing=Buffered(buffer=3, attempts=50), weighting=(ByStaleness(), ByValidation(evaluators=2))
    ),
    "FinishingBuffer": Rules(3, 3, pacing=Buffered(buffer=2, attempts=3), weighting=DVW, finishing=2),
    "DrivenAsynchrony": Rules(
        3,
        40,
        pacing=Asynchronous(attempts=50, adaptive={"": Thresholds(1.0, 1)}),
        weighting=DVW,
        training=TrainSettings(schedule="driven", decay=0.5),
    ),
}
for _name, _rules in RULES.items():
    _machine = type(_name, (Federation,), {"policy": _rules})
    globals()[f"Test{_name}"] = _machine.TestCase
    _machine.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
