"""Who is there: sites with a node that trains and a node that evaluates, and what each of them has to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from abaton.engines.contract import EvaluateTask, Task
from abaton.engines.flower.introductions import Introduction

MOST_EVALUATIONS = 8  # in one message: its start costs seconds, its models cost memory


@dataclass(slots=True, eq=False)
class Seat:
    """The place of one node of a site; the node may be away for a while, its work waits for it.

    Attributes:
        site, evaluates: whose it is.
        node: Flower's name of the node that sits there, if it is connected.
        waiting: what it has not been sent.
        letter: the message that it has not answered, if there is one.
        tasks: what that message asks for; nothing if it only tells.
        since: when that was sent, or when the node went away.
        deaths: how many messages in a row were not answered because something died.
        holds: the models that the node said it holds.
    """

    site: Site
    evaluates: bool
    node: int | None = None
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
    """A site: its two seats, and what it says it has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trains, self.evaluates = Seat(self, evaluates=False), Seat(self, evaluates=True)
        self.about: Introduction | None = None
        self.joined, self.left, self.told = False, False, 0

    def seat(self, *, evaluates: bool) -> Seat:
        """One of the two."""
        return self.evaluates if evaluates else self.trains

    @property
    def complete(self) -> bool:
        """Whether both of its nodes are there."""
        return self.trains.node is not None and self.evaluates.node is not None


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
        return [seat for site in self for seat in (site.trains, site.evaluates)]

    def of(self, task: Task) -> Seat | None:
        """Where a task belongs; nowhere if its site has left. A site that is still to come is waited for."""
        site = self.named(task.learner)
        return None if site.left else site.seat(evaluates=isinstance(task, EvaluateTask))
