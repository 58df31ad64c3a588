"""Numbered invariants of controller/state_machine.py, tested by hand and over random orders of events."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from abaton.controller import (
    STRATEGIES,
    AsynchronousScheduler,
    BufferedScheduler,
    CancelTask,
    Commit,
    ControllerState,
    EvaluationReceived,
    LatestContribution,
    LearnerJoined,
    LearnerLeft,
    PublishVersion,
    RemoveLearner,
    RunNote,
    SemiSynchronousScheduler,
    SetTimer,
    StalenessWeighting,
    StartEvaluation,
    StartTraining,
    StopRun,
    Strategy,
    SynchronousScheduler,
    TaskFailed,
    TimerFired,
    TrainSettings,
    UpdateReceived,
    UpdateThresholds,
    ValidationWeighting,
    event_from_row,
    event_to_row,
    transition,
)

DVW = (ValidationWeighting(),)


def update_for(
    task: StartTraining, timestamp: float = 1.0, steps: int = 10, counts: tuple = (4, 4, 5, 5, 5, 5)
) -> UpdateReceived:
    return UpdateReceived(
        timestamp, task.learner, task.task, f"payload-{task.task}", 100, steps, 50, {"loss": 0.5}, counts
    )


def evaluation_for(task: StartEvaluation, timestamp: float = 1.0, right: int = 3) -> EvaluationReceived:
    return EvaluationReceived(timestamp, task.learner, task.task, (right, right, 5, 5, 5, 5))


def join_all(strategy: Strategy, groups: str = "") -> tuple[ControllerState, tuple]:
    state, instructions = ControllerState(), ()
    for i in range(strategy.learners):
        state, instructions = transition(
            strategy, state, LearnerJoined(0.0, f"site{i}", 10 * (i + 1), groups)
        )
    return state, instructions


def of_type(kind: type, instructions: tuple) -> list:
    return [s for s in instructions if isinstance(s, kind)]


# synchronous


def test_a_round_starts_when_all_have_joined_and_aggregates_all():
    strategy = Strategy(learners=3, rounds=1)
    state, tasks = join_all(strategy)
    assert [t.learner for t in tasks] == ["site0", "site1", "site2"]
    for task in reversed(tasks[1:]):
        state, instructions = transition(strategy, state, update_for(task))
        assert instructions == ()
    state, instructions = transition(strategy, state, update_for(tasks[0]))
    assert [type(s) for s in instructions] == [Commit, Commit, Commit, PublishVersion, StopRun]
    assert [s.learner for s in instructions[:3]] == ["site0", "site1", "site2"], "invariant 5"


def test_invariant_1_nothing_passed_in_is_changed():
    strategy = Strategy(learners=2, rounds=2, weighting=DVW)
    state, tasks = join_all(strategy)
    before = repr(state)
    assert transition(strategy, state, update_for(tasks[0])) == transition(
        strategy, state, update_for(tasks[0])
    )
    assert repr(state) == before


def test_a_failed_round_is_tried_again_and_keeps_what_arrived():
    strategy = Strategy(learners=2, rounds=1, scheduler=SynchronousScheduler(quorum=2))
    state, tasks = join_all(strategy)
    state, _ = transition(strategy, state, update_for(tasks[0]))
    state, instructions = transition(
        strategy, state, TaskFailed(1.0, tasks[1].learner, tasks[1].task, "dropped out")
    )
    assert [s.learner for s in instructions] == [tasks[1].learner]
    state, instructions = transition(strategy, state, update_for(instructions[0]))
    assert len(of_type(Commit, instructions)) == 2


def test_the_run_stops_when_a_round_keeps_failing_or_too_few_are_left():
    strategy = Strategy(learners=1, rounds=1, scheduler=SynchronousScheduler(max_attempts=3))
    state, instructions = join_all(strategy)
    for _ in range(3):
        state, instructions = transition(
            strategy, state, TaskFailed(1.0, "site0", instructions[0].task, "dropped out")
        )
    assert "failed 3 times" in instructions[0].reason
    two = Strategy(learners=2, rounds=1, scheduler=SynchronousScheduler(quorum=2))
    state, tasks = join_all(two)
    state, instructions = transition(two, state, LearnerLeft(1.0, "site0"))
    assert instructions == ()
    _, instructions = transition(two, state, update_for(tasks[1]))
    assert instructions == (StopRun("too few learners are left"),)


def test_a_deadline_closes_the_round_with_a_quorum_and_waits_for_one_otherwise():
    strategy = Strategy(learners=3, rounds=2, scheduler=SynchronousScheduler(deadline=5.0, quorum=2))
    state, instructions = join_all(strategy)
    (wake,) = of_type(SetTimer, instructions)
    assert wake.timestamp == 5.0
    first, second, third = of_type(StartTraining, instructions)
    state, _ = transition(strategy, state, update_for(first))
    state, instructions = transition(strategy, state, TimerFired(5.0, wake.name))
    assert instructions == (), "one update is no quorum"
    state, instructions = transition(strategy, state, update_for(second, timestamp=6.0))
    assert (len(of_type(Commit, instructions)), of_type(CancelTask, instructions)) == (
        2,
        [CancelTask(third.task)],
    )
    assert of_type(SetTimer, instructions)[0].timestamp == 11.0
    assert transition(strategy, state, update_for(third))[1] == (), "too late: invariant 2"
    assert transition(strategy, state, TimerFired(7.0, wake.name))[1] == (), (
        "the deadline of a round that is over"
    )


def test_over_selection_does_not_wait_for_the_slowest():
    strategy = Strategy(
        learners=5, rounds=1, scheduler=SynchronousScheduler(participants=2, over_selection=2)
    )
    state, tasks = join_all(strategy)
    assert len(tasks) == 4
    state, _ = transition(strategy, state, update_for(tasks[0]))
    state, instructions = transition(strategy, state, update_for(tasks[3]))
    assert (len(of_type(Commit, instructions)), len(of_type(CancelTask, instructions))) == (2, 2)


def test_validation_weights_wait_for_all_evaluators_of_a_round():
    strategy = Strategy(learners=3, rounds=1, weighting=DVW)
    state, tasks = join_all(strategy)
    requests = []
    for task in tasks:
        state, instructions = transition(strategy, state, update_for(task))
        requests += of_type(StartEvaluation, instructions)
        assert [e.learner for e in of_type(StartEvaluation, instructions)] == [
            t.learner for t in tasks if t is not task
        ], "invariant 7"
    for task in requests[:-1]:
        state, instructions = transition(
            strategy, state, evaluation_for(task, right=2 if task.model == tasks[0].task else 5)
        )
        assert instructions == ()
    state, instructions = transition(strategy, state, evaluation_for(requests[-1], right=5))
    weights = [c.weight for c in of_type(Commit, instructions)]
    assert weights == pytest.approx([(4 + 2 + 2) * 2 / 30, (4 + 5 + 5) * 2 / 30, (4 + 5 + 5) * 2 / 30])


def test_the_requested_number_of_evaluators_is_sampled():
    strategy = Strategy(learners=9, rounds=1, weighting=(ValidationWeighting(evaluators=3),))
    state, tasks = join_all(strategy)
    _, instructions = transition(strategy, state, update_for(tasks[4]))
    assert len(instructions) == 3
    assert tasks[4].learner not in {e.learner for e in instructions}


def test_sampling_depends_on_the_seed_and_reaches_every_learner():
    def sampled(seed: int) -> list[str]:
        return [
            t.learner
            for t in join_all(Strategy(20, 1, scheduler=SynchronousScheduler(participants=3), seed=seed))[1]
        ]

    assert sampled(1) == sampled(1)
    assert len({name for seed in range(60) for name in sampled(seed)}) == 20


def test_the_time_of_a_run_can_be_limited():
    strategy = Strategy(learners=2, rounds=100, max_seconds=3.0)
    state, tasks = join_all(strategy)
    state, _ = transition(strategy, state, update_for(tasks[0], timestamp=2.9))
    _, instructions = transition(strategy, state, update_for(tasks[1], timestamp=3.1))
    assert instructions == (StopRun("the time is up"),)


# asynchronous


def test_invariant_6_every_commit_is_answered_at_once_with_the_next_task():
    strategy = Strategy(learners=3, rounds=100, scheduler=AsynchronousScheduler())
    state, tasks = join_all(strategy)
    assert len(tasks) == 3
    state, instructions = transition(strategy, state, update_for(tasks[2]))
    assert [type(s) for s in instructions] == [Commit, PublishVersion, StartTraining]
    assert (instructions[2].learner, instructions[2].version) == ("site2", 1)
    state, instructions = transition(strategy, state, update_for(instructions[2]))
    assert instructions[1] == PublishVersion(2), "the others are still at their first task"


def test_evaluations_delay_only_the_learner_that_is_evaluated():
    strategy = Strategy(learners=3, rounds=100, scheduler=AsynchronousScheduler(), weighting=DVW)
    state, tasks = join_all(strategy)
    state, first = transition(strategy, state, update_for(tasks[0], timestamp=1.0))
    state, second = transition(strategy, state, update_for(tasks[1], timestamp=2.0))
    state, _ = transition(strategy, state, evaluation_for(second[0]))
    state, instructions = transition(strategy, state, evaluation_for(second[1]))
    assert [s.learner for s in of_type(Commit, instructions)] == ["site1"], (
        "site0's evaluators are still at work"
    )
    state, instructions = transition(
        strategy, state, TaskFailed(3.0, first[0].learner, first[0].task, "lost")
    )
    assert instructions == ()
    state, instructions = transition(strategy, state, LearnerLeft(3.0, first[1].learner))
    assert [s.learner for s in of_type(Commit, instructions)] == ["site0"], (
        "a lost evaluator is not waited for"
    )


@pytest.mark.parametrize("scheduler", [SynchronousScheduler(), AsynchronousScheduler()])
def test_names_may_contain_the_separator_of_evaluation_ids(scheduler):
    strategy = Strategy(learners=2, rounds=9, scheduler=scheduler, weighting=DVW)
    state, instructions = ControllerState(), ()
    for name in ("a@b", "c@d"):
        state, instructions = transition(strategy, state, LearnerJoined(0.0, name, 10))
    first, second = instructions
    state, requests = transition(strategy, state, update_for(first))
    state, instructions = transition(strategy, state, evaluation_for(requests[0]))
    state, more = transition(strategy, state, update_for(second))
    state, last = transition(strategy, state, TaskFailed(2.0, more[0].learner, more[0].task, "lost"))
    assert [c.learner for c in of_type(Commit, (*instructions, *last))] == ["a@b", "c@d"], (
        "both were evaluated"
    )
    training = of_type(StartTraining, (*instructions, *last))[0]
    state, instructions = transition(
        strategy, state, TaskFailed(3.0, training.learner, training.task, "lost")
    )
    assert training.task not in state.open_tasks, "a failed training is not an evaluation"


def test_a_commit_has_weight_staleness_and_validation_loss():
    strategy = Strategy(learners=3, rounds=9, scheduler=AsynchronousScheduler(), weighting=DVW)
    state, (one, two, _) = join_all(strategy)
    state, requests = transition(strategy, state, update_for(one, steps=7, counts=(4, 4, 5, 5, 5, 5, 2.0)))
    state, others = transition(strategy, state, update_for(two, steps=5, counts=(4, 4, 5, 5, 5, 5, 1.0)))
    for task in others:
        state, instructions = transition(
            strategy, state, EvaluationReceived(2.0, task.learner, task.task, (1, 1, 5, 5, 5, 5, 3.0))
        )
    (commit,) = of_type(Commit, instructions)
    assert (commit.learner, commit.task, commit.version) == ("site1", two.task, 0)
    assert (commit.versions_missed, commit.staleness) == (0, 5)
    assert commit.validation == pytest.approx((1.0 + 3.0 + 3.0) / 30)
    for task in requests:
        state, instructions = transition(strategy, state, TaskFailed(3.0, task.learner, task.task, "lost"))
    (commit,) = of_type(Commit, instructions)
    assert (commit.versions_missed, commit.staleness) == (0, 7), "as it was when the update arrived"
    assert commit.validation == pytest.approx(2.0 / 10), "only its own learner has evaluated it"
    (again,) = of_type(StartTraining, instructions)
    late = next(task for task in join_all(strategy)[1] if task.learner == "site2")
    state, requests = transition(strategy, state, update_for(late, steps=4, counts=()))
    for task in requests:
        state, instructions = transition(strategy, state, TaskFailed(4.0, task.learner, task.task, "lost"))
    (commit,) = of_type(Commit, instructions)
    assert (commit.version, commit.versions_missed, commit.staleness, commit.validation) == (
        0,
        2,
        5 + 7 + 4,
        None,
    )
    assert again.version == 2


def test_staleness_counts_the_steps_and_versions_that_others_committed():
    strategy = Strategy(
        learners=2, rounds=100, scheduler=AsynchronousScheduler(), training=TrainSettings(epochs=3)
    )
    state, tasks = join_all(strategy)
    state, instructions = transition(strategy, state, update_for(tasks[0], steps=30))
    state, instructions = transition(
        strategy, state, update_for(of_type(StartTraining, instructions)[0], steps=12)
    )
    state, instructions = transition(strategy, state, update_for(tasks[1], steps=5))
    assert state.cycles["site0"] == (30, 12)
    assert state.cycles["site1"] == (47,), "S_c(t') - S_c(t) + s_k"


def test_fedasync_discounts_by_versions_missed():
    strategy = Strategy(learners=2, rounds=100, **STRATEGIES["FedAsync"])
    state, tasks = join_all(strategy)
    state, instructions = transition(strategy, state, update_for(tasks[0]))
    for _ in range(2):
        state, instructions = transition(strategy, state, update_for(of_type(StartTraining, instructions)[0]))
    _, instructions = transition(strategy, state, update_for(tasks[1]))
    assert of_type(Commit, instructions)[0].weight == pytest.approx((3 + 1) ** -0.5)


def test_a_failing_learner_is_dropped_and_a_new_one_starts_at_once():
    strategy = Strategy(learners=1, rounds=100, scheduler=AsynchronousScheduler(max_attempts=2))
    state, instructions = join_all(strategy)
    state, more = transition(strategy, state, LearnerJoined(1.0, "late", 5))
    assert [t.learner for t in more] == ["late"]
    state, instructions = transition(strategy, state, TaskFailed(1.0, "site0", instructions[0].task, "lost"))
    assert [t.learner for t in instructions] == ["site0"]
    state, instructions = transition(strategy, state, TaskFailed(1.0, "site0", instructions[0].task, "lost"))
    assert instructions == ()
    state, instructions = transition(strategy, state, update_for(more[0]))
    assert of_type(PublishVersion, instructions) == [PublishVersion(1)]
    assert transition(strategy, state, LearnerJoined(1.0, "late", 5))[1] == (), "it is there already"


def test_the_contribution_of_a_departed_learner_is_kept_or_subtracted():
    for departed, instructions in (("keep", ()), ("subtract", (RemoveLearner("site0"),))):
        strategy = Strategy(
            learners=2,
            rounds=9,
            scheduler=AsynchronousScheduler(),
            contribution_rule=LatestContribution(departed),
        )
        state, _ = join_all(strategy)
        assert transition(strategy, state, LearnerLeft(1.0, "site0"))[1] == instructions


def test_adaptive_learners_get_their_groups_thresholds_and_after_twenty_cycles_their_median():
    strategy = Strategy(learners=1, rounds=1000, scheduler=STRATEGIES["AsyncDVW(a)"]["scheduler"])
    state, (task,) = join_all(strategy, "fast")
    assert task.settings.update_thresholds == UpdateThresholds(0.0, 4)
    assert task.settings.staleness_limit == float("inf")
    for i in range(20):
        state, instructions = transition(strategy, state, update_for(task, steps=i + 1))
        (task,) = of_type(StartTraining, instructions)
    assert task.settings.staleness_limit == 10.5
    assert task.settings.committed_steps == 210
    _, (slow,) = join_all(strategy, "slow")
    assert slow.settings.update_thresholds == UpdateThresholds(1.0, 1)


def test_events_survive_the_journal():
    import json

    task = StartTraining("t", "a", 0, TrainSettings())
    events = [
        LearnerJoined(0.5, "a", 3, "fast"),
        LearnerLeft(1.0, "a"),
        TaskFailed(2.0, "a", "t", "lost"),
        update_for(task),
        TimerFired(3.0, "x"),
        RunNote(4.0, "a", "node_reconnected"),
    ]
    for event in [*events, EvaluationReceived(1.0, "b", "t@b", (1, 2, 3))]:
        kind, body = event_to_row(event)
        assert event_from_row(kind, json.loads(json.dumps(body))) == event


def test_run_notes_do_not_change_the_state():
    state, _ = join_all(Strategy(learners=1, rounds=3), "a")
    assert transition(Strategy(learners=1, rounds=3), state, RunNote(9.0, "a", "node_disconnected")) == (
        state,
        (),
    )


COUNTS = (4, 4, 5, 5, 5, 5, 2.0)


class Federation(RuleBasedStateMachine):
    """Invariants 2 to 12 for random joins, leaves, updates, evaluations, duplicates, stale updates and failures.

    The numbers are those of docs/controller.md.
    """

    strategy = Strategy(
        learners=3, rounds=6, scheduler=SynchronousScheduler(participants=2, max_attempts=50), seed=7
    )

    def __init__(self) -> None:
        super().__init__()
        self.state = ControllerState()
        self.requested: list[StartTraining] = []
        self.evaluations: list[StartEvaluation] = []
        self.answered: set[str] = set()
        self.committed: list[str] = []
        self.cancelled: set[str] = set()
        self.timers: list[str] = ["deadline.0.0"]
        self.versions: list[int] = []
        self.weights: dict[str, float] = {}
        self.learning_rate_decay = 1.0
        self.stopped = False

    def handle(self, event) -> tuple:
        before = self.state
        self.state, instructions = transition(self.strategy, self.state, event)
        assert not (self.stopped and instructions), "invariant 8"
        commits = of_type(Commit, instructions)
        is_final = bool(self.strategy.final_rounds) and before.version >= self.strategy.rounds
        self.check_final_rounds(instructions, is_final)
        self.check_settings(instructions)
        if isinstance(self.strategy.scheduler, SynchronousScheduler):
            assert [c.learner for c in commits] == sorted(c.learner for c in commits), "invariant 5"
        elif isinstance(self.strategy.scheduler, BufferedScheduler):
            self.check_buffer(before, instructions)
        elif not self.strategy.final_rounds:
            assert len(of_type(StartTraining, instructions)) >= len(commits) - len(
                of_type(StopRun, instructions)
            ) - len([c for c in commits if c.learner not in self.state.present]), "invariant 6"
        assert bool(commits) == bool(of_type(PublishVersion, instructions)), "invariant 4"
        assert all(0 <= c.weight < float("inf") for c in commits), "invariant 9"
        self.committed += [c.task for c in commits]
        self.versions += [p.version for p in of_type(PublishVersion, instructions)]
        self.requested += of_type(StartTraining, instructions)
        self.evaluations += of_type(StartEvaluation, instructions)
        self.cancelled |= {c.task for c in of_type(CancelTask, instructions)}
        self.timers += [w.name for w in of_type(SetTimer, instructions)]
        self.stopped |= bool(of_type(StopRun, instructions))
        return instructions

    def check_buffer(self, before: ControllerState, instructions: tuple) -> None:
        size, sizes, count = self.strategy.scheduler.min_updates(self.strategy), [], 0
        for instruction in instructions:
            count += isinstance(instruction, Commit)
            if isinstance(instruction, PublishVersion):
                sizes.append(count)
                count = 0
        full = sizes[:-1] if of_type(StopRun, instructions) else sizes
        assert all(count == size for count in full), "invariant 18"
        assert len(self.state.ready) < size, "invariant 18"
        if self.state.stop_reason is not None:
            assert not self.state.ready, "invariant 18: the buffer is empty"
        elif not self.strategy.final_rounds:
            went = {task for task in before.open_tasks if task not in self.state.open_tasks}
            settled = (set(before.awaiting_evaluation) | went) - set(self.state.awaiting_evaluation)
            members = {task.partition(".")[2] for task in settled} & set(self.state.present)
            trained = {t.learner for t in of_type(StartTraining, instructions)}
            failing = {name for name, often in self.state.failures.items() if often >= 50}
            assert members - trained <= failing, "invariant 19"

    def check_final_rounds(self, instructions: tuple, is_final: bool) -> None:
        if is_final:
            assert not of_type(StartEvaluation, instructions), "invariant 11"
            evaluation_for = {e.model for e in self.evaluations}
            for commit in of_type(Commit, instructions):
                if commit.task not in evaluation_for:
                    known = self.weights.get(commit.learner)
                    mean = sum(self.weights.values()) / len(self.weights)
                    assert commit.weight == pytest.approx(mean if known is None else known), "invariant 11"
        self.weights |= {c.learner: c.weight for c in of_type(Commit, instructions)}
        after = self.state.version >= self.strategy.rounds
        assert all(t.settings.use_validation_data == after for t in of_type(StartTraining, instructions)), (
            "invariant 11"
        )

    def check_settings(self, instructions: tuple) -> None:
        scheduler = self.strategy.scheduler
        budget = scheduler.time_budget_seconds if isinstance(scheduler, SemiSynchronousScheduler) else 0.0
        for task in of_type(StartTraining, instructions):
            assert (task.settings.time_budget_seconds, task.settings.steps) == (budget, 0), "invariant 10"
            if self.strategy.training.learning_rate_schedule == "plateau":
                assert task.settings.learning_rate_decay <= self.learning_rate_decay, "invariant 12"
                self.learning_rate_decay = task.settings.learning_rate_decay

    @rule(site=st.integers(0, 5))
    def join(self, site: int) -> None:
        labels = tuple(int(j == site % 3) for j in range(3))
        self.handle(LearnerJoined(0.0, f"site{site}", site + 1, labels=labels))

    @rule(site=st.integers(0, 5))
    def leave(self, site: int) -> None:
        self.handle(LearnerLeft(0.0, f"site{site}"))

    @precondition(lambda self: self.requested)
    @rule(data=st.data())
    def answer(self, data) -> None:
        task = data.draw(st.sampled_from(self.requested))
        fresh = task.task in self.state.open_tasks and not self.stopped
        before = self.state
        self.handle(update_for(task, counts=COUNTS))
        if fresh:
            self.answered.add(task.task)
        else:
            assert self.state == before, "invariant 2"

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def duplicate(self, data) -> None:
        again = data.draw(st.sampled_from([t for t in self.requested if t.task in self.answered]))
        before = self.state
        assert self.handle(update_for(again, steps=99, counts=COUNTS)) == ()
        assert self.state == before, "invariant 2"

    @precondition(lambda self: any(t.version < self.state.version for t in self.requested))
    @rule(data=st.data())
    def stale(self, data) -> None:
        old = data.draw(st.sampled_from([t for t in self.requested if t.version < self.state.version]))
        fresh = old.task in self.state.open_tasks and not self.stopped
        before = self.state
        instructions = self.handle(update_for(old, counts=COUNTS))
        if fresh:
            self.answered.add(old.task)
            assert not isinstance(self.strategy.scheduler, SynchronousScheduler), (
                "a round's tasks start from its version"
            )
        else:
            assert (self.state, instructions) == (before, ()), "invariant 2"

    @precondition(lambda self: self.evaluations)
    @rule(data=st.data(), right=st.integers(0, 5))
    def evaluate(self, data, right: int) -> None:
        task = data.draw(st.sampled_from(self.evaluations))
        counts = evaluation_for(task, right=right).counts
        self.handle(EvaluationReceived(1.0, task.learner, task.task, (*counts, float(5 - right))))

    @precondition(lambda self: self.requested)
    @rule(data=st.data())
    def fail(self, data) -> None:
        task = data.draw(st.sampled_from([*self.requested, *self.evaluations]))
        self.handle(TaskFailed(0.0, task.learner, task.task, "lost"))

    @rule(data=st.data())
    def tick(self, data) -> None:
        self.handle(TimerFired(0.0, data.draw(st.sampled_from(self.timers))))

    @rule()
    def stranger(self) -> None:
        before = self.state
        for event in (
            update_for(StartTraining("no such task", "site0", 0, None)),
            EvaluationReceived(0.0, "site0", "none@site0", (1,)),
        ):
            assert self.handle(event) == ()
        assert self.state == before

    @invariant()
    def holds(self) -> None:
        assert len(set(self.committed)) == len(self.committed), "invariant 3: no update counts twice"
        waiting = {
            contribution.update.task
            for contribution in (*self.state.ready.values(), *self.state.awaiting_evaluation.values())
        }
        assert self.answered <= set(self.committed) | waiting | self.cancelled, (
            "invariant 3: no update is lost"
        )
        assert self.versions == list(range(1, len(self.versions) + 1)), "invariant 4"
        keys = [e.task for e in self.evaluations]
        assert len(set(keys)) == len(keys), "invariant 7"
        assert all(e.learner != e.model.split(".")[-1] for e in self.evaluations), "invariant 7"


STRATEGY_SETTINGS = {
    "Rounds": Federation.strategy,
    "Deadlines": Strategy(
        3,
        6,
        scheduler=SynchronousScheduler(participants=2, over_selection=1, deadline=5.0, max_attempts=50),
        weighting=DVW,
    ),
    "Asynchrony": Strategy(3, 40, scheduler=AsynchronousScheduler(max_attempts=50)),
    "Validation": Strategy(
        3,
        40,
        scheduler=AsynchronousScheduler(max_attempts=50),
        weighting=(ValidationWeighting(evaluators=2),),
    ),
    "SemiSynchrony": Strategy(
        3,
        6,
        scheduler=SemiSynchronousScheduler(
            time_budget_seconds=2.0, participants=2, over_selection=1, deadline=5.0, max_attempts=50
        ),
        weighting=(ValidationWeighting(evaluators=1, evaluator_selection="label_coverage"),),
        training=TrainSettings(learning_rate_schedule="plateau", learning_rate_decay=0.5),
    ),
    "FinishingRounds": Strategy(
        3, 2, scheduler=SynchronousScheduler(max_attempts=50), weighting=DVW, final_rounds=2
    ),
    "FinishingAsynchrony": Strategy(
        3, 4, scheduler=AsynchronousScheduler(max_attempts=3), weighting=DVW, final_rounds=2
    ),
    "Buffer": Strategy(
        3, 30, scheduler=BufferedScheduler(max_attempts=50), weighting=(StalenessWeighting(),)
    ),
    "BufferedValidation": Strategy(
        3,
        30,
        scheduler=BufferedScheduler(buffer_size=3, max_attempts=50),
        weighting=(StalenessWeighting(), ValidationWeighting(evaluators=2)),
    ),
    "FinishingBuffer": Strategy(
        3, 3, scheduler=BufferedScheduler(buffer_size=2, max_attempts=3), weighting=DVW, final_rounds=2
    ),
    "DrivenAsynchrony": Strategy(
        3,
        40,
        scheduler=AsynchronousScheduler(max_attempts=50, adaptive={"": UpdateThresholds(1.0, 1)}),
        weighting=DVW,
        training=TrainSettings(learning_rate_schedule="plateau", learning_rate_decay=0.5),
    ),
}
for _name, _settings in STRATEGY_SETTINGS.items():
    _machine = type(_name, (Federation,), {"strategy": _settings})
    globals()[f"Test{_name}"] = _machine.TestCase
    _machine.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
