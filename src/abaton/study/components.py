"""The network that a study names in one line: ours, an estimator of scikit-learn, or a package's own.

Parts of the learning that a study names: ours by their names, and those of packages that the study names too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from abaton.documents.fields import Part, fault
from abaton.errors import SettingsError
from abaton.plugins import absent, registered, whose
from abaton.protocols import require
from abaton.specs import Value, find, make, read_part

if TYPE_CHECKING:
    from abaton.learners import Model
    from abaton.training import TrainSettings


CODEC, NETWORK, PACING = "codec", "network", "pacing"
ROBUST, SERVER, WEIGHTING = "robust mixing", "server optimiser", "weighting"

Packages = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")],
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}$")],
]
"""Names of installed packages, and the version of each."""


def _plain(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise fault("a setting is a number, a word, true or false", "write it as one of them")
    return value


class NamedPart(Part):
    """A part by its name, with its settings beside it."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_plain)]] = Field(init=False)

    @property
    def settings(self) -> dict[str, Value]:
        """Its settings by their names."""
        return dict(self.__pydantic_extra__)

    @property
    def words(self) -> str:
        """The part as one line.

        >>> NamedPart(name="adam", rate=0.5).words
        'adam(rate=0.5)'
        """
        told = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}({told})" if told else self.name


def _from_line(value: Any) -> Any:
    """A line such as ``adam(rate=0.5)`` as the table that it stands for."""
    if not isinstance(value, str):
        return value
    try:
        read = read_part(value)
    except SettingsError as error:
        raise fault(error.what, error.remedy or "write it as adam(rate=0.5)") from None
    if read.numbers or "name" in read.settings:
        raise fault("a setting has no name of its own", "write it as adam(rate=0.5)")
    return {"name": read.name, **read.settings}


Chosen = Annotated[NamedPart, BeforeValidator(_from_line)]
"""A part as a table, or as the line that stands for it."""


def chosen(line: str) -> NamedPart:
    """The part that a line names.

    >>> chosen("krum(liars=1)").settings
    {'liars': 1}
    """
    read = read_part(line)
    if read.numbers:
        raise SettingsError(f"{read.name} has a setting without a name", remedy="write it as adam(rate=0.5)")
    return NamedPart(name=read.name, **read.settings)


def ours(kind: str) -> Mapping[str, Callable[..., Any]]:
    """The parts of a kind that ship with Abaton, by their names."""
    if kind == CODEC:
        from abaton.codecs.registry import CODECS, STEPS

        return {**STEPS, **CODECS}
    from abaton import controller

    known: Mapping[str, Mapping[str, Callable[..., Any]]] = {
        PACING: {},  # ours are those of the policies
        ROBUST: {
            "median": controller.Median,
            "trimmed": controller.Trimmed,
            "krum": controller.Krum,
            "norm_bound": controller.NormBound,
        },
        SERVER: {"plain": controller.Plain, "momentum": controller.Momentum, "adam": controller.Adam},
        WEIGHTING: {
            "examples": controller.ByExamples,
            "validation": controller.ByValidation,
            "staleness": controller.ByStaleness,
        },
    }
    return known[kind]


def own(kind: str, name: str, packages: Mapping[str, str], known: Mapping[str, Any]) -> Callable[..., Any]:
    """A part that one of the study's packages registers; its code is loaded here.

    Raises:
        SettingsError: No package has it, or one is not there as the study names it.
    """
    found = registered(packages, kind, known)
    if name not in found:
        for _, what, remedy in absent(packages):
            raise SettingsError(f"there is no {kind} '{name}' here: {what}", remedy=remedy)
        try:
            find(kind, name, {**known, **found})
        except SettingsError as error:
            raise SettingsError(error.what, remedy=f"{error.remedy}; {whose(kind, name)}") from None
    loaded: Callable[..., Any] = found[name].load()
    return loaded


def made(kind: str, part: NamedPart, packages: Mapping[str, str] | None = None) -> Any:
    """The part that a study, or a line of the lab, names, ready for the rules."""
    known = ours(kind)
    maker = known[part.name] if part.name in known else own(kind, part.name, packages or {}, known)
    return make(part.name, maker, part.settings)


Task = Literal["classes", "value", "time"]

TORCH = ("logistic", "linear", "mlp")
SKLEARN: Mapping[str, tuple[str, ...]] = {
    "SGDClassifier": ("loss", "penalty", "alpha", "l1_ratio", "epsilon", "fit_intercept"),
    "SGDRegressor": ("loss", "penalty", "alpha", "l1_ratio", "epsilon", "fit_intercept"),
    "MLPClassifier": ("activation", "alpha", "solver"),
}
"""Estimators of scikit-learn, and which of their settings a study may give; the others are the run's."""

OURS: Mapping[str, str] = {name: name for name in (*TORCH, *SKLEARN)}

_LAYERS, _WIDEST = 8, 99_999
_REMEDY = "write logistic, linear, mlp(16), mlp(32, 16), SGDClassifier, SGDRegressor or MLPClassifier(16)"


@dataclass(frozen=True, slots=True)
class Network:
    """The network that a line names: its kind, the widths of its hidden layers, and its settings."""

    kind: str
    hidden: tuple[int, ...] = ()
    settings: Mapping[str, Value] = field(default_factory=dict)


