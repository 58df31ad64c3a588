"""Living a run: learners, rules and a journal become a community model, under the virtual clock or in real time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from abaton.codecs import Key, Pipeline
from abaton.control import SPENT, Arrived, Rules, Shelf, community_model, from_row
from abaton.control.draw import round_key
from abaton.engines.contract import Engine
from abaton.engines.drive import Driver, Observer, Outcome, Watcher
from abaton.engines.local import LocalEngine
from abaton.engines.ray import RayEngine
from abaton.engines.replay import Replayed
from abaton.engines.virtual import Profile, VirtualEngine
from abaton.learning import Learner, Model
from abaton.store import Journal, SlotFile

_MEMORIES = "learners"
MEMORY = 4 * 2**30
"""How many bytes of the learners' newest models stay in memory; the others go to a file."""


@dataclass(frozen=True, slots=True)
class Running:
    """A run under way: what any engine needs to carry it.

    Attributes:
        rules: what the controller goes by.
        model: what all learners train.
        codec: how updates travel.
        journal: where everything is written; one that holds a part of the run already is gone on with.
        learners: makes the learners, for engines whose learners are here.
        profiles: how fast each learner's machine is, under the virtual clock; and which group it belongs to.
        states: the run's own folder for what sites on this machine must remember.
        observe: scores each version of the community model.
        memory: how many bytes of the learners' newest models stay in memory.
        cut: whether what the learners hold is not what they held when the journal was begun: it is then told as it
            is, and never lived through again.
    """

    rules: Rules
    model: Model
    codec: Pipeline
    journal: Journal
    learners: Callable[[], Mapping[str, Learner]]
    states: Path
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    observe: Observer | None = None
    memory: int = MEMORY
    cut: bool = False

    def check(self, learner: str, version: int, payload: bytes) -> None:
        """Decode a learner's payload for a version.

        Raises:
            PayloadError: It is not sound.
        """
        self.codec.decode(payload, self.model.layout, Key(round_key(self.rules.seed, version), learner))

    @property
    def groups(self) -> dict[str, str]:
        """Which group each learner belongs to."""
        return {name: profile.group for name, profile in self.profiles.items()}


class Ended(Engine, Protocol):
    """An engine that lets go of what it holds in the end."""

    def close(self) -> None:
        """Let go."""


def virtual(running: Running) -> VirtualEngine:
    """The learners under the virtual clock; what the journal has answers to is not trained again."""
    journal = running.journal
    finished = {event.task: event for event in _answers(journal) if event.payload in journal.payloads}
    keep, seed = journal.payloads.put, running.rules.seed
    return VirtualEngine(
        running.learners(), running.profiles, keep=keep, seed=seed, finished={} if running.cut else finished
    )


def local(running: Running) -> LocalEngine:
    """The learners as processes of this machine; what they must remember is kept in the run's own folder."""
    return LocalEngine(
        running.learners(),
        keep=running.journal.payloads.put,
        check=running.check,
        states=_memories(running),
        groups=running.groups,
    )


def on_ray(running: Running, address: str = "") -> RayEngine:
    """The learners as tasks on a Ray cluster; what they must remember is kept in the run's own folder here."""
    return RayEngine(
        running.learners(),
        keep=running.journal.payloads.put,
        check=running.check,
        address=address,
        states=_memories(running),
        groups=running.groups,
    )


def live(running: Running, engine: Ended, watch: Watcher | None = None) -> Outcome:
    """Bring a run to its end; one in real time first tells what its journal holds."""
    journal, layout, rules = running.journal, running.model.layout, running.rules
    with SlotFile(journal.store.folder, layout.size) as overflow, closing(engine):
        shelf = Shelf(layout.size, running.memory, overflow)
        initial = running.model.initial(rules.seed)
        community = community_model(rules, layout, running.codec, initial, shelf)
        replayed = journal.known and (engine.real or running.cut)
        told = [from_row(*row) for row in journal.rows()] if replayed else []
        chosen = Replayed(engine, told) if told else engine
        return Driver(rules, community, chosen, journal, running.observe).run(watch)


def status_of(outcome: Outcome, rules: Rules) -> str:
    """How a run ended, in one word."""
    done = outcome.version >= rules.rounds or outcome.reason == "the time is up"
    return "finished" if done else "stopped" if outcome.reason == SPENT else "failed"


def forget_memories(running: Running) -> None:
    """Remove what the learners of a run on this machine have kept: nobody needs it when the run has ended."""
    shutil.rmtree(running.states / _MEMORIES, ignore_errors=True)


def _memories(running: Running) -> Path:
    """Where the learners of a run keep what they must remember; a run that has not begun has left nothing there."""
    if not running.journal.known:
        forget_memories(running)
    return running.states / _MEMORIES


def _answers(journal: Journal) -> Iterator[Arrived]:
    for kind, body in journal.rows():
        event = from_row(kind, body)
        if isinstance(event, Arrived):
            yield event
