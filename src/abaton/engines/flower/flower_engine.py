"""The controller's side: tasks out as messages, answers in as events, over a post that only carries.

Every site has at most one training and one message of evaluations under way: so a task that waits can be cancelled, and
evaluations that wait travel together. What gets lost on the way is sent again under the same key; a site that has done
it answers from its disk. A node that is away for longer than `absence` has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any, ClassVar

from abaton.controller import Event, Failed, Joined, Left, Noted
from abaton.engines.base import (
    DIED,
    FAILED,
    GONE,
    LATE,
    NO_BASE,
    UNREADABLE_ANSWER,
    EvaluateTask,
    Task,
    TrainTask,
)
from abaton.engines.flower.flower_messages import (
    NODE_GONE,
    REPLY_GONE,
    UNAVAILABLE,
    Lost,
    Parcel,
    Post,
    Shelf,
)
from abaton.engines.reply_validation import Check, CheckSigned, Reader, labels, unreadable, whole
from abaton.engines.task_queue import MOST_DEATHS, Timers, time_given
from abaton.errors import AbatonError
from abaton.learners import Reply
from abaton.metrics.counts import Counts

_DIED = 8  # Flower's code for a process that ended
_AGAIN = {
    NODE_GONE: "node is gone, its task waits",
    _DIED: "process ended, its task is sent again",
    REPLY_GONE: "message was lost, its task is sent again",
    UNAVAILABLE: "message was lost, its task is sent again",
}
_KEPT = 60.0
_SLOWER, _SLOWEST = (
    1.2,
    5.0,
)  # looks are further apart while nothing happens, up to so many times the first pause


@dataclass(frozen=True, slots=True)
class Network:
    """What a run on a network goes by.

    Attributes:
        run: the run's name: a site keeps a folder for each.
        layout: the digest of the model's layout; a node with another one is refused.
        terms: the fingerprint of what sites agreed to; a node that agreed to other terms is refused.
        admitted: tells whose each registered node is now; without it, nodes are believed.
        patience: seconds after which a task without an answer is given up.
        absence: seconds after which a node that is away has left.
        poll: seconds between looks for answers, the first of them; nodes are looked for ten times as rarely.
    """

    run: str
    layout: str
    terms: str = ""
    admitted: Callable[[], Mapping[int, str]] | None = None
    patience: float = 3600.0
    absence: float = 300.0
    poll: float = 0.1


@dataclass(slots=True)
class _Met:
    """The nodes that have been asked who they are, and those that were turned away."""

    letters: dict[str, int] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)
    looked: float = float("-inf")


class FlowerEngine:
    """Sites on a network, in wall-clock time.

    Args:
        post: what carries the messages.
        network: what the run goes by.
        keep: stores a payload and returns its digest.
        check: decodes a learner's payload for a version; raises an `AbatonError` if it is not sound.
        signed: holds an update against its site's signature, where sites sign.
        clock: the time in seconds.
        sleep: waits so many seconds.
    """

    real: ClassVar[bool] = True

    def __init__(
        self,
        post: Post,
        network: Network,
        *,
        keep: Callable[[bytes], str],
        check: Check,
        signed: CheckSigned | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._post, self._network, self._reader = post, network, Reader(keep, check, signed)
        self._clock, self._sleep = clock, sleep
        self._began = clock()
        self._sites, self._met, self._shelf = Sites(), _Met(), Shelf()
        self._seen: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._timers = Timers()
        self._happened: list[Event] = []
        self._committed = 0

    def now(self) -> float:
        """Seconds since the engine was started."""
        return self._clock() - self._began

    def submit(self, tasks: Sequence[Task]) -> None:
        """Hand tasks to the sites they are for; those of a node that is busy or away wait."""
        for task in tasks:
            if task.key in self._seen:
                continue
            self._seen.add(task.key)
            seat = self._sites.of(task)
            if seat is None:
                self._fail([task], GONE)
            else:
                seat.waiting.append(task)

    def events(self) -> Sequence[Event]:
        """What happened next; waits for it, also for sites that are still to come."""
        self._hand_out()  # not in submit: what the controller asks for after one look at the post travels together
        pause = self._network.poll
        while not self._happened:
            self._look()
            self._collect()
            self._give_up()
            self._happened += self._timers.due(self.now())
            if silent := self._post.silence():
                self._note("", f"the network did not answer for {silent:.0f} s")
            if not self._happened:
                self._hand_out()
                self._sleep(max(0.0, min(pause, self._timers.next - self.now())))
                pause = min(_SLOWER * pause, _SLOWEST * self._network.poll)
        happened, self._happened = self._happened, []
        return happened

    def set_timer(self, name: str, at: float) -> None:
        """Ask for a tick at a time."""
        self._timers.set(name, at)

    def cancel(self, key: str) -> None:
        """Forget a task that has not been sent; one under way is let end, and its answer is not waited for."""
        for seat in self._sites.seats:
            seat.waiting = [task for task in seat.waiting if task.key != key]

    def close(self) -> None:
        """Nothing to let go: the post is somebody else's."""

    def note(self, what: str) -> None:
        """Let the journal say what happened to the controller itself."""
        self._note("", what)

    def tell(self, committed: int) -> None:
        """Let learners know, with the next message to their site or by one of its own."""
        self._committed = committed

    # ---- who is there -------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask new nodes who they are, and notice those that are gone."""
        if self.now() < self._met.looked + 10 * self._network.poll:
            return
        self._met.looked, there = self.now(), set(self._post.nodes())
        for name in set(self._network.admitted().values()) if self._network.admitted else ():
            self._sites.named(name)  # a run does not wait for a site that never comes
        for site in self._sites:
            if site.node is not None and not self._is_admitted(site.node, site.name):
                self._note(site.name, "node was revoked")
                site.node = None
                self._leave(site.trains, GONE)
            elif site.node is not None and site.node not in there:
                self._away(site)
        self._met.nodes &= there
        for node in sorted(there - self._met.nodes):
            letter = self._post.send(node, Parcel("query", self._about()), self._network.patience)
            if letter:
                self._met.nodes.add(node)
                self._met.letters[letter] = node

    def _about(self) -> dict[str, Any]:
        network = self._network
        return {"run": network.run, "terms": network.terms, "layout": network.layout}

    def _meet(self, node: int, answer: Parcel | Lost) -> None:
        if isinstance(answer, Lost) or answer.reason == DIED:
            self._met.nodes.discard(node)  # it is asked again when it is seen again
            return
        try:
            if answer.reason is not None:
                raise _Refused(answer.reason)
            said = introduction(answer.about)
            if not self._is_admitted(node, said.site):
                raise _Refused("not the site its key belongs to")
        except (_Refused, AbatonError) as error:
            why = str(error) if isinstance(error, _Refused) else UNREADABLE_ANSWER
            self._note("", f"node {node} is turned away: {why}")
            return
        site = self._sites.named(said.site)
        site.evaluates.holds = holds(answer.about)
        self._sit(site, node, said)

    def _is_admitted(self, node: int, site: str) -> bool:
        """Whether a node's key was admitted for a site, and still is."""
        admitted = self._network.admitted
        return admitted is None or admitted().get(node) == site

    def _sit(self, site: Site, node: int, said: Introduction) -> None:
        """Let a node take its place, also from one that Flower does not yet know to be gone."""
        for seat in site.seats:
            seat.deaths = 0
            if seat.letter:
                seat.put_back()
        site.node = node
        if site.joined:
            self._note(site.name, "node is back")
            return
        site.joined, site.left = True, False
        self._happened.append(Joined(self.now(), site.name, said.examples, said.group, said.labels))

    def _away(self, site: Site) -> None:
        """A node is gone: what it was doing waits until it is back."""
        for seat in site.seats:
            seat.put_back()
        if (
            site.node is not None
        ):  # Flower may list it for a while: it is asked who it is until it answers again
            self._met.nodes.discard(site.node)
            self._note(site.name, _AGAIN[NODE_GONE])
        site.node, site.since = None, self.now()

    def _leave(self, seat: Seat, reason: str) -> None:
        """Give up a seat; a site that cannot train any more has left."""
        self._fail(seat.drop(), reason)
        site = seat.site
        if not seat.evaluates and not site.left:
            self._fail(site.evaluates.drop(), GONE)
            site.joined, site.left = False, True
            self._happened.append(Left(self.now(), site.name))

    # ---- what they do -------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        for seat in self._sites.seats:
            if seat.site.node is None or seat.letter or seat.deaths > MOST_DEATHS:
                continue
            if seat.waiting:
                seat.tasks = seat.next()
                self._send(seat, self._wrap(seat))
            elif seat.evaluates and self._is_asked_for(seat.site):
                self._send(seat, Parcel("tell", {**self._about(), "committed": self._committed}))

    def _is_asked_for(self, site: Site) -> bool:
        """Whether the site trains right now in a way that depends on what others have committed since."""
        return site.told < self._committed and any(
            isinstance(task, TrainTask) and task.settings.adaptive is not None for task in site.trains.tasks
        )

    def _wrap(self, seat: Seat) -> Parcel:
        about, held = {**self._about(), "committed": self._committed}, seat.bases
        (first, *_) = seat.tasks
        if isinstance(first, TrainTask):
            named, data = self._model(first, held)
            about |= {"key": first.key, "version": first.version, "settings": asdict(first.settings), **named}
            return Parcel("train", about, {"model": data})
        made = []
        for task in seat.tasks:  # what one model brings along, the next may build upon
            named, data = self._model(task, held)
            made.append((named, data))
            held = (*held, named["start"]) if "start" in named else held
        tasks = [
            {"key": task.key, **named, **_signed(task)}
            for task, (named, _) in zip(seat.tasks, made, strict=True)
        ]
        return Parcel(
            "evaluate", {**about, "tasks": tasks}, {f"model/{i}": data for i, (_, data) in enumerate(made)}
        )

    def _model(self, task: Task, held: Sequence[str]) -> tuple[dict[str, Any], bytes]:
        """A task's model for a site that holds some; what is sent again is counted again."""
        named, data = self._shelf.parcel(task.model, held, task.way)
        self._sizes[task.key] = self._sizes.get(task.key, 0) + len(data)
        return named, data

    def _send(self, seat: Seat, parcel: Parcel) -> None:
        site = seat.site
        assert site.node is not None
        site.told = max(site.told, self._committed)
        # Flower keeps it for a little longer than anybody waits: that it is late is said here and not there.
        seat.letter, seat.since = self._post.send(site.node, parcel, self._patience(seat) + _KEPT), self.now()
        if not seat.letter:
            self._away(site)

    def _patience(self, seat: Seat) -> float:
        """How long an answer may take: half as long after each one that did not come, without the time to train."""
        return self._network.patience / 2**seat.deaths + sum(map(time_given, seat.tasks))

    def _collect(self) -> None:
        open_letters = {seat.letter: seat for seat in self._sites.seats if seat.letter}
        wanted = [*self._met.letters, *open_letters]
        if not wanted:
            return
        # Order is the journal's: answers that one look finds together are taken in a fixed order.
        for letter, answer in sorted(self._post.collect(wanted).items()):
            if letter in self._met.letters:
                self._meet(self._met.letters.pop(letter), answer)
            elif (seat := open_letters.get(letter)) is not None and seat.letter == letter:
                self._lost(seat, answer.code) if isinstance(answer, Lost) else self._hear(seat, answer)

    def _lost(self, seat: Seat, code: int) -> None:
        if code not in _AGAIN:
            self._done(seat, [], FAILED)
            return
        if code == NODE_GONE:
            self._away(seat.site)
            return
        seat.deaths += 1
        if seat.deaths > MOST_DEATHS:
            self._leave(seat, DIED)
            return
        seat.put_back()
        self._note(seat.site.name, _AGAIN[code])

    def _hear(self, seat: Seat, answer: Parcel) -> None:
        if answer.reason == DIED:
            self._lost(seat, _DIED)
            return
        seat.deaths = 0
        seat.holds = holds(answer.about)
        if answer.reason == NO_BASE:
            seat.holds = seat.site.trains.holds = ()
            seat.put_back()
            self._note(seat.site.name, "base is gone, the full model is sent")
        elif answer.reason is not None:
            self._done(seat, [], answer.reason)
        elif seat.evaluates:
            self._done(seat, self._scores(seat, answer), UNREADABLE_ANSWER)
        else:
            self._done(seat, [self._update(task, answer) for task in seat.tasks])

    def _done(self, seat: Seat, made: Sequence[Event], otherwise: str = FAILED) -> None:
        """Take a message off a seat: what was made of it has happened, and without that its tasks have failed."""
        tasks, seat.tasks, seat.letter = seat.tasks, [], ""
        if tasks and not made:
            self._fail(tasks, otherwise)
        self._happened += made

    def _update(self, task: Task, answer: Parcel) -> Event:
        about = {name: value for name, value in answer.about.items() if name != "holds"}
        reply = Reply(about, answer.blobs.get("update", b""))
        return self._reader.event(self.now(), task, reply, self._sizes.pop(task.key, 0))

    def _scores(self, seat: Seat, answer: Parcel) -> Sequence[Event]:
        said = answer.about.get("scores")
        if not isinstance(said, list) or len(said) != len(seat.tasks):
            return ()
        return [self._score(task, one) for task, one in zip(seat.tasks, said, strict=True)]

    def _score(self, task: Task, said: object) -> Event:
        what = "reason" if isinstance(said, str) else "score"
        reply = Reply({"key": task.key, what: said})
        return self._reader.event(self.now(), task, reply, self._sizes.pop(task.key, 0))

    # ---- time ---------------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        for seat in self._sites.seats:
            if seat.letter and self.now() > seat.since + self._patience(seat):
                seat.deaths += 1
                self._done(seat, [], LATE)
            elif self._is_missed(seat):
                self._leave(seat, GONE)

    def _is_missed(self, seat: Seat) -> bool:
        """Whether somebody waits for a node that has been away, or has not come, for too long."""
        if seat.deaths > MOST_DEATHS:
            return bool(seat.waiting)
        site = seat.site
        away = site.node is None and self.now() > site.since + self._network.absence
        return away and (not site.left or bool(seat.waiting))

    def _fail(self, tasks: Sequence[Task], reason: str) -> None:
        for task in tasks:
            self._sizes.pop(task.key, None)
            self._happened.append(Failed(self.now(), task.learner, task.key, reason))

    def _note(self, learner: str, what: str) -> None:
        self._happened.append(Noted(self.now(), learner, what))


