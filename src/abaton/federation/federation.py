"""`Federation`: participants, settings, engine and result of federated training.

Python programs, studies on one machine or a network, experiments of the lab and the demonstration all use it.
Invariants:

(1) a run has a row with its manifest (`federation.run_manifest`) before training starts;
(2) a run name is used for one run only: the same run is resumed, a different one is refused with the differences;
(3) a finished run is not run again;
(4) the run stores what is needed to deploy its model.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from abaton.codecs import Codec, CodecPipeline, build_pipeline, make_downlink, parse_codec
from abaton.controller import Strategy
from abaton.engines import (
    CHECKPOINT_EVERY,
    MODEL_CACHE_BYTES,
    RunContext,
    RunOutcome,
    delete_run_state,
    run_to_completion,
    status_of,
)
from abaton.engines.runner import Observer, Watcher
from abaton.errors import RefusedError, SettingsError
from abaton.federation.engine_factory import EngineFactory, LocalEngineFactory, load_run_secret
from abaton.federation.participants import (
    LearnerContext,
    LocalSite,
    Participant,
    check_readable,
    example_shape,
    machine_profiles,
    to_participant,
)
from abaton.federation.run import Run, sampled_versions
from abaton.federation.run_manifest import (
    describe_codec,
    describe_model,
    flatten_settings,
    machine_differences,
    manifest_differences,
    software_versions,
)
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.metrics.counts import METRICS, task_of
from abaton.metrics.predictions import is_survival_label, score_metrics
from abaton.models import Examples, Model
from abaton.protocols import missing_members
from abaton.store import Journal, RetentionRule, RunRow, Store, default_folder, model_digest

PYTHON = "python"
"""Recipe name of a run that was built from Python objects."""

ResultEvaluator = Callable[[Store, RunRow, RunOutcome], Mapping[str, Any]]
"""Evaluates a finished run; the JSON values are stored with its result."""

_MAX_EVALUATED_VERSIONS = 1000  # each is evaluated when published; of more versions, a sample after the run
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")


@dataclass(frozen=True, slots=True)
class RunMetadata:
    """Metadata and hooks of a run.

    Attributes:
        recipe_name: What built the federation: a recipe of the lab, a study, or `python`.
        settings: JSON values from which the same federation can be built again.
        title: Prefix of generated run names; `recipe_name` if empty.
        components: Further JSON values of the manifest: a different value is a different run.
        packages: Packages that plugins of the run come from, with versions.
        study_facts: Further JSON values for readers of the run.
        deployment: What is needed to use the model: column and class names, scaling.
        observe: Evaluates each version of the community model when it is published.
        evaluate: Evaluates the finished run.
        start: Called before a new run is added to the store, while its name is locked.
        finish: Called when the run has finished.
        retention: Versions of the community model that stay on disk; all of them if None.
        model_cache_bytes: Bytes of the learners' latest models that stay in memory; the others go to a scratch file.
    """

    recipe_name: str = PYTHON
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    _: KW_ONLY
    components: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    study_facts: Mapping[str, Any] = field(default_factory=dict)
    deployment: Mapping[str, Any] = field(default_factory=dict)
    observe: Observer | None = None
    evaluate: ResultEvaluator | None = None
    start: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None
    retention: RetentionRule | None = None
    model_cache_bytes: int = MODEL_CACHE_BYTES


class Federation:
    """Federated training of one model at several sites.

    Args:
        model: Model that all sites train: a `TorchModel`, a `SklearnModel`, or any other `Model`.
        sites: Examples of each site by name, or a `LocalSite` with further settings.
        strategy: Settings of the controller; ten rounds of federated averaging if None.
        codec: Codec of updates: a spec such as `quicfl(bits=2)`, or a user-defined codec.
        downlink: Codec spec of community models sent to the sites, such as `stc(sparsity=0.01)`; uncompressed if None.
        test: Held-out examples on which each version of the community model is evaluated; of more than 1,000 rounds, a
            sample of 20 versions.
        validation_fraction: Fraction that each site holds out if the strategy needs a validation set and the site has
            none.
        metadata: Metadata and hooks of the run.

    >>> import numpy as np, tempfile
    >>> from abaton.models import logistic
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(80, 3)).astype(np.float32)
    >>> y = (x[:, 0] > 0).astype(np.int64)
    >>> sites = {"north": Examples(x[:50], y[:50]), "south": Examples(x[50:], y[50:])}
    >>> federation = Federation(logistic(features=3), sites, Strategy(rounds=20), test=Examples(x, y))
    >>> run = federation.run("first", store=Path(tempfile.mkdtemp()))
    >>> run.status, len(run.versions), run.metrics["accuracy"] > 0.7
    ('finished', 21, True)
    """

    def __init__(
        self,
        model: Model,
        sites: Mapping[str, Examples | Participant],
        strategy: Strategy | None = None,
        codec: Codec | CodecPipeline | str = "raw",
        *,
        downlink: CodecPipeline | str | None = None,
        test: Examples | None = None,
        validation_fraction: float = 0.1,
        metadata: RunMetadata | None = None,
    ) -> None:
        _check_types(model, sites, strategy, test)
        self.model, self.test = model, test
        self.codec = parse_codec(codec) if isinstance(codec, str) else build_pipeline(codec)
        self.downlink = make_downlink(downlink)
        self.metadata = RunMetadata() if metadata is None else metadata
        base = Strategy() if strategy is None else strategy
        self.strategy = replace(base, learners=len(sites)) if sites and not base.learners else base
        self._given_sites = {name: to_participant(site) for name, site in sites.items()}
        self.sites = self._given_sites
        if self.strategy.needs_validation:
            self.sites = {
                name: self._hold_out_validation(name, site, validation_fraction)
                for name, site in self.sites.items()
            }
        self._check()

    def __repr__(self) -> str:
        return f"Federation({describe_model(self.model)}, {len(self.sites)} sites, codec {self.codec.spec})"

    def run(
        self,
        name: str = "",
        *,
        store: Store | Path | None = None,
        engine: str | EngineFactory = "virtual",
        watch: Watcher | None = None,
        checkpoints: int = CHECKPOINT_EVERY,
    ) -> Run:
        """Run the federation to the end, or resume an interrupted run; a finished run is returned unchanged.

        Args:
            name: Name of the run; generated if empty.
            store: Store of the run; in the user's data folder if None.
            engine: `virtual` (simulated clock), `local` (processes of this machine), `ray` (Ray cluster), or an
                `EngineFactory`.
            watch: Called with every event.
            checkpoints: Minimum number of events between checkpoints of a run in real time; 0 for none. Writing takes
                at most 4 % of the run time.

        Raises:
            RefusedError: A run of this name has a different manifest; the error lists the differences.
        """
        if checkpoints < 0:
            raise SettingsError(
                f"checkpoints is {checkpoints}",
                where="run",
                remedy="use a number of events >= 1, or 0 for none",
            )
        factory = LocalEngineFactory(engine) if isinstance(engine, str) else engine
        open_store = store if isinstance(store, Store) else Store(store or default_folder())
        name = check_run_name(name or new_run_name(self.metadata.title or self.metadata.recipe_name))
        with open_store.lock_run(name):
            row = self._row(open_store, name, factory)
            if row.status == "running":
                self._execute(open_store, row, factory, watch, checkpoints)
        return Run(open_store, name, self.model)

    def _row(self, store: Store, name: str, factory: EngineFactory) -> RunRow:
        """Return the row of the federation's run: a new one, or that of the run to resume."""
        row = store.get_run(name)
        manifest = self._manifest(store, name, factory)
        if row is None:
            created = datetime.now(UTC).isoformat()
            recipe, layout = self._recipe(manifest, store), self.model.layout.digest
            row = RunRow(name, created, factory.name, recipe, layout, "running", None)
            self.metadata.start()
            store.add_run(row)
        elif differences := manifest_differences(row.recipe.get("manifest", {}), manifest):
            raise RefusedError(
                f"run '{name}' has a different manifest",
                where="; ".join(differences[:5])
                + (f"; and {len(differences) - 5} more" if len(differences) > 5 else ""),
                remedy="use another name, or restore the settings and data to resume it",
            )
        return row

    def _execute(
        self, store: Store, row: RunRow, factory: EngineFactory, watch: Watcher | None, checkpoints: int
    ) -> None:
        journal = Journal(store, row.run)
        if self.metadata.retention is not None:
            journal.retain(self.metadata.retention)

        context = RunContext(
            self.strategy,
            self.model,
            self.codec,
            journal,
            lambda: self._learners(store, row.run, factory),
            state_folder(store, row.run),
            machine_profiles(self.sites),
            self._observer(),
            self.metadata.model_cache_bytes,
            data_changed=any(site.has_withdrawals for site in self.sites.values()),
            checkpoint_every=checkpoints,
            downlink=self.downlink,
        )
        outcome = run_to_completion(context, factory.open(context), watch)

        evaluation = (self.metadata.evaluate or self._evaluate)(store, row, outcome)
        store.finish_run(row.run, status_of(outcome, self.strategy), {**asdict(outcome), **evaluation})
        delete_run_state(context)
        self.metadata.finish()

    def _learners(self, store: Store, run: str, factory: EngineFactory) -> dict[str, Learner]:
        seed, states = self.strategy.seed, state_folder(store, run)
        learners = {
            name: site.learner(
                LearnerContext(name, run, self.model, self.codec, seed, factory.secret(seed, name, states))
            )
            for name, site in self.sites.items()
        }
        for learner in learners.values():
            learner.downlink = self.downlink
        return learners

    def _manifest(self, store: Store, run: str, factory: EngineFactory) -> dict[str, Any]:
        seed, states = self.strategy.seed, state_folder(store, run)
        return {
            "engine": factory.name,
            "strategy": flatten_settings(self.strategy),
            "codec": describe_codec(self.codec),
            "downlink": None if self.downlink is None else describe_codec(self.downlink),
            "model": describe_model(self.model),
            "layout": self.model.layout.digest,
            "initial_model": model_digest(self.model.initial(seed)),
            "test_examples": None
            if self.test is None
            else LocalSite(self.test).data_digest(factory.secret(seed, "", states)),
            "sites": {
                name: site.data_digest(factory.secret(seed, name, states))
                for name, site in self.sites.items()
            },
            "machines": machine_differences(machine_profiles(self.sites))
            if factory.name == "virtual"
            else {},
            self.metadata.recipe_name: flatten_settings(self.metadata.components),
            "software": {**software_versions(), **self.metadata.packages},
        }

    def _observer(self) -> Observer | None:
        """Return what evaluates each version when the federation publishes it; None if there are too many."""
        versions = self.strategy.rounds + self.strategy.final_rounds
        if self.metadata.observe is not None or self.test is None or versions > _MAX_EVALUATED_VERSIONS:
            return self.metadata.observe
        return self._test_metrics

    def _test_metrics(self, vector: Vector) -> dict[str, float]:
        """Return the metrics of a model on the federation's test examples."""
        assert self.test is not None
        return _finite_metrics(score_metrics(self.model.score(vector, self.test), self.test.y))

    def _data(self, store: Store) -> dict[str, Any] | None:
        """Return digests of the federation's examples as they were given, which runs of one store can compare.

        They are keyed by a secret of the store, and do not depend on the seed or a held-out validation set.
        """
        if not all(isinstance(site, LocalSite) for site in self._given_sites.values()):
            return None
        secret = load_run_secret(store.folder, "data digests")
        return {
            "sites": {name: site.data_digest(secret) for name, site in self._given_sites.items()},
            "test": None if self.test is None else LocalSite(self.test).data_digest(secret),
        }

    def _recipe(self, manifest: Mapping[str, Any], store: Store) -> dict[str, Any]:
        """Return the federation's recipe: how to build the run again, its manifest, and how to deploy its model."""
        metadata, layout = self.metadata, self.model.layout
        summary = {
            "seed": int(self.strategy.seed),
            "rounds": int(self.strategy.rounds),
            "codec": self.codec.spec,
        }
        if self.downlink is not None:
            summary["downlink"] = self.downlink.spec
        deployment = {
            "layout": [[tensor.name, list(tensor.shape), str(tensor.role)] for tensor in layout],
            "training": flatten_settings(self.strategy.training),
            "model": describe_model(self.model),
            **example_shape(examples for _, examples in self._examples()),
            **metadata.deployment,
        }
        return {
            "name": metadata.recipe_name,
            "settings": dict(metadata.settings)
            or {**summary, "model": deployment["model"], "sites": len(self.sites)},
            **metadata.study_facts,
            "software_versions": manifest["software"],
            "deployment": deployment,
            "manifest": dict(manifest),
            "data": self._data(store),
        }

    def _evaluate(self, store: Store, row: RunRow, outcome: RunOutcome) -> dict[str, Any]:
        """Return the metrics of sampled versions on the federation's test examples."""
        if self.test is None:
            return {}
        points = [
            {
                "version": version.version,
                "timestamp": version.timestamp,
                **(_without_epsilon(version.metrics) or self._test_metrics(vector)),
            }
            for version, vector in sampled_versions(store, row.run)
        ]
        return {
            "progress": points,
            "metrics": {k: v for k, v in points[-1].items() if k not in ("version", "timestamp")},
        }

    def _hold_out_validation(self, name: str, site: Participant, fraction: float) -> Participant:
        if not isinstance(site, LocalSite) or site.validation is not None or not len(site.train):
            return site
        return site.with_validation(fraction, name, self.strategy.seed)

    def _check(self) -> None:
        """Raise a `SettingsError` for a federation with settings or data that cannot be run."""
        if not self.sites:
            raise SettingsError(
                "there are no sites", where="sites", remedy="give the examples of at least one site"
            )
        if self.strategy.learners > len(self.sites):
            raise SettingsError(
                f"learners is {self.strategy.learners}, but there are {len(self.sites)} sites",
                where="strategy",
                remedy=f"use a number from 1 to {len(self.sites)}",
            )
        self._check_groups()
        self.codec.check_layout(self.model.layout)
        for name, site in self.sites.items():
            if isinstance(site, LocalSite):
                _check_local_site(self.strategy, name, site)
        if self.test is not None:
            _check_labels("test examples", self.test)
        check_readable(self.model, self._examples())

    def _examples(self) -> Iterator[tuple[str, Examples]]:
        """Yield the owner and the examples of every data set of the federation in this process."""
        for name, site in self.sites.items():
            subsets = (site.train, site.validation) if isinstance(site, LocalSite) else ()
            yield from ((f"learner '{name}'", examples) for examples in subsets if examples is not None)
        if self.test is not None:
            yield "test examples", self.test

    def _check_groups(self) -> None:
        thresholds = self.strategy.scheduler.adaptive
        if thresholds is None or "" in thresholds:
            return
        for name, site in self.sites.items():
            if site.profile.group not in thresholds:
                raise SettingsError(
                    f"scheduler.adaptive has no thresholds for group '{site.profile.group}'",
                    where=f"learner '{name}'",
                    remedy="add thresholds for the group, or for '', which is any group",
                )


