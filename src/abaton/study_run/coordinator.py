"""Coordinator of a study on one machine: from the sites' records to an evaluated community model.

Steps: ingest every site (consent, de-identification, views, features), enforce anonymity over the union, split
subjects, agree on a common scaling; then run the federation (`abaton.federation.federation`) and evaluate. The
preparation is stored while the run is unfinished: an interrupted run is resumed with the same recoding, scaling and
split, without the subjects that withdrew since.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.federated_recoding import RecodingChoice
from abaton.disclosure.levels import DisclosureLevel, strictest_level
from abaton.disclosure.release_gate import MIN_SITES, ReleaseGate
from abaton.engines import MachineProfile, RunOutcome, restore_learner_state
from abaton.engines.runner import Watcher
from abaton.errors import RefusedError, SettingsError
from abaton.features import ColumnStatistics, FeatureColumn, model_columns
from abaton.federation.engine_factory import EngineFactory, LocalEngineFactory
from abaton.federation.federation import Federation, RunMetadata, check_run_name, new_run_name, state_folder
from abaton.federation.participants import LearnerContext
from abaton.federation.run import COMMUNITY, Run, metric_point, sampled_versions, traffic_by_site
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.models import Model
from abaton.site import (
    LoadedSiteConfig,
    ReleaseLog,
    build_consent_gate,
    disclosure_level,
    load_site,
    open_release_gate,
)
from abaton.site.factory import open_release_log
from abaton.store import Journal, RunRow, Store, content_digest, default_folder, run_head
from abaton.study import LearningSection, Study, study_from_toml, write_toml
from abaton.study_run.baselines import Baseline, local_only_name, train_baselines
from abaton.study_run.cohort_description import ALL, describe_cohort
from abaton.study_run.consent_roster import ConsentRoster, RemainingConsentGate, WallClock
from abaton.study_run.consented_learner import ConsentedLearner, to_examples
from abaton.study_run.evaluation import evaluate_models, local_layers
from abaton.study_run.ingest import GateFactory, ProgressCallback, SiteIngest, ingest_sites
from abaton.study_run.internal_external_validation import check_on_network, check_sites, validate_by_site
from abaton.study_run.interpretability import combine_interpretability, explain_at_site, linear_coefficients
from abaton.study_run.local_benefit import (
    LocalBenefitSettings,
    add_benefits,
    personal_models_path,
    save_personal_models,
    site_benefit,
)
from abaton.study_run.prediction_performance import performance_results, predict_test_rows
from abaton.study_run.preparation import PreparedSite, PreparedSites, SiteSums, SplitTable, prepare_sites
from abaton.study_run.preparation_state import CommonScale, PreparationState
from abaton.study_run.released_evaluation import EvaluatedModel, EvaluatedSite, evaluate_released
from abaton.study_run.site_releases import (
    cohort_report,
    cohort_share,
    releasable_subjects,
    released_cohort,
    released_sums,
    summed_cohort,
)
from abaton.study_run.site_run_state import SiteRunState
from abaton.study_run.study_policy import make_study_policy
from abaton.study_run.validation_scores import with_mean_scores

STUDY_RECIPE = "study"
"""Recipe name of study runs."""

FLOWER = "flower"
_POLICY_DIR = "policies"


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """Options of a study run that are not part of the study document.

    Attributes:
        seed: Seed of all random numbers.
        profiles: Speed of each site's machine under the virtual clock.
        baselines: Whether to train local-only and pooled models too; for the lab only.
        bootstrap_resamples: Number of bootstrap samples for intervals; 0 for no intervals and no progress curve.
    """

    seed: int = 1990
    profiles: Mapping[str, MachineProfile] = field(default_factory=dict)
    baselines: bool = False
    bootstrap_resamples: int = 1000

    def to_row(self) -> dict[str, Any]:
        """Return the options of a coordinated study run as JSON values."""
        profiles = {
            name: {key: v for key, v in asdict(profile).items() if v != float("inf")}
            for name, profile in self.profiles.items()
        }
        return {**asdict(self), "profiles": profiles}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StudyOptions:
        """Return the options of a coordinated study run from :meth:`to_row`."""
        profiles = {name: MachineProfile(**values) for name, values in row["profiles"].items()}
        return cls(row["seed"], profiles, row["baselines"], row["bootstrap_resamples"])


@dataclass(frozen=True, slots=True)
class StudyParticipant:
    """Prepared site as a participant of the federation."""

    site: PreparedSite
    study: Study
    wall_clock: WallClock
    profile: MachineProfile
    learners: dict[str, Learner] = field(default_factory=dict, repr=False)
    """Learners of the run by name, for the evaluation with their personal layers."""
    state_dir: Path | None = None
    """Folder of the site's run state; None keeps it in memory, for a run that is replayed."""

    @property
    def has_withdrawals(self) -> bool:
        """Whether subjects of this study participant withdrew since the coordinated run started."""
        return self.site.has_withdrawals

    def data_digest(self, secret: bytes) -> str:
        """Return the digest of a study participant's rows at the start of the coordinated run."""
        return self.site.digest

    def learner(self, context: LearnerContext) -> Learner:
        """Return a coordinated study participant's learner, which checks consents before each task."""
        learner = self.learners[context.name] = ConsentedLearner(
            context.name,
            context.model,
            self.site.rows,
            context.codec,
            context.seed,
            roster=self.roster(context.run),
            min_cell_count=self.site.min_cell_count,
            max_batch_size=self.site.file.config.limits.max_batch_size,
            secret=context.secret,
        )
        folder = None
        if self.state_dir is not None:
            folder = self.state_dir / _POLICY_DIR / content_digest(context.name.encode())[:32]
        make_study_policy(
            self.site.file,
            self.study,
            learner,
            SiteRunState(context.run, folder),
            self.release_log,
            open_release_gate(self.site.file, self.study, lambda: self.wall_clock(0.0)),
        )
        return learner

    @property
    def release_log(self) -> ReleaseLog:
        """Release log of a site that the coordinator runs as study participant."""
        return open_release_log(self.site.file, self.site.min_cell_count)

    def roster(self, run: str) -> ConsentRoster:
        """Return the consent roster of a site that the coordinator runs as study participant."""
        return ConsentRoster(self.site.file, self.study, run, self.site.patient_ids, self.wall_clock)

    def eligible_subjects_at(self, run: str, seconds: float) -> frozenset[str]:
        """Return the subjects whose consent is in force at the coordinator's final evaluation."""
        try:
            return self.roster(run).take_snapshot_for_round(self.site.all_subjects, seconds)[0]
        except RefusedError:
            return frozenset()

    def releasable_subjects(self, eligible: frozenset[str]) -> frozenset[str]:
        """Return the subjects whose test rows the coordinator evaluates; none if the site's registry refuses it."""
        try:
            return releasable_subjects(self.release_log, self.site, eligible)
        except RefusedError:
            return frozenset()


