"""An experiment: who learns what, by which rules, on which simulated machines; built from a recipe that is stored.

A recipe is a name and plain values. The store keeps it with the run, so that `abaton resume` can build the same
experiment again.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from abaton.codecs import Pipeline
from abaton.control import Asynchronous, Rules
from abaton.control.score import MEASURES, VALUE_MEASURES
from abaton.engines import Outcome, Profile, Run, live, status_of, virtual
from abaton.engines.drive import Observer, Watcher
from abaton.errors import LayoutError, SettingsError
from abaton.learning import Examples, Learner, Model
from abaton.software import versions
from abaton.store import Journal, Keep, RunRow, Store

# A new recipe is one function in the lab, and one line here.
RECIPES: Mapping[str, str] = {
    "clinics": "abaton.lab.clinics:experiment",
    "policy": "abaton.lab.federation:experiment",
}


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


def start(store: Store, recipe: Mapping[str, Any], watch: Watcher | None = None) -> RunRow:
    """Run a recipe from the beginning, under a new name."""
    experiment = build(recipe)
    created = datetime.datetime.now(datetime.UTC)
    recipe = {**recipe, "versions": versions()}
    run = f"{recipe['name']}-{created:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    if experiment.partition is not None:
        recipe = {**recipe, "partition": dict(experiment.partition)}
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
    store.finish_run(row.run, status_of(outcome, experiment.rules), asdict(outcome))
    return store.run(row.run)


def simulate(experiment: Experiment, journal: Journal, watch: Watcher | None = None) -> Outcome:
    """Run an experiment under the virtual clock; a journal that holds a part of it already is gone on with."""
    seed = check(experiment).rules.seed
    learners = {
        name: Learner(
            name,
            experiment.models.get(name, experiment.model),
            examples,
            experiment.codec,
            seed,
            experiment.validation.get(name),
            # A simulation can be lived through again: its sites' secrets follow from its seed. Real ones never do.
            secret=f"simulated {seed} {name}".encode(),
        )
        for name, examples in experiment.sites.items()
    }
    if experiment.keep is not None:
        journal.retain(experiment.keep)
    machines = virtual(learners, journal, experiment.profiles, seed)
    run = Run(experiment.rules, experiment.model, experiment.codec, journal, experiment.observe)
    return live(run, machines, watch, memory=experiment.memory)