def _signed(task: Task) -> dict[str, Any]:
    signed = None if isinstance(task, TrainTask) else task.signed
    return {} if signed is None else {"signed": list(astuple(signed))}


class _Refused(Exception):
    """Why a node is turned away."""


# ---- sites, and what each of them has to do ----------------------------------------------------------------------

MOST_EVALUATIONS = 8  # in one message: its models cost memory
_NAMES = 64


@dataclass(slots=True, eq=False)
class Seat:
    """One of the two things that a site does at a time: training, and evaluating. What it has to do waits for it.

    Attributes:
        site, evaluates: whose it is.
        waiting: what it has not been sent.
        letter: the message that it has not answered, if there is one.
        tasks: what that message asks for; nothing if it only tells.
        since: when that was sent.
        deaths: how many messages in a row were not answered because something died, or in time.
        holds: the models that the site said it holds for it.
    """

    site: Site
    evaluates: bool
    waiting: list[Task] = field(default_factory=list)
    letter: str = ""
    tasks: list[Task] = field(default_factory=list)
    since: float = 0.0
    deaths: int = 0
    holds: tuple[str, ...] = ()

    @property
    def bases(self) -> tuple[str, ...]:
        """The models that a difference may build upon: an evaluator also has those of its site's trainer."""
        return (*self.holds, *self.site.trains.holds) if self.evaluates else self.holds

    def next(self) -> list[Task]:
        """Take what goes into the next message: one training, or several evaluations."""
        most = MOST_EVALUATIONS if self.evaluates else 1
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def put_back(self) -> None:
        """Let what was sent be sent again."""
        self.waiting, self.tasks, self.letter = [*self.tasks, *self.waiting], [], ""

    def drop(self) -> list[Task]:
        """Give up everything it had to do."""
        dropped = [*self.tasks, *self.waiting]
        self.waiting, self.tasks, self.letter = [], [], ""
        return dropped


