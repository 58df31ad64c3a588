"""Weighting factors of updates; the weight of an update is their product.

The author's own validation counts are included by default, as in the Metis paper; a learner with wrong labels then
agrees with its own validation set. Without them, models are evaluated on different unions of validation sets and are
less comparable.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import exp, inf
from typing import ClassVar, Literal, Protocol

from abaton.controller.state import Contribution
from abaton.errors import SettingsError
from abaton.metrics.counts import METRICS, Counts, relative_loss, task_of

_MAX_EXPONENT = (
    60.0  # the smallest weight by loss is e^-60, so that a run whose first models are all bad still learns
)


class Weighting(Protocol):
    """Factor of the weight of an update.

    A user-defined weighting inherits from this class and implements `weight`; it has no state.
    """

    is_uniform: ClassVar[bool] = False
    """Whether all updates of a round have the same weight, as a privacy budget against readers needs."""

    @abstractmethod
    def weight(self, contribution: Contribution) -> float:
        """Return the weighting factor of an update: finite and not negative."""

    @property
    def validation(self) -> ValidationWeighting | None:
        """Evaluators that this weighting needs to score a model, if any; they give `contribution.counts`."""
        return None


@dataclass(frozen=True, slots=True)
class ExampleWeighting(Weighting):
    """Weight by the number of training examples (FedAvg)."""

    def weight(self, contribution: Contribution) -> float:
        """Return the number of examples as the weighting factor of an update."""
        return float(contribution.update.examples)


@dataclass(frozen=True, slots=True)
class ValidationWeighting(Weighting):
    """Weight by the model's metric on the validation sets of the other learners (distributed validation weighting).

    Attributes:
        metric: Name of a metric in `metrics.counts`.
        evaluators: Number of other learners that evaluate each model; all of them if None.
        evaluator_selection: `random`, or `label_coverage`: the sample whose labels are closest to the federation's.
        include_own_validation: Whether the author's own validation set is included, as in the paper.
        combination: `sum` of the evaluators' counts, as in the paper, or `mean` of their scores over all evaluations so
            far: one evaluator with wrong labels then has less influence, and noise in the counts averages out.
        interval: Number of versions between evaluations; with `mean` the last mean is used in between.
    """

    metric: str = "micro_f1"
    evaluators: int | None = None
    evaluator_selection: Literal["random", "label_coverage"] = "random"
    include_own_validation: bool = True
    combination: Literal["sum", "mean"] = "sum"
    interval: int = 1

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise SettingsError(
                f"there is no metric '{self.metric}'",
                where="weighting",
                remedy=f"use one of {', '.join(METRICS)}",
            )
        if self.evaluators is not None and self.evaluators < 1:
            raise SettingsError(
                f"evaluators is {self.evaluators}",
                where="weighting",
                remedy="use at least 1, or remove it",
            )
        if self.evaluator_selection not in ("random", "label_coverage"):
            raise SettingsError(
                f"evaluator_selection is '{self.evaluator_selection}'",
                where="weighting",
                remedy="use 'random' or 'label_coverage'",
            )
        if self.evaluator_selection == "label_coverage" and (
            self.evaluators is None or task_of(self.metric) != "classification"
        ):
            raise SettingsError(
                "evaluator_selection is 'label_coverage', which needs a number of evaluators and class labels",
                where="weighting",
                remedy="set evaluators, use a classification metric, or remove it",
            )
        _check_combination(self.combination, self.interval)

    @property
    def validation(self) -> ValidationWeighting:
        """This validation weighting, whose evaluators score a model."""
        return self

    def weight(self, contribution: Contribution) -> float:
        """Return the metric over the summed counts as the weighting factor, or the mean score; 1 without any score."""
        if self.combination == "mean":
            return 1.0 if contribution.score is None else contribution.score
        return METRICS[self.metric](contribution.counts) if contribution.counts else 0.0

    def score(self, counts: Counts) -> float | None:
        """Return the metric of an evaluator's counts for a weighting by mean scores, at least 0; None without any."""
        return max(0.0, METRICS[self.metric](counts)) if counts else None


