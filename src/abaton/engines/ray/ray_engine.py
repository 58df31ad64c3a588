"""The Ray engine: learners and evaluators as tasks on a cluster, in real time, for runs that outgrow one machine.

The learners themselves stay here: they ask who may be used before each task, hold what they keep from task to task,
and write it down with the answer before anybody hears of it. What a task needs goes to the cluster as plain data: rows
and models as arrays, once each, to Ray's object store; the rest as JSON. A task over which a worker dies, raises, hangs
or answers rubbish is a failed task, told in one of a few fixed words. A learner whose workers keep dying has left.

What lies in Ray's object store: model and codec, rows and versions once each, however many tasks use them.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from abaton import __version__
from abaton.controller import Event
from abaton.engines.base import DIED, FAILED, LATE, OTHER_SOFTWARE, EvaluateTask, Task, TrainTask, Way
from abaton.engines.ray import ray_worker
from abaton.engines.ray.cluster import ClusterError, connect, disconnect, processors
from abaton.engines.ray.ray_worker import Arrays, Sent, pack
from abaton.engines.reply_validation import Check, Reader, header
from abaton.engines.site_state import SiteState, begin_anew
from abaton.engines.task_handler import Worker, told
from abaton.engines.task_queue import Ledger, duty_of
from abaton.errors import SettingsError
from abaton.kernels import Vector
from abaton.learners import Learner, Reply

_MODELS = 32


class Shelf:
    """References to what was put into the object store; what is let go of here is removed there.

    Args:
        put: lays something into the store and returns a reference to it.
    """

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._means: dict[tuple[type[Learner], int, int], tuple[Learner, Any]] = {}
        self._rows: dict[str, tuple[Arrays, Any]] = {}
        self._models: OrderedDict[int, tuple[Vector, Any]] = OrderedDict()
        self._steps: dict[int, Any] = {}
        self._run = secrets.token_hex(8)

    def means(self, learner: Learner) -> Any:
        """What a learner trains and how its updates travel; learners that are alike share it.

        Raises:
            SettingsError: Ray cannot move them.
        """
        name = type(learner), id(learner.model), id(learner.codec)  # the learner is held beside them
        if name not in self._means:
            try:
                made = learner.elsewhere(), learner.model, learner.codec, learner.downlink
                self._means[name] = learner, self._put(made)
            except (TypeError, AttributeError, ValueError) as error:
                raise SettingsError(
                    f"the model {type(learner.model).__name__} or its codec cannot be sent to a cluster",
                    where="engine ray",
                    remedy="let them hold no open files, locks or threads, or use the engine 'local'",
                ) from error
        return self._means[name][1]

    def rows(self, learner: Learner) -> Any:
        """A learner's rows as they are now: after somebody has left, those with that person are removed."""
        packed = pack(learner)
        held = self._rows.get(learner.name)
        if held is None or not _same(held[0], packed):
            held = self._rows[learner.name] = packed, self._put(packed)
        return held[1]

    def model(self, vector: Vector) -> Any:
        """A model; the vectors of tasks are never changed, so the same vector is the same model."""
        name = id(vector)  # the vector is held beside it, so no other can have its name
        if name not in self._models:
            self._models[name] = vector, self._put(vector)
            if len(self._models) > _MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name][1]

    def sent(self, way: Way) -> Sent:
        """A model as the parts it can be made of, each in the store once: a worker reads only those that it lacks."""
        wanted = [step for step in way.lately if step.version <= way.version]
        for step in wanted:
            if step.version not in self._steps:
                self._steps[step.version] = self._put(step.data)
        steps = {step.version: self._steps[step.version] for step in wanted}
        for version in [v for v in self._steps if v < min(steps, default=v)]:
            del self._steps[version]
        return Sent(self._run, way.version, [self.model(way.start)], steps, way.author, way.payload)

    def clear(self) -> None:
        """Let go of everything."""
        self._means.clear()
        self._rows.clear()
        self._models.clear()
        self._steps.clear()


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


_LOOK = 5.0  # seconds between looks at how large the cluster is


@dataclass(frozen=True, slots=True)
class _Sent:
    """A task under way, and the fingerprint of what its learner trains on."""

    task: Task
    cohort: str


