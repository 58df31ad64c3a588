"""Living a run: learners, rules and a journal become a community model, under the virtual clock or in real time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from abaton.codecs import Key, Pipeline
from abaton.control import SPENT, Arrived, Rules, Shelf, community_model, from_row
from abaton.control.draw import round_key
from abaton.engines.contract import Engine
from abaton.engines.drive import Driver, Observer, Outcome, Watcher
from abaton.engines.local import LocalEngine
from abaton.engines.ray import RayEngine, Remake
from abaton.engines.replay import Replayed
from abaton.engines.virtual import Profile, VirtualEngine
from abaton.learning import Learner, Model
from abaton.store import Journal, SlotFile, digest_of

_MEMORY = 4 * 2**30


@dataclass(frozen=True, slots=True)
class Run:
    """What a run goes by, whatever the engine.

    Attributes:
        rules: what the controller goes by.
        model: what all learners train.
        codec: how updates travel.
        journal: where everything is written; one that holds a part of the run already is gone on with.
        observe: scores each version of the community model.
    """

    rules: Rules
    model: Model
    codec: Pipeline
    journal: Journal
    observe: Observer | None = None

    def check(self, learner: str, version: int, payload: bytes) -> None:
        """Decode a learner's payload for a version.

        Raises:
            PayloadError: It is not sound.
        """
        self.codec.decode(payload, self.model.layout, Key(round_key(self.rules.seed, version), learner))


class Ended(Engine, Protocol):
    """An engine that lets go of what it holds in the end."""

    def close(self) -> None:
        """Let go."""


def virtual(
    learners: Mapping[str, Learner], journal: Journal, profiles: Mapping[str, Profile], seed: int
) -> VirtualEngine:
    """The learners under the virtual clock; what the journal has answers to is not trained again."""
    finished = {event.task: event for event in _answers(journal) if event.payload in journal.payloads}
    return VirtualEngine(learners, profiles, keep=journal.payloads.put, seed=seed, finished=finished)


def local(
    learners: Mapping[str, Learner], run: Run, states: Path, groups: Mapping[str, str] | None = None
) -> LocalEngine:
    """The learners as processes of this machine; what they must remember is kept in a folder, apart for each run."""
    keep, own = run.journal.payloads.put, _own(states, run.journal)
    return LocalEngine(learners, keep=keep, check=run.check, states=own, groups=groups)


def on_ray(
    learners: Mapping[str, Learner],
    run: Run,
    remake: Remake,
    states: Path,
    groups: Mapping[str, str] | None = None,
    *,
    address: str = "",
) -> RayEngine:
    """The learners as tasks on a Ray cluster; what they must remember is kept in a folder here, apart for each run."""
    keep, own = run.journal.payloads.put, _own(states, run.journal)
    return RayEngine(learners, remake, keep=keep, check=run.check, address=address, states=own, groups=groups)


def live(
    run: Run,
    engine: Ended,
    watch: Watcher | None = None,
    *,
    memory: int = _MEMORY,
) -> Outcome:
    """Bring a run to its end; one in real time first tells what its journal holds."""
    journal, layout = run.journal, run.model.layout
    with SlotFile(journal.store.folder, layout.size) as overflow, closing(engine):
        shelf = Shelf(layout.size, memory, overflow)
        initial = run.model.initial(run.rules.seed)
        community = community_model(run.rules, layout, run.codec, initial, shelf)
        told = [from_row(*row) for row in journal.rows()] if engine.real and journal.known else []
        chosen = Replayed(engine, told) if told else engine
        return Driver(run.rules, community, chosen, journal, run.observe).run(watch)


def status_of(outcome: Outcome, rules: Rules) -> str:
    """How a run ended, in one word."""
    done = outcome.version >= rules.rounds or outcome.reason == "the time is up"
    return "finished" if done else "stopped" if outcome.reason == SPENT else "failed"


def _own(states: Path, journal: Journal) -> Path:
    """A run's own part of a folder; one that has not begun has left nothing there, whatever its name is."""
    folder = states / digest_of(journal.run.encode())[:32]
    if not journal.known:
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def _answers(journal: Journal) -> Iterator[Arrived]:
    for kind, body in journal.rows():
        event = from_row(kind, body)
        if isinstance(event, Arrived):
            yield event