@dataclass(frozen=True, slots=True)
class LossWeighting(Weighting):
    """Weight by the log loss on the validation sets of the other learners: exp(-k L/H).

    L is the mean loss and H the entropy of the labels, which is the loss of a model that predicts the frequency of each
    class. With a rare outcome most models predict the same class for all examples, so counts of correct predictions do
    not distinguish them; the loss does.

    Attributes:
        k: How fast the weight falls with the loss.
        evaluators: Number of other learners that evaluate each model; all of them if None.
        evaluator_selection: `random` or `label_coverage`, as of `ValidationWeighting`.
        include_own_validation: Whether the author's own validation set is included.
        is_relative: Whether evaluators send L/H of their own labels instead of losses, as in a study; L/H is then the
            mean of these.
        combination, interval: As of `ValidationWeighting`; the mean is that of L/H.
    """

    k: float = 4.0
    evaluators: int | None = None
    evaluator_selection: Literal["random", "label_coverage"] = "random"
    include_own_validation: bool = False
    is_relative: bool = False
    combination: Literal["sum", "mean"] = "sum"
    interval: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not 0 < self.k < inf:
            raise SettingsError(f"k is {self.k}", where="weighting", remedy="use a number above 0")
        self.validation  # noqa: B018 - checks the settings of the evaluators

    @property
    def validation(self) -> ValidationWeighting:
        """Evaluators that this weighting by loss needs; their counts are those of any classification metric."""
        return ValidationWeighting(
            "accuracy",
            self.evaluators,
            self.evaluator_selection,
            self.include_own_validation,
            self.combination,
            self.interval,
        )

    def weight(self, contribution: Contribution) -> float:
        """Return exp(-k L/H) over all evaluators as the weighting factor; 0 if none reported a loss.

        A mean without any score counts as L/H = 1: no better than the frequencies of the classes.
        """
        loss = self.score(contribution.counts)
        if self.combination == "mean":
            loss = 1.0 if contribution.score is None else contribution.score
        return 0.0 if loss is None else exp(-min(self.k * max(loss, 0.0), _MAX_EXPONENT))

    def score(self, counts: Counts) -> float | None:
        """Return L/H of an evaluator's counts, for a weighting by mean scores; None without a loss."""
        return relative_loss(counts, is_relative=self.is_relative) if counts else None


@dataclass(frozen=True, slots=True)
class StalenessWeighting(Weighting):
    """Discount by the number of versions published since the update started (FedAsync).

    Polynomial: (s + 1)^-a. Hinge: 1 up to b versions, then 1 / (a (s - b) + 1). Constant: 1.
    """

    kind: Literal["polynomial", "hinge", "constant"] = "polynomial"
    a: float = 0.5
    b: float = 4.0

    is_uniform = True

    def __post_init__(self) -> None:
        if self.kind not in ("polynomial", "hinge", "constant"):
            raise SettingsError(
                f"there is no staleness function '{self.kind}'",
                where="weighting",
                remedy="use polynomial, hinge or constant",
            )
        if not (self.a >= 0 and self.b >= 0):
            raise SettingsError(
                f"a is {self.a} and b is {self.b}", where="weighting", remedy="use a >= 0 and b >= 0"
            )

    def weight(self, contribution: Contribution) -> float:
        """Return the weighting factor that discounts missed versions."""
        staleness = contribution.versions_missed
        if self.kind == "polynomial":
            return float((staleness + 1) ** -self.a)
        if self.kind == "hinge" and staleness > self.b:
            return 1 / (self.a * (staleness - self.b) + 1)
        return 1.0


def _check_combination(combination: str, interval: int) -> None:
    if combination not in ("sum", "mean"):
        raise SettingsError(
            f"combination is '{combination}'", where="weighting", remedy="use 'sum' or 'mean'"
        )
    if isinstance(interval, bool) or interval < 1 or (interval > 1 and combination == "sum"):
        raise SettingsError(
            f"interval is {interval} with combination '{combination}'",
            where="weighting",
            remedy="use 1, or combination = 'mean' and a larger interval",
        )


def contribution_weight(factors: tuple[Weighting, ...], contribution: Contribution) -> float:
    """Return the weight of an update: the product of all weighting factors.

    Raises:
        SettingsError: A user-defined factor returned a negative or infinite value.
    """
    weight = 1.0
    for factor in factors:
        weight *= factor.weight(contribution)
    if 0 <= weight < inf:
        return weight
    raise SettingsError(
        f"the weight of learner '{contribution.update.learner}' is {weight}",
        where="weighting",
        remedy="return a finite value >= 0 from every factor",
    )
