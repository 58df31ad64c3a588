"""An experiment: who learns what, by which rules, on which simulated machines; built from a recipe that is stored.

A recipe is a name and plain values. The store keeps it with the run, so that `abaton resume` can build the same
experiment again.
"""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any

from abaton.codecs import Pipeline
from abaton.control import Asynchronous, Rules
from abaton.control.score import MEASURES, VALUE_MEASURES
from abaton.engines import Outcome, Profile, Remake, Run, live, on_ray, status_of, virtual
from abaton.engines.drive import Observer, Watcher
from abaton.engines.ray import require_ray
from abaton.errors import LayoutError, SettingsError
from abaton.learning import Examples, Learner, Model
from abaton.software import versions
from abaton.store import Journal, Keep, RunRow, Store

# A new recipe is one function in the lab, and one line here.
RECIPES: Mapping[str, str] = {
    "clinics": "abaton.lab.clinics:experiment",
    "policy": "abaton.lab.federation:experiment",
}
ENGINES = ("virtual", "ray")
_MAKER = "abaton.lab.experiment:remade"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A federation that is ready to run under the virtual clock.

    Attributes:
        model: what all learners train.
        sites: each learner's examples.
        rules: what the controller goes by.
        codec: how updates travel.
        profiles: how fast each learner is.
        observe: scores each version of the community model.
        validation: each learner's validation set, if it has one.
        models: what a learner trains instead, where that differs: for learners that do what they should not.
        partition: who holds how much of which class; kept with the run.
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
    models: Mapping[str, Model] = field(default_factory=dict)
    partition: Mapping[str, Any] | None = None
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
    return check(make(**recipe["settings"]))


def check(experiment: Experiment) -> Experiment:
    """The experiment, or an error that says what of it cannot be run; nothing is started."""
    sites, rules = experiment.sites, experiment.rules
    if not sites:
        raise SettingsError(
            "there are no learners", where="sites", remedy="give at least one site's examples"
        )
    if rules.learners > len(sites):
        raise SettingsError(
            f"learners is {rules.learners}, but there are {len(sites)} sites",
            where="rules",
            remedy=f"use a number from 1 to {len(sites)}",
        )
    for name in experiment.profiles:
        if name not in sites:
            raise SettingsError(
                f"there is a profile of '{name}', but no such learner",
                where="profiles",
                remedy=f"use one of {', '.join(list(sites)[:10])}",
            )
    _check_groups(experiment)
    for name, examples in sites.items():
        _check_site(rules, name, examples, experiment.validation.get(name))
    return experiment


def _check_groups(experiment: Experiment) -> None:
    pacing = experiment.rules.pacing
    thresholds = pacing.adaptive if isinstance(pacing, Asynchronous) else None
    if thresholds is None or "" in thresholds:
        return
    for name in experiment.sites:
        group = experiment.profiles.get(name, Profile()).group
        if group not in thresholds:
            raise SettingsError(
                f"pacing.adaptive has no thresholds for group '{group}'",
                where=f"learner '{name}'",
                remedy="give the group some, or give some to '', which is any group",
            )


def _check_site(rules: Rules, name: str, examples: Examples, held: Examples | None) -> None:
    where = f"learner '{name}'"
    if not len(examples):
        raise SettingsError(
            "there are no examples to train on", where=where, remedy="give it some, or leave it out"
        )
    if rules.needs_validation and (held is None or not len(held)):
        raise SettingsError(
            "there is no validation set, which weighting by validation, adaptive pacing and finishing need",
            where=where,
            remedy="set some examples aside (lab.stratified), leave it out, or weigh by examples",
        )
    measure = rules.validation.measure if rules.validation else None
    if measure is not None and (examples.y.dtype.kind == "f") != (measure in VALUE_MEASURES):
        kind, others = ("values", VALUE_MEASURES) if examples.y.dtype.kind == "f" else ("classes", MEASURES)
        fitting = [m for m in others if kind == "values" or m not in VALUE_MEASURES]
        raise SettingsError(
            f"weighting.measure is '{measure}', but the labels are {kind}",
            where=where,
            remedy=f"use one of {', '.join(fitting)}",
        )