def run_study(
    study: Study,
    sites: Sequence[LoadedSiteConfig | Path],
    store: Store | Path | None = None,
    options: StudyOptions | None = None,
    *,
    name: str = "",
    engine: str | EngineFactory = "virtual",
    watch: Watcher | None = None,
    on_progress: ProgressCallback = lambda text: None,
    now: datetime | None = None,
) -> Run:
    """Coordinate a study at several sites, from their records to an evaluated community model.

    Args:
        study: The study document.
        sites: The sites' configurations, or their paths.
        store: Store of the run; the user's data folder if not given.
        options: Options of the run.
        name: Name of the run; an interrupted run of this name is resumed.
        engine: `virtual`, `local`, `ray`, or `flower` (a loopback network on this machine: a centre and a node for each
            site).
        watch: Receives every event.
        on_progress: Receives progress texts without record content.
        now: Time at which consents are checked and ages computed, and at which simulated time starts.

    Raises:
        RefusedError: Too few sites can take part, anonymity cannot be reached, or a run of that name has other
            settings; nothing was trained.
    """
    open_store = store if isinstance(store, Store) else Store(store or default_folder())
    files = [site if isinstance(site, LoadedSiteConfig) else load_site(site) for site in sites]
    options = options or StudyOptions()
    if engine == FLOWER:
        return _run_on_loopback(study, files, open_store, options, on_progress)
    engine_factory = LocalEngineFactory(engine) if isinstance(engine, str) else engine
    started_at, row = now or datetime.now(UTC), open_store.get_run(name) if name else None
    gate: GateFactory = build_consent_gate
    if row is not None and row.status == "running":
        started_at = datetime.fromisoformat(row.recipe["settings"]["now"])
        gate = _remaining_consent_gate(open_store, row, started_at)
    ingests = ingest_sites(study, files, started_at, on_progress, gate)
    return run_prepared_study(
        study,
        ingests,
        open_store,
        options,
        name=name,
        engine=engine_factory,
        watch=watch,
        on_progress=on_progress,
        now=started_at,
    )


