"""Split from another module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from abaton.documents.fields import Name, Part, fault

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


class Group(Part):
    """Results are told apart by an input: by its categories, or by bands of its numbers."""

    input: Name
    bands: tuple[float, ...] = ()

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if list(self.bands) != sorted(set(self.bands)):
            raise fault("the bands do not rise", "write for example bands = [50, 65]")
        return self


class Evaluation(Part):
    """How the model is judged, on subjects that nobody trained on."""

    metrics: tuple[Metric, ...] = ()
    specificity: float = Field(0.9, gt=0, lt=1)
    test: float = Field(0.2, gt=0, lt=1)
    confidence: float = Field(0.95, gt=0, lt=1)
    groups: tuple[Group, ...] = ()


class Explanation(Part):
    """What sites add up so that it can be told what the model goes by; every question counts against their limits.

    >>> Explanation(importance=3, dependence=["age"], points=5).questions({"age": 0, "sex": 2})
    11
    """

    importance: int = Field(5, ge=0, le=100)
    dependence: tuple[Name, ...] = ()
    points: int = Field(9, ge=2, le=25)

    def questions(self, inputs: Mapping[str, int]) -> int:
        """How often a model is asked of all test subjects.

        Args:
            inputs: Every input, and how many categories it has; 0 for a number.
        """
        return self.importance * len(inputs) + sum(inputs[name] or self.points for name in self.dependence)
