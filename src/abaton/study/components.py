"""Components named in a study document: models, codecs, schedulers, weightings, aggregators and optimisers.

Built-in components are known by name; plugins come from the packages that the study lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from abaton.documents.fields import Section, field_error
from abaton.errors import SettingsError
from abaton.plugins import find_plugins, missing_packages, plugin_hint
from abaton.protocols import require_protocol
from abaton.specs import Value, build_component, parse_component, resolve_name

if TYPE_CHECKING:
    from abaton.models import Model
    from abaton.training import TrainSettings


CODEC, MODEL, SCHEDULER = "codec", "model", "scheduler"
ROBUST_AGGREGATION, SERVER_OPTIMISER, WEIGHTING = "robust aggregation", "server optimiser", "weighting"

Packages = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")],
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}$")],
]
"""Versions of installed packages by name."""


_UNKNOWN_NAME = re.compile(r"^(there is no [a-z ]+) '.*?'(?=:|$)", re.DOTALL)


def without_name(what: str) -> str:
    """Return a component's problem without the name that a study gave, since errors contain no text of a document.

    >>> without_name("there is no codec 'zip'")
    'there is no codec of this name'
    """
    return _UNKNOWN_NAME.sub(r"\1 of this name", what)


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise field_error("a setting is not a number, text or boolean", "write it as one of them")
    return value


class ComponentSpec(Section):
    """Component by name, with its settings beside it."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_check_scalar)]] = Field(init=False)

    @property
    def settings(self) -> dict[str, Value]:
        """Return the settings of a study's component by name."""
        return dict(self.__pydantic_extra__)

    @property
    def spec(self) -> str:
        """Return a study's component as a one-line spec.

        >>> ComponentSpec(name="adam", rate=0.5).spec
        'adam(rate=0.5)'
        """
        settings = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}({settings})" if settings else self.name


def _parse_spec(value: Any) -> Any:
    """Convert a study's component written as a spec, ``adam(rate=0.5)``, to its table."""
    if not isinstance(value, str):
        return value
    try:
        parsed = parse_component(value)
    except SettingsError as error:
        raise field_error(error.what, error.remedy or "write it as adam(rate=0.5)") from None
    if parsed.positional or "name" in parsed.settings:
        raise field_error("a setting has no name", "write it as adam(rate=0.5)")
    return {"name": parsed.name, **parsed.settings}


ComponentField = Annotated[ComponentSpec, BeforeValidator(_parse_spec)]
"""Component as a table or as a one-line spec."""


def component_spec(spec: str) -> ComponentSpec:
    """Parse the one-line spec of a study's component.

    >>> component_spec("krum(byzantine=1)").settings
    {'byzantine': 1}
    """
    parsed = parse_component(spec)
    if parsed.positional:
        raise SettingsError(
            f"{parsed.name} has a setting without a name", remedy="write it as adam(rate=0.5)"
        )
    return ComponentSpec(name=parsed.name, **parsed.settings)


def builtin_components(kind: str) -> Mapping[str, Callable[..., Any]]:
    """Return the built-in components that a study may name, of a kind, by name."""
    if kind == CODEC:
        from abaton.codecs.registry import CODECS, TRANSFORMS

        return {**TRANSFORMS, **CODECS}
    from abaton import controller

    known: Mapping[str, Mapping[str, Callable[..., Any]]] = {
        SCHEDULER: {},  # built-in schedulers belong to strategies
        ROBUST_AGGREGATION: {
            "median": controller.CoordinateMedian,
            "trimmed_mean": controller.TrimmedMean,
            "krum": controller.Krum,
            "norm_bound": controller.NormBound,
        },
        SERVER_OPTIMISER: {
            "sgd": controller.ServerSgd,
            "momentum": controller.ServerMomentum,
            "adam": controller.ServerAdam,
        },
        WEIGHTING: {
            "examples": controller.ExampleWeighting,
            "validation": controller.ValidationWeighting,
            "loss": controller.LossWeighting,
            "staleness": controller.StalenessWeighting,
        },
    }
    return known[kind]