def run_prepared_study(
    study: Study,
    ingests: Sequence[SiteIngest],
    store: Store,
    options: StudyOptions,
    *,
    now: datetime,
    name: str = "",
    engine: str | EngineFactory = "virtual",
    watch: Watcher | None = None,
    on_progress: ProgressCallback = lambda text: None,
) -> Run:
    """Coordinate a study at ingested sites; several runs may share one ingest.

    Args:
        study: The study document.
        ingests: The sites' ingested data.
        store: Store of the run.
        options: Options of the run.
        now: Time of the ingest.
        name: Name of the run.
        engine: Engine of the run; sites on a network ingest their own records.
        watch: Receives every event.
        on_progress: Receives progress texts without record content.
    """
    engine_factory = LocalEngineFactory(engine) if isinstance(engine, str) else engine
    name = check_run_name(name or new_run_name(study.study.id))
    federation = study_federation(
        study,
        ingests,
        store,
        options,
        now=now,
        run=name,
        engine_factory=engine_factory,
        on_progress=on_progress,
    )
    return federation.run(name, store=store, engine=engine_factory, watch=watch)


def resume_study(
    store: Store,
    row: RunRow,
    *,
    watch: Watcher | None = None,
    on_progress: ProgressCallback = lambda text: None,
) -> Run:
    """Coordinate the rest of an interrupted study run, without the subjects that withdrew since.

    Raises:
        RefusedError: The sites' data changed in another way.
    """
    settings = row.recipe["settings"]
    if row.engine == FLOWER:
        raise SettingsError(
            f"run '{row.run}' is a network run",
            where="resume",
            remedy="run 'abaton serve study STUDY' again with the same store and study",
        )
    files = [load_site(Path(path)) for path in settings["sites"]]
    options = StudyOptions.from_row(settings)
    study = study_from_toml(settings["study"])
    return run_study(
        study,
        files,
        store,
        options,
        name=row.run,
        engine=row.engine,
        watch=watch,
        on_progress=on_progress,
    )


