"""Service of a site in a network study: consent gate, de-identification, features, learner and evaluator at the site.

Message types in the order of a run: `ingest` (build the table, which stays), `split` (sums for scaling), `scale` (the
rows of the prepared site), then training and evaluation as on every engine, then `evaluate_test`, `local_benefit`,
`interpretability` and `finish`. A field that is not listed in `abaton.study_run.messages` is not sent.

A subject without consent is removed from the stored rows, groups and ids, and the learner's state is reset. All files
are deleted when the run has finished.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import RecodingChoice
from abaton.disclosure.levels import DisclosureLevel
from abaton.disclosure.release_gate import ReleaseGate
from abaton.engines.base import STUDY_MISMATCH, CodedFailureError
from abaton.engines.flower import Message
from abaton.engines.flower.site_worker import (
    WorkerSettings,
    apply_policy,
    read_worker_settings,
    run_folder,
    with_failure_code,
)
from abaton.errors import RefusedError
from abaton.features import FeatureTable, anonymise_table
from abaton.governance.keys import PrivateKey
from abaton.learners import SitePolicy
from abaton.learners.site_policy import ALLOW_ALL
from abaton.models import Model
from abaton.site import (
    LoadedSiteConfig,
    ReleaseLog,
    disallowed_plugins,
    disclosure_level,
    load_site,
    min_cell_count,
    open_release_gate,
)
from abaton.site.factory import open_release_log
from abaton.study import Study, load_study
from abaton.study_run.consent_roster import ConsentRoster
from abaton.study_run.ingest import SiteIngest, ingest_sites
from abaton.study_run.messages import (
    check_fields,
    check_request,
    make_message,
    message_body,
    scale_from_row,
    sums_to_row,
)
from abaton.study_run.model_signatures import SiteSigner, signing_key
from abaton.study_run.preparation import scale_site, split_table
from abaton.study_run.site_releases import (
    check_recoding,
    check_same_seed,
    check_scale,
    released_cohort,
    released_histogram,
    released_sums,
)
from abaton.study_run.site_run_service import PersistentLearner, SiteRunService
from abaton.study_run.site_run_state import PendingTable, SiteRunFolder, SiteRunState, StoredPreparation
from abaton.study_run.study_policy import make_study_policy

WORKER_ENTRY_POINT = "abaton.study_run.site_service:make_site_worker"

_LOG = logging.getLogger(__name__)
_NO_SECURE_SUMS = "disclosure = 'summed' needs secure sums, which are not available on a network yet"
_UNREADABLE_RECORDS = "the records are not readable: see the site's log"

RosterFactory = Callable[[LoadedSiteConfig, Study, str, Mapping[str, str]], ConsentRoster]


def run_roster(
    file: LoadedSiteConfig, study: Study, run: str, patient_ids: Mapping[str, str]
) -> ConsentRoster:
    """Return the consent roster of a run by the real clock, for the site's study service."""
    return ConsentRoster(file, study, run, patient_ids, lambda seconds: datetime.fromtimestamp(seconds, UTC))


def make_site_worker(config: Mapping[str, Any]) -> StudySiteService:
    """Return the site's study service from the settings of `abaton site join`."""
    file = load_site(Path(str(config["site_config"])))
    threads = str(file.config.limits.threads)
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, threads)
    return StudySiteService(
        file, load_study(Path(str(config["study_document"]))), read_worker_settings(config)
    )