def plugin_component(
    kind: str, name: str, packages: Mapping[str, str], known: Mapping[str, Any]
) -> Callable[..., Any]:
    """Load a plugin component that one of the study's packages registers.

    Raises:
        SettingsError: No package registers it, or a package is not installed in the study's version.
    """
    plugins = find_plugins(packages, kind, known)
    if name not in plugins:
        for _, what, remedy in missing_packages(packages):
            raise SettingsError(f"there is no {kind} '{name}': {what}", remedy=remedy)
        try:
            resolve_name(kind, name, {**known, **plugins})
        except SettingsError as error:
            raise SettingsError(error.what, remedy=f"{error.remedy}; {plugin_hint(kind, name)}") from None
    loaded: Callable[..., Any] = plugins[name].load()
    return loaded


def build_named(kind: str, component: ComponentSpec, packages: Mapping[str, str] | None = None) -> Any:
    """Build the component that a study names by a spec, built-in or from a plugin."""
    known = builtin_components(kind)
    name = component.name
    factory = known[name] if name in known else plugin_component(kind, name, packages or {}, known)
    return build_component(name, factory, component.settings)


Task = Literal["classification", "regression", "survival"]

TORCH_MODELS = ("logistic", "linear", "mlp")
SKLEARN_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "SGDClassifier": ("loss", "penalty", "alpha", "l1_ratio", "epsilon", "fit_intercept"),
    "SGDRegressor": ("loss", "penalty", "alpha", "l1_ratio", "epsilon", "fit_intercept"),
    "MLPClassifier": ("activation", "alpha", "solver"),
}
"""Settings of scikit-learn estimators that a study may give; the run determines the others."""

BUILTIN_MODELS: Mapping[str, str] = {name: name for name in (*TORCH_MODELS, *SKLEARN_SETTINGS)}

