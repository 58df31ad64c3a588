"""The numbered invariants of control/step.py, each tested."""

from __future__ import annotations

import copy

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from abaton.control import (
    Arrived,
    Commit,
    Failed,
    Joined,
    Left,
    Publish,
    Rules,
    State,
    Stop,
    Train,
    from_row,
    step,
    to_row,
)


def arrived(task: Train, at: float = 1.0) -> Arrived:
    return Arrived(at, task.learner, task.task, f"payload-{task.task}", 100, 10, 50, {"loss": 0.5})


def joined(rules: Rules) -> tuple[State, tuple]:
    state, said = State(), ()
    for i in range(rules.learners):
        state, said = step(rules, state, Joined(0.0, f"site{i}", 10 * (i + 1)))
    return state, said


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
    rules = Rules(learners=2, rounds=2)
    state, tasks = joined(rules)
    before = copy.deepcopy((state.version, dict(state.open), dict(state.arrived)))
    first = step(rules, state, arrived(tasks[0]))
    second = step(rules, state, arrived(tasks[0]))
    assert first == second
    assert (state.version, dict(state.open), dict(state.arrived)) == before


def test_a_failed_round_is_tried_again_and_keeps_what_arrived():
    rules = Rules(learners=2, rounds=1, quorum=2)
    state, tasks = joined(rules)
    state, _ = step(rules, state, arrived(tasks[0]))
    state, said = step(rules, state, Failed(1.0, tasks[1].learner, tasks[1].task, "dropped out"))
    assert [s.learner for s in said] == [tasks[1].learner]
    state, said = step(rules, state, arrived(said[0]))
    assert sum(isinstance(s, Commit) for s in said) == 2


def test_the_run_stops_when_a_round_keeps_failing_or_too_few_are_left():
    rules = Rules(learners=1, rounds=1, attempts=3)
    state, said = joined(rules)
    for _ in range(3):
        state, said = step(rules, state, Failed(1.0, "site0", said[0].task, "dropped out"))
    assert isinstance(said[0], Stop)
    assert "failed 3 times" in said[0].reason

    state, said = joined(Rules(learners=2, rounds=1, quorum=2))
    state, said = step(Rules(learners=2, rounds=1, quorum=2), state, Left(1.0, "site0"))
    assert said == ()
    state, said = step(
        Rules(learners=2, rounds=1, quorum=2), state, arrived(Train("0.1.site1", "site1", 0, None))
    )
    assert isinstance(said[0], Stop)


def test_sampling_is_a_function_of_the_seed_and_gives_everybody_a_chance():
    def chosen(seed: int) -> list[str]:
        return [t.learner for t in joined(Rules(learners=20, rounds=1, participants=3, seed=seed))[1]]

    assert chosen(1) == chosen(1)
    assert len({name for seed in range(60) for name in chosen(seed)}) == 20


def test_events_survive_the_journal():
    for event in (
        Joined(0.5, "a", 3),
        Left(1.0, "a"),
        Failed(2.0, "a", "t", "lost"),
        arrived(Train("t", "a", 0, None)),
    ):
        assert from_row(*to_row(event)) == event


class Federation(RuleBasedStateMachine):
    """Random joins, leaves, answers, duplicates, strangers and failures."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules(learners=3, rounds=4, participants=2, quorum=1, attempts=50, seed=7)
        self.state = State()
        self.asked: list[Train] = []
        self.answered: set[str] = set()
        self.committed: list[str] = []
        self.versions: list[int] = []
        self.stopped = False

    def tell(self, event) -> tuple:
        self.state, said = step(self.rules, self.state, event)
        assert not (self.stopped and said), "invariant 6"
        commits = [s for s in said if isinstance(s, Commit)]
        published = [s.version for s in said if isinstance(s, Publish)]
        assert [c.learner for c in commits] == sorted(c.learner for c in commits), "invariant 5"
        assert bool(commits) == bool(published)
        assert len(commits) >= self.rules.quorum * len(published), "invariant 4"
        self.committed += [c.task for c in commits]
        self.versions += published
        self.asked += [s for s in said if isinstance(s, Train)]
        self.stopped |= any(isinstance(s, Stop) for s in said)
        return said

    @rule(site=st.integers(0, 5))
    def join(self, site: int) -> None:
        self.tell(Joined(0.0, f"site{site}", site + 1))

    @rule(site=st.integers(0, 5))
    def leave(self, site: int) -> None:
        self.tell(Left(0.0, f"site{site}"))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def answer(self, data) -> None:
        task = data.draw(st.sampled_from(self.asked))
        fresh = task.task in self.state.open and not self.stopped
        before = self.state
        self.tell(arrived(task))
        if fresh:
            self.answered.add(task.task)
        else:
            assert self.state == before, "invariant 2"

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def fail(self, data) -> None:
        task = data.draw(st.sampled_from(self.asked))
        self.tell(Failed(0.0, task.learner, task.task, "lost"))

    @rule()
    def stranger(self) -> None:
        before = self.state
        assert self.tell(arrived(Train("no such task", "site0", 0, None))) == ()
        assert self.state == before

    @invariant()
    def holds(self) -> None:
        assert len(set(self.committed)) == len(self.committed), "invariant 3: no update counts twice"
        waiting = {update.task for update in self.state.arrived.values()}
        assert self.answered == set(self.committed) | waiting, "invariant 3: no update is lost"
        assert self.versions == list(range(1, len(self.versions) + 1)), "invariant 4"


TestFederation = Federation.TestCase
TestFederation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
