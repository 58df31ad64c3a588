"""The controller's memory: who is there, what is under way, what has come in. No model is in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from immutables import Map

from abaton.control.messages import Arrived


@dataclass(frozen=True, slots=True)
class State:
    """What the controller knows between two events; a new one is made for each event.

    Attributes:
        version: the newest version of the community model; 0 is the initial model.
        attempt: how often the present round has been started.
        present: the learners that are there, with their number of examples.
        open: the tasks under way, with the learner of each.
        arrived: the updates of the present round, by learner.
        stopped: why the run is over, or nothing.
    """

    version: int = 0
    attempt: int = 0
    present: Map[str, int] = field(default_factory=Map)
    open: Map[str, str] = field(default_factory=Map)
    arrived: Map[str, Arrived] = field(default_factory=Map)
    stopped: str | None = None