def start(
    store: Store,
    recipe: Mapping[str, Any],
    watch: Watcher | None = None,
    *,
    engine: str = "virtual",
    address: str = "",
) -> RunRow:
    """Run a recipe from the beginning, under a new name.

    Args:
        store: where the run is kept.
        recipe: what it is made of.
        watch: hears of every event.
        engine: `virtual` (the simulated machines of its profiles) or `ray` (a Ray cluster, in real time).
        address: where the Ray cluster is; without one `RAY_ADDRESS` counts, or one is started here.
    """
    if engine not in ENGINES:
        raise SettingsError(
            f"there is no engine '{engine}' in the lab", where="engine", remedy=f"use {' or '.join(ENGINES)}"
        )
    if engine == "ray":
        require_ray()
    experiment = build(recipe)
    created = datetime.datetime.now(datetime.UTC)
    recipe = {**recipe, "versions": versions()}
    run = f"{recipe['name']}-{created:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    if experiment.partition is not None:
        recipe = {**recipe, "partition": dict(experiment.partition)}
    row = RunRow(run, created.isoformat(), engine, recipe, experiment.model.layout.digest, "running", None)
    with store.holding(run):
        store.add_run(row)
        return _live(store, row, experiment, watch, address)


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


def _live(
    store: Store, row: RunRow, experiment: Experiment, watch: Watcher | None, address: str = ""
) -> RunRow:
    journal = Journal(store, row.run)
    if row.engine == "ray":
        outcome = _scale_out(experiment, row, journal, watch, address)
    else:
        outcome = simulate(experiment, journal, watch)
    store.finish_run(row.run, status_of(outcome, experiment.rules), asdict(outcome))
    return store.run(row.run)


def simulate(experiment: Experiment, journal: Journal, watch: Watcher | None = None) -> Outcome:
    """Run an experiment under the virtual clock; a journal that holds a part of it already is gone on with."""
    run = _run(check(experiment), journal)
    machines = virtual(_learners(experiment), journal, experiment.profiles, experiment.rules.seed)
    return live(run, machines, watch, memory=experiment.memory)


def _scale_out(
    experiment: Experiment, row: RunRow, journal: Journal, watch: Watcher | None, address: str
) -> Outcome:
    """Run an experiment on a Ray cluster, in real time: its machines are as fast as they are."""
    recipe = json.dumps({"name": row.recipe["name"], "settings": row.recipe["settings"]}, sort_keys=True)
    again = Remake(_MAKER, {name: {"recipe": recipe, "name": name} for name in experiment.sites})
    run, states = _run(experiment, journal), journal.store.folder / "states" / row.run
    groups = {name: profile.group for name, profile in experiment.profiles.items()}
    engine = on_ray(_learners(experiment), run, again, states, groups, address=address)
    return live(run, engine, watch, memory=experiment.memory)


def remade(about: Mapping[str, Any], train: Examples, validation: Examples | None) -> Learner:
    """A learner of an experiment on a worker, called by name; its rows are those that were dealt."""
    experiment = _built(about["recipe"])
    return _learner(experiment, about["name"], train, validation)


@lru_cache(maxsize=1)
def _built(recipe: str) -> Experiment:
    return build(json.loads(recipe))


def _run(experiment: Experiment, journal: Journal) -> Run:
    if experiment.keep is not None:
        journal.retain(experiment.keep)
    return Run(experiment.rules, experiment.model, experiment.codec, journal, experiment.observe)


def _learners(experiment: Experiment) -> dict[str, Learner]:
    held = experiment.validation
    return {name: _learner(experiment, name, rows, held.get(name)) for name, rows in experiment.sites.items()}


def _learner(experiment: Experiment, name: str, train: Examples, validation: Examples | None) -> Learner:
    model, seed = experiment.models.get(name, experiment.model), experiment.rules.seed
    # A simulation can be lived through again: its sites' secrets follow from its seed. Real ones never do.
    secret = f"simulated {seed} {name}".encode()
    return Learner(name, model, train, experiment.codec, seed, validation, secret=secret)
