"""The Ray engine: learners and evaluators as tasks on a cluster, in real time, for runs that outgrow one machine.

The learners themselves stay here: they ask who may be used before each task, hold what they keep from task to task,
and write it down with the answer before anybody hears of it. What a task needs goes to the cluster as plain data: rows
and models as arrays, once each, to Ray's object store; the rest as JSON. A task over which a worker dies, raises, hangs
or answers rubbish is a failed task, told in one of a few fixed words. A learner whose workers keep dying has left.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from abaton import __version__
from abaton.control import Arrived, Event, Failed, Joined, Left, Scored, Tick
from abaton.engines.contract import EvaluateTask, Task, TrainTask
from abaton.engines.flower import answers
from abaton.engines.flower.parcels import plain_reason
from abaton.engines.ray import work
from abaton.engines.ray.cluster import ClusterError, connect, disconnect, processors
from abaton.engines.ray.shelf import Shelf
from abaton.engines.site import SiteState, check_states
from abaton.errors import AbatonError, PayloadError
from abaton.learning import Learner

Check = Callable[[str, int, bytes], None]

_DEATHS = 3
_LOOK = 5.0  # seconds between looks at how large the cluster is


@dataclass(frozen=True, slots=True)
class _Seat:
    """One of the two things a learner can do at a time."""

    learner: str
    evaluates: bool


@dataclass(frozen=True, slots=True)
class _Sent:
    """A task under way."""

    task: Task
    seat: _Seat
    since: float
    cohort: str


class RayEngine:
    """Learners as tasks on a Ray cluster, in wall-clock time.

    Args:
        learners: who takes part.
        remake: how workers make them.
        keep: stores a payload and returns its digest.
        check: decodes a learner's payload for a version; raises an `AbatonError` if it is not sound.
        address: where the cluster is (see `connect`).
        patience: seconds after which a task without an answer is given up and its worker ended.
        groups: which group each learner belongs to.
        states: a folder for what learners keep and answered last; needed if they keep anything.
    """

    real: ClassVar[bool] = True

    def __init__(
        self,
        learners: Mapping[str, Learner],
        remake: work.Remake,
        *,
        keep: Callable[[bytes], str],
        check: Check,
        address: str = "",
        patience: float = 600.0,
        groups: Mapping[str, str] | None = None,
        states: Path | None = None,
    ) -> None:
        check_states(learners, states, "Ray engine")
        self._ours = connect(address)
        import ray

        self._ray, self._answer = ray, ray.remote(max_retries=0)(work.answer)
        self._learners, self._remake, self._keep, self._check = learners, remake, keep, check
        self._patience = patience
        self._states = {} if states is None else {name: SiteState(states, name) for name in learners}
        self._began = time.monotonic()
        self._seen: set[str] = set()
        self._waiting: dict[bool, dict[str, Task]] = {True: {}, False: {}}  # evaluations, trainings
        self._sent: dict[Any, _Sent] = {}
        self._deaths: Counter[_Seat] = Counter()
        self._timers: dict[str, float] = {}
        self._shelf = Shelf(ray.put)
        self._board: Any = None
        self._committed, self._size, self._asked = 0, processors(), 0.0
        groups = groups or {}
        self._happened: list[Event] = [
            Joined(0.0, name, len(learner.examples), groups.get(name, ""), learner.labels)
            for name, learner in learners.items()
        ]

    def now(self) -> float:
        """Seconds since the engine was started."""
        return time.monotonic() - self._began

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take tasks on; each is sent when its learner and a processor of the cluster are free."""
        for task in tasks:
            if task.key in self._seen:
                continue
            self._seen.add(task.key)
            if task.learner not in self._learners or self._is_gone(_seat(task)):
                self._fail(task, "learner is gone")
            else:
                self._waiting[isinstance(task, EvaluateTask)][task.key] = task

    def events(self) -> Sequence[Event]:
        """What happened next; waits for it."""
        self._hand_out()
        while not self._happened and (self._sent or self._timers):
            self._hear()
            self._give_up_on_the_hung()
            self._ring()
            self._hand_out()
        happened, self._happened = self._happened, []
        return happened

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""
        self._timers[name] = at

    def cancel(self, key: str) -> None:
        """Forget a task that has not been sent; one under way is let end, and its answer is not waited for."""
        for waiting in self._waiting.values():
            waiting.pop(key, None)

    def tell(self, committed: int) -> None:
        """Let learners know at once, also while they train."""
        self._committed = committed
        if self._board is not None:
            self._board.tell.remote(committed)

    def close(self) -> None:
        """End all tasks, and the cluster if it was started here."""
        for ref in self._sent:
            self._ray.cancel(ref, force=True)
        self._sent = {}
        self._shelf.clear()
        if self._board is not None:
            self._ray.kill(self._board)
            self._board = None
        if self._ours:
            disconnect()
            self._ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- out ----------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        """Send as many tasks as the cluster has processors: what waits can still be cancelled or lose its consent."""
        busy = {sent.seat for sent in self._sent.values()}
        for evaluates in (True, False):  # an evaluation is short, and a commit waits for it
            for task in self._next(evaluates, busy):
                del self._waiting[evaluates][task.key]
                self._send(task, busy)

    def _next(self, evaluates: bool, busy: set[_Seat]) -> Iterator[Task]:  # noqa: FBT001
        for task in list(self._waiting[evaluates].values()) if len(self._sent) < self._most() else ():
            if len(self._sent) >= self._size:
                return
            if _seat(task) not in busy:
                yield task

    def _most(self) -> int:
        """How many tasks the cluster can do at once; machines come and go."""
        if self.now() > self._asked + _LOOK:
            self._size, self._asked = processors(), self.now()
        return self._size

    def _send(self, task: Task, busy: set[_Seat]) -> None:
        learner, seat = self._learners[task.learner], _seat(task)
        try:
            known = self._begin(task, learner)
        except AbatonError:
            self._fail(task, "task was refused")
            return
        except Exception:
            self._fail(task, "learner failed")
            return
        if known is not None and isinstance(task, TrainTask):
            self._arrive(task, *known)
            return
        asked, board = self._wrap(task)
        rows, model = self._shelf.rows(learner), self._shelf.model(task.model)
        ref = self._answer.remote(asked, rows, model, learner.kept, board)
        busy.add(seat)
        self._sent[ref] = _Sent(task, seat, self.now(), learner.cohort)

    def _begin(self, task: Task, learner: Learner) -> tuple[dict[str, Any], bytes] | None:
        """Let the learner ask who may still be used; or the answer, if it is written down already."""
        state = self._states.get(task.learner)
        if state is not None:
            known = state.answered(task.key) if isinstance(task, TrainTask) else None
            state.refresh(learner)
            if known is not None:
                answers.trained(known[0])
                return known
        learner.begin(time.time(), task.version if isinstance(task, TrainTask) else None)
        return None

    def _wrap(self, task: Task) -> tuple[bytes, Any]:
        remake = self._remake
        asked: dict[str, Any] = {"key": task.key, "maker": remake.maker, "about": remake.about[task.learner]}
        if isinstance(task, EvaluateTask):
            return json.dumps(asked).encode(), None
        asked |= {"version": task.version, "settings": asdict(task.settings), "committed": self._committed}
        return json.dumps(asked).encode(), None if task.settings.adaptive is None else self._opened_board()

    def _opened_board(self) -> Any:
        if self._board is None:
            self._board = self._ray.remote(num_cpus=0)(work.Board).remote()
            self._board.tell.remote(self._committed)
        return self._board

    # ---- in -----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        if not self._sent:
            time.sleep(self._pause())
            return
        try:
            ready, _ = self._ray.wait(list(self._sent), num_returns=1, timeout=self._pause())
        except (OSError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise _gone() from error
        for ref in ready:
            sent = self._sent.pop(ref)
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError:
                self._fail(sent.task, "learner failed")  # never the text: it may speak of the site's data
            except self._ray.exceptions.RayError:
                self._lost(sent, "process ended")
            else:
                self._deaths.pop(sent.seat, None)
                self._take_in(sent, answer)

    def _take_in(self, sent: _Sent, answer: object) -> None:
        """Make of an answer what has happened."""
        task = sent.task
        try:
            about, payload, kept = _readable(answer, task.key)
            if isinstance(task, EvaluateTask):
                score = answers.counts(about.get("score"))
                self._happened.append(Scored(self.now(), task.learner, task.key, score))
                return
            about["cohort"] = sent.cohort
            answers.trained(about)
            self._check(task.learner, task.version, payload)
        except _Said as said:
            self._fail(task, str(said))
        except AbatonError:
            self._fail(task, "unreadable answer" if sent.seat.evaluates else "unreadable update")
        else:
            self._remember(task.learner, about, payload, kept)
            self._arrive(task, about, payload)

    def _remember(self, name: str, about: Mapping[str, Any], payload: bytes, kept: work.Arrays) -> None:
        """Let the learner keep what its training left, and write it down with the answer."""
        learner, state = self._learners[name], self._states.get(name)
        learner.restore(kept)
        if state is not None:
            state.save(learner, about, payload)

    def _arrive(self, task: TrainTask, about: Mapping[str, Any], payload: bytes) -> None:
        said = answers.trained(about)
        metrics = {} if said.loss is None else {"loss": said.loss}
        told = (said.steps, said.examples, metrics, said.score, said.cohort)
        digest = self._keep(payload)
        self._happened.append(Arrived(self.now(), task.learner, task.key, digest, len(payload), *told))

    def _lost(self, sent: _Sent, reason: str) -> None:
        """Report what a lost worker was doing; a learner that keeps losing them has left."""
        self._fail(sent.task, reason)
        self._deaths[sent.seat] += 1
        if not self._is_gone(sent.seat):
            return
        waiting = self._waiting[sent.seat.evaluates]
        for task in [task for task in waiting.values() if task.learner == sent.seat.learner]:
            del waiting[task.key]
            self._fail(task, "learner is gone")
        if not sent.seat.evaluates:
            self._happened.append(Left(self.now(), sent.seat.learner))

    def _is_gone(self, seat: _Seat) -> bool:
        return self._deaths[seat] > _DEATHS

    def _fail(self, task: Task, reason: str) -> None:
        self._happened.append(Failed(self.now(), task.learner, task.key, reason))

    # ---- time ---------------------------------------------------------------------------------------------------

    def _give_up_on_the_hung(self) -> None:
        for ref, sent in list(self._sent.items()):
            if self.now() > self._end(sent):
                del self._sent[ref]
                self._ray.cancel(ref, force=True)
                self._lost(sent, "no answer in time")

    def _end(self, sent: _Sent) -> float:
        """When patience with a task ends; time that it was given to train does not try it."""
        given = sent.task.settings.budget if isinstance(sent.task, TrainTask) else 0.0
        return sent.since + given + self._patience

    def _ring(self) -> None:
        for name, at in sorted(self._timers.items(), key=lambda timer: timer[1]):
            if at <= self.now():
                del self._timers[name]
                self._happened.append(Tick(self.now(), name))

    def _pause(self) -> float:
        ends = [*self._timers.values(), *(self._end(sent) for sent in self._sent.values())]
        return max(0.0, min([_LOOK, *(end - self.now() for end in ends)]))


class _Said(Exception):
    """One of the fixed words that tell what is wrong."""


def _seat(task: Task) -> _Seat:
    return _Seat(task.learner, isinstance(task, EvaluateTask))


def _readable(answer: object, key: str) -> tuple[dict[str, Any], bytes, work.Arrays]:
    """A worker's answer, if it has the form of one, and does not say that something is wrong."""
    match answer:
        case (bytes() as header, bytes() as payload, dict() as kept) if all(map(_is_kept, kept.items())):
            with contextlib.suppress(ValueError):
                about = json.loads(header)
                if isinstance(about, dict) and about.get("key") == key:
                    if about.get("software") != __version__:
                        raise _Said("another version of Abaton")
                    if "reason" in about:
                        raise _Said(plain_reason(str(about["reason"])))
                    return about, payload, {name: np.array(values) for name, values in kept.items()}
    raise PayloadError("an answer is not readable", where="Ray", remedy="check what runs on the cluster")


def _is_kept(item: tuple[object, object]) -> bool:
    name, values = item
    return isinstance(name, str) and name.startswith(("codec/", "model/")) and isinstance(values, np.ndarray)


def _gone() -> ClusterError:
    return ClusterError(
        "the Ray cluster is gone", where="engine ray", remedy="bring it back, and go on with 'abaton resume'"
    )