class StudySiteService:
    """Message handler of one site in a study.

    Args:
        file: The site's configuration.
        study: The study document that the site agreed to.
        worker_settings: Folder and role of the worker process.
        make_roster: Opens the consent roster of a run.
        release_log: The site's release log; the one beside its configuration if not given.
        release_gate: The site's release gate; by default with the register beside its configuration.
        key: The site's signing key; the one beside its configuration if not given.

    Attributes:
        policy: A policy of the site's own, applied before the study's.
    """

    def __init__(
        self,
        file: LoadedSiteConfig,
        study: Study,
        worker_settings: WorkerSettings,
        make_roster: RosterFactory = run_roster,
        release_log: ReleaseLog | None = None,
        key: PrivateKey | None = None,
        release_gate: ReleaseGate | None = None,
    ) -> None:
        self.file, self.study, self.worker_settings, self._make_roster = (
            file,
            study,
            worker_settings,
            make_roster,
        )
        self._release_log, self._key, self._release_gate = release_log, key, release_gate
        self.policy: SitePolicy = ALLOW_ALL

    def reply(self, message: Message) -> Message:
        """Handle a study request at the site's service and return a reply with listed fields only."""
        return with_failure_code(lambda: check_fields(message.message_type, self._reply(message)))

    def _reply(self, message: Message) -> Message:
        run = str(check_request(message).header["run"])
        if message.header["study_hash"] != self.study.hash:
            raise CodedFailureError(STUDY_MISMATCH)
        if disallowed := next(disallowed_plugins(self.file.config, self.study), None):
            return self._decline(message, disallowed)
        folder, handler = (
            SiteRunFolder(run_folder(self.worker_settings, run)),
            self._handlers.get(message.message_type),
        )
        if handler is not None:
            return apply_policy(
                self.policy, message.message_type, lambda: handler(self, folder, run, message_body(message))
            )
        return SiteRunService(self, folder, run).reply(message)

    def _decline(self, message: Message, disallowed: tuple[Any, str, str]) -> Message:
        """Reply why the site's service declines the study; the text has content of the study document only."""
        _, what, remedy = disallowed
        if message.message_type == "ingest":
            return make_message("reply", {}, {"cohort_report": {}, "problem": what})
        raise RefusedError(what, where=self.file.name, remedy=remedy)

    @property
    def name(self) -> str:
        """The id of the site whose service this is."""
        return self.file.config.site.id

    def learner(self, folder: SiteRunFolder, preparation: StoredPreparation, run: str) -> PersistentLearner:
        """Return the learner of a run with the policy of the site's service."""
        learner = PersistentLearner(
            folder, preparation, self.model(preparation), self.study, self.roster(preparation, run)
        )
        state, release_log = SiteRunState(run, folder.folder / "policy"), self.release_log
        policy = make_study_policy(self.file, self.study, learner, state, release_log, self.policy)
        key, trusted_signers = self._key or signing_key(self.file), self.file.config.policy.trusted_signers
        policy.signer = SiteSigner(key, self.name, self.study.hash, run, trusted_signers, release_log)
        return learner

    @property
    def release_log(self) -> ReleaseLog:
        """The release log that the site's study service uses."""
        return self._release_log or open_release_log(self.file, min_cell_count(self.file.config, self.study))

    @property
    def release_gate(self) -> ReleaseGate:
        """The release gate that the site's study service uses."""
        if self._release_gate is None:
            self._release_gate = open_release_gate(self.file, self.study)
        return self._release_gate

    def roster(self, preparation: StoredPreparation, run: str) -> ConsentRoster:
        """Return the consent roster that the site's study service uses in a run."""
        return self._make_roster(self.file, self.study, run, preparation.site.patient_ids)

    def model(self, preparation: StoredPreparation) -> Model:
        """Return the model definition that the site's study service builds from the document."""
        assert self.study.learning is not None
        return self.study.learning.build_model(
            features=len(preparation.site.test.columns), classes=len(preparation.classes)
        )

    def _ingest(self, folder: SiteRunFolder, run: str, body: Mapping[str, Any]) -> Message:
        if disclosure_level(self.file.config, self.study) is DisclosureLevel.SUMMED:
            return make_message("reply", {}, {"cohort_report": {}, "problem": _NO_SECURE_SUMS})
        (ingest,) = ingest_sites(self.study, [self.file], datetime.now(UTC))
        table, problem = ingest.table, ingest.problem
        if problem and ingest.cohort is None:  # an error text may contain file names: it stays in the log
            _LOG.warning("%s", problem)
            problem = _UNREADABLE_RECORDS
        cohort: dict[str, Any] = {}
        if ingest.cohort is not None:
            cohort = released_cohort(self.release_gate, self.study, ingest.cohort)
        reply: dict[str, Any] = {"cohort_report": cohort, "problem": problem}
        if table is not None:
            folder.store_table(PendingTable(table, ingest.patient_ids))
            reply["min_cell_count"] = table.min_cell_count
            if ingest.anonymity is not None:
                reply |= self._release_histogram(table, ingest.anonymity)
        return make_message("reply", {}, reply)

    def _release_histogram(self, table: FeatureTable, anonymity: AnonymitySettings) -> dict[str, Any]:
        try:
            histogram = released_histogram(self.release_log, self.study, table, anonymity)
            return {"k": anonymity.k, "histogram": histogram.row()}
        except RefusedError as error:  # its text contains no record content
            return {"problem": error.what}

    def _split(self, folder: SiteRunFolder, run: str, body: Mapping[str, Any]) -> Message:
        pending = folder.pending_table()
        try:
            seed = check_same_seed(self.release_log, self.study, int(body["seed"]))
            split = split_table(
                self.study, self._to_ingest(pending), self._anonymise(pending.table, body), seed
            )
            sums = released_sums(self.release_log, self.study, seed, split)
            return make_message("reply", {}, {"problem": "", "sums": sums_to_row(sums)})
        except RefusedError as error:  # its text contains settings only
            return make_message("reply", {}, {"problem": error.what})

    def _scale(self, folder: SiteRunFolder, run: str, body: Mapping[str, Any]) -> Message:
        assert self.study.learning is not None
        if not folder.is_prepared:
            pending, secret = folder.pending_table(), secrets.token_bytes(32)
            seed = check_same_seed(self.release_log, self.study, int(body["seed"]))
            ingest = replace(self._to_ingest(pending), key=secret)
            split = split_table(self.study, ingest, self._anonymise(pending.table, body), seed)
            scale = check_scale(
                self.study.learning,
                scale_from_row(body["scale"]),
                released_sums(self.release_log, self.study, seed, split),
            )
            site = scale_site(self.study, split, scale, split.row_assignments())
            preparation = StoredPreparation(site, split.table.classes, scale.label, seed, secret, "")
            _, cohort = self.roster(preparation, run).take_snapshot_for_round(
                site.all_subjects, datetime.now(UTC).timestamp()
            )
            folder.store_preparation(replace(preparation, cohort=cohort))
        preparation = folder.load_preparation(self.file)
        reply = {
            "table": preparation.site.digest,
            "cohort": preparation.cohort,
            "min_cell_count": preparation.site.min_cell_count,
        }
        return make_message("reply", {}, reply)

    def _finish(self, folder: SiteRunFolder, run: str, body: Mapping[str, Any]) -> Message:
        folder.delete()
        return make_message("reply", {}, {})

    def _to_ingest(self, pending: PendingTable) -> SiteIngest:
        return SiteIngest(self.file, pending.table, pending.patient_ids)

    def _anonymise(self, table: FeatureTable, body: Mapping[str, Any]) -> FeatureTable:
        """Apply the common recoding to the table in the site's service, with a k of at least the site's own."""
        anonymity = self.study.privacy.anonymity
        if anonymity is None:
            return table
        min_k = max(anonymity.k, self.file.config.rules.k or 0)
        settings: AnonymitySettings = replace(anonymity, k=max(min_k, int(body["k"])))
        histogram = released_histogram(self.release_log, self.study, table, settings)
        recoding = check_recoding(
            self.release_log, self.study, histogram, RecodingChoice.from_row(body["recoding"]), settings
        )
        return anonymise_table(table, histogram, recoding, settings)

    _handlers: ClassVar[Mapping[str, Callable[[Any, SiteRunFolder, str, Mapping[str, Any]], Message]]] = {
        "ingest": _ingest,
        "split": _split,
        "scale": _scale,
        "finish": _finish,
    }
