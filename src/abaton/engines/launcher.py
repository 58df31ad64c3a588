"""Launcher that starts and resumes runs on a virtual, local or Ray engine."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from abaton.codecs import CodecKey, CodecPipeline
from abaton.controller import (
    BUDGET_SPENT,
    ModelCache,
    Strategy,
    UpdateReceived,
    community_model,
    event_from_row,
)
from abaton.engines.base import Engine
from abaton.engines.checkpoint import CHECKPOINT_EVERY, Checkpoints
from abaton.engines.local_engine import LocalEngine
from abaton.engines.ray import RayEngine
from abaton.engines.runner import Observer, RunLoop, RunOutcome, Watcher
from abaton.engines.site_state import LearnerDiskState
from abaton.engines.virtual_engine import MachineProfile, VirtualEngine
from abaton.errors import StoreError
from abaton.learners import Learner
from abaton.models import Model
from abaton.store import Journal, ScratchModelFile
from abaton.training import round_key

_LOG = logging.getLogger(__name__)
_LEARNER_STATE_DIR = "learners"
MODEL_CACHE_BYTES = 4 * 2**30
"""Default number of bytes of learners' latest models in memory; further models are stored in a file."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """Arguments of an engine and a run loop.

    Attributes:
        strategy: the settings of the controller.
        model: the model that all learners train.
        codec: the codec of updates.
        journal: the journal of the run; a run whose journal has events is resumed.
        learners: builds the learners, for engines with learners on this machine.
        profiles: the simulated machine of each learner under the virtual clock, and its group.
        state_dir: the run's folder for the state of learners on this machine.
        observe: evaluates each version of the community model.
        model_cache_bytes: how many bytes of the learners' latest models stay in memory.
        data_changed: whether the learners' data differ from those at the start of the journal; events are then taken
            from the journal and not recomputed.
        checkpoint_every: the smallest number of events between two checkpoints of a real-time engine; 0 for none.
        downlink: the codec of model versions sent to learners; versions are sent uncompressed without it.
    """

    strategy: Strategy
    model: Model
    codec: CodecPipeline
    journal: Journal
    learners: Callable[[], Mapping[str, Learner]]
    state_dir: Path
    profiles: Mapping[str, MachineProfile] = field(default_factory=dict)
    observe: Observer | None = None
    model_cache_bytes: int = MODEL_CACHE_BYTES
    data_changed: bool = False
    checkpoint_every: int = CHECKPOINT_EVERY
    downlink: CodecPipeline | None = None

    def check_payload(self, learner: str, version: int, payload: bytes) -> None:
        """Decode a learner's payload for a version with the codec of the run to launch.

        Raises:
            PayloadError: The payload is invalid.
        """
        self.codec.decode(
            payload, self.model.layout, CodecKey(round_key(self.strategy.seed, version), learner)
        )

    @property
    def groups(self) -> dict[str, str]:
        """Group of each learner of the run to launch."""
        return {name: profile.group for name, profile in self.profiles.items()}


class ClosableEngine(Engine, Protocol):
    """Engine with resources to release."""

    def close(self) -> None:
        """Release the resources of an engine that was opened for a run."""


def open_virtual_engine(context: RunContext) -> VirtualEngine:
    """Launch a run on the virtual engine: return it with the journal's updates, which are not trained again."""
    journal = context.journal
    known_updates = {event.task: event for event in _updates(journal) if event.payload in journal.payloads}
    store_payload, seed = journal.payloads.put, context.strategy.seed
    return VirtualEngine(
        context.learners(),
        context.profiles,
        store_payload=store_payload,
        seed=seed,
        known_updates={} if context.data_changed else known_updates,
    )


def open_local_engine(context: RunContext) -> LocalEngine:
    """Launch a run on the local engine: return it with the learners' state stored in the run's folder."""
    return LocalEngine(
        context.learners(),
        store_payload=context.journal.payloads.put,
        check_payload=context.check_payload,
        state_dir=_learner_state_dir(context),
        groups=context.groups,
    )


