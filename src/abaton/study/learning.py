"""Learning section of a study document: model, strategy, training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from abaton.documents.fields import Section, Text, field_errors
from abaton.documents.line_numbers import KeyPath
from abaton.errors import SettingsError, did_you_mean
from abaton.specs import ComponentSettingError, parse_spec
from abaton.study import components
from abaton.study.components import (
    CODEC,
    MODEL,
    ROBUST_AGGREGATION,
    SCHEDULER,
    SERVER_OPTIMISER,
    WEIGHTING,
    ComponentField,
    Packages,
    build_named,
    builtin_components,
    plugin_component,
)
from abaton.study.evaluation_section import EvaluationSection, InterpretabilitySection, Metric

if TYPE_CHECKING:
    from abaton.codecs import CodecPipeline
    from abaton.controller import DifferentialPrivacy
    from abaton.controller.strategies import Strategy
    from abaton.controller.weighting import Weighting
    from abaton.models import Model
    from abaton.training import TrainSettings

Personalisation = Literal["recalibrate", "fine-tune", "interpolate"]
_DEFAULT_METRICS: Mapping[str, tuple[Metric, ...]] = {
    "classification": ("auroc", "auprc", "sensitivity", "calibration", "brier"),
    "regression": ("rmse", "mae", "r_squared"),
    "survival": ("concordance",),
}
"""Metrics of the evaluation if the study names none."""
_METRIC_TASKS: Mapping[str, str] = {
    name: task for task in ("regression", "survival") for name in _DEFAULT_METRICS[task]
}
"""Task of a metric, if it is not classification."""
_DEFAULT_HAZARD_INTERVALS = 10
_MAX_LEARNERS = 1_000  # the number of sites is not known yet
_STAGES = ("strategy", "scheduler", "weighting", "robust_aggregation", "server_optimiser", "privacy")
_TRAINING_MODULES = frozenset(
    {"numpy", "immutables", "abaton.codecs", "abaton.controller", "abaton.learners", "abaton.kernels"}
)
"""Where these are not installed, as in a browser, nothing is trained; the centre has checked the components."""


def _named_table(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class ThresholdsSection(Section):
    """Thresholds of the adaptive update frequency: minimal fall of the loss in percent, and number of tombstones."""

    loss: float = Field(0.0, ge=0)
    tombstones: int = Field(4, ge=0)


class StrategySection(Section):
    """Strategy by name, and the settings in which the study differs from it."""

    name: Text
    participants: int | None = Field(None, ge=1)
    over_selection: int | None = Field(None, ge=0)
    quorum: int | None = Field(None, ge=1)
    deadline: float | None = Field(None, gt=0)
    max_attempts: int | None = Field(None, ge=1)
    time_budget_seconds: float | None = Field(None, gt=0)
    buffer_size: int | None = Field(None, ge=1)
    metric: Text | None = None
    evaluators: int | None = Field(None, ge=1)
    evaluator_selection: Literal["random", "label_coverage"] | None = None
    include_own_validation: bool | None = None
    combination: Literal["sum", "mean"] | None = None
    interval: int | None = Field(None, ge=1)
    thresholds: ThresholdsSection | None = None
    alpha: float | None = Field(None, gt=0, le=1)
    departed: Literal["keep", "subtract"] | None = None

    def to_settings(self, task: str, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the ``[learning]`` section's strategy as keyword arguments of the controller's `Strategy`.

        Args:
            task: The learning task.
            without: Settings that the study replaces: `scheduler`, `weighting`.

        Raises:
            SettingsError: The strategy is unknown, or a setting does not belong to it.
        """
        from abaton.controller import STRATEGIES, FedAsyncContribution, LatestContribution

        if self.name not in STRATEGIES:
            raise SettingsError(
                f"there is no strategy '{self.name}'",
                remedy=f"{did_you_mean(self.name, STRATEGIES)} choose {', '.join(STRATEGIES)}".strip(),
            )
        settings = {key: value for key, value in STRATEGIES[self.name].items() if key not in without}
        given = {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}
        if "scheduler" in settings:
            settings["scheduler"] = _apply_to_scheduler(settings["scheduler"], given)
        if "weighting" in settings:
            settings["weighting"] = tuple(
                _apply_to_weighting(factor, given, task) for factor in settings["weighting"]
            )
        contribution_rule = settings.get("contribution_rule", LatestContribution())
        key = "alpha" if isinstance(contribution_rule, FedAsyncContribution) else "departed"
        settings["contribution_rule"] = _apply(contribution_rule, given, key)
        if given:
            replaced = f", whose {' and '.join(without)} the study replaces" if without else ""
            raise ComponentSettingError(
                f"'{sorted(given)[0]}' is not a setting of the strategy {self.name}{replaced}",
                "remove it",
                sorted(given)[0],
            )
        return settings