def study_federation(
    study: Study,
    ingests: Sequence[SiteIngest],
    store: Store,
    options: StudyOptions,
    *,
    now: datetime,
    run: str,
    engine_factory: EngineFactory,
    on_progress: ProgressCallback = lambda text: None,
) -> Federation:
    """Return the federation of a coordinated study with ingested sites; an unfinished run keeps its preparation."""
    if options.baselines and study.learning is not None and study.learning.personal_layers is not None:
        raise SettingsError(
            "baselines need full models, and this study has personal layers",
            where="baselines",
            remedy="run without baselines, or remove [learning.personal_layers]",
        )
    unknown = set(options.profiles) - {ingest.name for ingest in ingests}
    if unknown:
        raise SettingsError(
            f"there is a profile of '{min(unknown)}', but no such site", where="profiles", remedy="remove it"
        )
    state_dir, is_simulated = state_folder(store, run), engine_factory.name == "virtual"
    path = state_dir / "prepared.json"
    stored = None if store.get_run(run) is None else PreparationState.read(path)
    keyed = [
        replace(ingest, key=ingest.key + engine_factory.secret(options.seed, ingest.name, state_dir))
        for ingest in ingests
    ]
    prepared = prepare_sites(study, keyed, options.seed, stored, partial(_release_sums, study, options.seed))
    if study.learning is not None:
        check_sites(study.learning, prepared)
    wall_clock: WallClock = _real_clock
    if is_simulated:
        elapsed = _elapsed_seconds(store, run) if _has_withdrawals(prepared) else 0.0
        wall_clock = _simulated_clock(now, elapsed)
    learners: dict[str, Learner] = {}
    participants = {
        site.name: StudyParticipant(
            site,
            study,
            wall_clock,
            options.profiles.get(site.name, MachineProfile()),
            learners,
            None if is_simulated else state_dir,
        )
        for site in prepared.sites
    }
    files = [str(Path(ingest.file.name).resolve()) for ingest in ingests]
    reports = {} if stored else _release_cohorts(study, ingests, now)
    study_run = _StudyRun(study, prepared, participants, options, files, now, run, is_simulated, reports)
    learning = study_run.learning
    return Federation(
        learning.build_model(features=len(model_columns(prepared.columns)), classes=len(prepared.classes)),
        participants,
        with_mean_scores(
            learning.build_strategy(len(participants), seed=options.seed), study.privacy.disclosure
        ),
        learning.build_codec(),
        downlink=learning.build_downlink(),
        metadata=RunMetadata(
            recipe_name=STUDY_RECIPE,
            settings=study_run.settings(),
            title=study.study.id,
            components=study_run.components(),
            packages=learning.plugins,
            study_facts=study_run.facts() if stored is None else {},
            deployment=study_run.deployment(),
            evaluate=lambda opened, row, outcome: study_run.evaluate(opened, row, outcome, on_progress),
            start=lambda: _start(prepared.preparation, path),
            finish=lambda: _finish(path),
        ),
    )


def deployment_data(
    columns: Sequence[FeatureColumn],
    classes: Sequence[str],
    scale: CommonScale,
    recoding: RecodingChoice | None,
    min_cell_count: int,
) -> dict[str, Any]:
    """Return the data for deployment of a coordinated study's model: columns, levels, scaling, classes or label."""
    numeric = {column.name for column in columns if column.is_numeric}
    ranges = {} if recoding is None else {"ranges": list(recoding.node)}
    splines = {column.name: column.spline.to_row() for column in columns if column.spline is not None}
    return {
        **ranges,
        **({"splines": splines} if splines else {}),
        "columns": [column.name for column in columns],
        "classes": list(classes),
        "label": list(scale.label),
        "scale": {
            name: [moments.mean, moments.std, name in numeric]
            for name, moments in scale.columns.columns.items()
        },
        "known": observed_fractions(columns, scale.columns, min_cell_count),
    }


def observed_fractions(
    columns: Sequence[FeatureColumn], statistics: ColumnStatistics, min_cell_count: int
) -> dict[str, float]:
    """Return each deployed input's fraction of observed values; 1 if fewer than `min_cell_count` subjects lack it.

    >>> from abaton.features import ColumnMoments as Moments
    >>> moments = {"age": Moments(100), "dose": Moments(98), "ecg=normal": Moments(60), "ecg=other": Moments(40)}
    >>> columns = [FeatureColumn(name, name.split("=")[0], has_statistics=True) for name in moments]
    >>> observed_fractions(columns, ColumnStatistics(moments), 5)
    {'age': 1.0, 'dose': 1.0, 'ecg': 0.6}
    """
    counts: dict[str, int] = {}
    for column in columns:  # a site that may not release one category may release another
        if column.has_statistics:
            counts[column.input] = max(counts.get(column.input, 0), statistics.columns[column.name].count)
    subjects = max(counts.values(), default=0)
    return {
        name: 1.0 if subjects - count < min_cell_count else round(count / subjects, 2)
        for name, count in counts.items()
    }


