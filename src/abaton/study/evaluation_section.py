"""Evaluation and interpretability sections of a study document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from abaton.documents.fields import Name, Section, field_error

Metric = Literal[
    "auroc",
    "auprc",
    "calibration",
    "sensitivity",
    "accuracy",
    "brier",
    "rmse",
    "mae",
    "r_squared",
    "concordance",
]


class EvaluationGroupSection(Section):
    """Subgroups of the results: by the categories of an input, or by bands of its values."""

    input: Name
    bands: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if list(self.bands) != sorted(set(self.bands)):
            raise field_error("the bands do not rise", "write for example bands = [50, 65]")
        return self


class EvaluationSection(Section):
    """Evaluation of the model on test subjects, who are not used for training."""

    metrics: tuple[Metric, ...] = ()
    specificity: float = Field(0.9, gt=0, lt=1)
    test_fraction: float = Field(0.2, gt=0, lt=1)
    confidence_level: float = Field(0.95, gt=0, lt=1)
    groups: tuple[EvaluationGroupSection, ...] = ()
    internal_external: bool | None = None  # None, so that documents without it keep their hash


class InterpretabilitySection(Section):
    """Permutation importance and partial dependence; every evaluation counts against the sites' limits.

    >>> section = InterpretabilitySection(permutation_repeats=3, partial_dependence=["age"], grid_points=5)
    >>> section.evaluations({"age": 0, "sex": 2})
    11
    """

    permutation_repeats: int = Field(5, ge=0, le=100)
    partial_dependence: tuple[Name, ...] = ()
    grid_points: int = Field(9, ge=2, le=25)

    def evaluations(self, inputs: Mapping[str, int]) -> int:
        """Return how often this section has a model evaluated on all test subjects, for interpretability.

        Args:
            inputs: Number of categories of every input; 0 for a number.
        """
        return self.permutation_repeats * len(inputs) + sum(
            inputs[name] or self.grid_points for name in self.partial_dependence
        )
