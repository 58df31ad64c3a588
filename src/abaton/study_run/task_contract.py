"""The contract of a run: what a site derives from the study document by itself, and holds every task against.

The centre starts, orders and stops. How is trained, how often, from which model on, and whether models are scored is in
the document whose hash the site agreed to; a task that says anything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from abaton.controller import Asynchronous, Rules, Synchronous
from abaton.controller.robust_aggregation import Plain
from abaton.errors import AbatonError, Refused
from abaton.site import PolicyPart
from abaton.study import Learning, Study
from abaton.training import TrainSettings

_LEARNERS = 1_000  # how many sites take part is the centre's to say; no rule here depends on it


@dataclass(frozen=True)
class Contract:
    """What a study document lets a centre ask of a site."""

    study: Study

    @property
    def learning(self) -> Learning:
        """How the study learns."""
        assert self.study.learning is not None
        return self.study.learning

    @cached_property
    def rules(self) -> Rules:
        """The controller's rules; a pacing or weighting of a package that only the centre has is left out of them."""
        try:
            return self.learning.rules(_LEARNERS)
        except (AbatonError, ImportError):
            plain = self.learning.model_copy(
                update={"pacing": None, "weighting": (), "robust": None, "server": None}
            )
            return plain.rules(_LEARNERS)

    @property
    def versions(self) -> int:
        """How many versions of the community model there can be to train on."""
        last = self.learning.finishing * (1 if self.synchronous else _LEARNERS)
        return self.learning.rounds + last

    @property
    def synchronous(self) -> bool:
        """Whether the study has rounds that all sites share."""
        return isinstance(self.rules.pacing, Synchronous) and self.learning.pacing is None

    @property
    def repeats(self) -> bool:
        """Whether a site may be asked for several updates of one version: learners with a buffer do not wait for it."""
        return self.rules.pacing.mixes == "discounted"

    @property
    def scores(self) -> bool:
        """Whether sites score each other's models."""
        return self.rules.validation is not None or bool(self.learning.weighting)

    @property
    def tells_loss(self) -> bool:
        """Whether the learning rate is driven by what evaluators tell of losses."""
        return self.rules.training.schedule == "driven"

    @property
    def small_sites(self) -> bool:
        """Whether a site with few rows may take part: in rounds, without scores, under a privacy budget."""
        return self.synchronous and not self.scores and self.rules.privacy is not None

    @property
    def updates(self) -> int:
        """The most updates that one site may give, over all runs of the study: its privacy budget, or every version."""
        privacy = self.rules.privacy
        if privacy is None:
            return self.versions
        return min(self.versions, privacy.allowance) if privacy.against == "controller" else self.versions

    @property
    def leaps(self) -> bool:
        """Whether the community model may move further than any update, by an optimiser at the centre."""
        return not isinstance(self.rules.server, Plain) or self.learning.server is not None

    def check(self, version: int, asked: TrainSettings) -> None:
        """Refuse to train otherwise than the study document says.

        Raises:
            Refused: With what differs.
        """
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < self.versions:
            raise _other("version")
        if wrong := next(self._differing(version, asked), None):
            raise _other(wrong)

    def _differing(self, version: int, asked: TrainSettings) -> Iterator[str]:
        base, pacing = self.rules.training, self.rules.pacing
        varying = (
            "decay",
            "elapsed",
            "adaptive",
            "committed",
            "staleness_limit",
            "budget",
            "steps",
            "complete",
        )
        free = {name: getattr(base, name) for name in varying}
        if replace(asked, **free) != base:
            yield "training"
        if base.schedule != "driven" and asked.decay != base.decay:
            yield "training.decay"
        most = base.elapsed + self.versions * base.epochs
        if not isinstance(asked.elapsed, int) or not base.elapsed <= asked.elapsed <= most:
            yield "training.elapsed"
        known = tuple((pacing.adaptive or {}).values())
        if asked.adaptive is not None and asked.adaptive not in known:
            yield "pacing.thresholds"
        budget = getattr(pacing, "budget", 0.0)
        if asked.budget not in (0, base.budget, budget):
            yield "pacing.budget"
        counted = asked.budget or (asked.complete and isinstance(pacing, Asynchronous))
        if asked.steps != base.steps and not counted:
            yield "training.steps"
        if asked.complete and not (self.learning.finishing and version >= self.learning.rounds):
            yield "finishing"


def small(terms: PolicyPart) -> str:
    """Why a site with few rows takes no part, in words."""
    return (
        f"fewer than {terms.fewest_rows} people are left to train on, and the study has no privacy budget with rounds "
        "and without scores, which so few need"
    )


def _other(what: str) -> Refused:
    return Refused(
        f"the task does not train as the study document says: {what}",
        where="policy",
        remedy="the centre has to run the study that the site agreed to",
    )
