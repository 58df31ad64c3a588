"""A crew: many learners trained at once on this machine, all its cores busy, each answer as if trained alone.

The way is chosen by the model: networks of dense layers train in threads, by compiled loops that let go of Python's
lock, small ones that are alike in one call (`stacked`); other PyTorch modules in processes with one thread each
(`pool`); anything else one after the other. In every way a learner's update depends on its own task alone, to the bit:
not on who else is in the crew, on the number of workers, or on which of them is done first.

Many small dense networks trained together: one compiled call for several learners, divided among threads.

For a network of some thousand weights, calling Python between learners costs as much as training does, and threads only
wait for its lock. Here everything that needs Python is done for all learners first; the arithmetic then runs without
it. Each learner's is the same `kernels.epochs` that trains it alone, on its own rows: the bits are the same.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from abaton.errors import AbatonError, SettingsError
from abaton.learners.learner import Learner, Seat, Update
from abaton.learners.process_pool import Job, Pool
from abaton.models import dense_kernels
from abaton.models.base import Trained, Way
from abaton.models.dense_network import DenseNetwork
from abaton.models.optimisers import Solver, rate
from abaton.models.sampling import epoch_order
from abaton.training import TrainSettings

_WORTH_A_THREAD = 4e7  # multiplications, about a millisecond: shorter jobs would only wait for Python's lock
_WORTH_A_CALL = 4e6  # a tenth of it, for work that waits for nothing
_STACKED = 1 << 24  # numbers: what is copied to lie together is bounded


class CrewError(AbatonError):
    """Some learners of a crew could not train; the others did.

    Attributes:
        failures: what went wrong, by learner.
        updates: the updates of all jobs in order; nothing in place of those that failed.
    """

    def __init__(self, failures: Mapping[str, AbatonError], updates: Sequence[Update | None]) -> None:
        self.failures, self.updates = dict(failures), list(updates)
        first = next(iter(failures.values()))
        others = f" (and {len(failures) - 1} other learners)" if len(failures) > 1 else ""
        super().__init__(f"{first.what}{others}", where=first.where, remedy=first.remedy)


class Crew:
    """Trains several learners at once.

    Args:
        learners: who may be given a job, by name; processes see the examples they have at the first job.
        workers: how many learners train at the same time; as many as there are cores if not given.

    >>> import numpy as np
    >>> from abaton.codecs import parse
    >>> from abaton.controller import TrainSettings
    >>> from abaton.learners import Examples, logistic
    >>> model, codec = logistic(features=2), parse("raw")
    >>> data = Examples(np.eye(2, dtype=np.float32), np.array([0, 1]))
    >>> learners = {name: Learner(name, model, data, codec, seed=1) for name in ("north", "south")}
    >>> jobs = [Job(name, "task 1", 0, model.initial(0), TrainSettings(epochs=2)) for name in learners]
    >>> with Crew(learners) as crew:
    ...     [update.steps for update in crew.train(jobs)]
    [2, 2]
    """

    def __init__(self, learners: Mapping[str, Learner], *, workers: int | None = None) -> None:
        self._workers = _cores() if workers is None else workers
        if self._workers < 1:
            raise SettingsError(f"workers is {workers}", where="crew", remedy="use at least 1")
        self._learners = learners
        self._threads: ThreadPoolExecutor | None = None
        self._pool: Pool | None = None

    def train(self, jobs: Sequence[Job]) -> list[Update]:
        """The updates of all jobs, in order; if some fail the others are still done, and the error holds them."""
        for name, given in Counter(job.learner for job in jobs).items():
            self._check(name, given)
        answers: dict[int, Update | AbatonError] = {}
        ways: dict[Way, list[int]] = {"threads": [], "processes": [], "here": []}
        for i, job in enumerate(jobs):
            ways[self.way(job.learner)].append(i)
        self._train_in_processes(jobs, ways["processes"], answers)
        self._train_in_threads(jobs, ways["threads"], answers)
        for i in ways["here"]:
            answers[i] = self._train_one(jobs[i])
        failures = {jobs[i].learner: a for i, a in sorted(answers.items()) if isinstance(a, AbatonError)}
        updates = [a if isinstance(a := answers[i], Update) else None for i in range(len(jobs))]
        if failures:
            raise CrewError(failures, updates)
        return [update for update in updates if update is not None]

    def way(self, learner: str) -> Way:
        """How a learner is trained: in `threads`, in `processes`, or `here`, one after the other."""
        one = self._learners[learner]
        way = one.model.way(one.examples)
        return "here" if way == "processes" and self._workers == 1 else way

    def close(self) -> None:
        """End the crew's threads and processes."""
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None
        self._end_processes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, name: str, given: int) -> None:
        if name not in self._learners:
            raise SettingsError(
                f"there is no learner '{name}' in the crew", remedy="name one of its learners"
            )
        if given > 1:
            raise SettingsError(
                f"learner '{name}' has {given} jobs at once", remedy="give it the next when one is done"
            )
        if not len(self._learners[name].examples):
            raise SettingsError(
                f"learner '{name}' has no examples",
                remedy="check the site's cohort with 'abaton site check', or leave the learner out",
            )

    def _train_one(self, job: Job) -> Update | AbatonError:
        try:
            return self._learners[job.learner].train(job.task, job.version, job.start, job.settings)
        except AbatonError as error:
            return error

    def _work(self, job: Job) -> float:
        """About how many multiplications a job takes: forward once, backward twice."""
        learner, settings = self._learners[job.learner], self._settings(job)
        return 3.0 * learner.steps(settings) * settings.batch_size * learner.model.layout.size

    def _settings(self, job: Job) -> TrainSettings:
        return self._learners[job.learner].limited(job.settings)

    def _train_in_threads(
        self, jobs: Sequence[Job], chosen: Sequence[int], answers: dict[int, Update | AbatonError]
    ) -> None:
        if not chosen:
            return
        from abaton.models.thread_limits import one_thread

        with one_thread:
            left = self._train_stacked(jobs, chosen, answers)
            self._train_beside(jobs, left, answers)

    def _train_beside(
        self, jobs: Sequence[Job], chosen: Sequence[int], answers: dict[int, Update | AbatonError]
    ) -> None:
        """Train larger networks beside each other, each whole."""
        waiting = iter(chosen)  # shared: whoever is free takes the next

        def work() -> None:
            for i in waiting:
                answers[i] = self._train_one(jobs[i])

        worth = sum(self._work(jobs[i]) > _WORTH_A_THREAD for i in chosen)
        self._divide([lambda: work] * max(1, min(self._workers, worth)))

    def _train_stacked(
        self, jobs: Sequence[Job], chosen: Sequence[int], answers: dict[int, Update | AbatonError]
    ) -> list[int]:
        """Train small networks that are alike together, and return who is left."""
        alike: dict[tuple[int, TrainSettings], list[int]] = {}
        for i in chosen:
            if self._work(jobs[i]) <= _WORTH_A_THREAD:
                model = self._learners[jobs[i].learner].model
                alike.setdefault((id(model), self._settings(jobs[i])), []).append(i)
        for some in alike.values():
            for stack in self._bounded({i: jobs[i] for i in some}):
                answers |= self._train_together(stack)
        return [i for i in chosen if i not in answers]

    def _bounded(self, jobs: Mapping[int, Job]) -> Iterator[dict[int, Job]]:
        """Jobs in portions whose rows together are not too many to be copied."""
        portion: dict[int, Job] = {}
        numbers = 0
        for i, job in jobs.items():
            own = self._learners[job.learner].examples.x.size
            if portion and numbers + own > _STACKED:
                yield portion
                portion, numbers = {}, 0
            portion[i] = job
            numbers += own
        yield portion

    def _train_together(self, jobs: Mapping[int, Job]) -> dict[int, Update | AbatonError]:
        """The answers of jobs that are alike; those without one are trained alone, and then say what is wrong."""
        first = next(iter(jobs.values()))
        network = getattr(self._learners[first.learner].model, "dense", None)
        if network is None or len(jobs) < 2:
            return {}
        parts = self._workers if len(jobs) * self._work(first) > _WORTH_A_CALL else 1
        try:
            asked = {i: self._learners[j.learner].seat(j.task, j.start, j.settings) for i, j in jobs.items()}
            seats = {i: seat for i, seat in asked.items() if seat is not None}
            if not seats:
                return {}
            settings = self._settings(first)
            made = train_stacked(network, list(seats.values()), settings, parts, self._divide)
        except AbatonError:
            return {}
        return {
            i: self._send(jobs[i], trained)
            for i, trained in zip(seats, made, strict=True)
            if trained is not None
        }

    def _send(self, job: Job, trained: Trained) -> Update | AbatonError:
        try:
            return self._learners[job.learner].send(job.task, job.version, job.start, trained)
        except AbatonError as error:
            return error

    def _divide(self, work: Sequence[Callable[[], Callable[[], None]]]) -> None:
        """Do pieces of work at the same time: each begins while the next is made ready, and the last is done here."""
        if len(work) > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers - 1, "abaton-crew")
        busy = [self._threads.submit(ready()) for ready in work[:-1]] if self._threads else []
        work[-1]()()
        for piece in busy:
            piece.result()

    def _train_in_processes(
        self, jobs: Sequence[Job], chosen: Sequence[int], answers: dict[int, Update | AbatonError]
    ) -> None:
        if not chosen:
            return
        if self._pool is not None and not all(jobs[i].learner in self._pool.known for i in chosen):
            self._end_processes()  # someone has joined since they were made
        if self._pool is None:
            self._pool = Pool(self._learners, workers=self._workers)
        try:
            done = self._pool.train([jobs[i] for i in chosen])
        except BaseException:
            self._end_processes()  # answers that nobody waits for go with them
            raise
        answers.update(zip(chosen, done, strict=True))

    def _end_processes(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Array = NDArray[Any]
Divide = Callable[[Sequence[Callable[[], Callable[[], None]]]], None]
"""Makes pieces of work ready one after the other, does each while the next is made ready, and waits for all."""


def train_stacked(
    network: DenseNetwork, seats: Sequence[Seat], settings: TrainSettings, parts: int, divide: Divide
) -> list[Trained | None]:
    """Train several learners, each from its own start; nothing for one whose labels are not the model's classes.

    Args:
        network: the network that all of them have.
        seats: who is trained.
        settings: how, the same for all.
        parts: among how many threads the work is divided.
        divide: what runs them.
    """
    size = -(-len(seats) // parts)
    stacks = [_Stack(network, seats[i : i + size], settings) for i in range(0, len(seats), size)]
    for number in range(settings.epochs):
        divide([partial(stack.prepared, number) for stack in stacks])
    return [trained for stack in stacks for trained in stack.trained()]


class _Stack:
    """Some learners whose models and rows lie one after the other."""

    def __init__(self, network: DenseNetwork, seats: Sequence[Seat], settings: TrainSettings) -> None:
        self.network, self.seats, self.settings = network, seats, settings
        self.solver = Solver.begin(settings, seats[0].start, None)
        self.models = np.empty((len(seats), self.solver.anchor.size), np.float32)
        for model, seat in zip(self.models, seats, strict=True):
            model[:] = seat.start
            seat.chance.bit_generator.random_raw()  # one number is drawn first in training alone, too
        self.anchors = self.models.copy() if settings.proximal else self.models
        self.first, self.second = (
            np.zeros((len(seats), each.size), np.float32) for each in (self.solver.first, self.solver.second)
        )
        self.counts = [len(seat.examples) for seat in seats]
        self.places = np.array([0, *accumulate(self.counts)])
        total = int(self.places[-1])
        self.rows = np.empty((total, network.layers[0, dense_kernels.INPUTS]), np.float32)
        self.targets = np.empty(total)
        self.losses = np.zeros(len(seats))
        self.order = np.arange(total)
        self.steps = [-(-count // settings.batch_size) for count in self.counts]

    def prepared(self, number: int) -> Callable[[], None]:
        """Everything of an epoch that needs Python; what is left to do does not."""
        begin = 0
        for seat, count in zip(self.seats, self.counts, strict=True):
            data, mine = seat.examples, slice(begin, begin := begin + count)
            order = epoch_order(data.y, self.settings.window, seat.chance)
            self.network.rows(data.x).take(order, 0, self.rows[mine], "clip")
            self.targets[mine] = data.y[order]
        s, done, eta = self.settings, number * np.array(self.steps), rate(self.settings, number)
        return lambda: dense_kernels.epochs(
            self.network.layers, self.models, self.rows, self.targets, self.order, self.places,
            self.network.labels, s.batch_size, self.anchors, self.first, self.second, self.solver.kind, done, eta,
            s.momentum, s.proximal, s.clip, self.losses, dense_kernels.NOTHING,
        )  # fmt: skip

    def trained(self) -> Iterator[Trained | None]:
        """The results, learner by learner."""
        each = zip(self.models, self.steps, self.losses.tolist(), self.counts, strict=True)
        for model, steps, loss, count in each:
            wrong = loss == dense_kernels.WRONG_LABEL
            yield None if wrong else Trained(model, self.settings.epochs * steps, loss / count)
