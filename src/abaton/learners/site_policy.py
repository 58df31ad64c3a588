"""A site's say: one place that may refuse what the site is asked, and everything that would leave it as an answer.

Whichever engine carries a task, it is put to the policy of the learner's site before any work is done, and the answer
once more before it leaves. A refusal reaches the controller as a fixed word; its reason stays in the site's own log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from abaton.kernels import Vector
from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class Signed:
    """Who says to have learned a model that is to be scored.

    Attributes:
        author: the learner whose model it is.
        version: the version of the community model that it was made of.
        signature: what the author's site has signed it with.
    """

    author: str
    version: int
    signature: str


@dataclass(frozen=True, slots=True)
class Request:
    """What a site is asked for.

    Attributes:
        kind: `train`, `evaluate`, or the name of another question that a site answers.
        key: the task's name; empty for a question that is no task.
        version: the version of the community model that training starts from.
        settings: how it trains.
        model: the model that is trained on or scored.
        signed: by whom a model that is scored is signed, where sites sign.
    """

    kind: str
    key: str = ""
    version: int | None = None
    settings: TrainSettings | None = None
    model: Vector | None = field(default=None, compare=False, repr=False)
    signed: Signed | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a site answers: plain values, and bytes such as the encoded update."""

    about: Mapping[str, Any]
    payload: bytes = b""


class SitePolicy(Protocol):
    """Decides for a site; a method that raises `Refused` has refused.

    >>> from abaton.errors import Refused
    >>> class AtMost:
    ...     "A site that trains for a few epochs only, and never tells its loss."
    ...     def admits(self, asked: Request) -> None:
    ...         if asked.settings is not None and asked.settings.epochs > 2:
    ...             raise Refused("more than 2 epochs", where="site 'north'", remedy="ask for less")
    ...     def releases(self, asked: Request, reply: Reply) -> Reply:
    ...         return Reply({**reply.about, "loss": None}, reply.payload)
    >>> policy: SitePolicy = AtMost()
    >>> policy.admits(Request("train", "task 1", 0, TrainSettings(epochs=1)))
    >>> dict(policy.releases(Request("train"), Reply({"steps": 8, "loss": 0.5})).about)
    {'steps': 8, 'loss': None}
    """

    def admits(self, asked: Request) -> None:
        """Let work begin, also for a task that was done before and is asked for again.

        Raises:
            Refused: The site does not do it.
        """

    def releases(self, asked: Request, reply: Reply) -> Reply:
        """What may leave of an answer: all of it, or less. What it has let go of before may come to it again.

        Raises:
            Refused: Nothing of it leaves.
        """


class AdmitsAll:
    """The policy of a site that has none: everything is done, and every answer leaves."""

    def admits(self, asked: Request) -> None:
        """Nothing is refused."""

    def releases(self, asked: Request, reply: Reply) -> Reply:
        """The answer as it is."""
        return reply


ADMITS_ALL = AdmitsAll()