@dataclass(frozen=True, slots=True)
class _StudyRun:
    """Metadata and evaluation of a study run."""

    study: Study
    prepared: PreparedSites
    participants: Mapping[str, StudyParticipant]
    options: StudyOptions
    site_files: Sequence[str]
    now: datetime
    run: str
    is_simulated: bool
    cohort_reports: Mapping[str, Mapping[str, Any]]

    @property
    def learning(self) -> LearningSection:
        assert self.study.learning is not None
        return self.study.learning

    def settings(self) -> dict[str, Any]:
        """Return the settings from which the coordinator can repeat the study run."""
        return {
            "study": write_toml(self.study),
            "sites": list(self.site_files),
            "now": self.now.isoformat(),
            **self.options.to_row(),
        }

    def deployment(self) -> dict[str, Any]:
        """Return the coordinator's data for the deployment of the study's model."""
        prepared, preparation = self.prepared, self.prepared.preparation
        return deployment_data(
            prepared.columns,
            prepared.classes,
            preparation.scale,
            preparation.recoding,
            self._max_min_cell_count,
        )

    @property
    def _max_min_cell_count(self) -> int:
        return max(site.min_cell_count for site in self.prepared.sites)

    def components(self) -> dict[str, Any]:
        """Return what determines a coordinated study run besides strategy and rows: document, evaluation, limits."""
        options, sites = self.options, self.prepared.sites
        evaluation = {"baselines": options.baselines, "bootstrap_resamples": options.bootstrap_resamples}
        return {
            "evaluation": {**self.learning.evaluation.model_dump(mode="json"), **evaluation},
            "document": self.study.hash,
            "max_batch_size": {site.name: site.file.config.limits.max_batch_size for site in sites},
            "min_cell_count": {site.name: site.min_cell_count for site in sites},
        }

    def facts(self) -> dict[str, Any]:
        """Return the facts of a coordinated study run for its report, with suppressed counts."""
        seconds, prepared = 0.0 if self.is_simulated else self.now.timestamp(), self.prepared
        cohorts = {
            name: participant.roster(self.run).take_snapshot_for_round(
                participant.site.all_subjects, seconds
            )[1]
            for name, participant in self.participants.items()
        }
        return {
            **study_facts(self.study),
            "tables": {site.name: site.digest for site in prepared.sites},
            "cohorts": cohorts,
            "excluded_sites": dict(prepared.excluded_sites),
            "anonymity": prepared.anonymity,
            "cohort_reports": dict(self.cohort_reports),
        }

    def evaluate(
        self, store: Store, row: RunRow, outcome: RunOutcome, on_progress: ProgressCallback
    ) -> dict[str, Any]:
        """Return the results of a coordinated study run: traffic, evaluation, local benefit, interpretability."""
        on_progress("evaluating")
        options, prepared, learning = self.options, self.prepared, self.learning
        model = learning.build_model(
            features=len(model_columns(prepared.columns)), classes=len(prepared.classes)
        )
        traffic = traffic_by_site(Journal(store, row.run), model.layout)
        community = store.model_files.get(outcome.digest)
        training = learning.build_strategy(len(self.participants)).training
        epochs = training.epochs * max((site["updates"] for site in traffic.values()), default=1)
        # Consents are checked once more: rows of withdrawn subjects neither train a baseline nor test a model.
        seconds = outcome.seconds if self.is_simulated else datetime.now(UTC).timestamp()
        eligible = {
            name: participant.eligible_subjects_at(row.run, seconds)
            for name, participant in self.participants.items()
        }
        subjects = {
            name: participant.releasable_subjects(eligible[name])
            for name, participant in self.participants.items()
        }
        learners = {
            name: learner
            for participant in self.participants.values()
            for name, learner in participant.learners.items()
        }
        restore_learner_state(state_folder(store, row.run), learners)
        local = {name: local_layers(learner) for name, learner in learners.items()}

        settings = LocalBenefitSettings(epochs, options.seed, options.bootstrap_resamples).bounded()
        baselines: dict[str, Baseline] = {}
        if options.baselines:
            on_progress("training local-only and pooled models")
            baselines = train_baselines(prepared, model, training, settings.epochs, options.seed, eligible)

        level = strictest_level(disclosure_level(site.file.config, self.study) for site in prepared.sites)
        if level is not DisclosureLevel.EXACT:
            models: dict[str, Vector | Baseline] = {COMMUNITY: community, **baselines}
            released = self._released_evaluation(row.run, level, model, models, eligible, local)
            if learning.personalise:  # the sites keep their personal models; their comparison is not released
                self._local_benefit(
                    store, row, (model, community), subjects, settings, released, baselines, on_progress
                )
            return {"traffic": traffic, "evaluation": released, "progress": []}

        def evaluate(models: Mapping[str, Any], bootstrap_resamples: int) -> dict[str, Any]:
            return evaluate_models(
                learning, prepared, model, models, lambda site: subjects[site.name], seed=options.seed,
                bootstrap_resamples=bootstrap_resamples, local=local,
            )  # fmt: skip

        points = [
            metric_point(version, evaluate({COMMUNITY: vector}, 0))
            for version, vector in (sampled_versions(store, row.run) if options.bootstrap_resamples else ())
        ]
        evaluation = evaluate({COMMUNITY: community, **baselines}, options.bootstrap_resamples)
        return {
            "traffic": traffic,
            **self._local_benefit(
                store, row, (model, community), subjects, settings, evaluation, baselines, on_progress
            ),
            "progress": [point for version_points in points for point in version_points],
            **self._interpretability(model, community, subjects, local),
            "cohort_description": describe_cohort(self.study, prepared, subjects, model.layout.trained.size),
            **self._performance(model, community, subjects, local),
            **self._internal_external_validation(row.run, subjects, on_progress),
        }

    def _released_evaluation(
        self,
        run: str,
        level: DisclosureLevel,
        model: Model,
        models: Mapping[str, Vector | Baseline],
        subjects: Mapping[str, frozenset[str]],
        local: Mapping[str, Mapping[str, Vector]],
    ) -> dict[str, Any]:
        """Return a coordinated run's evaluation at a level without exact numbers of single sites."""
        sites = []
        for prepared in self.prepared.sites:
            gate = open_release_gate(prepared.file, self.study, lambda: self.now)
            gate = ReleaseGate(gate.register, level, gate.settings, lambda: self.now)
            rows = np.array([subject in subjects[prepared.name] for subject in prepared.test.subjects], bool)
            sites.append(EvaluatedSite(prepared, gate, rows))

        def predict(site: EvaluatedSite, entry: Vector | Baseline) -> NDArray[Any]:
            data, classes = to_examples(site.site.test), self.prepared.classes
            if not site.rows.any():
                return np.zeros((0, len(classes)) if classes else 0)
            if isinstance(entry, Baseline):
                return entry.predict(data.x)[site.rows]
            return model.score(entry, data, local.get(site.site.name)).predictions[site.rows]

        evaluated = [
            EvaluatedModel(
                name,
                content_digest(f"{run}/{name}".encode() if isinstance(entry, Baseline) else entry.tobytes()),
                {site.site.name: predict(site, entry) for site in sites},
            )
            for name, entry in models.items()
        ]
        try:
            return evaluate_released(
                self.learning,
                self.study.study.id,
                self.prepared.classes,
                sites,
                evaluated,
                seed=self.options.seed,
            )
        finally:
            for site in sites:
                site.gate.register.close()

    def _internal_external_validation(
        self, run: str, subjects: Mapping[str, frozenset[str]], on_progress: ProgressCallback
    ) -> dict[str, Any]:
        """Return the internal-external validation of a coordinated run, if the study requests it."""
        if not self.learning.evaluation.internal_external:
            return {}
        on_progress("internal-external validation")
        options = self.options
        validation = validate_by_site(
            self.learning, self.prepared, subjects, options.profiles, seed=options.seed, run=run
        )
        return {"internal_external_validation": validation}

    def _performance(
        self,
        model: Model,
        vector: Vector,
        subjects: Mapping[str, frozenset[str]],
        local: Mapping[str, Mapping[str, Vector]],
    ) -> dict[str, Any]:
        """Return the exact performance in a coordinated run of two classes on one machine."""
        if len(self.prepared.classes) != 2 or not self.options.bootstrap_resamples:
            return {}
        predictions = predict_test_rows(self.prepared, model, vector, subjects, local)
        return {"performance": performance_results(predictions, self.learning.evaluation.confidence_level)}

    def _interpretability(
        self,
        model: Model,
        vector: Vector,
        subjects: Mapping[str, frozenset[str]],
        local: Mapping[str, Mapping[str, Vector]],
    ) -> dict[str, Any]:
        """Return the interpretability results of a coordinated study run on one machine, if requested."""
        section, prepared = self.learning.interpretability, self.prepared
        if section is None:
            return {}
        deployment = self.deployment()
        site_results = {
            site.name: explain_at_site(
                site, section, prepared.columns, prepared, model, vector, subjects[site.name],
                seed=self.options.seed, local=local.get(site.name), is_exact=True,
            )
            for site in prepared.sites
        }  # fmt: skip
        combined = combine_interpretability(
            section, prepared.columns, deployment, self._max_min_cell_count, site_results
        )
        coefficients = linear_coefficients(model, vector, prepared.columns, deployment)
        return {"interpretability": {**combined, "coefficients": coefficients}}

    def _local_benefit(
        self,
        store: Store,
        row: RunRow,
        models: tuple[Model, Vector],
        subjects: Mapping[str, frozenset[str]],
        settings: LocalBenefitSettings,
        evaluation: Mapping[str, Any],
        baselines: Mapping[str, Baseline],
        on_progress: ProgressCallback,
    ) -> dict[str, Any]:
        """Return a coordinated run's evaluation with each site's local benefit; store the sites' personal models."""
        learning = self.learning
        if learning.personal_layers is not None or not (settings.bootstrap_resamples or learning.personalise):
            return {"evaluation": evaluation}
        on_progress("comparing with local-only models")
        benefits = {
            site.name: site_benefit(
                site, self.prepared, learning, models, subjects[site.name], settings,
                baselines.get(local_only_name(site.name)),
            )
            for site in self.prepared.sites
        }  # fmt: skip
        for name, benefit in benefits.items():
            if benefit.personal_models:
                path = personal_models_path(state_folder(store, row.run), name)
                save_personal_models(path, benefit.personal_models)
        return add_benefits(learning, evaluation, benefits)