class RayEngine:
    """Learners as tasks on a Ray cluster, in wall-clock time.

    Args:
        learners: who takes part; they begin with what `states` holds, and with nothing else.
        keep: stores a payload and returns its digest.
        check: decodes a learner's payload for a version; raises an `AbatonError` if it is not sound.
        address: where the cluster is (see `connect`).
        patience: seconds after which a task without an answer is given up and its worker ended.
        groups: which group each learner belongs to.
        states: the run's folder for what learners keep and answered last; needed if they keep anything.
    """

    real: ClassVar[bool] = True

    def __init__(
        self,
        learners: Mapping[str, Learner],
        *,
        keep: Callable[[bytes], str],
        check: Check,
        address: str = "",
        patience: float = 600.0,
        groups: Mapping[str, str] | None = None,
        states: Path | None = None,
    ) -> None:
        begin_anew(learners, states, "Ray engine")
        self._ours = connect(address)
        import ray

        self._ray, self._answer = ray, ray.remote(max_retries=0)(ray_worker.answer)
        self._reader = Reader(keep, check)
        self._workers = {
            name: Worker(learner, None if states is None else SiteState(states, name))
            for name, learner in learners.items()
        }
        self._ledger = Ledger(learners, groups, patience)
        self._sent: dict[Any, _Sent] = {}
        self._shelf = Shelf(ray.put)
        self._board: Any = None
        self._committed, self._size, self._asked = 0, processors(), 0.0

    def now(self) -> float:
        """Seconds since the engine was started."""
        return self._ledger.now()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take tasks on; each is sent when its learner and a processor of the cluster are free."""
        self._ledger.take_on(tasks)

    def events(self) -> Sequence[Event]:
        """What happened next; waits for it."""
        ledger = self._ledger
        self._hand_out()
        while ledger.quiet and (self._sent or ledger.timers):
            self._hear()
            self._give_up_on_the_hung()
            ledger.ring()
            self._hand_out()
        return ledger.tell()

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""
        self._ledger.timers.set(name, at)

    def cancel(self, key: str) -> None:
        """Forget a task that has not been sent; one under way is let end, and its answer is not waited for."""
        self._ledger.cancel(key)

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
        """Send as many tasks as the cluster has processors: what waits can still be cancelled, or be refused."""
        for task in self._ledger.ready(max(0, self._most() - len(self._sent))):
            self._send(task)

    def _most(self) -> int:
        """How many tasks the cluster can do at once; machines come and go."""
        if self.now() > self._asked + _LOOK:
            self._size, self._asked = processors(), self.now()
        return self._size

    def _send(self, task: Task) -> None:
        worker, ledger = self._workers[task.learner], self._ledger
        try:
            known = worker.begin(task)
        except Exception as error:
            ledger.fail(task, told(error))
            return
        if known is not None:
            ledger.end(task, self._reader.event(self.now(), task, known))
            return
        learner = worker.learner
        asked, board = self._wrap(task)
        means, rows = self._shelf.means(learner), self._shelf.rows(learner)
        model = self._shelf.model(task.model) if task.way is None else self._shelf.sent(task.way)
        ref = self._answer.remote(asked, [means], rows, model, learner.kept, board)
        ledger.begin(task)
        self._sent[ref] = _Sent(task, learner.cohort)

    def _wrap(self, task: Task) -> tuple[bytes, Any]:
        learner = self._workers[task.learner].learner
        asked: dict[str, Any] = {
            "key": task.key,
            "learner": ray_worker.values_of(learner),
            "committed": self._committed,
        }
        if isinstance(task, EvaluateTask):
            return json.dumps(asked).encode(), None
        asked |= {"version": task.version, "settings": asdict(task.settings)}
        return json.dumps(asked).encode(), None if task.settings.adaptive is None else self._opened_board()

    def _opened_board(self) -> Any:
        if self._board is None:
            self._board = self._ray.remote(num_cpus=0)(ray_worker.Board).remote()
            self._board.tell.remote(self._committed)
        return self._board

    # ---- in -----------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        pause = self._ledger.pause(_LOOK)
        if not self._sent:
            time.sleep(pause)
            return
        try:
            ready, _ = self._ray.wait(list(self._sent), num_returns=1, timeout=pause)
        except (OSError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise _gone() from error
        for ref in ready:
            sent = self._sent.pop(ref)
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError:
                self._ledger.fail(sent.task, FAILED)  # never the text: it may speak of the site's data
            except self._ray.exceptions.RayError:
                self._ledger.lost(duty_of(sent.task), DIED)
            else:
                self._take_in(sent, answer)

    def _take_in(self, sent: _Sent, answer: object) -> None:
        """Make of an answer what has happened; what a learner keeps changes only with an answer that leaves."""
        task, reader = sent.task, self._reader
        made, left, down, problem = _unpacked(sent, answer)
        problem = problem or reader.problem(task, made)
        if problem:
            self._ledger.fail(task, problem)
            return
        worker = self._workers[task.learner]
        learner, before = worker.learner, worker.learner.kept
        if isinstance(task, TrainTask):
            learner.restore(left)
        try:
            reply = worker.finish(task, made, before)
        except Exception as error:
            self._ledger.fail(task, told(error))
            return
        # What the site's policy has changed is looked at again; what has not changed is not decoded twice.
        problem = "" if reply is made else reader.problem(task, reply)
        self._ledger.end(task, reader.made(self.now(), task, reply, problem, down))

    def _give_up_on_the_hung(self) -> None:
        late = set(self._ledger.late())
        for ref, sent in [(ref, sent) for ref, sent in self._sent.items() if duty_of(sent.task) in late]:
            del self._sent[ref]
            self._ray.cancel(ref, force=True)
            self._ledger.lost(duty_of(sent.task), LATE)


def _unpacked(sent: _Sent, answer: object) -> tuple[Reply, ray_worker.Arrays, int, str]:
    """A worker's answer, what its learner keeps from now on, the bytes of the model that it read, and what is wrong."""
    task = sent.task
    match answer:
        case (bytes() as data, bytes() as payload, dict() as kept) if all(map(_is_kept, kept.items())):
            about = header(data)
            software, down = about.pop("software", None), about.pop("down", None)
            if about.get("key") == task.key and software != __version__:
                return Reply({}), {}, 0, OTHER_SOFTWARE
            if "cohort" in about:
                about["cohort"] = sent.cohort  # known where the learner lives, and nowhere else
            if isinstance(down, int):
                left = {name: np.array(values) for name, values in kept.items()}
                return Reply(about, payload), left, down, ""
    return Reply({}), {}, 0, ""  # which no answer is, as the reader says


def _is_kept(item: tuple[object, object]) -> bool:
    name, values = item
    return isinstance(name, str) and name.startswith(("codec/", "model/")) and isinstance(values, np.ndarray)


def _gone() -> ClusterError:
    return ClusterError(
        "the Ray cluster is gone", where="engine ray", remedy="bring it back, and go on with 'abaton resume'"
    )