_MAX_HIDDEN_LAYERS, _MAX_WIDTH = 8, 99_999
_MODEL_REMEDY = (
    "write logistic, linear, mlp(16), mlp(32, 16), SGDClassifier, SGDRegressor or MLPClassifier(16)"
)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Model specification: kind, widths of the hidden layers, and settings."""

    kind: str
    hidden: tuple[int, ...] = ()
    settings: Mapping[str, Value] = field(default_factory=dict)


def parse_model_spec(line: str) -> ModelSpec:
    """Parse the spec of the model component of a study, ``mlp(16, 8)``.

    >>> parse_model_spec("mlp(16, 8)")
    ModelSpec(kind='mlp', hidden=(16, 8), settings={})
    """
    try:
        parsed = parse_component(line)
    except SettingsError:
        raise _unknown_model(line) from None
    spec = ModelSpec(parsed.name, parsed.positional, parsed.settings)
    needs_widths = spec.kind in ("mlp", "MLPClassifier")
    if spec.kind in BUILTIN_MODELS and (
        needs_widths != bool(spec.hidden) or (spec.kind in TORCH_MODELS and spec.settings)
    ):
        raise _unknown_model(line)
    if len(spec.hidden) > _MAX_HIDDEN_LAYERS or not all(1 <= width <= _MAX_WIDTH for width in spec.hidden):
        raise _unknown_model(line)
    return spec


def _unknown_model(line: str, more: str = "") -> SettingsError:
    return SettingsError(f"there is no model '{line}'", remedy=_MODEL_REMEDY + more)


def check_model(spec: ModelSpec, task: Task, training: TrainSettings) -> None:
    """Refuse a model component that does not fit the study's task or training settings.

    Raises:
        SettingsError: With the model to use instead.
    """
    is_regressor = spec.kind in ("linear", "SGDRegressor")
    if spec.kind != "mlp" and is_regressor != (task == "regression"):
        alternatives = {"linear": "logistic", "logistic": "linear", "SGDRegressor": "SGDClassifier"}
        instead = alternatives.get(spec.kind, "SGDRegressor")
        raise SettingsError(f"'{spec.kind}' does not fit the task '{task}'", remedy=f"use {instead}")
    if spec.kind in SKLEARN_SETTINGS and task == "survival":
        raise SettingsError(
            f"'{spec.kind}' does not fit the task '{task}'", remedy="use logistic, or mlp(16)"
        )
    if spec.kind in SKLEARN_SETTINGS:
        from abaton.models.sklearn_model import check_supported_settings

        check_supported_settings(training)
        if spec.kind != "MLPClassifier" and training.momentum:
            raise SettingsError(f"{spec.kind} has no momentum", remedy="remove training.momentum")
        _build_sklearn(spec, task, features=1, classes=2)


def tensor_names(spec: ModelSpec) -> tuple[str, ...]:
    """Return the tensor names of a built-in model component; empty for a plugin, known once it is built.

    >>> tensor_names(parse_model_spec("mlp(4)"))
    ('0.weight', '0.bias', '2.weight', '2.bias')
    """
    if spec.kind == "logistic":
        return "weight", "bias"
    if spec.kind in TORCH_MODELS:
        return tuple(f"{2 * i}.{role}" for i in range(len(spec.hidden) + 1) for role in ("weight", "bias"))
    if spec.kind == "MLPClassifier":
        return tuple(f"{role}{i}" for i in range(len(spec.hidden) + 1) for role in ("coef", "intercept"))
    return ("coef", "intercept") if spec.kind in SKLEARN_SETTINGS else ()


def build_model(
    spec: ModelSpec, task: Task, packages: Mapping[str, str], *, features: int, classes: int
) -> Model:
    """Build a study's model component, untrained, for the task's columns and classes; loads plugins.

    Raises:
        SettingsError: The model cannot be built.
    """
    from abaton.models import Model as Protocol
    from abaton.models import logistic, mlp, time_to_event

    if task == "survival" and spec.kind in TORCH_MODELS:
        return time_to_event(features=features, intervals=classes, hidden=spec.hidden)
    if spec.kind == "logistic":
        return logistic(features=features, classes=classes)
    if spec.kind in TORCH_MODELS:
        return mlp(features=features, classes=classes, hidden=spec.hidden, task=task)
    if spec.kind in SKLEARN_SETTINGS:
        return _build_sklearn(spec, task, features=features, classes=classes)
    if not packages:
        raise _unknown_model(spec.kind, f"; {plugin_hint(MODEL, spec.kind)}")
    factory = plugin_component(MODEL, spec.kind, packages, BUILTIN_MODELS)
    arguments = {"features": features, "classes": classes, "task": task}
    if spec.hidden:
        raise SettingsError(f"{spec.kind} has a setting without a name", remedy="write it as width=16")
    model: Model = build_component(spec.kind, factory, spec.settings, **arguments)
    require_protocol(model, Protocol, name=f"the result of {spec.kind}", where="model", known="a TorchModel")
    return model


def _build_sklearn(spec: ModelSpec, task: Task, *, features: int, classes: int) -> Model:
    """Build a scikit-learn model component; its learning rate comes from the study's training settings."""
    from sklearn import linear_model, neural_network

    from abaton.models import SklearnModel

    allowed = SKLEARN_SETTINGS[spec.kind]
    if unknown := next((key for key in spec.settings if key not in allowed), None):
        raise SettingsError(
            f"{spec.kind} has no setting '{unknown}' in a study", remedy=f"use {', '.join(allowed)}"
        )
    settings: dict[str, Any] = {
        key: {"true": True, "false": False}.get(str(v), v) for key, v in spec.settings.items()
    }
    if spec.kind == "MLPClassifier":
        settings = {"solver": "sgd", **settings, "hidden_layer_sizes": spec.hidden}
    else:
        defaults = {"loss": "log_loss"} if spec.kind == "SGDClassifier" else {}
        settings = {**defaults, **settings, "learning_rate": "constant"}
    module = neural_network if spec.kind == "MLPClassifier" else linear_model
    try:
        return SklearnModel(
            lambda: getattr(module, spec.kind)(**settings),
            features=features,
            classes=classes if task == "classification" else None,
        )
    except ValueError as error:
        raise SettingsError(
            f"scikit-learn refuses the settings of {spec.kind}", remedy=str(error).split(". Got")[0][:200]
        ) from None