def _check_types(model: object, sites: object, strategy: object, test: object) -> None:
    """Raise a `SettingsError` for arguments of the federation that have the wrong type."""
    problem = None
    if missing := missing_members(model, Model):
        hint = f"give a Model, such as TorchModel(lambda: MyModule()); it has no {', '.join(missing)}"
        problem = "model", model, hint
    elif not isinstance(sites, Mapping):
        problem = "sites", sites, "give Examples(x, y) by site name"
    elif not isinstance(strategy, Strategy | None):
        problem = "strategy", strategy, "give Strategy(rounds=10, ...)"
    elif not isinstance(test, Examples | None):
        problem = "test", test, "give Examples(x, y)"
    else:
        for name, site in sites.items():
            if not isinstance(site, Examples) and not hasattr(site, "learner"):
                problem = f"site '{name}'", site, "give Examples(x, y), or a LocalSite"
    if problem is not None:
        where, argument, remedy = problem
        raise SettingsError(f"the argument is a {type(argument).__qualname__}", where=where, remedy=remedy)


def _finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics of the federation's test: the store has no NaN; an AUROC may be undefined."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _without_epsilon(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that the federation's test gave; the privacy loss of a version is not one of them."""
    return {name: value for name, value in metrics.items() if name != "epsilon"}


def _check_local_site(strategy: Strategy, name: str, site: LocalSite) -> None:
    where, validation, y = f"learner '{name}'", site.validation, site.train.y
    for examples in (site.train, validation):
        if examples is not None:
            _check_labels(where, examples)
    if not len(site.train):
        raise SettingsError(
            "there are no training examples", where=where, remedy="add examples, or remove the learner"
        )
    if strategy.needs_validation and (validation is None or not len(validation)):
        raise SettingsError(
            "there is no validation set, which validation weighting, adaptive updates and final_rounds need",
            where=where,
            remedy="hold out examples (lab.stratified_split), remove the learner, or weight by examples",
        )
    metric = strategy.validation.metric if strategy.validation else None
    task, label_text = ("regression", "values") if y.dtype.kind == "f" else ("classification", "classes")
    if is_survival_label(y):
        task, label_text = "survival", "times"
    if metric is not None and task_of(metric) != task:
        suitable = [name for name in METRICS if task_of(name) == task]
        raise SettingsError(
            f"weighting.metric is '{metric}', but the labels are {label_text}",
            where=where,
            remedy=f"use one of {', '.join(suitable)}",
        )


def _check_labels(where: str, examples: Examples) -> None:
    """Raise a `SettingsError` for federation labels in a column, which would broadcast; text windows have rows."""
    y = np.asarray(examples.y)
    if y.ndim != 1 and (y.dtype.kind == "f" or y.shape[1:] == (1,)) and not is_survival_label(y):
        raise SettingsError(
            f"the labels have the shape {y.shape}",
            where=where,
            remedy="give one label per row, such as y.reshape(-1)",
        )


def check_run_name(name: str) -> str:
    """Return the name of a federation's run, or raise a `SettingsError` if it cannot be a file name."""
    if not _RUN_NAME.fullmatch(name):
        raise SettingsError(
            f"'{name[:40]}' is not a valid run name",
            where="name",
            remedy="use up to 120 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


def new_run_name(title: str) -> str:
    """Return a new unique run name for a federation."""
    return f"{title}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def state_folder(store: Store, run: str) -> Path:
    """Return the folder in which a federation's sites on this machine store their learners' state of a run."""
    return store.folder / "states" / run
