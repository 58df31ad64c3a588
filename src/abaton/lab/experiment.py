"""An experiment: who learns what, by which rules, on which simulated machines; built from a recipe that is stored.

A recipe is a name and plain values. The store keeps it with the run, so that `abaton resume` can build the same
experiment again.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from abaton.codecs import Pipeline
from abaton.control import SPENT, Arrived, Rules, Shelf, community_model, from_row
from abaton.engines import Driver, Outcome, Profile, VirtualEngine
from abaton.engines.drive import Observer, Watcher
from abaton.errors import LayoutError, SettingsError
from abaton.learning import Examples, Learner, Model
from abaton.store import Journal, Keep, RunRow, SlotFile, Store

# A new recipe is one function in the lab, and one line here.
RECIPES: Mapping[str, str] = {"demo": "abaton.lab.demo:experiment"}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A federation that is ready to run under the virtual clock.

    Attributes:
        keep: which versions of the community model stay on disk; all of them if not given.
        memory: how many bytes of the learners' newest models stay in memory; the others go to a file.
    """

    model: Model
    sites: Mapping[str, Examples]
    rules: Rules
    codec: Pipeline
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    observe: Observer | None = None
    validation: Mapping[str, Examples] = field(default_factory=dict)
    keep: Keep | None = None
    memory: int = 4 * 2**30


def build(recipe: Mapping[str, Any]) -> Experiment:
    """The experiment that a recipe describes."""
    where = RECIPES.get(recipe["name"])
    if where is None:
        raise SettingsError(
            f"there is no recipe '{recipe['name']}'", remedy=f"this version knows {', '.join(RECIPES)}"
        )
    module, function = where.split(":")
    make: Callable[..., Experiment] = getattr(import_module(module), function)
    return make(**recipe["settings"])


def start(store: Store, recipe: Mapping[str, Any], watch: Watcher | None = None) -> RunRow:
    """Run a recipe from the beginning, under a new name."""
    experiment = build(recipe)
    created = datetime.datetime.now(datetime.UTC)
    run = f"{recipe['name']}-{created:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    row = RunRow(run, created.isoformat(), "virtual", recipe, experiment.model.layout.digest, "running", None)
    with store.holding(run):
        store.add_run(row)
        return _live(store, row, experiment, watch)


def resume(store: Store, row: RunRow, watch: Watcher | None = None) -> RunRow:
    """Bring a run that was cut off to its end; what was finished before is not done again."""
    experiment = build(row.recipe)
    if experiment.model.layout.digest != row.layout:
        raise LayoutError(
            f"the model of run '{row.run}' has layout {row.layout[:12]}, its recipe now gives "
            f"{experiment.model.layout.digest[:12]}",
            remedy="resume it with the version of Abaton that started it, or start a new run",
        )
    with store.holding(row.run):
        return _live(store, row, experiment, watch)


def _live(store: Store, row: RunRow, experiment: Experiment, watch: Watcher | None) -> RunRow:
    outcome = simulate(experiment, Journal(store, row.run), watch)
    orderly = "stopped" if outcome.reason == SPENT else "failed"
    status = "finished" if outcome.version == experiment.rules.rounds else orderly
    store.finish_run(row.run, status, asdict(outcome))
    return store.run(row.run)


def simulate(experiment: Experiment, journal: Journal, watch: Watcher | None = None) -> Outcome:
    """Run an experiment under the virtual clock; a journal that holds a part of it already is gone on with."""
    seed = experiment.rules.seed
    learners = {
        name: Learner(
            name,
            experiment.model,
            examples,
            experiment.codec,
            seed,
            experiment.validation.get(name),
            # A simulation can be lived through again: its sites' secrets follow from its seed. Real ones never do.
            secret=f"simulated {seed} {name}".encode(),
        )
        for name, examples in experiment.sites.items()
    }
    finished = {event.task: event for event in _answers(journal) if event.payload in journal.payloads}
    engine = VirtualEngine(
        learners, experiment.profiles, keep=journal.payloads.put, seed=seed, finished=finished
    )
    initial = experiment.model.initial(seed)
    layout = experiment.model.layout
    if experiment.keep is not None:
        journal.retain(experiment.keep)
    with SlotFile(journal.store.folder, layout.size) as overflow, closing(engine):
        shelf = Shelf(layout.size, experiment.memory, overflow)
        community = community_model(experiment.rules, layout, experiment.codec, initial, shelf)
        return Driver(experiment.rules, community, engine, journal, experiment.observe).run(watch)


def _answers(journal: Journal) -> Iterator[Arrived]:
    for kind, body in journal.rows():
        event = from_row(kind, body)
        if isinstance(event, Arrived):
            yield event