def _apply_to_scheduler(scheduler: Any, given: dict[str, Any]) -> Any:
    """Apply the settings of ``[learning]`` to a scheduler; a time budget makes it semi-synchronous."""
    from abaton.controller import SemiSynchronousScheduler, SynchronousScheduler, UpdateThresholds

    if "thresholds" in given and scheduler.adaptive is not None:
        scheduler = replace(scheduler, adaptive={"": UpdateThresholds(**given.pop("thresholds"))})
    if "time_budget_seconds" in given and type(scheduler) is SynchronousScheduler:
        scheduler = SemiSynchronousScheduler(time_budget_seconds=given.pop("time_budget_seconds"))
    keys = ("participants", "over_selection", "quorum", "deadline", "max_attempts", "buffer_size")
    return _apply(scheduler, given, *keys)


def _apply_to_weighting(base: Any, given: dict[str, Any], task: str) -> Any:
    """Apply the settings of ``[learning]`` to a weighting; the default metric depends on the task."""
    from abaton.controller.weighting import ValidationWeighting
    from abaton.metrics.counts import task_of

    if not isinstance(base, ValidationWeighting):
        return base
    if task != "classification":
        given.setdefault("metric", {"regression": "inverse_mse", "survival": "likelihood"}[task])
    weighting = _apply(base, given, *(setting.name for setting in fields(base)))
    if task_of(weighting.metric) != task:
        problem = f"the metric '{weighting.metric}' does not fit the task '{task}'"
        raise SettingsError(problem, remedy="choose another metric")
    return weighting


def _apply(component: Any, given: dict[str, Any], *names: str) -> Any:
    """Apply settings of ``[learning]`` to a component; the settings used are removed from `given`."""
    settings = {name: given.pop(name) for name in names if name in given and hasattr(component, name)}
    return replace(component, **settings)


