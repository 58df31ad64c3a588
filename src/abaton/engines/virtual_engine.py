"""The virtual engine: a federation of hours, simulated in seconds, the same bits every time.

A heap of (time, sequence, kind, task) is all there is. Training is real; compute, download and upload times are
simulated, both transfers from the real number of encoded bytes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

from abaton import training
from abaton.controller import Arrived, Event, Failed, Joined, Left, Scored, Tick
from abaton.engines.base import DROPPED, REFUSED, EvaluateTask, Task, TrainTask
from abaton.engines.model_transfer import Held, load
from abaton.engines.reply_validation import Told, arrival
from abaton.engines.task_handler import Worker, told, update_reply
from abaton.errors import AbatonError, SettingsError
from abaton.kernels import Vector
from abaton.learners import Crew, CrewError, Epoch, Job, Learner, Update, cycle_ends

_TOGETHER = 64  # tasks trained at once: enough for all cores, and few answers wait in memory


@dataclass(frozen=True, slots=True)
class Profile:
    """How a simulated learner computes and communicates.

    Attributes:
        speed: training batches a second.
        bandwidth: bytes a second, each way.
        latency: seconds that each message takes besides its bytes.
        dropout: the chance that a task is never answered.
        joins, leaves: when the learner comes and goes, in seconds.
        group: which group of learners it belongs to, such as fast or slow.
    """

    speed: float = 100.0
    bandwidth: float = 1.25e6
    latency: float = 0.05
    dropout: float = 0.0
    joins: float = 0.0
    leaves: float = float("inf")
    group: str = ""

    def __post_init__(self) -> None:
        for name in ("speed", "bandwidth"):
            if not getattr(self, name) > 0:
                raise SettingsError(
                    f"{name} is {getattr(self, name)}", where="profile", remedy="use a number above 0"
                )
        if not self.latency >= 0:
            raise SettingsError(f"latency is {self.latency}", where="profile", remedy="use 0 or more seconds")
        if not 0 <= self.dropout <= 1:
            raise SettingsError(
                f"dropout is {self.dropout}", where="profile", remedy="use a chance from 0 to 1"
            )
        if not 0 <= self.joins < self.leaves:
            raise SettingsError(
                "a learner leaves before it joins", where="profile", remedy="let joins < leaves"
            )


@dataclass(slots=True)
class _Cycle:
    """The training of a learner that decides itself when to send.

    Attributes:
        epochs: its training, to be resumed.
        steps: how many batches an epoch has.
        known: how many epochs are left, if the answer is known from an earlier life of the run.
        losses: its validation loss after each epoch.
    """

    epochs: Iterator[Epoch]
    steps: int
    known: int | None
    losses: list[float] = field(default_factory=list)


class VirtualEngine:
    """Learners in this process under a simulated clock.

    Args:
        learners: who takes part; they begin with nothing kept, since a run is replayed from its beginning.
        profiles: how fast each of them is; those not named get the default.
        keep: stores a payload and returns its digest.
        seed: decides which tasks are dropped.
        finished: answers of an earlier life of this run, by task: they are used instead of training again.
    """

    real: ClassVar[bool] = False

    def __init__(
        self,
        learners: Mapping[str, Learner],
        profiles: Mapping[str, Profile],
        *,
        keep: Callable[[bytes], str],
        seed: int,
        finished: Mapping[str, Arrived] | None = None,
    ) -> None:
        for learner in learners.values():
            learner.forget()
        self._learners, self._keep, self._seed = learners, keep, seed
        self._profiles = {name: profiles.get(name, Profile()) for name in learners}
        self._finished = finished or {}
        self._tasks: dict[str, Task] = {}
        self._sizes: dict[str, int] = {}
        self._held = {name: [Held[None](evaluates=each) for each in (False, True)] for name in learners}
        self._untrained: dict[str, TrainTask] = {}
        self._answers: dict[str, Arrived] = {}
        self._cycles: dict[str, _Cycle] = {}
        self._refused: set[str] = set()
        self._crew = Crew(learners)
        self._workers: dict[str, Worker] = {}
        self._seen: set[str] = set()
        self._heap: list[tuple[float, int, str, str]] = []
        self._sequence = 0
        self._now, self._committed = 0.0, 0
        for name, profile in self._profiles.items():
            self._push(profile.joins, "joins", name)
            if profile.leaves != float("inf"):
                self._push(profile.leaves, "leaves", name)

    def now(self) -> float:
        """The simulated time in seconds."""
        return self._now

    def submit(self, tasks: Sequence[Task]) -> None:
        """Start tasks at the present moment of simulated time."""
        for task in tasks:
            if task.key in self._seen:
                continue
            self._seen.add(task.key)
            task = self._counted(task)
            self._tasks[task.key] = task
            learner, profile = self._learners[task.learner], self._profiles[task.learner]
            size = self._sizes[task.key] = self._load(task)
            started = self._now + profile.latency + size / profile.bandwidth
            if isinstance(task, EvaluateTask):
                # Evaluators are a service of their own: they work while their learner trains.
                busy = learner.evaluation_steps / profile.speed
                self._push(started + busy + profile.latency, "scored", task.key)
                continue
            if not self._begins(task):
                self._push(started, "trained", task.key)
                continue
            steps = learner.steps(task.settings)
            known = self._finished.get(task.key) if learner.forgets(task.settings) else None
            if known is not None:
                upload = self._upload(task.learner, known.size)
                metrics = {**known.metrics, "upload": upload}
                self._answers[task.key] = replace(known, metrics=metrics, down=size)
            if task.settings.adaptive is not None:
                steps //= task.settings.epochs
                epochs = learner.train_epochs(task.key, task.model, task.settings)
                self._cycles[task.key] = _Cycle(epochs, steps, known.steps // steps if known else None)
            elif known is None:
                self._untrained[task.key] = task
            busy = steps / profile.speed
            if profile.dropout and training.uniform(self._seed, "dropout", task.key) < profile.dropout:
                self._push(started + busy * training.uniform(self._seed, "when", task.key), "drops", task.key)
            elif task.key in self._cycles:
                self._push(started + busy, "epoch", task.key)
            else:
                self._push(started + busy, "trained", task.key)

    def _load(self, task: Task) -> int:
        """How many bytes go down for a task; a site's trainer and its evaluator each hold versions of their own."""
        if task.way is None:
            return task.model.nbytes
        return load(task, self._held[task.learner][isinstance(task, EvaluateTask)]).size

    def _begins(self, task: TrainTask) -> bool:
        """Let a site and its learner accept a task; one that does not is remembered as having refused."""
        try:
            self._worker(task).begin(task)
        except AbatonError as error:
            self._refuse(task, error)
        return task.key not in self._refused

    def _worker(self, task: Task) -> Worker:
        found = self._workers.get(task.learner)
        if found is None:
            found = self._workers[task.learner] = Worker(self._learners[task.learner], now=self.now)
        return found

    def _refuse(self, task: Task, error: AbatonError) -> None:
        _raise_if_a_setting(error)
        told(error)
        self._refused.add(task.key)

    def _counted(self, task: Task) -> Task:
        """A task with a time budget as one of so many batches as fit, or as it took in an earlier life."""
        if isinstance(task, EvaluateTask) or not task.settings.budget or task.settings.steps:
            return task
        known = self._finished.get(task.key)
        # A product such as 0.3 x 10 may come out just below the whole number that is meant.
        fits = math.floor(task.settings.budget * self._profiles[task.learner].speed + 1e-9)
        steps = max(1, fits) if known is None else known.steps
        return replace(task, settings=replace(task.settings, steps=steps))

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a simulated time."""
        self._push(at, "ticks", name)

    def cancel(self, key: str) -> None:
        """Forget a task; nothing of it is heard any more."""
        self._forget(key)

    def close(self) -> None:
        """End the threads and processes that trained."""
        self._crew.close()

    def _forget(self, key: str) -> None:
        for known in (self._tasks, self._untrained, self._cycles, self._answers, self._sizes):
            known.pop(key, None)
        self._refused.discard(key)

    def tell(self, committed: int) -> None:
        """Let learners know how many steps have been committed: here they know at once."""
        self._committed = committed

    def events(self) -> Sequence[Event]:
        """The next event, after simulating everything that nobody hears of."""
        while self._heap:
            self._now, _, kind, name = heapq.heappop(self._heap)
            event = self._happen(kind, name)
            if event is not None:
                return (event,)
        return ()

    def _happen(self, kind: str, name: str) -> Event | None:
        if kind == "joins":
            learner, group = self._learners[name], self._profiles[name].group
            return Joined(self._now, name, learner.declared, group, learner.labels)
        if kind == "leaves":
            return Left(self._now, name)
        if kind == "ticks":
            return Tick(self._now, name)
        task = self._tasks.get(name)
        if task is None or self._profiles[task.learner].leaves <= self._now:
            self._forget(name)
            return None  # cancelled, or its learner left in the middle: nobody answers
        if kind in ("epoch", "trained"):
            assert isinstance(task, TrainTask)
            self._work(task)
            if name not in self._refused:
                return None
        answer, refused, size = self._answers.get(name), name in self._refused, self._sizes[name]
        self._forget(name)
        if kind == "drops":
            return Failed(self._now, task.learner, name, DROPPED)
        if kind == "scored":
            return self._score(task, size)
        if refused:
            return Failed(self._now, task.learner, name, REFUSED)
        assert answer is not None
        return _arrived(answer, self._now)

    def _score(self, task: Task, size: int) -> Event:
        try:
            reply = self._worker(task).do(task)
        except AbatonError as error:
            _raise_if_a_setting(error)
            return Failed(self._now, task.learner, task.key, told(error))
        return Scored(self._now, task.learner, task.key, tuple(reply.about["score"]), size)

    def _work(self, task: TrainTask) -> None:
        """Train, and send the update or go on; a learner that cannot is remembered as having refused."""
        try:
            if task.key in self._cycles:
                self._epoch(task, self._cycles[task.key])
                return
            self._train(task)
        except AbatonError as error:
            self._refuse(task, error)
        if task.key not in self._refused:
            self._send(task)

    def _epoch(self, task: TrainTask, cycle: _Cycle) -> None:
        """One epoch of a learner that decides itself when to send (Metis, section V)."""
        if not self._goes_on(task, cycle):
            self._send(task)
        else:
            self._push(self._now + cycle.steps / self._profiles[task.learner].speed, "epoch", task.key)

    def _goes_on(self, task: TrainTask, cycle: _Cycle) -> bool:
        """Train an epoch and say whether another one follows; a cycle that is replayed takes as many."""
        if cycle.known is not None:
            cycle.known -= 1
            return cycle.known > 0
        epoch = next(cycle.epochs)
        cycle.losses.append(epoch.validation_loss)
        if not cycle_ends(task.settings, cycle.losses, epoch, self._committed):
            return True
        learner = self._learners[task.learner]
        before = learner.kept
        update = learner.send(task.key, task.version, task.model, epoch.trained)
        self._answers[task.key] = self._arrival(task, update, before)
        return False

    def _train(self, task: TrainTask) -> None:
        """Train a task, and with it others that are under way: their answers do not depend on when that is done."""
        if task.key in self._answers or task.key in self._refused:
            return
        waiting = islice(self._untrained.values(), _TOGETHER)
        together = {other.learner: other for other in waiting} | {task.learner: task}
        jobs = [Job(t.learner, t.key, t.version, t.model, t.settings) for t in together.values()]
        before = {name: self._learners[name].kept for name in together}
        updates: Sequence[Update | None]
        try:
            updates = self._crew.train(jobs)
        except CrewError as error:
            for failure in error.failures.values():
                _raise_if_a_setting(failure)
                told(failure)
            updates = error.updates
        for other, update in zip(together.values(), updates, strict=True):
            self._untrained.pop(other.key, None)
            if update is None:
                self._refused.add(other.key)
                continue
            try:
                self._answers[other.key] = self._arrival(other, update, before[other.learner])
            except AbatonError as error:
                self._refuse(other, error)

    def _arrival(self, task: TrainTask, update: Update, before: Mapping[str, Vector]) -> Arrived:
        """What arrives of an update: what the learner's site lets go of."""
        worker = self._worker(task)
        reply = worker.finish(task, update_reply(worker.learner, task, update), before)
        digest = self._keep(reply.payload)
        size = len(reply.payload)
        upload = self._upload(task.learner, size)
        sizes = size, self._sizes[task.key]
        return arrival(self._now, task, Told.of(reply.about), digest, sizes, upload=upload)

    def _send(self, task: TrainTask) -> None:
        self._push(self._now + self._answers[task.key].metrics["upload"], "arrives", task.key)

    def _upload(self, learner: str, size: int) -> float:
        """How many seconds an update of so many bytes is on its way."""
        profile = self._profiles[learner]
        return profile.latency + size / profile.bandwidth

    def _push(self, at: float, kind: str, name: str) -> None:
        heapq.heappush(self._heap, (at, self._sequence, kind, name))
        self._sequence += 1


def _arrived(answer: Arrived, at: float) -> Arrived:
    """An answer at the time it arrives; written out, since this is done for every update."""
    return Arrived(
        at, answer.learner, answer.task, answer.payload, answer.size, answer.steps, answer.examples, answer.metrics,
        answer.score, answer.cohort, answer.down, answer.signature,
    )  # fmt: skip


def _raise_if_a_setting(error: AbatonError) -> None:
    """A wrong setting would fail every task alike: whoever made it wants to read of it, not of a failed round."""
    if isinstance(error, SettingsError):
        raise error