def _start(preparation: PreparationState, path: Path) -> None:
    """Store the preparation when a coordinated run starts; delete the policy state of one of the same name."""
    shutil.rmtree(path.parent / _POLICY_DIR, ignore_errors=True)
    preparation.write(path)


def _finish(path: Path) -> None:
    """Delete the files that the coordinator needs only to resume a study run."""
    path.unlink(missing_ok=True)
    shutil.rmtree(path.parent / _POLICY_DIR, ignore_errors=True)


def _release_sums(study: Study, seed: int, split: SplitTable) -> SiteSums:
    """Return the scaling sums that a site on the coordinator's machine releases, controlled by its release log."""
    return released_sums(open_release_log(split.ingest.file, split.min_cell_count), study, seed, split)


def _release_cohorts(study: Study, ingests: Sequence[SiteIngest], now: datetime) -> dict[str, dict[str, Any]]:
    """Return the cohort reports of sites on the coordinator's machine, released by the sites' gates.

    At level `summed` sites have no attrition of their own; that of three or more of them is reported as one.
    """
    reports: dict[str, dict[str, Any]] = {ingest.name: {} for ingest in ingests}
    gates = {i.name: open_release_gate(i.file, study, lambda: now) for i in ingests if i.cohort is not None}
    cohorts = {ingest.name: ingest.cohort for ingest in ingests if ingest.cohort is not None}
    for name, cohort in cohorts.items():
        reports[name] = cohort_report(released_cohort(gates[name], study, cohort))
    summed = [name for name, gate in gates.items() if gate.level is DisclosureLevel.SUMMED]
    if len(summed) >= MIN_SITES:
        shares = [cohort_share(gates[name], study, cohorts[name], summed) for name in summed]
        threshold = max(gates[name].settings.threshold for name in summed)
        reports[ALL] = cohort_report(summed_cohort(shares, list(cohorts[summed[0]].cells), threshold))
    for gate in gates.values():
        gate.register.close()
    return reports


