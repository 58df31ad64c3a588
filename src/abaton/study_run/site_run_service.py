"""Training, evaluation, local benefit and interpretability of a prepared site in a network run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from abaton.engines.flower import Message
from abaton.engines.flower.site_worker import BaseModelCache, SiteWorker
from abaton.engines.site_state import LearnerDiskState
from abaton.features import feature_columns
from abaton.layout import Vector
from abaton.models import Model
from abaton.study import Study
from abaton.study_run.consent_roster import ConsentRoster
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.evaluation import evaluate_at_site, local_layers
from abaton.study_run.interpretability import explain_at_site
from abaton.study_run.local_benefit import (
    LocalBenefitSettings,
    personal_models_path,
    save_personal_models,
    site_benefit,
)
from abaton.study_run.messages import benefit_to_row, counts_to_row, interpretability_to_row, make_message
from abaton.study_run.site_releases import releasable_subjects
from abaton.study_run.site_report import make_site_report, site_report_path, write_site_report
from abaton.study_run.site_run_state import SiteRunFolder, StoredPreparation
from abaton.study_run.study_policy import StudyPolicy

if TYPE_CHECKING:
    from abaton.study_run.site_service import StudySiteService


class PersistentLearner(ConsentedLearner):
    """Learner with rows in the site's folder: withdrawn subjects are deleted from memory and disk."""

    def __init__(
        self,
        folder: SiteRunFolder,
        preparation: StoredPreparation,
        model: Model,
        study: Study,
        roster: ConsentRoster,
    ) -> None:
        assert study.learning is not None
        site = preparation.site
        super().__init__(
            site.name,
            model,
            site.rows,
            study.learning.build_codec(),
            preparation.seed,
            roster=roster,
            min_cell_count=site.min_cell_count,
            max_batch_size=site.file.config.limits.max_batch_size,
            secret=preparation.secret,
        )
        self._folder, self._preparation = folder, preparation
        self.downlink = study.learning.build_downlink()

    def on_task_start(self, timestamp: float, version: int | None = None) -> None:
        """Check consents in the site's run; delete withdrawn subjects' rows and ids from memory and disk."""
        with self._folder.locked():
            preparation = self._folder.load_preparation(self._preparation.site.file)
            eligible = self._roster.eligible_at(preparation.site.all_subjects, timestamp)
            self._delete_ineligible(preparation, eligible)
            preparation = self._folder.load_preparation(preparation.site.file)
            self._retain_rows(preparation.site.rows)
            try:
                super().on_task_start(timestamp, version)
            finally:
                if self._rows != preparation.site.rows:  # a subject withdrew in the meantime
                    remaining = {*self._rows.train.subjects, *self._rows.validation.subjects}
                    remaining |= set(preparation.site.test.subjects)
                    self._delete_ineligible(preparation, frozenset(remaining))

    def _delete_ineligible(self, preparation: StoredPreparation, eligible: frozenset[str]) -> None:
        site = preparation.site
        ineligible = {site.patient_ids[key] for key in site.all_subjects if key not in eligible}
        if ineligible:
            self._folder.delete_patients(site.file, ineligible.__contains__)


class SiteRunService(SiteWorker):
    """Message handler of a prepared site of a run."""

    def __init__(self, service: StudySiteService, folder: SiteRunFolder, run: str) -> None:
        self._preparation = folder.load_preparation(service.file)
        self._service, self._run, self._folder = service, run, folder
        super().__init__(service.learner(folder, self._preparation, run), service.worker_settings)

    def _evaluate_test(self, cache: BaseModelCache, message: Message) -> Message:
        """Handle a test evaluation in the site's run service: count on test rows of eligible subjects.

        The site's own report of the last model stays at the site, beside the run's folder.
        """
        preparation, subjects = self._preparation, self._releasable_subjects()
        models = self._models(cache, message)
        self._policy.admit_evaluation(models)
        LearnerDiskState(cache.folder, self.learner.name).refresh(self.learner)
        model, local = self.learner.model, local_layers(self.learner)
        counts = [
            counts_to_row(evaluate_at_site(preparation.site, preparation, model, vector, subjects, local))
            for vector in models
        ]
        if models:
            report = make_site_report(
                self._service.study,
                preparation,
                (model, models[-1]),
                subjects,
                local,
                self._folder.load_characteristics(),
            )
            write_site_report(site_report_path(self.worker_settings.folder, self._run), self._run, report)
        return make_message("reply", {}, {"counts": counts})

    def _local_benefit(self, cache: BaseModelCache, message: Message) -> Message:
        """Handle a local benefit request in the site's run service; store the personal models at the site."""
        preparation, learning = self._preparation, self._service.study.learning
        (community,) = self._models(cache, message)
        assert learning is not None
        settings = LocalBenefitSettings(
            *(int(message.header[key]) for key in ("epochs", "seed", "bootstrap_resamples"))
        ).bounded()
        self._policy.admit_once(
            "local_benefit", community, settings.epochs, settings.seed, settings.bootstrap_resamples
        )
        models = self.learner.model, community
        benefit = site_benefit(
            preparation.site, preparation, learning, models, self._releasable_subjects(), settings
        )
        if benefit.personal_models:  # beside the run's folder, which is deleted when the run ends
            save_personal_models(
                personal_models_path(self.worker_settings.folder, self._run), benefit.personal_models
            )
        return make_message("reply", {}, benefit_to_row(benefit))

    def _interpretability(self, cache: BaseModelCache, message: Message) -> Message:
        """Handle an interpretability request in the site's run service, within the site's limits."""
        preparation, study = self._preparation, self._service.study
        assert study.learning is not None
        section = study.learning.interpretability
        if section is None:
            return make_message("reply", {}, {"reason": "the study does not request interpretability"})
        (vector,) = self._models(cache, message)
        self._policy.admit_once("interpretability", vector)
        LearnerDiskState(cache.folder, self.learner.name).refresh(self.learner)
        result = explain_at_site(
            preparation.site,
            section,
            feature_columns(study.feature_spec()),
            preparation,
            self.learner.model,
            vector,
            self._releasable_subjects(),
            seed=preparation.seed,
            local=local_layers(self.learner),
        )
        if isinstance(result, str):
            return make_message("reply", {}, {"reason": result})
        return make_message("reply", {}, {"reason": "", "interpretability": interpretability_to_row(result)})

    @property
    def _policy(self) -> StudyPolicy:
        policy = self.learner.policy
        assert isinstance(policy, StudyPolicy)
        return policy

    def _models(self, cache: BaseModelCache, message: Message) -> list[Vector]:
        """Return the models of a request to the site's run service."""
        evaluations = message.header["evaluations"]
        return cache.models(
            [(evaluation, message.attachments[f"model/{i}"]) for i, evaluation in enumerate(evaluations)]
        )

    def _releasable_subjects(self) -> frozenset[str]:
        """Return the eligible subjects whose test rows the run service may use now by the release log."""
        site, roster = self._preparation.site, self._service.roster(self._preparation, self._run)
        eligible, _ = roster.take_snapshot_for_round(site.all_subjects, datetime.now(UTC).timestamp())
        return releasable_subjects(self._service.release_log, site, eligible)

    _handlers: ClassVar[Mapping[str, Callable[[Any, BaseModelCache, Message], Message]]] = {
        **SiteWorker._handlers,
        "evaluate_test": _evaluate_test,
        "local_benefit": _local_benefit,
        "interpretability": _interpretability,
    }
