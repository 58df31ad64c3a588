"""Policy of a site in a study: requests are checked against the task contract, numbers pass the release gate.

All engines apply it at the site. Refusals are counted; their reasons are only in the site's log.

Invariants:
(1) no task trains differently from the study document, or from a model far from the last one;
(2) a version is trained on once, and a model is evaluated once: on a network only a model with a trusted signature, and
    one of each site and version;
(3) no update is computed from fewer rows than the site allows, or from a few rows that a crafted model singles out,
    and none is released beyond the privacy budget over all runs;
(4) numbers of subjects and validation scores are released by the release gate: with noise and within the privacy
    budget, or at level `exact` with small counts suppressed; with noise no loss is released.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from abaton.codecs import CodecKey
from abaton.disclosure.levels import DisclosureLevel
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.errors import RefusedError
from abaton.layout import Vector
from abaton.learners import SitePolicy, SiteReply, SiteRequest
from abaton.learners.site_policy import ALLOW_ALL
from abaton.metrics.counts import REGRESSION_SUMS, SURVIVAL_SUMS
from abaton.metrics.predictions import is_survival_label
from abaton.site import LoadedSiteConfig, ReleaseLog, SitePolicySection
from abaton.study import Study
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.model_signatures import SiteSigner
from abaton.study_run.site_run_state import SiteRunState
from abaton.study_run.task_contract import TaskContract, too_few_rows_text
from abaton.study_run.validation_scores import (
    MAX_LOSS,
    MAX_SQUARED_ERROR,
    noisy_counts,
    noisy_sums,
    suppress_counts,
)
from abaton.training import round_key

_INITIAL_STEPS = (
    100.0  # learning rates by which a parameter may change on average before the site's first update
)
_MAX_VERSIONS_BETWEEN = 16  # versions between two trainings of a site, for models that it only evaluates


@dataclass
class StudyPolicy(SitePolicy):
    """Policy of one site in one run.

    Args:
        contract: Tasks that the study document allows.
        limits: The site's own limits.
        release_log: The site's release log.
        state: Requests and replies of this run.
        learner: The site's learner.
        gate: The site's release gate.
        site_policy: A policy of the site's own that is applied first.
        signer: Signs models and checks signatures; None where all sites are on one machine.
    """

    contract: TaskContract
    limits: SitePolicySection
    release_log: ReleaseLog
    state: SiteRunState
    learner: ConsentedLearner
    gate: ReleaseGate
    site_policy: SitePolicy = field(default_factory=lambda: ALLOW_ALL)
    signer: SiteSigner | None = None
    _sizes: dict[tuple[bool, int], int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Answer scores at level `summed` as at level `noisy`: they are numbers of a single site."""
        if self.gate.level is DisclosureLevel.SUMMED:
            self.gate = self.gate.at_level(DisclosureLevel.NOISY)

    @property
    def is_exact(self) -> bool:
        """Whether the study policy releases numbers without noise."""
        return self.gate.level is DisclosureLevel.EXACT

    def admit(self, request: SiteRequest) -> None:
        """Study policy: refuse a task that the task contract does not allow."""
        self.site_policy.admit(request)
        try:
            if request.message_type == "train":
                self._admit_training(request)
            elif request.message_type == "evaluate":
                self._admit_scoring(request)
        except RefusedError:
            self.state.record_refusal()
            raise

    def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        """Study policy: return the releasable reply: its numbers by the release gate, no update from too few rows."""
        reply = self.site_policy.release(request, reply)
        try:
            if request.message_type == "train":
                return self._release_update(request, reply)
            if request.message_type == "evaluate":
                counts = self._release_scores(request, reply.header["counts"])
                return SiteReply({**reply.header, "counts": counts}, reply.payload)
        except RefusedError:
            self.state.record_refusal()
            raise
        return reply

    def admit_evaluation(self, models: Iterable[Vector]) -> None:
        """Study policy: admit versions of the community model for evaluation on test rows.

        Raises:
            RefusedError: They are too many, or not of this run.
        """
        limit = self.limits.max_test_evaluations
        for model in models:
            try:
                self._check_distance(model, _MAX_VERSIONS_BETWEEN)
                if not self.state.record_once("tested", _digest(model), limit):
                    raise _policy_error(f"more than {limit} models would be evaluated on test rows")
            except RefusedError:
                self.state.record_refusal()
                raise

    def admit_once(self, message_type: str, model: Vector, *settings: int) -> None:
        """Study policy: admit a request type for one model of a run; the same request may be repeated.

        Raises:
            RefusedError: The request was answered for another model, or with other settings.
        """
        self.admit_evaluation([model])
        if not self.state.record_once(message_type, f"{_digest(model)}/{settings}", 1):
            self.state.record_refusal()
            raise _policy_error(f"'{message_type}' was answered for another model, or with other settings")

    # ---- training ---------------------------------------------------------------------------------------------------

    def _admit_training(self, request: SiteRequest) -> None:
        assert request.settings is not None
        assert request.version is not None
        assert request.model is not None
        self.contract.check(request.version, request.settings)
        last_version, last_task = self.state.last_update
        is_repeated = request.version < last_version or (
            request.version == last_version and not self.contract.may_repeat_version
        )
        if is_repeated and request.task_id != last_task:
            raise _policy_error("an update of this version of the model, or of a later one, was released")
        rows = len(self.learner.examples)
        if rows < self.limits.min_rows and not self.contract.may_admit_small_sites:
            raise _policy_error(too_few_rows_text(self.limits))
        batch_size = self._batch_size(request)
        if batch_size < min(self.limits.min_batch_size, rows):
            raise _policy_error(f"the batch size is {batch_size}, less than {self.limits.min_batch_size}")
        last = self.state.last_model
        self._check_distance(request.model, max(1, request.version - (last[0] if last else 0)))
        if request.version == 0 and not np.array_equal(request.model, self._initial()):
            raise _policy_error(
                "the first model differs from the one that the study document and the seed determine"
            )
        self.state.record_model(request.version, request.model)

    def _release_update(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        assert request.settings is not None
        assert request.version is not None
        header, rows = dict(reply.header), self.learner.size(request.settings)
        min_rows = 1 if self.contract.may_admit_small_sites else min(rows, self.limits.min_rows)
        if header["steps"] * self._batch_size(request) < min_rows:
            raise _policy_error(f"the update would be computed from fewer than {min_rows} rows")
        self._check_effective_examples(request)
        self._spend_budget(request)
        header["examples"] = self.released_examples(
            rows, use_validation_data=request.settings.use_validation_data
        )
        if self.is_exact:
            header["counts"] = self._suppress(header["counts"])
        else:
            header["loss"], header["counts"] = None, ()
            header["steps"] = max(1, round(header["steps"] * header["examples"] / max(1, rows)))
        if self.signer is not None and "signature" not in header:  # a repeated reply has a signature already
            assert request.model is not None
            signature = self.signer.sign(self.learner, request.version, request.model, reply.payload)
            header["signature"] = signature
        if request.task_id != self.state.last_update[1]:
            self.state.record_update(
                request.version, request.task_id, self._update_norm(request.version, reply.payload)
            )
        return SiteReply(header, reply.payload)

    def _check_effective_examples(self, request: SiteRequest) -> None:
        """Study policy: refuse an update of a model that is right but for a few rows, as it depends on those only."""
        assert request.settings is not None
        assert request.model is not None
        if self.contract.may_admit_small_sites:
            return  # the noise of the privacy budget protects single rows
        min_examples = min(self.limits.min_batch_size, self.learner.size(request.settings) / 2)
        if self.learner.effective_examples(request.model, request.settings) < min_examples:
            raise _policy_error(f"the update would depend on fewer than {min_examples:g} effective rows")

    def _spend_budget(self, request: SiteRequest) -> None:
        """Study policy: spend one update of the privacy budget, shared by all runs with the site's subjects."""
        if self.contract.strategy.privacy is None:
            return
        task = f"{self.state.run}\x1f{request.task_id}"
        if not self.release_log.spend_budget(self.contract.study.hash, task, self.contract.max_updates):
            raise _policy_error("the site's privacy budget for this study is spent")

    def _batch_size(self, request: SiteRequest) -> int:
        assert request.settings is not None
        return min(
            self.learner.apply_limits(request.settings).batch_size,
            max(1, self.learner.size(request.settings)),
        )

    def released_examples(self, count: int, *, use_validation_data: bool = False) -> int:
        """Study policy: return the released number of training subjects; the least allowed one if none is released."""
        key = use_validation_data, count if self.is_exact else 0
        if key not in self._sizes:
            patient_ids = self.learner.training_patient_ids(use_validation_data=use_validation_data)
            about = {"rows": "training", "seed": self.learner.seed, "with_validation": use_validation_data}
            question = Question("training_size", self.contract.study.study.id, about)
            try:
                released = self.gate.table(question, {"training": patient_ids}).values.get("training", 1.0)
            except RefusedError:  # the privacy budget is used up
                released = self.limits.min_rows
            self._sizes[key] = max(1, round(released))
        return self._sizes[key]

    # ---- models -----------------------------------------------------------------------------------------------------

    def _check_distance(self, model: Vector, versions: int) -> None:
        """Study policy: refuse a model further from the last one than this many versions of updates explain."""
        last = self.state.last_model
        start = self._initial() if last is None else last[1]
        if len(model) != len(start):
            raise _policy_error(f"the model has {len(model)} parameters instead of {len(start)}")
        size, training = len(start), self.contract.strategy.training
        initial_norm = math.sqrt(size) * max(1.0, _INITIAL_STEPS * training.learning_rate)
        max_norm = self.state.max_update_norm
        step = max(max_norm, initial_norm) if not max_norm or self.contract.has_server_optimiser else max_norm
        distance = float(np.linalg.norm(np.asarray(model, np.float64) - np.asarray(start, np.float64)))
        if not distance <= self.limits.max_model_shift_ratio * step * versions:
            raise _policy_error("the model is further from the last one than updates can explain")

    def _initial(self) -> Vector:
        return self.learner.model.initial(self.learner.seed)

    def _update_norm(self, version: int, payload: bytes) -> float:
        key = CodecKey(round_key(self.learner.seed, version), self.learner.name)
        update = self.learner.codec.decode(payload, self.learner.model.layout, key)
        return float(np.linalg.norm(update.astype(np.float64)))

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def _admit_scoring(self, request: SiteRequest) -> None:
        assert request.model is not None
        if not self.contract.may_score_models:
            raise _policy_error("the study document does not allow sites to evaluate models")
        author = request.task_id
        if self.signer is not None:
            self.signer.check(request.model, request.signed_model)
            assert request.signed_model is not None
            author = f"{request.signed_model.trained_by}\x1f{request.signed_model.version}"
        self._check_distance(request.model, _MAX_VERSIONS_BETWEEN)
        limit = self.limits.max_scored_models * (
            self.contract.max_versions if self.contract.is_synchronous else 1
        )
        if not self.contract.is_synchronous:
            limit += self.contract.max_versions
        model = _digest(request.model)
        if not self.state.record_once("scored", f"{author}\x1f{model}", limit):
            raise _policy_error(f"more than {limit} models would be evaluated")
        has_one_model = self.signer is not None and not self.contract.may_repeat_version
        if has_one_model and not self.state.record_once(f"scored\x1f{author}", model, 1):
            raise _policy_error("another model of the same site and version was evaluated")

    def _release_scores(self, request: SiteRequest, counts: Any) -> tuple[float, ...]:
        """Study policy: return releasable validation counts of a model; none if the privacy budget is used up."""
        assert request.model is not None
        if self.is_exact or not counts:
            return self._suppress(counts)
        validation, patient_ids = self.learner.validation, self.learner.validation_patient_ids
        assert validation is not None
        question = Question("score", self.contract.study.study.id, {"model": _digest(request.model)})
        if is_survival_label(validation.y):
            losses = self.learner.validation_losses(request.model)
            return noisy_sums(self.gate, question, patient_ids, losses, MAX_LOSS, len(SURVIVAL_SUMS))
        predictions = self.learner.predict_validation(request.model)
        if predictions.ndim == 1:
            errors = (predictions - validation.y).astype(np.float64) ** 2
            length = len(REGRESSION_SUMS)
            return noisy_sums(self.gate, question, patient_ids, errors, MAX_SQUARED_ERROR, length)
        return noisy_counts(
            self.gate, question, patient_ids, predictions, validation.y, self.contract.released_loss
        )

    def _suppress(self, counts: Any) -> tuple[float, ...]:
        return suppress_counts(tuple(counts), self.gate.settings.threshold, self.contract.released_loss)


def make_study_policy(
    file: LoadedSiteConfig,
    study: Study,
    learner: ConsentedLearner,
    state: SiteRunState,
    release_log: ReleaseLog,
    gate: ReleaseGate,
    site_policy: SitePolicy = ALLOW_ALL,
) -> StudyPolicy:
    """Return the study policy of a site in a run, and apply it to the learner."""
    contract, limits = TaskContract(study), file.config.policy
    policy = StudyPolicy(contract, limits, release_log, state, learner, gate, site_policy)
    learner.policy, learner.released_count = policy, policy.released_examples
    learner.releases_labels = policy.is_exact
    return policy


def _policy_error(what: str) -> RefusedError:
    return RefusedError(what, where="policy", remedy="see 'abaton site policy --explain'")


def _digest(model: Vector) -> str:
    return hashlib.blake2b(np.ascontiguousarray(model).tobytes(), digest_size=16).hexdigest()
