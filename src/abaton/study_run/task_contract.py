"""Task contract: the tasks that a site accepts, derived from the study document.

The centre can only start, order and stop tasks. Settings of training, the number of versions, the first model and the
evaluation of models are determined by the document whose hash the site agreed to; a task that differs is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from abaton.controller import AsynchronousScheduler, LossWeighting, Strategy, SynchronousScheduler
from abaton.controller.server_optimiser import ServerSgd
from abaton.errors import AbatonError, RefusedError
from abaton.site import SitePolicySection
from abaton.study import LearningSection, Study
from abaton.training import TrainSettings

_ASSUMED_LEARNERS = 1_000  # the number of sites is up to the centre; the contract does not depend on it


@dataclass(frozen=True)
class TaskContract:
    """Tasks that a study document allows at a site."""

    study: Study

    @property
    def learning(self) -> LearningSection:
        """The study's learning section, from which the task contract is derived."""
        assert self.study.learning is not None
        return self.study.learning

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy in the task contract; plugins that only the centre has installed are replaced by defaults."""
        try:
            return self.learning.build_strategy(_ASSUMED_LEARNERS)
        except (AbatonError, ImportError):
            builtin = self.learning.model_copy(
                update={
                    "scheduler": None,
                    "weighting": (),
                    "robust_aggregation": None,
                    "server_optimiser": None,
                }
            )
            return builtin.build_strategy(_ASSUMED_LEARNERS)

    @property
    def max_versions(self) -> int:
        """Largest number of versions of the community model to train on under the task contract."""
        final_versions = self.learning.final_rounds * (1 if self.is_synchronous else _ASSUMED_LEARNERS)
        return self.learning.rounds + final_versions

    @property
    def is_synchronous(self) -> bool:
        """Whether the task contract has synchronous rounds."""
        return isinstance(self.strategy.scheduler, SynchronousScheduler) and self.learning.scheduler is None

    @property
    def may_repeat_version(self) -> bool:
        """Whether the task contract allows several updates of one version: buffered learners do not wait."""
        return self.strategy.scheduler.aggregation == "discounted"

    @property
    def may_score_models(self) -> bool:
        """Whether the task contract lets sites evaluate each other's models."""
        return self.strategy.validation is not None or bool(self.learning.weighting)

    @property
    def released_loss(self) -> Literal["none", "mean", "relative"]:
        """Loss that the task contract lets evaluators release: for the weighting, or for the learning rate."""
        if any(isinstance(factor, LossWeighting) for factor in self.strategy.weighting):
            return "relative"
        return "mean" if self.strategy.training.learning_rate_schedule == "plateau" else "none"

    @property
    def may_admit_small_sites(self) -> bool:
        """Whether the task contract admits a site with few rows: synchronous, no evaluations, a privacy budget."""
        return self.is_synchronous and not self.may_score_models and self.strategy.privacy is not None

    @property
    def max_updates(self) -> int:
        """Largest number of a site's updates in all runs under the task contract: privacy budget or versions."""
        privacy = self.strategy.privacy
        if privacy is None:
            return self.max_versions
        return (
            min(self.max_versions, privacy.allowance)
            if privacy.adversary == "controller"
            else self.max_versions
        )

    @property
    def has_server_optimiser(self) -> bool:
        """Whether the task contract lets a server optimiser move the model further than any update."""
        return (
            not isinstance(self.strategy.server_optimiser, ServerSgd)
            or self.learning.server_optimiser is not None
        )

    def check(self, version: int, settings: TrainSettings) -> None:
        """Refuse training that differs from the task contract of the study document.

        Raises:
            RefusedError: With the setting that differs.
        """
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < self.max_versions:
            raise _contract_error("version")
        if difference := next(self._differing(version, settings), None):
            raise _contract_error(difference)

    def _differing(self, version: int, settings: TrainSettings) -> Iterator[str]:
        base, scheduler = self.strategy.training, self.strategy.scheduler
        varying = (
            "learning_rate_decay",
            "elapsed_epochs",
            "update_thresholds",
            "committed_steps",
            "staleness_limit",
            "time_budget_seconds",
            "steps",
            "use_validation_data",
        )
        free = {name: getattr(base, name) for name in varying}
        if replace(settings, **free) != base:
            yield "training"
        if (
            base.learning_rate_schedule != "plateau"
            and settings.learning_rate_decay != base.learning_rate_decay
        ):
            yield "training.learning_rate_decay"
        max_elapsed = base.elapsed_epochs + self.max_versions * base.epochs
        if (
            not isinstance(settings.elapsed_epochs, int)
            or not base.elapsed_epochs <= settings.elapsed_epochs <= max_elapsed
        ):
            yield "training.elapsed_epochs"
        thresholds = tuple((scheduler.adaptive or {}).values())
        if settings.update_thresholds is not None and settings.update_thresholds not in thresholds:
            yield "scheduler.thresholds"
        budget = getattr(scheduler, "time_budget_seconds", 0.0)
        if settings.time_budget_seconds not in (0, base.time_budget_seconds, budget):
            yield "scheduler.time_budget_seconds"
        may_set_steps = settings.time_budget_seconds or (
            settings.use_validation_data and isinstance(scheduler, AsynchronousScheduler)
        )
        if settings.steps != base.steps and not may_set_steps:
            yield "training.steps"
        if settings.use_validation_data and not (
            self.learning.final_rounds and version >= self.learning.rounds
        ):
            yield "final_rounds"


def too_few_rows_text(policy: SitePolicySection) -> str:
    """Return why the task contract does not admit a site with few rows."""
    return (
        f"fewer than {policy.min_rows} subjects remain to train on, and the study lacks what so few need: synchronous "
        "rounds, no evaluation of models, and a privacy budget"
    )


def _contract_error(setting: str) -> RefusedError:
    return RefusedError(
        f"the task differs from the study document: {setting}",
        where="policy",
        remedy="run the study that the site agreed to",
    )
