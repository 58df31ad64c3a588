"""Flower engine, the controller's side: tasks sent as messages, replies received as events.

Every site has at most one training message and one evaluation message in flight: a waiting task can be cancelled, and
waiting evaluations are sent together. A lost message is sent again with the same task id; a site that has run the task
replies from its disk. A node that is absent for longer than `absence_timeout` has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, ClassVar

from abaton.controller import Event, LearnerJoined, LearnerLeft, RunNote, TaskFailed
from abaton.engines.base import (
    BASE_MISSING,
    INVALID_REPLY,
    LEARNER_FAILED,
    LEARNER_GONE,
    PROCESS_EXITED,
    TIMEOUT,
    EvaluateTask,
    Task,
    TrainTask,
)
from abaton.engines.flower.flower_messages import (
    NODE_GONE,
    REPLY_GONE,
    UNAVAILABLE,
    Message,
    MessageLost,
    MessageTransport,
    SentModelCache,
)
from abaton.engines.reply_validation import (
    PayloadCheck,
    ReplyValidator,
    SignatureCheck,
    invalid_reply,
    parse_count,
    parse_labels,
)
from abaton.engines.task_queue import MAX_DEATHS, Timers, task_timeout
from abaton.errors import AbatonError
from abaton.learners import SiteReply
from abaton.metrics.counts import Counts

_PROCESS_EXITED_CODE = 8  # Flower's code for a process that exited
_RETRY_NOTES = {
    NODE_GONE: "node disconnected, its task waits",
    _PROCESS_EXITED_CODE: "process exited, its task is sent again",
    REPLY_GONE: "message was lost, its task is sent again",
    UNAVAILABLE: "message was lost, its task is sent again",
}
_EXTRA_TTL = 60.0  # seconds
_POLL_GROWTH, _MAX_POLL_FACTOR = 1.2, 5.0  # the poll interval grows while there are no events


@dataclass(frozen=True, slots=True)
class FlowerNetwork:
    """Settings of a run on a network.

    Attributes:
        run: the run's name; a site has one folder for each run.
        layout: the digest of the model's layout; a node with another layout is refused.
        study_hash: the hash of the study that sites agreed to; a node with another study is refused.
        admitted: returns the site of each admitted node; without it, nodes are trusted.
        answer_timeout: seconds after which a task without a reply fails.
        absence_timeout: seconds after which an absent node has left.
        poll_seconds: shortest interval between polls for replies; nodes are polled at ten times the interval.
    """

    run: str
    layout: str
    study_hash: str = ""
    admitted: Callable[[], Mapping[int, str]] | None = None
    answer_timeout: float = 3600.0
    absence_timeout: float = 300.0
    poll_seconds: float = 0.1


@dataclass(slots=True)
class _Introductions:
    """Nodes that were asked for an introduction, including refused ones."""

    message_ids: dict[str, int] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    polled_at: float = float("-inf")


class FlowerEngine:
    """Sites on a network, in wall-clock time.

    Args:
        transport: carries the messages.
        network: the settings of the run.
        store_payload: stores a payload and returns its digest.
        check_payload: decodes a learner's payload for a version; raises an `AbatonError` if it is invalid.
        check_signature: verifies the site's signature of an update, where sites sign.
        clock: the time in seconds.
        sleep: waits for a number of seconds.
    """

    is_real_time: ClassVar[bool] = True

    def __init__(
        self,
        transport: MessageTransport,
        network: FlowerNetwork,
        *,
        store_payload: Callable[[bytes], str],
        check_payload: PayloadCheck,
        check_signature: SignatureCheck | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport, self._network, self._validator = (
            transport,
            network,
            ReplyValidator(store_payload, check_payload, check_signature),
        )
        self._clock, self._sleep = clock, sleep
        self._started_at = clock()
        self._sites, self._introductions, self._sent_models = (
            ConnectedSites(),
            _Introductions(),
            SentModelCache(),
        )
        self._seen: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._timers = Timers()
        self._events: list[Event] = []
        self._committed_steps = 0

    def now(self) -> float:
        """Return the seconds since the Flower engine was started."""
        return self._clock() - self._started_at

    def submit(self, tasks: Sequence[Task]) -> None:
        """Add tasks to the queues of their Flower sites; tasks of a busy or absent node wait."""
        for task in tasks:
            if task.task_id in self._seen:
                continue
            self._seen.add(task.task_id)
            queue = self._sites.queue_for(task)
            if queue is None:
                self._fail([task], LEARNER_GONE)
            else:
                queue.waiting.append(task)

    def events(self) -> Sequence[Event]:
        """Wait for the next events of the Flower engine, also for sites that have not connected yet."""
        self._send_waiting()  # not in submit, so that evaluations requested after one poll are sent together
        pause = self._network.poll_seconds
        while not self._events:
            self._poll_nodes()
            self._collect()
            self._check_timeouts()
            self._events += self._timers.due(self.now())
            if silent := self._transport.silence():
                self._note("", f"the network did not respond for {silent:.0f} s")
            if not self._events:
                self._send_waiting()
                self._sleep(max(0.0, min(pause, self._timers.next - self.now())))
                pause = min(_POLL_GROWTH * pause, _MAX_POLL_FACTOR * self._network.poll_seconds)
        events, self._events = self._events, []
        return events

    def set_timer(self, name: str, timestamp: float) -> None:
        """Request a `TimerFired` event at a time of the Flower engine."""
        self._timers.set(name, timestamp)

    def cancel(self, task_id: str) -> None:
        """Drop a task that has not been sent to a Flower node; the reply to a running one is ignored."""
        for queue in self._sites.role_queues:
            queue.waiting = [task for task in queue.waiting if task.task_id != task_id]

    def close(self) -> None:
        """Do nothing: the caller owns the Flower engine's transport."""

    def note(self, text: str) -> None:
        """Add a note about the Flower engine's controller to the journal."""
        self._note("", text)

    def broadcast_progress(self, committed_steps: int) -> None:
        """Send the number of committed steps with the next Flower message to each site, or with a separate one."""
        self._committed_steps = committed_steps

    # ---- nodes --------------------------------------------------------------------------------------------------

    def _poll_nodes(self) -> None:
        """Ask new Flower nodes for an introduction, and detect disconnected ones."""
        if self.now() < self._introductions.polled_at + 10 * self._network.poll_seconds:
            return
        self._introductions.polled_at, listed = self.now(), set(self._transport.nodes())
        for name in set(self._network.admitted().values()) if self._network.admitted else ():
            self._sites.get(name)  # starts the absence timeout of a site that never connects
        for site in self._sites:
            if site.node is not None and not self._is_admitted(site.node, site.name):
                self._note(site.name, "node was revoked")
                site.node = None
                self._leave(site.training, LEARNER_GONE)
            elif site.node is not None and site.node not in listed:
                self._disconnect(site)
        self._introductions.nodes &= listed
        for node in sorted(listed - self._introductions.nodes):
            message_id = self._transport.send(
                node, Message("introduce", self._header()), self._network.answer_timeout
            )
            if message_id:
                self._introductions.nodes.add(node)
                self._introductions.message_ids[message_id] = node

    def _header(self) -> dict[str, Any]:
        network = self._network
        return {"run": network.run, "study_hash": network.study_hash, "layout": network.layout}

    def _introduced(self, node: int, reply: Message | MessageLost) -> None:
        if isinstance(reply, MessageLost) or reply.reason == PROCESS_EXITED:
            self._introductions.nodes.discard(
                node
            )  # introduction is requested again when the node is listed again
            return
        try:
            if reply.reason is not None:
                raise _Refused(reply.reason)
            introduction = parse_introduction(reply.header)
            if not self._is_admitted(node, introduction.site):
                raise _Refused("its key is admitted for another site")
        except (_Refused, AbatonError) as error:
            reason = str(error) if isinstance(error, _Refused) else INVALID_REPLY
            self._note("", f"node {node} is refused: {reason}")
            return
        site = self._sites.get(introduction.site)
        site.evaluation.held_models = parse_held_models(reply.header)
        self._connect(site, node, introduction)

    def _is_admitted(self, node: int, site: str) -> bool:
        """Return whether the engine has admitted a Flower node's key for a site."""
        admitted = self._network.admitted
        return admitted is None or admitted().get(node) == site

    def _connect(self, site: ConnectedSite, node: int, introduction: SiteIntroduction) -> None:
        """Connect a site's node to the engine, also in place of one that Flower still lists."""
        for queue in site.role_queues:
            queue.deaths = 0
            if queue.message_id:
                queue.requeue()
        site.node = node
        if site.has_joined:
            self._note(site.name, "node is back")
            return
        site.has_joined, site.has_left = True, False
        self._events.append(
            LearnerJoined(
                self.now(), site.name, introduction.examples, introduction.group, introduction.labels
            )
        )

    def _disconnect(self, site: ConnectedSite) -> None:
        """Mark a site's Flower node as disconnected in the engine; its tasks wait until it is back."""
        for queue in site.role_queues:
            queue.requeue()
        if site.node is not None:
            self._introductions.nodes.discard(
                site.node
            )  # Flower may still list the node: introduction is requested until it replies
            self._note(site.name, _RETRY_NOTES[NODE_GONE])
        site.node, site.absent_since = None, self.now()

    def _leave(self, queue: RoleQueue, reason: str) -> None:
        """Give up a role queue of a connected site in the Flower engine; a site that cannot train has left."""
        self._fail(queue.drop(), reason)
        site = queue.site
        if not queue.evaluates and not site.has_left:
            self._fail(site.evaluation.drop(), LEARNER_GONE)
            site.has_joined, site.has_left = False, True
            self._events.append(LearnerLeft(self.now(), site.name))

    # ---- messages -----------------------------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        for queue in self._sites.role_queues:
            if queue.site.node is None or queue.message_id or queue.deaths > MAX_DEATHS:
                continue
            if queue.waiting:
                queue.tasks = queue.next()
                self._send(queue, self._build_message(queue))
            elif queue.evaluates and self._needs_progress(queue.site):
                self._send(
                    queue, Message("progress", {**self._header(), "committed_steps": self._committed_steps})
                )

    def _needs_progress(self, site: ConnectedSite) -> bool:
        """Return whether a connected site's running training depends on the number of committed steps."""
        return site.reported_steps < self._committed_steps and any(
            isinstance(task, TrainTask) and task.settings.update_thresholds is not None
            for task in site.training.tasks
        )

    def _build_message(self, queue: RoleQueue) -> Message:
        header, bases = {**self._header(), "committed_steps": self._committed_steps}, queue.bases
        (first, *_) = queue.tasks
        if isinstance(first, TrainTask):
            model_header, data = self._model(first, bases)
            header |= {"task_id": first.task_id, "version": first.version, "settings": asdict(first.settings)}
            return Message("train", {**header, **model_header}, {"model": data})
        models = []
        for task in queue.tasks:  # a model of this message may be the base of the next
            model_header, data = self._model(task, bases)
            models.append((model_header, data))
            bases = (*bases, model_header["start"]) if "start" in model_header else bases
        evaluations = [
            {"task_id": task.task_id, **model_header, **_signed_model(task)}
            for task, (model_header, _) in zip(queue.tasks, models, strict=True)
        ]
        attachments = {f"model/{i}": data for i, (_, data) in enumerate(models)}
        return Message("evaluate", {**header, "evaluations": evaluations}, attachments)

    def _model(self, task: Task, bases: Sequence[str]) -> tuple[dict[str, Any], bytes]:
        """Return a task's model as Flower header and bytes; the engine counts bytes that are sent again."""
        model_header, data = self._sent_models.pack(task.model, bases, task.delta_path)
        self._sizes[task.task_id] = self._sizes.get(task.task_id, 0) + len(data)
        return model_header, data

    def _send(self, queue: RoleQueue, message: Message) -> None:
        site = queue.site
        assert site.node is not None
        site.reported_steps = max(site.reported_steps, self._committed_steps)
        # Flower's TTL is longer than the timeout, so that the timeout is detected here.
        queue.message_id, queue.sent_at = (
            self._transport.send(site.node, message, self._timeout(queue) + _EXTRA_TTL),
            self.now(),
        )
        if not queue.message_id:
            self._disconnect(site)

    def _timeout(self, queue: RoleQueue) -> float:
        """Return the timeout of a Flower message: halved after each missing reply, plus its tasks' time budget."""
        return self._network.answer_timeout / 2**queue.deaths + sum(map(task_timeout, queue.tasks))

    def _collect(self) -> None:
        open_messages = {queue.message_id: queue for queue in self._sites.role_queues if queue.message_id}
        message_ids = [*self._introductions.message_ids, *open_messages]
        if not message_ids:
            return
        # Replies of one poll are processed in a fixed order, which the journal records.
        for message_id, reply in sorted(self._transport.collect(message_ids).items()):
            if message_id in self._introductions.message_ids:
                self._introduced(self._introductions.message_ids.pop(message_id), reply)
            elif (queue := open_messages.get(message_id)) is not None and queue.message_id == message_id:
                self._lost(queue, reply.code) if isinstance(reply, MessageLost) else self._receive(
                    queue, reply
                )

    def _lost(self, queue: RoleQueue, code: int) -> None:
        if code not in _RETRY_NOTES:
            self._finish(queue, [], LEARNER_FAILED)
            return
        if code == NODE_GONE:
            self._disconnect(queue.site)
            return
        queue.deaths += 1
        if queue.deaths > MAX_DEATHS:
            self._leave(queue, PROCESS_EXITED)
            return
        queue.requeue()
        self._note(queue.site.name, _RETRY_NOTES[code])

    def _receive(self, queue: RoleQueue, reply: Message) -> None:
        if reply.reason == PROCESS_EXITED:
            self._lost(queue, _PROCESS_EXITED_CODE)
            return
        queue.deaths = 0
        queue.held_models = parse_held_models(reply.header)
        if reply.reason == BASE_MISSING:
            queue.held_models = queue.site.training.held_models = ()
            queue.requeue()
            self._note(queue.site.name, "base is missing, the full model is sent")
        elif reply.reason is not None:
            self._finish(queue, [], reply.reason)
        elif queue.evaluates:
            self._finish(queue, self._evaluations(queue, reply), INVALID_REPLY)
        else:
            self._finish(queue, [self._update(task, reply) for task in queue.tasks])

    def _finish(self, queue: RoleQueue, events: Sequence[Event], failure: str = LEARNER_FAILED) -> None:
        """Finish a Flower message of a role queue with its events; without events its tasks fail."""
        tasks, queue.tasks, queue.message_id = queue.tasks, [], ""
        if tasks and not events:
            self._fail(tasks, failure)
        self._events += events

    def _update(self, task: Task, reply: Message) -> Event:
        header = {name: value for name, value in reply.header.items() if name != "held_models"}
        site_reply = SiteReply(header, reply.attachments.get("update", b""))
        return self._validator.event(self.now(), task, site_reply, self._sizes.pop(task.task_id, 0))

    def _evaluations(self, queue: RoleQueue, reply: Message) -> Sequence[Event]:
        counts_list = reply.header.get("counts_list")
        if not isinstance(counts_list, list) or len(counts_list) != len(queue.tasks):
            return ()
        return [self._evaluation(task, counts) for task, counts in zip(queue.tasks, counts_list, strict=True)]

    def _evaluation(self, task: Task, counts: object) -> Event:
        field_name = "reason" if isinstance(counts, str) else "counts"
        reply = SiteReply({"task_id": task.task_id, field_name: counts})
        return self._validator.event(self.now(), task, reply, self._sizes.pop(task.task_id, 0))

    # ---- time ---------------------------------------------------------------------------------------------------

    def _check_timeouts(self) -> None:
        for queue in self._sites.role_queues:
            if queue.message_id and self.now() > queue.sent_at + self._timeout(queue):
                queue.deaths += 1
                self._finish(queue, [], TIMEOUT)
            elif self._is_absent(queue):
                self._leave(queue, LEARNER_GONE)

    def _is_absent(self, queue: RoleQueue) -> bool:
        """Return whether a Flower node has been absent for too long while a task or the run waits for it."""
        if queue.deaths > MAX_DEATHS:
            return bool(queue.waiting)
        site = queue.site
        is_absent = site.node is None and self.now() > site.absent_since + self._network.absence_timeout
        return is_absent and (not site.has_left or bool(queue.waiting))

    def _fail(self, tasks: Sequence[Task], reason: str) -> None:
        for task in tasks:
            self._sizes.pop(task.task_id, None)
            self._events.append(TaskFailed(self.now(), task.learner, task.task_id, reason))

    def _note(self, learner: str, text: str) -> None:
        self._events.append(RunNote(self.now(), learner, text))


