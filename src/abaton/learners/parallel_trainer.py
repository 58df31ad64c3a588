"""Training of many learners at once on this machine, with the same bits as separate training.

The model determines the mode: dense networks train in threads, by compiled kernels that release the GIL; other PyTorch
modules in processes with one thread each (`process_pool`); all others sequentially. In every mode a learner's update
depends on its own task only: not on other learners, the number of workers or the order in which they finish.

Small networks with equal settings train as stacks in one compiled call, because for a network of some thousand weights
the Python code between learners takes as long as the training. Learners with a time budget, kept optimiser state or an
overridden `train` are trained separately.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from abaton.errors import AbatonError, SettingsError
from abaton.learners.learner import Learner, LearnerUpdate
from abaton.learners.process_pool import LearnerPool, TrainingJob
from abaton.models.base import ParallelMode, TrainingResult
from abaton.training import TrainSettings

_MIN_THREAD_OPERATIONS = 4e7  # multiplications, about a millisecond: shorter jobs would only wait for the GIL
_MIN_PARALLEL_OPERATIONS = 4e6  # a tenth of it, for work without the GIL
_MAX_STACK_VALUES = 1 << 24  # limits the copies of a stack


class ParallelTrainingError(AbatonError):
    """Training failed for some learners; the others were trained.

    Attributes:
        failures: Errors by learner.
        updates: Updates of all jobs in order; None for failed jobs.
    """

    def __init__(self, failures: Mapping[str, AbatonError], updates: Sequence[LearnerUpdate | None]) -> None:
        self.failures, self.updates = dict(failures), list(updates)
        first = next(iter(failures.values()))
        others = f" (and {len(failures) - 1} other learners)" if len(failures) > 1 else ""
        super().__init__(f"{first.what}{others}", where=first.where, remedy=first.remedy)


class ParallelTrainer:
    """Trainer of several learners at once.

    Args:
        learners: Learners by name; processes use the examples at the time of the first job.
        workers: Number of learners that train at the same time (default: the number of cores).

    >>> import numpy as np
    >>> from abaton.codecs import parse_codec
    >>> from abaton.models import Examples, logistic
    >>> model, codec = logistic(features=2), parse_codec("raw")
    >>> data = Examples(np.eye(2, dtype=np.float32), np.array([0, 1]))
    >>> learners = {name: Learner(name, model, data, codec, seed=1) for name in ("north", "south")}
    >>> jobs = [TrainingJob(name, "task 1", 0, model.initial(0), TrainSettings(epochs=2)) for name in learners]
    >>> with ParallelTrainer(learners) as trainer:
    ...     [update.steps for update in trainer.train(jobs)]
    [2, 2]
    """

    def __init__(self, learners: Mapping[str, Learner], *, workers: int | None = None) -> None:
        self._workers = _core_count() if workers is None else workers
        if self._workers < 1:
            raise SettingsError(f"workers is {workers}", where="parallel trainer", remedy="use at least 1")
        self._learners = learners
        self._threads: ThreadPoolExecutor | None = None
        self._pool: LearnerPool | None = None

    def train(self, jobs: Sequence[TrainingJob]) -> list[LearnerUpdate]:
        """Train all jobs in parallel and return their updates in order.

        Raises:
            ParallelTrainingError: Some jobs failed; the error has the updates of the others.
        """
        for name, job_count in Counter(job.learner for job in jobs).items():
            self._check(name, job_count)
        results: dict[int, LearnerUpdate | AbatonError] = {}
        indices_by_mode: dict[ParallelMode, list[int]] = {"threads": [], "processes": [], "sequential": []}
        for i, job in enumerate(jobs):
            indices_by_mode[self.parallel_mode(job.learner)].append(i)
        self._train_in_processes(jobs, indices_by_mode["processes"], results)
        self._train_in_threads(jobs, indices_by_mode["threads"], results)
        for i in indices_by_mode["sequential"]:
            results[i] = self._train_one(jobs[i])
        failures = {
            jobs[i].learner: result
            for i, result in sorted(results.items())
            if isinstance(result, AbatonError)
        }
        updates = [
            result if isinstance(result := results[i], LearnerUpdate) else None for i in range(len(jobs))
        ]
        if failures:
            raise ParallelTrainingError(failures, updates)
        return [update for update in updates if update is not None]

    def parallel_mode(self, learner: str) -> ParallelMode:
        """Return the parallel mode in which the trainer trains a learner."""
        instance = self._learners[learner]
        mode = instance.model.parallel_mode(instance.examples)
        return "sequential" if mode == "processes" and self._workers == 1 else mode

    def close(self) -> None:
        """Stop the threads and processes of the parallel trainer."""
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None
        self._stop_processes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, name: str, job_count: int) -> None:
        if name not in self._learners:
            raise SettingsError(
                f"there is no learner '{name}'", where="parallel trainer", remedy="use one of its learners"
            )
        if job_count > 1:
            raise SettingsError(
                f"learner '{name}' has {job_count} jobs at once", remedy="submit one job per learner and call"
            )
        if not len(self._learners[name].examples):
            raise SettingsError(
                f"learner '{name}' has no examples",
                remedy="check the site's cohort with 'abaton site check', or exclude the learner",
            )

    def _train_one(self, job: TrainingJob) -> LearnerUpdate | AbatonError:
        try:
            return self._learners[job.learner].train(job.task, job.version, job.start, job.settings)
        except AbatonError as error:
            return error

    def _operations(self, job: TrainingJob) -> float:
        """Return a parallel job's approximate multiplications: one forward pass, two for the backward pass."""
        learner, settings = self._learners[job.learner], self._settings(job)
        return 3.0 * learner.steps(settings) * settings.batch_size * learner.model.layout.size

    def _settings(self, job: TrainingJob) -> TrainSettings:
        return self._learners[job.learner].apply_limits(job.settings)

    def _train_in_threads(
        self,
        jobs: Sequence[TrainingJob],
        selected: Sequence[int],
        results: dict[int, LearnerUpdate | AbatonError],
    ) -> None:
        if not selected:
            return
        from abaton.models.thread_limits import one_thread

        with one_thread:
            remaining = self._train_stacked(jobs, selected, results)
            self._train_separately(jobs, remaining, results)

    def _train_separately(
        self,
        jobs: Sequence[TrainingJob],
        selected: Sequence[int],
        results: dict[int, LearnerUpdate | AbatonError],
    ) -> None:
        """Train larger networks of several learners in parallel, one per thread."""
        queue = iter(selected)  # shared by the threads

        def run_queue() -> None:
            for i in queue:
                results[i] = self._train_one(jobs[i])

        large_jobs = sum(self._operations(jobs[i]) > _MIN_THREAD_OPERATIONS for i in selected)
        self._run_parallel([lambda: run_queue] * max(1, min(self._workers, large_jobs)))

    def _train_stacked(
        self,
        jobs: Sequence[TrainingJob],
        selected: Sequence[int],
        results: dict[int, LearnerUpdate | AbatonError],
    ) -> list[int]:
        """Train small equal networks in stacks, in parallel threads; return the indices of the other jobs."""
        groups: dict[tuple[int, TrainSettings], list[int]] = {}
        for i in selected:
            if self._operations(jobs[i]) <= _MIN_THREAD_OPERATIONS:
                model = self._learners[jobs[i].learner].model
                groups.setdefault((id(model), self._settings(jobs[i])), []).append(i)
        for indices in groups.values():
            for stack in self._split_stack({i: jobs[i] for i in indices}):
                results |= self._train_stack(stack)
        return [i for i in selected if i not in results]

    def _split_stack(self, jobs: Mapping[int, TrainingJob]) -> Iterator[dict[int, TrainingJob]]:
        """Yield the parallel trainer's jobs in stacks whose examples have at most `_MAX_STACK_VALUES` values."""
        stack: dict[int, TrainingJob] = {}
        value_count = 0
        for i, job in jobs.items():
            values = self._learners[job.learner].examples.x.size
            if stack and value_count + values > _MAX_STACK_VALUES:
                yield stack
                stack, value_count = {}, 0
            stack[i] = job
            value_count += values
        yield stack

    def _train_stack(self, jobs: Mapping[int, TrainingJob]) -> dict[int, LearnerUpdate | AbatonError]:
        """Train a stack of parallel jobs; those without a result are trained separately, which raises their error."""
        from abaton.learners import stacked_training

        first = next(iter(jobs.values()))
        network = getattr(self._learners[first.learner].model, "dense", None)
        if network is None or len(jobs) < 2:
            return {}
        threads = self._workers if len(jobs) * self._operations(first) > _MIN_PARALLEL_OPERATIONS else 1
        try:
            slot_by_index = {
                i: self._learners[job.learner].training_slot(job.task, job.start, job.settings)
                for i, job in jobs.items()
            }
            slots = {i: slot for i, slot in slot_by_index.items() if slot is not None}
            if not slots:
                return {}
            settings = self._settings(first)
            trained_models = stacked_training.train_stacked(
                network, list(slots.values()), settings, threads, self._run_parallel
            )
        except AbatonError:
            return {}
        return {
            i: self._send(jobs[i], trained)
            for i, trained in zip(slots, trained_models, strict=True)
            if trained is not None
        }

    def _send(self, job: TrainingJob, trained: TrainingResult) -> LearnerUpdate | AbatonError:
        try:
            return self._learners[job.learner].send(job.task, job.version, job.start, trained)
        except AbatonError as error:
            return error

    def _run_parallel(self, jobs: Sequence[Callable[[], Callable[[], None]]]) -> None:
        """Run prepared jobs in parallel: each starts while the next is prepared, and the last runs in this thread."""
        if len(jobs) > 1 and self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers - 1, "abaton-trainer")
        futures = [self._threads.submit(prepare()) for prepare in jobs[:-1]] if self._threads else []
        jobs[-1]()()
        for future in futures:
            future.result()

    def _train_in_processes(
        self,
        jobs: Sequence[TrainingJob],
        selected: Sequence[int],
        results: dict[int, LearnerUpdate | AbatonError],
    ) -> None:
        if not selected:
            return
        if self._pool is not None and not all(jobs[i].learner in self._pool.known for i in selected):
            self._stop_processes()  # a learner joined after the fork
        if self._pool is None:
            self._pool = LearnerPool(self._learners, workers=self._workers)
        try:
            updates = self._pool.train([jobs[i] for i in selected])
        except BaseException:
            self._stop_processes()  # their pending results would be taken for later jobs
            raise
        results.update(zip(selected, updates, strict=True))

    def _stop_processes(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