def open_ray_engine(context: RunContext, address: str = "") -> RayEngine:
    """Launch a run on the Ray engine: return it with the learners' state stored in the run's folder here."""
    return RayEngine(
        context.learners(),
        store_payload=context.journal.payloads.put,
        check_payload=context.check_payload,
        address=address,
        state_dir=_learner_state_dir(context),
        groups=context.groups,
    )


def run_to_completion(
    context: RunContext, engine: ClosableEngine, watch: Watcher | None = None
) -> RunOutcome:
    """Run on a launched engine to the end; a real-time run first replays the journal after its last checkpoint."""
    with (
        ScratchModelFile(context.journal.store.folder, context.model.layout.size) as overflow,
        closing(engine),
    ):
        if context.journal.stored_events and (engine.is_real_time or context.data_changed):
            return _resume_run_loop(context, engine, overflow).run(watch)
        _checkpoints(context).remove()  # of an earlier run with the same name
        return _build_run_loop(context, engine, overflow).run(watch)


def _build_run_loop(context: RunContext, engine: Engine, overflow: ScratchModelFile) -> RunLoop:
    strategy, layout = context.strategy, context.model.layout
    model_cache = ModelCache(layout.size, context.model_cache_bytes, overflow)
    community = community_model(
        strategy, layout, context.codec, context.model.initial(strategy.seed), model_cache
    )
    checkpoints = _checkpoints(context) if engine.is_real_time and context.checkpoint_every else None
    return RunLoop(
        strategy, community, engine, context.journal, context.observe, checkpoints, context.downlink
    )


def _resume_run_loop(context: RunContext, engine: Engine, overflow: ScratchModelFile) -> RunLoop:
    """Launch a run loop that resumes from the latest checkpoint, or from the start of the journal."""
    run_loop = _build_run_loop(context, engine, overflow)
    if run_loop.checkpoints is not None:
        run_loop.checkpoints.tidy()
        try:
            if (checkpoint := run_loop.checkpoints.read()) is not None:
                run_loop.resume(checkpoint)
                return run_loop
        except StoreError as error:
            _LOG.warning("%s: run '%s' is resumed from its whole journal", error, context.journal.run)
            run_loop = _build_run_loop(context, engine, overflow)
    run_loop.resume()
    return run_loop


def _checkpoints(context: RunContext) -> Checkpoints:
    journal = context.journal
    return Checkpoints(
        journal.store.checkpoint_folder(journal.run), context.checkpoint_every or CHECKPOINT_EVERY
    )


def status_of(outcome: RunOutcome, strategy: Strategy) -> str:
    """Return the status of a launched run after its end: finished, stopped or failed."""
    done = outcome.version >= strategy.rounds or outcome.reason == "the time is up"
    return "finished" if done else "stopped" if outcome.reason == BUDGET_SPENT else "failed"


def delete_run_state(context: RunContext) -> None:
    """Remove the checkpoint and the learner state after a launched run has finished."""
    _checkpoints(context).remove()
    _delete_learner_state(context)


def restore_learner_state(state_dir: Path, learners: Mapping[str, Learner]) -> None:
    """Restore the state of learners on this machine that the processes of a launched engine wrote."""
    for name, learner in learners.items():
        state = LearnerDiskState(state_dir / _LEARNER_STATE_DIR, name)
        if state.path.exists():
            state.refresh(learner)


def _learner_state_dir(context: RunContext) -> Path:
    """Return the learners' state folder for the engine to launch, empty if the run has not started."""
    if not context.journal.stored_events:
        _delete_learner_state(context)
    return context.state_dir / _LEARNER_STATE_DIR


def _delete_learner_state(context: RunContext) -> None:
    shutil.rmtree(context.state_dir / _LEARNER_STATE_DIR, ignore_errors=True)


def _updates(journal: Journal) -> Iterator[UpdateReceived]:
    for event_type, body in journal.rows():
        event = event_from_row(event_type, body)
        if isinstance(event, UpdateReceived):
            yield event