def study_facts(study: Study) -> dict[str, Any]:
    """Return the facts of a coordinated study and its method for the report of a run."""
    header, deidentification = study.study, study.deidentification
    assert study.learning is not None
    return {
        "study": {
            "id": header.id,
            "hash": study.hash,
            "title": header.title,
            "question": " ".join((header.question or "").split()),
            "purpose": header.purpose.value,
            "legal_basis": header.legal_basis,
            "centre": study.centre.name,
            "shared_data": [shared.value for shared in header.shared_data],
            "mechanism": deidentification.mechanism.value,
            "dates": deidentification.dates.value,
            "disclosure": study.privacy.disclosure.value,
            "min_cell_count": study.privacy.min_cell_count,
            "statements": {key.value: text for key, text in study.consent.statements.items()}
            if study.consent
            else {},
            "outcome": study.features.label.name if study.features else None,
        },
        "method": study.learning.model_dump(mode="json"),
    }


def _simulated_clock(started_at: datetime, elapsed: float) -> WallClock:
    """Return the coordinator's clock of a simulated run, from its start, or its interruption after a restart."""
    return lambda seconds: started_at + timedelta(seconds=elapsed + seconds)


def _real_clock(seconds: float) -> datetime:
    """Convert the POSIX seconds of a coordinated run on a real engine to UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def _has_withdrawals(prepared: PreparedSites) -> bool:
    return any(site.has_withdrawals for site in prepared.sites)


def _elapsed_seconds(store: Store, run: str) -> float:
    """Return the duration of an interrupted study run by its own clock, for the coordinator to resume it."""
    return run_head(store, run).timestamp


def _remaining_consent_gate(store: Store, row: RunRow, started_at: datetime) -> GateFactory:
    """Return consent gates for a study run that the coordinator resumes: subjects that withdrew are refused."""
    simulated = row.engine == "virtual"
    elapsed = timedelta(seconds=_elapsed_seconds(store, row.run)) if simulated else timedelta()
    later = max(datetime.now(UTC), started_at + elapsed)
    return lambda file, study: RemainingConsentGate(
        build_consent_gate(file, study), later, simulated=simulated
    )


def _run_on_loopback(
    study: Study,
    files: Sequence[LoadedSiteConfig],
    store: Store,
    options: StudyOptions,
    on_progress: ProgressCallback,
) -> Run:
    """Coordinate a study on a loopback network; refuse options that need a simulation or pooled rows."""
    from abaton.study_run.server import NetworkRunOptions, run_loopback

    check_on_network(study)
    if options.profiles or options.baselines:
        raise SettingsError(
            "profiles and baselines are not available on a network",
            where="engine flower",
            remedy="remove profiles and baselines, or use the engine 'virtual'",
        )
    network_options = NetworkRunOptions(len(files), options.seed, options.bootstrap_resamples)
    return Run(store, run_loopback(study, files, store, network_options, on_progress).run)
