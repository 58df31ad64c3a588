"""How the community model is trained and judged, as written in the study document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from abaton.errors import SettingsError
from abaton.study.lines import Path
from abaton.study.tables import Name
from abaton.study.values import Part, Text, fault, faults

if TYPE_CHECKING:
    from abaton.codecs import Pipeline
    from abaton.control.messages import TrainSettings
    from abaton.control.rules import Rules
    from abaton.learning import Model

Metric = Literal[
    "auroc", "auprc", "calibration", "sensitivity", "accuracy", "brier", "rmse", "mae", "r_squared"
]
_OF_VALUES = frozenset({"rmse", "mae", "r_squared"})
_NETWORK = re.compile(r"(logistic|linear|mlp)\s*(?:\(\s*(\d{1,5}(?:\s*,\s*\d{1,5}){0,7})\s*\))?")
_LEARNERS = 1_000  # how many sites there will be is not known yet; a round can name no more than these


@dataclass(frozen=True, slots=True)
class Network:
    """The network that a line names: its kind and the widths of its hidden layers."""

    kind: str
    hidden: tuple[int, ...] = ()


def network(line: str) -> Network:
    """Read a network line.

    >>> network("mlp(16, 8)")
    Network(kind='mlp', hidden=(16, 8))
    """
    match = _NETWORK.fullmatch(line.strip())
    if match is None or (match[1] == "mlp") != (match[2] is not None):
        raise SettingsError(
            f"there is no network '{line[:60]}'", remedy="write logistic, linear, mlp(16) or mlp(32, 16)"
        )
    return Network(match[1], tuple(int(width) for width in (match[2] or "").split(",") if width.strip()))


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class PolicyTable(Part):
    """Who trains next and how much a model counts: a policy by its name, and what is different from it."""

    name: Text
    participants: int | None = Field(None, ge=1)
    extra: int | None = Field(None, ge=0)
    quorum: int | None = Field(None, ge=1)
    deadline: float | None = Field(None, gt=0)
    attempts: int | None = Field(None, ge=1)
    budget: float | None = Field(None, gt=0)
    measure: Text | None = None
    evaluators: int | None = Field(None, ge=1)
    choice: Literal["lot", "labels"] | None = None
    alpha: float | None = Field(None, gt=0, le=1)
    leavers: Literal["stay", "subtract"] | None = None

    def parts(self, task: str) -> dict[str, Any]:
        """The policy as keywords of the controller's rules.

        Raises:
            SettingsError: There is no such policy, or a setting does not belong to it.
        """
        from abaton.control import POLICIES, Blend, Latest

        if self.name not in POLICIES:
            close = get_close_matches(self.name, POLICIES, n=1)
            guess = f"did you mean '{close[0]}'? " if close else ""
            raise SettingsError(
                f"there is no policy '{self.name}'", remedy=f"{guess}choose {', '.join(POLICIES)}"
            )
        made = dict(POLICIES[self.name])
        given = {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}
        made["pacing"] = _paced(made["pacing"], given)
        if "weighting" in made:
            made["weighting"] = tuple(_weighed(part, given, task) for part in made["weighting"])
        mixing = made.get("mixing", Latest())
        made["mixing"] = _with(mixing, given, "alpha" if isinstance(mixing, Blend) else "leavers")
        if given:
            raise SettingsError(
                f"'{sorted(given)[0]}' does not belong to the policy {self.name}", remedy="remove it"
            )
        return made


def _paced(pacing: Any, given: dict[str, Any]) -> Any:
    """The pacing; with a budget of time, a synchronous one becomes semi-synchronous."""
    from abaton.control import SemiSynchronous, Synchronous

    if "budget" in given and type(pacing) is Synchronous:
        pacing = SemiSynchronous(budget=given.pop("budget"))
    return _with(pacing, given, "participants", "extra", "quorum", "deadline", "attempts")


def _weighed(part: Any, given: dict[str, Any], task: str) -> Any:
    """A part of the weighting; models of values are validated by how close they come."""
    from abaton.control.score import VALUE_MEASURES
    from abaton.control.weighting import ByValidation

    if not isinstance(part, ByValidation):
        return part
    if task == "value":
        given.setdefault("measure", "closeness")
    made = _with(part, given, "measure", "evaluators", "choice")
    if (made.measure in VALUE_MEASURES) != (task == "value"):
        raise SettingsError(
            f"the measure '{made.measure}' does not judge the task '{task}'", remedy="choose another measure"
        )
    return made


def _with(part: Any, given: dict[str, Any], *names: str) -> Any:
    """A part of the rules with what is given for it; what is used is taken out."""
    own = {name: given.pop(name) for name in names if name in given and hasattr(part, name)}
    return replace(part, **own)


class Training(Part):
    """How each learner trains."""

    epochs: int = Field(1, ge=1)
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    solver: Literal["sgd", "adam"] = "sgd"
    proximal: float = Field(0.0, ge=0)
    clip: float = Field(0.0, ge=0)
    window: int = Field(0, ge=0)
    keep_momentum: bool = False
    schedule: Literal["constant", "step", "cosine", "driven"] = "constant"
    decay: float = Field(1.0, gt=0, le=1)
    period: int = Field(1, ge=1)

    def plain(self) -> TrainSettings:
        """The settings as a learner takes them."""
        from abaton.control.messages import TrainSettings

        return TrainSettings(**self.model_dump())


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


class Learning(Part):
    """How the community model is trained and judged."""

    task: Literal["classes", "value"] = "classes"
    network: Text = "logistic"
    policy: Annotated[PolicyTable, BeforeValidator(_named)] = PolicyTable(name="AsyncDVW(na)")
    codec: Text = "raw"
    rounds: int = Field(100, ge=1)
    seconds: float | None = Field(None, gt=0)
    finishing: int = Field(0, ge=0)
    validation: float = Field(0.1, gt=0, lt=1)
    training: Training = Training()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if wrong := list(self._impossible()):
            raise faults(wrong)
        return self

    def _impossible(self) -> Iterator[tuple[Path, str, str]]:
        checks = {("network",): self._network, ("codec",): self.pipeline, ("policy",): self._rules}
        for path, check in checks.items():
            try:
                check()
            except SettingsError as error:
                yield path, error.what, error.remedy or "see docs/study-document.md"
            except ModuleNotFoundError as missing:
                if (
                    missing.name != "numpy"
                ):  # whoever reads a study without numbers, as in a browser, does not train
                    raise
        metrics = self.evaluation.metrics
        for i, metric in enumerate(metrics):
            if (metric in _OF_VALUES) != (self.task == "value") or metric in metrics[:i]:
                at = ("evaluation", "metrics", i)
                yield at, f"'{metric}' stands twice or does not judge the task '{self.task}'", "remove it"

    def _network(self) -> None:
        made = network(self.network)
        if made.kind == ("linear" if self.task == "classes" else "logistic"):
            other = "logistic" if self.task == "classes" else "linear"
            raise SettingsError(f"'{made.kind}' does not fit the task '{self.task}'", remedy=f"use {other}")

    def _rules(self) -> None:
        self.rules(_LEARNERS)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The measures by which the model is judged; the usual ones of the task if none are named."""
        usual = ("auroc", "auprc", "sensitivity", "calibration", "brier")
        return self.evaluation.metrics or (usual if self.task == "classes" else ("rmse", "mae", "r_squared"))

    def rules(self, learners: int, *, seed: int = 0) -> Rules:
        """The controller's rules for so many learners."""
        from abaton.control.rules import Rules

        settings = self.training.plain()
        return Rules(
            learners=learners,
            rounds=self.rounds,
            seconds=self.seconds,
            training=settings,
            seed=seed,
            finishing=self.finishing,
            **self.policy.parts(self.task),
        )

    def pipeline(self) -> Pipeline:
        """The codec that updates travel in."""
        from abaton.codecs.spec import parse

        return parse(self.codec)

    def model(self, *, features: int, classes: int) -> Model:
        """The network, untrained, for so many columns and classes."""
        from abaton.learning import logistic, mlp

        made = network(self.network)
        if made.kind == "logistic":
            return logistic(features=features, classes=classes)
        return mlp(features=features, classes=classes, hidden=made.hidden, task=self.task)