def network(line: str) -> Network:
    """Read a network line.

    >>> network("mlp(16, 8)")
    Network(kind='mlp', hidden=(16, 8), settings={})
    """
    try:
        read = read_part(line)
    except SettingsError:
        raise _unknown(line) from None
    made = Network(read.name, read.numbers, read.settings)
    wide = made.kind in ("mlp", "MLPClassifier")
    if made.kind in OURS and (wide != bool(made.hidden) or (made.kind in TORCH and made.settings)):
        raise _unknown(line)
    if len(made.hidden) > _LAYERS or not all(1 <= width <= _WIDEST for width in made.hidden):
        raise _unknown(line)
    return made


def _unknown(line: str, more: str = "") -> SettingsError:
    return SettingsError(f"there is no network '{line[:60]}'", remedy=_REMEDY + more)


def check_network(made: Network, task: Task, training: TrainSettings) -> None:
    """Refuse one of our networks that cannot learn the task, or cannot be trained as the study says.

    Raises:
        SettingsError: With what to write instead.
    """
    values = made.kind in ("linear", "SGDRegressor")
    if made.kind != "mlp" and values != (task == "value"):
        other = {"linear": "logistic", "logistic": "linear", "SGDRegressor": "SGDClassifier"}
        instead = other.get(made.kind, "SGDRegressor")
        raise SettingsError(f"'{made.kind}' does not fit the task '{task}'", remedy=f"use {instead}")
    if made.kind in SKLEARN and task == "time":
        raise SettingsError(f"{made.kind} does not learn times", remedy="use logistic, or mlp(16)")
    if made.kind in SKLEARN:
        from abaton.models.sklearn_model import require_own_solver

        require_own_solver(training)
        if made.kind != "MLPClassifier" and training.momentum:
            raise SettingsError(f"{made.kind} has no momentum", remedy="leave training.momentum out")
        _estimator(made, task, features=1, classes=2)


def tensor_names(made: Network) -> tuple[str, ...]:
    """What the tensors of one of our networks are called; nothing of a package's own, which says it when it is made.

    >>> tensor_names(network("mlp(4)"))
    ('0.weight', '0.bias', '2.weight', '2.bias')
    """
    if made.kind == "logistic":
        return "weight", "bias"
    if made.kind in TORCH:
        return tuple(f"{2 * i}.{part}" for i in range(len(made.hidden) + 1) for part in ("weight", "bias"))
    if made.kind == "MLPClassifier":
        parts = ("coef", "intercept")
        return tuple(f"{part}{i}" for i in range(len(made.hidden) + 1) for part in parts)
    return ("coef", "intercept") if made.kind in SKLEARN else ()


def build(made: Network, task: Task, packages: Mapping[str, str], *, features: int, classes: int) -> Model:
    """The network, untrained, for so many columns and classes; a package's own is loaded here.

    Raises:
        SettingsError: It cannot be made.
    """
    from abaton.learners import Model as Protocol
    from abaton.learners import logistic, mlp, time_to_event

    if task == "time" and made.kind in TORCH:
        return time_to_event(features=features, intervals=classes, hidden=made.hidden)
    if made.kind == "logistic":
        return logistic(features=features, classes=classes)
    if made.kind in TORCH:
        return mlp(features=features, classes=classes, hidden=made.hidden, task=task)
    if made.kind in SKLEARN:
        return _estimator(made, task, features=features, classes=classes)
    if not packages:
        raise _unknown(made.kind, f"; {whose(NETWORK, made.kind)}")
    maker = own(NETWORK, made.kind, packages, OURS)
    asked = {"features": features, "classes": classes, "task": task}
    if made.hidden:
        raise SettingsError(f"{made.kind} has a setting without a name", remedy="write it as width=16")
    model: Model = make(made.kind, maker, made.settings, **asked)
    require(model, Protocol, name=f"what {made.kind} makes", where="network", known="a TorchModel")
    return model


def _estimator(made: Network, task: Task, *, features: int, classes: int) -> Model:
    """An estimator of scikit-learn, which learns at the rate that the study gives its learners."""
    from sklearn import linear_model, neural_network

    from abaton.learners import SklearnModel

    allowed = SKLEARN[made.kind]
    if strange := next((key for key in made.settings if key not in allowed), None):
        raise SettingsError(
            f"{made.kind} has no setting '{strange}' here", remedy=f"its settings are {', '.join(allowed)}"
        )
    given: dict[str, Any] = {
        key: {"true": True, "false": False}.get(str(v), v) for key, v in made.settings.items()
    }
    if made.kind == "MLPClassifier":
        given = {"solver": "sgd", **given, "hidden_layer_sizes": made.hidden}
    else:
        usual = {"loss": "log_loss"} if made.kind == "SGDClassifier" else {}
        given = {**usual, **given, "learning_rate": "constant"}
    room = neural_network if made.kind == "MLPClassifier" else linear_model
    try:
        return SklearnModel(
            lambda: getattr(room, made.kind)(**given),
            features=features,
            classes=classes if task == "classes" else None,
        )
    except ValueError as error:  # scikit-learn says which of its settings it cannot use
        raise SettingsError(
            f"scikit-learn cannot use {made.kind} like this", remedy=str(error).split(". Got")[0][:200]
        ) from None