def _signed_model(task: Task) -> dict[str, Any]:
    signed_model = None if isinstance(task, TrainTask) else task.signed_model
    return {} if signed_model is None else {"signed_model": list(astuple(signed_model))}


class _Refused(Exception):
    """Reason for which a node is refused."""


# ---- sites and their queues ---------------------------------------------------------------------------------------

MAX_EVALUATIONS = 8  # per message, since its models take memory
_MAX_HELD_MODELS = 64


@dataclass(slots=True, eq=False)
class RoleQueue:
    """Queue of one role of a site: training or evaluation.

    Attributes:
        site, evaluates: the site and the role.
        waiting: tasks that have not been sent.
        message_id: the message without a reply, if there is one.
        tasks: the tasks in that message; empty if it only reports progress.
        sent_at: when it was sent.
        deaths: the number of consecutive messages without a reply because a process exited or the timeout passed.
        held_models: digests of the models that the site reports to have for this role.
    """

    site: ConnectedSite
    evaluates: bool
    waiting: list[Task] = field(default_factory=list)
    message_id: str = ""
    tasks: list[Task] = field(default_factory=list)
    sent_at: float = 0.0
    deaths: int = 0
    held_models: tuple[str, ...] = ()

    @property
    def bases(self) -> tuple[str, ...]:
        """Models that a delta to a Flower site may start from: an evaluator can also read those of its trainer."""
        return (*self.held_models, *self.site.training.held_models) if self.evaluates else self.held_models

    def next(self) -> list[Task]:
        """Remove the tasks of the next Flower message from the queue: one training, or several evaluations."""
        limit = MAX_EVALUATIONS if self.evaluates else 1
        tasks, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return tasks

    def requeue(self) -> None:
        """Move the tasks of the last Flower message back to the site's queue."""
        self.waiting, self.tasks, self.message_id = [*self.tasks, *self.waiting], [], ""

    def drop(self) -> list[Task]:
        """Remove and return all tasks of a Flower site's role."""
        dropped = [*self.tasks, *self.waiting]
        self.waiting, self.tasks, self.message_id = [], [], ""
        return dropped