class TrainingSection(Section):
    """Local training of each learner."""

    epochs: int = Field(1, ge=1)
    batch_size: int = Field(32, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    optimiser: Literal["sgd", "adam"] = "sgd"
    proximal_mu: float | None = Field(None, ge=0)
    max_grad_norm: float = Field(0.0, ge=0)
    shuffle_window: int = Field(0, ge=0)
    keep_optimiser_state: bool = False
    learning_rate_schedule: Literal["constant", "step", "cosine", "plateau"] = "constant"
    learning_rate_decay: float = Field(1.0, gt=0, le=1)
    schedule_period: int = Field(1, ge=1)

    def to_settings(self) -> TrainSettings:
        """Return the training settings of a learner from the ``[learning]`` section."""
        from abaton.training import TrainSettings

        return TrainSettings(**self.model_dump(exclude_none=True))


class PrivacyBudgetSection(Section):
    """Site-level differential privacy budget of the whole run.

    Each site clips its updates to L2 norm `clip_norm` and adds Gaussian noise of `noise_multiplier * clip_norm`.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    noise_multiplier: float = Field(gt=0)
    clip_norm: float = Field(1.0, gt=0)
    adversary: Literal["controller", "readers"] = "controller"

    def to_settings(self) -> DifferentialPrivacy:
        """Return the privacy budget of ``[learning]`` as the controller's strategy takes it."""
        from abaton.controller import DifferentialPrivacy

        return DifferentialPrivacy(self.epsilon, self.delta, self.noise_multiplier, self.adversary)


class PersonalLayersSection(Section):
    """Layers that are trained at each site and never leave it, by tensor name or pattern."""

    layers: tuple[Text, ...] = Field(min_length=1)

    def patterns(self, names: Collection[str]) -> list[str]:
        """Return the tensor patterns of personal layers in ``[learning]``; a layer's name means all its tensors.

        `role:norm` and `role:statistic` mean the tensors of these roles.

        >>> PersonalLayersSection(layers=["2", "0.bias"]).patterns(["0.weight", "0.bias", "2.weight", "2.bias"])
        ['2.*', '0.bias']
        """
        return [
            layer
            if layer.startswith("role:") or any(fnmatchcase(name, layer) for name in names)
            else f"{layer}.*"
            for layer in self.layers
        ]


class LearningSection(Section):
    """Section ``[learning]``: model, strategy, training and evaluation."""

    task: components.Task = "classification"
    model: Text = "logistic"
    hazard_intervals: int | None = Field(None, ge=2, le=100)
    strategy: Annotated[StrategySection, BeforeValidator(_named_table)] = StrategySection(name="AsyncDVW(na)")
    scheduler: ComponentField | None = None
    weighting: tuple[ComponentField, ...] = ()
    robust_aggregation: ComponentField | None = None
    server_optimiser: ComponentField | None = None
    robustness: Literal["capped"] | None = None
    codec: Text = "raw"
    downlink: Text | None = None
    privacy: PrivacyBudgetSection | None = None
    personal_layers: PersonalLayersSection | None = None
    plugins: Packages = Field(default_factory=dict)
    rounds: int = Field(100, ge=1)
    max_seconds: float | None = Field(None, gt=0)
    final_rounds: int = Field(0, ge=0)
    validation_fraction: float = Field(0.1, gt=0, lt=1)
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection = EvaluationSection()
    interpretability: InterpretabilitySection | None = None
    personalise: tuple[Personalisation, ...] = ()

    @model_validator(mode="after")
    def _validate(self, info: ValidationInfo) -> Self:
        load = bool((info.context or {}).get("load"))
        if errors := list(self._problems(load=load)):
            raise field_errors(errors)
        return self

    def _problems(self, *, load: bool) -> Iterator[tuple[KeyPath, str, str]]:
        """Yield every contradiction in ``[learning]`` with its path; plugins are checked only with `load`."""
        checks: dict[str, Callable[[], object]] = {
            "model": partial(self._check_model, load=load),
            "codec": partial(self._check_codec, self.codec, self.build_codec, load=load),
            "downlink": partial(self._check_codec, self.downlink, self.build_downlink, load=load),
            **{stage: partial(self._check_stage, stage, load=load) for stage in _STAGES},
            "personal_layers": self._check_personal_layers,
        }
        failed = False
        for key, check in checks.items():
            if failed and key in _STAGES:
                continue  # an earlier stage is invalid
            try:
                check()
            except SettingsError as error:
                setting = getattr(error, "setting", "")
                path = (key, setting) if setting and key != "codec" else (key,)
                yield path, components.without_name(error.what), error.remedy or "see docs/study-document.md"
                failed = failed or key in _STAGES
            except ModuleNotFoundError as missing:
                if missing.name not in _TRAINING_MODULES:
                    raise
        metrics = self.evaluation.metrics
        for i, metric in enumerate(metrics):
            if _METRIC_TASKS.get(metric, "classification") != self.task or metric in metrics[:i]:
                yield (
                    ("evaluation", "metrics", i),
                    f"'{metric}' is listed twice or does not fit the task '{self.task}'",
                    "remove it",
                )
        if self.hazard_intervals is not None and self.task != "survival":
            yield (
                ("hazard_intervals",),
                f"the task '{self.task}' has no hazard intervals",
                "remove 'hazard_intervals'",
            )
        yield from self._personalisation_problems()
        if self.evaluation.internal_external:
            yield from self._internal_external_problems()

    def _internal_external_problems(self) -> Iterator[tuple[KeyPath, str, str]]:
        path = ("evaluation", "internal_external")
        if self.task != "classification":
            yield path, f"the task '{self.task}' has no internal-external validation", "remove it"
        if self.personal_layers is not None:
            yield path, "an omitted site has no personal layers", "remove it or [learning.personal_layers]"
        if self.privacy is not None:
            yield (
                path,
                "each run without a site would need its own privacy budget",
                "remove it or [learning.privacy]",
            )

    def _personalisation_problems(self) -> Iterator[tuple[KeyPath, str, str]]:
        for i, method in enumerate(self.personalise):
            if method in self.personalise[:i]:
                yield ("personalise", i), f"'{method}' is listed twice", "remove it"
        if self.personalise and self.task == "survival":
            yield ("personalise",), "survival models cannot be personalised", "remove 'personalise'"
        if self.personalise and self.personal_layers is not None:
            yield (
                ("personalise",),
                "a model with personal layers is personalised already",
                "remove 'personalise' or [learning.personal_layers]",
            )

    def _check_model(self, *, load: bool) -> None:
        spec = components.parse_model_spec(self.model)
        if spec.kind in components.BUILTIN_MODELS:
            components.check_model(spec, self.task, self.train_settings())
        elif load or not self.plugins:
            self.build_model(features=1, classes=2)

    def _check_codec(self, spec: str | None, build: Callable[[], object], *, load: bool) -> None:
        if load or not self.plugins or not self._plugin_codecs(spec):
            build()

    def _check_stage(self, stage: str, *, load: bool) -> None:
        """Check the strategy of the ``[learning]`` section as far as the given stage."""
        if stage != "strategy" and not getattr(self, stage):
            return
        if stage == "privacy" and find_spec("dp_accounting") is None:
            return  # the budget is checked where the run is controlled
        stages = _STAGES[: _STAGES.index(stage) + 1]
        plugins = {} if load or not self.plugins else self._plugin_names()
        self._build_strategy(_MAX_LEARNERS, 0, [checked for checked in stages if checked not in plugins])

    def _check_personal_layers(self) -> None:
        if self.personal_layers is None:
            return
        names = components.tensor_names(components.parse_model_spec(self.model))
        if not names:
            return  # the tensors of a plugin are known once it is built
        patterns = self.personal_layers.patterns(names)
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise SettingsError(
                    "no layer of the model matches one of 'layers'", remedy=f"use one of {', '.join(names)}"
                )
        if all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names):
            raise SettingsError("every layer is personal", remedy="leave at least one layer to share")

    def _plugin_codecs(self, spec: str | None) -> list[str]:
        known = builtin_components(CODEC)
        return [part.name for part in parse_spec(spec) if part.name not in known] if spec else []

    def _parse_codec(self, spec: str) -> CodecPipeline:
        """Parse a codec spec of the ``[learning]`` section, plugins included."""
        from abaton.codecs.registry import parse_codec

        return parse_codec(
            spec,
            {
                name: plugin_component(CODEC, name, self.plugins, builtin_components(CODEC))
                for name in self._plugin_codecs(spec)
            },
        )

    def _plugin_names(self) -> dict[str, list[str]]:
        """Return, by key of ``[learning]``, the names of components that are not built in."""
        kinds = {
            "scheduler": SCHEDULER,
            "robust_aggregation": ROBUST_AGGREGATION,
            "server_optimiser": SERVER_OPTIMISER,
            "weighting": WEIGHTING,
        }
        plugins = {}
        for key, kind in kinds.items():
            value = getattr(self, key)
            specs = value if isinstance(value, tuple) else () if value is None else (value,)
            if names := [spec.name for spec in specs if spec.name not in builtin_components(kind)]:
                plugins[key] = names
        return plugins

    @property
    def site_plugins(self) -> tuple[tuple[str, str], ...]:
        """Return the kind and name of every plugin of ``[learning]`` that would run at sites."""
        kind = components.parse_model_spec(self.model).kind
        codecs = dict.fromkeys([*self._plugin_codecs(self.codec), *self._plugin_codecs(self.downlink)])
        models = () if kind in components.BUILTIN_MODELS else ((MODEL, kind),)
        return (*((CODEC, name) for name in codecs), *models)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the evaluation metrics of ``[learning]``; the task's defaults if the study names none."""
        return self.evaluation.metrics or _DEFAULT_METRICS[self.task]

    def train_settings(self) -> TrainSettings:
        """Return the settings of local training of ``[learning]``; unset ones have the values of the strategy's paper.

        Raises:
            SettingsError: An adaptive cycle cannot end, since it compares consecutive epochs.
        """
        from abaton.controller.strategies import STRATEGIES, paper_training

        training, name = self.training.to_settings(), self.strategy.name
        if name not in STRATEGIES or self.scheduler is not None:
            return training
        if STRATEGIES[name]["scheduler"].adaptive is not None:
            if training.epochs < 2:
                raise SettingsError(
                    f"training.epochs is {training.epochs}, and {name} compares consecutive epochs",
                    remedy="set training.epochs to the maximum of a cycle, such as 20",
                )
            return training
        return paper_training(name, self.training.model_dump(exclude_none=True))

    def build_strategy(self, learners: int, *, seed: int = 0) -> Strategy:
        """Build the controller's strategy from the ``[learning]`` section for a number of learners."""
        return self._build_strategy(learners, seed, _STAGES)

    def _build_strategy(self, learners: int, seed: int, stages: Collection[str]) -> Strategy:
        from abaton.controller.strategies import Strategy

        return Strategy(
            learners=learners,
            rounds=self.rounds,
            max_seconds=self.max_seconds,
            training=self.train_settings(),
            seed=seed,
            final_rounds=self.final_rounds,
            robustness=self.robustness or "none",
            **self._strategy_settings(stages),
        )

    def _strategy_settings(self, stages: Collection[str]) -> dict[str, Any]:
        """Return the strategy settings of the ``[learning]`` section as far as the given stages."""
        replaced = [key for key in ("scheduler", "weighting") if getattr(self, key)]
        settings = self.strategy.to_settings(self.task, replaced)
        if self.weighting and "weighting" in stages:
            from abaton.controller import LossWeighting

            built = [build_named(WEIGHTING, factor, self.plugins) for factor in self.weighting]
            settings["weighting"] = tuple(
                replace(f, is_relative=True) if isinstance(f, LossWeighting) else f for f in built
            )
            self._check_weighting(settings["weighting"])
        singles = {
            "scheduler": (SCHEDULER, self.scheduler),
            "robust_aggregation": (ROBUST_AGGREGATION, self.robust_aggregation),
            "server_optimiser": (SERVER_OPTIMISER, self.server_optimiser),
        }
        for key, (kind, component) in singles.items():
            if component is not None and key in stages:
                settings[key] = build_named(kind, component, self.plugins)
        if self.privacy is not None and "privacy" in stages:
            settings["privacy"] = self.privacy.to_settings()
        return settings

    def _check_weighting(self, weighting: tuple[Weighting, ...]) -> None:
        """Refuse weighting factors of ``[learning]`` whose evaluators score another task."""
        from abaton.metrics.counts import task_of

        for component, factor in zip(self.weighting, weighting, strict=True):
            validation = getattr(factor, "validation", None)
            if validation is not None and task_of(validation.metric) != self.task:
                raise SettingsError(
                    f"the weighting '{component.spec}' does not fit the task '{self.task}'",
                    remedy="use 'validation' with a metric of the task",
                )

    def build_codec(self) -> CodecPipeline:
        """Build the codec of updates from ``[learning]``; with a privacy budget it clips and adds noise first."""
        from abaton.codecs import Clip, GaussianNoise, build_pipeline

        codec, budget = self._parse_codec(self.codec), self.privacy
        if budget is None:
            return codec
        if repeated := {Clip.name, GaussianNoise.name} & {step.name for step in codec.transforms}:
            raise SettingsError(
                f"[learning.privacy] clips and adds noise, and the codec has '{min(repeated)}' too",
                remedy="remove it from the codec",
            )
        return build_pipeline(
            Clip(budget.clip_norm), GaussianNoise(budget.noise_multiplier * budget.clip_norm), codec
        )

    def build_downlink(self) -> CodecPipeline | None:
        """Build the downlink codec of community models from ``[learning]``; None sends full versions."""
        from abaton.codecs.downlink import make_downlink

        return None if self.downlink is None else make_downlink(self._parse_codec(self.downlink))

    def build_model(self, *, features: int, classes: int) -> Model:
        """Build the untrained model of the ``[learning]`` section, without personal layers.

        A survival model has one output per hazard interval.
        """
        spec = components.parse_model_spec(self.model)
        classes = (self.hazard_intervals or _DEFAULT_HAZARD_INTERVALS) if self.task == "survival" else classes
        full_model = components.build_model(spec, self.task, self.plugins, features=features, classes=classes)
        if self.personal_layers is None:
            return full_model
        from abaton.learners import PersonalLayersModel

        return PersonalLayersModel(
            full_model, self.personal_layers.patterns([tensor.name for tensor in full_model.layout])
        )
