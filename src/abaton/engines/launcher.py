"""Living a run: learners, rules and a journal become a community model, under the virtual clock or in real time."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from abaton.codecs import Key, Pipeline
from abaton.controller import SPENT, Arrived, Rules, Shelf, community_model, from_row
from abaton.engines.base import Engine
from abaton.engines.checkpoint import EVERY, Checkpoints
from abaton.engines.local_engine import LocalEngine
from abaton.engines.ray import RayEngine
from abaton.engines.runner import Driver, Observer, Outcome, Watcher
from abaton.engines.site_state import SiteState
from abaton.engines.virtual_engine import Profile, VirtualEngine
from abaton.errors import StoreError
from abaton.learners import Learner, Model
from abaton.store import Journal, SlotFile
from abaton.training import round_key

_LOG = logging.getLogger(__name__)
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
        journal: where everything is written; one that holds a part of the run already is resumed.
        learners: makes the learners, for engines whose learners are here.
        profiles: how fast each learner's machine is, under the virtual clock; and which group it belongs to.
        states: the run's own folder for what sites on this machine must remember.
        observe: scores each version of the community model.
        memory: how many bytes of the learners' newest models stay in memory.
        cut: whether what the learners hold is not what they held when the journal was begun: it is then told as it
            is, and never replayed.
        every: after how many events an engine in real time writes its next checkpoint, at the earliest; 0 for never.
        downlink: how versions of the community model travel to learners; as they are if not given.
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
    every: int = EVERY
    downlink: Pipeline | None = None

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
    """Bring a run to its end; one in real time first tells what its journal holds after its newest checkpoint."""
    with SlotFile(running.journal.store.folder, running.model.layout.size) as overflow, closing(engine):
        if running.journal.known and (engine.real or running.cut):
            return _resumed(running, engine, overflow).run(watch)
        _checkpoints(running).remove()  # of a run that had the name before
        return _driver(running, engine, overflow).run(watch)


def _driver(running: Running, engine: Engine, overflow: SlotFile) -> Driver:
    rules, layout = running.rules, running.model.layout
    shelf = Shelf(layout.size, running.memory, overflow)
    community = community_model(rules, layout, running.codec, running.model.initial(rules.seed), shelf)
    checkpoints = _checkpoints(running) if engine.real and running.every else None
    return Driver(rules, community, engine, running.journal, running.observe, checkpoints, running.downlink)


def _resumed(running: Running, engine: Engine, overflow: SlotFile) -> Driver:
    """A driver that goes on with a run: from its newest checkpoint, or else from the beginning of its journal."""
    driver = _driver(running, engine, overflow)
    if driver.checkpoints is not None:
        driver.checkpoints.tidy()
        try:
            if (made := driver.checkpoints.read()) is not None:
                driver.go_on(made)
                return driver
        except StoreError as error:
            _LOG.warning("%s: run '%s' goes on from its whole journal", error, running.journal.run)
            driver = _driver(running, engine, overflow)
    driver.go_on()
    return driver


def _checkpoints(running: Running) -> Checkpoints:
    journal = running.journal
    return Checkpoints(journal.store.checkpoint_folder(journal.run), running.every or EVERY)


def status_of(outcome: Outcome, rules: Rules) -> str:
    """How a run ended, in one word."""
    done = outcome.version >= rules.rounds or outcome.reason == "the time is up"
    return "finished" if done else "stopped" if outcome.reason == SPENT else "failed"


def forget(running: Running) -> None:
    """Remove what a run needs to go on, when it has ended: its checkpoint, and what learners on this machine kept."""
    _checkpoints(running).remove()
    _forget_memories(running)


def recall(states: Path, learners: Mapping[str, Learner]) -> None:
    """Let learners of this machine remember what they kept last, where others of their name did the tasks for them."""
    for name, learner in learners.items():
        state = SiteState(states / _MEMORIES, name)
        if state.path.exists():
            state.refresh(learner)


def _memories(running: Running) -> Path:
    """Where the learners of a run keep what they must remember; a run that has not begun has left nothing there."""
    if not running.journal.known:
        _forget_memories(running)
    return running.states / _MEMORIES


def _forget_memories(running: Running) -> None:
    shutil.rmtree(running.states / _MEMORIES, ignore_errors=True)


def _answers(journal: Journal) -> Iterator[Arrived]:
    for kind, body in journal.rows():
        event = from_row(kind, body)
        if isinstance(event, Arrived):
            yield event