class ConnectedSite:
    """Site with its node, its two role queues, and its state.

    Attributes:
        node: Flower's id of its node, if connected.
        absent_since: when the node disconnected.
        reported_steps: the number of committed steps last sent to it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: int | None = None
        self.absent_since = 0.0
        self.training, self.evaluation = RoleQueue(self, evaluates=False), RoleQueue(self, evaluates=True)
        self.has_joined, self.has_left, self.reported_steps = False, False, 0

    @property
    def role_queues(self) -> tuple[RoleQueue, RoleQueue]:
        """Training and evaluation queues of one site of the Flower engine."""
        return self.training, self.evaluation


class ConnectedSites:
    """All sites that were ever connected in this run."""

    def __init__(self) -> None:
        self._sites: dict[str, ConnectedSite] = {}

    def __iter__(self) -> Iterator[ConnectedSite]:
        return iter(self._sites.values())

    def get(self, name: str) -> ConnectedSite:
        """Return a site of the Flower engine, created on first use."""
        return self._sites.setdefault(name, ConnectedSite(name))

    @property
    def role_queues(self) -> list[RoleQueue]:
        """Training and evaluation queues of all sites of the Flower engine."""
        return [queue for site in self for queue in site.role_queues]

    def queue_for(self, task: Task) -> RoleQueue | None:
        """Return the Flower engine's queue of a task, also of a site that is not connected yet; none if it has left."""
        site = self.get(task.learner)
        return None if site.has_left else site.evaluation if isinstance(task, EvaluateTask) else site.training


@dataclass(frozen=True, slots=True)
class SiteIntroduction:
    """Introduction of a site."""

    site: str
    examples: int
    labels: Counts
    group: str


def parse_introduction(header: Mapping[str, Any]) -> SiteIntroduction:
    """Parse a Flower site's reply to the engine's introduction request."""
    examples, labels = parse_count(header.get("examples")), parse_labels(header.get("labels"))
    return SiteIntroduction(
        _text(header, "site"), examples, labels, _text(header, "group", may_be_empty=True)
    )


def parse_held_models(header: Mapping[str, Any]) -> tuple[str, ...]:
    """Parse the models that a Flower site reports to the engine; empty if the value is invalid."""
    digests = header.get("held_models")
    if not isinstance(digests, list) or not all(isinstance(digest, str) for digest in digests):
        return ()
    return tuple(digests[-_MAX_HELD_MODELS:])


def _text(header: Mapping[str, Any], name: str, *, may_be_empty: bool = False) -> str:
    text = header.get(name)
    if not isinstance(text, str) or len(text) > 200 or not (text or may_be_empty) or not text.isprintable():
        raise invalid_reply()
    return text