class Site:
    """A site: its node, if it is connected, its two seats, and what it says it has.

    Attributes:
        node: Flower's number of its node, if that is connected.
        since: when the node went away.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.node: int | None = None
        self.since = 0.0
        self.trains, self.evaluates = Seat(self, evaluates=False), Seat(self, evaluates=True)
        self.joined, self.left, self.told = False, False, 0

    @property
    def seats(self) -> tuple[Seat, Seat]:
        """Both."""
        return self.trains, self.evaluates


class Sites:
    """All sites that have ever been there in this run."""

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites.values())

    def named(self, name: str) -> Site:
        """A site, known or new."""
        return self._sites.setdefault(name, Site(name))

    @property
    def seats(self) -> list[Seat]:
        """All seats."""
        return [seat for site in self for seat in site.seats]

    def of(self, task: Task) -> Seat | None:
        """Where a task belongs; nowhere if its site has left. A site that is still to come is waited for."""
        site = self.named(task.learner)
        return None if site.left else site.evaluates if isinstance(task, EvaluateTask) else site.trains


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a site says it is."""

    site: str
    examples: int
    labels: Counts
    group: str


def introduction(about: Mapping[str, Any]) -> Introduction:
    """Who a site is, from its answer to a query, read with care."""
    numbers = whole(about.get("examples")), labels(about.get("labels"))
    return Introduction(_text(about, "site"), *numbers, _text(about, "group", empty=True))


def holds(about: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that a site says it holds; nothing if it does not say so readably."""
    said = about.get("holds")
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        return ()
    return tuple(said[-_NAMES:])


def _text(about: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    said = about.get(name)
    if not isinstance(said, str) or len(said) > 200 or not (said or empty) or not said.isprintable():
        raise unreadable()
    return said
