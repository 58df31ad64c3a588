"""Who is there: sites, each with a node, what each of them has to do, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from abaton.control.messages import Counts
from abaton.engines.answers import labels, unreadable, whole
from abaton.engines.contract import EvaluateTask, Task

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
