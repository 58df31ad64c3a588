"""How the community model is trained and judged, as written in the study document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from abaton.documents.fields import Part, Text, faults
from abaton.documents.line_numbers import KeyPath
from abaton.errors import SettingsError
from abaton.specs import SettingError, read_line
from abaton.study import components
from abaton.study.components import (
    CODEC,
    NETWORK,
    PACING,
    ROBUST,
    SERVER,
    WEIGHTING,
    Chosen,
    Packages,
    made,
    ours,
    own,
)

if TYPE_CHECKING:
    from abaton.codecs import Pipeline
    from abaton.controller import Privacy
    from abaton.controller.strategies import Rules
    from abaton.learners import Model
    from abaton.training import TrainSettings
from abaton.study.evaluation_section import Evaluation, Explanation, Metric

PersonalWay = Literal["recalibrate", "fine-tune", "interpolate"]
_USUAL: Mapping[str, tuple[Metric, ...]] = {
    "classes": ("auroc", "auprc", "sensitivity", "calibration", "brier"),
    "value": ("rmse", "mae", "r_squared"),
    "time": ("concordance",),
}
"""By which measures a model is judged if the study names none."""
_JUDGES: Mapping[str, str] = {name: task for task in ("value", "time") for name in _USUAL[task]}
"""What a measure judges, if it is not classes."""
_INTERVALS = 10
_LEARNERS = 1_000  # how many sites there will be is not known yet; a round can name no more than these
_STAGES = ("policy", "pacing", "weighting", "robust", "server", "privacy")
_OF_TRAINING = frozenset(
    {"numpy", "immutables", "abaton.codecs", "abaton.controller", "abaton.learners", "abaton.kernels"}
)
"""Whoever reads a study without these, as in a browser, does not train: its parts were checked at the centre."""


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class ThresholdsTable(Part):
    """When a learner sends of its own accord: by how many percent its loss must fall, and how often it may not."""

    loss: float = Field(0.0, ge=0)
    tombstones: int = Field(4, ge=0)


class PolicyTable(Part):
    """Who trains next and how much a model counts: a policy by its name, and what is different from it."""

    name: Text
    participants: int | None = Field(None, ge=1)
    extra: int | None = Field(None, ge=0)
    quorum: int | None = Field(None, ge=1)
    deadline: float | None = Field(None, gt=0)
    attempts: int | None = Field(None, ge=1)
    budget: float | None = Field(None, gt=0)
    buffer: int | None = Field(None, ge=1)
    measure: Text | None = None
    evaluators: int | None = Field(None, ge=1)
    choice: Literal["lot", "labels"] | None = None
    own: bool | None = None
    thresholds: ThresholdsTable | None = None
    alpha: float | None = Field(None, gt=0, le=1)
    leavers: Literal["stay", "subtract"] | None = None

    def parts(self, task: str, without: Collection[str] = ()) -> dict[str, Any]:
        """The policy as keywords of the controller's rules.

        Args:
            task: What is learned.
            without: Which of its parts the study replaces: `pacing`, `weighting`.

        Raises:
            SettingsError: There is no such policy, or a setting does not belong to it.
        """
        from abaton.controller import POLICIES, Blend, Latest

        if self.name not in POLICIES:
            close = get_close_matches(self.name, POLICIES, n=1)
            guess = f"did you mean '{close[0]}'? " if close else ""
            raise SettingsError(
                f"there is no policy '{self.name}'", remedy=f"{guess}choose {', '.join(POLICIES)}"
            )
        made = {key: value for key, value in POLICIES[self.name].items() if key not in without}
        given = {key: value for key, value in self.model_dump(exclude={"name"}).items() if value is not None}
        if "pacing" in made:
            made["pacing"] = _paced(made["pacing"], given)
        if "weighting" in made:
            made["weighting"] = tuple(_weighed(part, given, task) for part in made["weighting"])
        mixing = made.get("mixing", Latest())
        made["mixing"] = _with(mixing, given, "alpha" if isinstance(mixing, Blend) else "leavers")
        if given:
            replaced = f", whose {' and '.join(without)} the study replaces" if without else ""
            raise SettingError(
                f"'{sorted(given)[0]}' does not belong to the policy {self.name}{replaced}",
                "remove it",
                sorted(given)[0],
            )
        return made


def _paced(pacing: Any, given: dict[str, Any]) -> Any:
    """The pacing; with a budget of time, a synchronous one becomes semi-synchronous."""
    from abaton.controller import SemiSynchronous, Synchronous, Thresholds

    if "thresholds" in given and pacing.adaptive is not None:
        pacing = replace(pacing, adaptive={"": Thresholds(**given.pop("thresholds"))})
    if "budget" in given and type(pacing) is Synchronous:
        pacing = SemiSynchronous(budget=given.pop("budget"))
    return _with(pacing, given, "participants", "extra", "quorum", "deadline", "attempts", "buffer")


def _weighed(part: Any, given: dict[str, Any], task: str) -> Any:
    """A part of the weighting; models of values are validated by how close they come, of times by their likelihood."""
    from abaton.controller.weighting import ByValidation
    from abaton.metrics.counts import task_of

    if not isinstance(part, ByValidation):
        return part
    if task != "classes":
        given.setdefault("measure", {"value": "closeness", "time": "likelihood"}[task])
    made = _with(part, given, "measure", "evaluators", "choice", "own")
    if task_of(made.measure) != task:
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
        from abaton.training import TrainSettings

        return TrainSettings(**self.model_dump())


class Budget(Part):
    """Differential privacy of the sites: how much may be learnt about any one of them from the whole run.

    Each site clips its updates to the length `clip` and adds noise of `noise` times that length before they leave.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    noise: float = Field(gt=0)
    clip: float = Field(1.0, gt=0)
    against: Literal["controller", "readers"] = "controller"

    def plain(self) -> Privacy:
        """The budget as the controller's rules take it."""
        from abaton.controller import Privacy

        return Privacy(self.epsilon, self.delta, self.noise, self.against)


class PersonalLayers(Part):
    """Layers that are trained at each site and never leave it, by the names of their tensors or patterns of them."""

    layers: tuple[Text, ...] = Field(min_length=1)

    def patterns(self, names: Collection[str]) -> list[str]:
        """Patterns of tensors: the name of a layer stands for all that it has.

        >>> PersonalLayers(layers=["2", "0.bias"]).patterns(["0.weight", "0.bias", "2.weight", "2.bias"])
        ['2.*', '0.bias']
        """
        return [
            layer if any(fnmatchcase(name, layer) for name in names) else f"{layer}.*"
            for layer in self.layers
        ]


class Learning(Part):
    """How the community model is trained and judged."""

    task: components.Task = "classes"
    network: Text = "logistic"
    intervals: int | None = Field(None, ge=2, le=100)
    policy: Annotated[PolicyTable, BeforeValidator(_named)] = PolicyTable(name="AsyncDVW(na)")
    pacing: Chosen | None = None
    weighting: tuple[Chosen, ...] = ()
    robust: Chosen | None = None
    server: Chosen | None = None
    codec: Text = "raw"
    downlink: Text | None = None
    privacy: Budget | None = None
    personal: PersonalLayers | None = None
    parts: Packages = Field(default_factory=dict)
    rounds: int = Field(100, ge=1)
    seconds: float | None = Field(None, gt=0)
    finishing: int = Field(0, ge=0)
    validation: float = Field(0.1, gt=0, lt=1)
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    explanation: Explanation | None = None
    personalise: tuple[PersonalWay, ...] = ()

    @model_validator(mode="after")
    def _possible(self, info: ValidationInfo) -> Self:
        load = bool((info.context or {}).get("load"))
        if wrong := list(self._impossible(load=load)):
            raise faults(wrong)
        return self

    def _impossible(self, *, load: bool) -> Iterator[tuple[KeyPath, str, str]]:
        """What cannot be, each with its place; a package's own parts are looked into only if they may be loaded."""
        checks: dict[str, Callable[[], object]] = {
            "network": partial(self._network, load=load),
            "codec": partial(self._codec, self.codec, self.pipeline, load=load),
            "downlink": partial(self._codec, self.downlink, self.way_down, load=load),
            **{stage: partial(self._stage, stage, load=load) for stage in _STAGES},
            "personal": self._personal,
        }
        failed = False
        for key, check in checks.items():
            if failed and key in _STAGES:
                continue  # it would be held against what cannot be
            try:
                check()
            except SettingsError as error:
                setting = getattr(error, "setting", "")
                path = (key, setting) if setting and key != "codec" else (key,)
                yield path, error.what, error.remedy or "see docs/study-document.md"
                failed = failed or key in _STAGES
            except ModuleNotFoundError as missing:
                if missing.name not in _OF_TRAINING:
                    raise
        metrics = self.evaluation.metrics
        for i, metric in enumerate(metrics):
            if _JUDGES.get(metric, "classes") != self.task or metric in metrics[:i]:
                at = ("evaluation", "metrics", i)
                yield at, f"'{metric}' stands twice or does not judge the task '{self.task}'", "remove it"
        if self.intervals is not None and self.task != "time":
            yield ("intervals",), f"the task '{self.task}' has no intervals", "leave 'intervals' out"
        yield from self._on_personalising()

    def _on_personalising(self) -> Iterator[tuple[KeyPath, str, str]]:
        for i, way in enumerate(self.personalise):
            if way in self.personalise[:i]:
                yield ("personalise", i), f"'{way}' stands twice", "remove it"
        if self.personalise and self.task == "time":
            yield ("personalise",), "a model of times cannot be made a site's own yet", "leave it out"
        if self.personalise and self.personal is not None:
            yield (
                ("personalise",),
                "a model with layers that stay at each site is every site's own already",
                "leave out 'personalise', or [learning.personal]",
            )

    def _network(self, *, load: bool) -> None:
        named = components.network(self.network)
        if named.kind in components.OURS:
            components.check_network(named, self.task, self.training.plain())
        elif load or not self.parts:
            self.model(features=1, classes=2)

    def _codec(self, line: str | None, make: Callable[[], object], *, load: bool) -> None:
        if load or not self.parts or not self._own_codecs(line):
            make()

    def _stage(self, stage: str, *, load: bool) -> None:
        """Hold the rules up to a stage against each other."""
        if stage != "policy" and not getattr(self, stage):
            return
        if stage == "privacy" and find_spec("dp_accounting") is None:
            return  # what a budget allows is asked where the run is controlled
        stages = _STAGES[: _STAGES.index(stage) + 1]
        foreign = {} if load or not self.parts else self._own_parts()
        self._rules(_LEARNERS, 0, [each for each in stages if each not in foreign])

    def _personal(self) -> None:
        if self.personal is None:
            return
        names = components.tensor_names(components.network(self.network))
        if not names:
            return  # a package's own network says what it has when it is made
        patterns = self.personal.patterns(names)
        for layer, pattern in zip(self.personal.layers, patterns, strict=True):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise SettingsError(
                    f"no layer of {self.network} fits '{layer}'", remedy=f"it has {', '.join(names)}"
                )
        if all(any(fnmatchcase(name, pattern) for pattern in patterns) for name in names):
            raise SettingsError("every layer would stay at its site", remedy="leave some to share")

    def _own_codecs(self, line: str | None) -> list[str]:
        known = ours(CODEC)
        return [part.name for part in read_line(line) if part.name not in known] if line else []

    def _parsed(self, line: str) -> Pipeline:
        """The codec of a line, packages' own parts included."""
        from abaton.codecs.registry import parse

        return parse(
            line, {name: own(CODEC, name, self.parts, ours(CODEC)) for name in self._own_codecs(line)}
        )

    def _own_parts(self) -> dict[str, list[str]]:
        """By key: the names of parts that are not ours."""
        kinds = {"pacing": PACING, "robust": ROBUST, "server": SERVER, "weighting": WEIGHTING}
        found = {}
        for key, kind in kinds.items():
            value = getattr(self, key)
            named = value if isinstance(value, tuple) else () if value is None else (value,)
            if strange := [part.name for part in named if part.name not in ours(kind)]:
                found[key] = strange
        return found

    @property
    def own_parts(self) -> tuple[tuple[str, str], ...]:
        """Parts that a site would run and that do not ship with Abaton: what kind each is, and its name."""
        kind = components.network(self.network).kind
        codecs = dict.fromkeys([*self._own_codecs(self.codec), *self._own_codecs(self.downlink)])
        strange = () if kind in components.OURS else ((NETWORK, kind),)
        return (*((CODEC, name) for name in codecs), *strange)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The measures by which the model is judged; the usual ones of the task if none are named."""
        return self.evaluation.metrics or _USUAL[self.task]

    def rules(self, learners: int, *, seed: int = 0) -> Rules:
        """The controller's rules for so many learners."""
        return self._rules(learners, seed, _STAGES)

    def _rules(self, learners: int, seed: int, stages: Collection[str]) -> Rules:
        from abaton.controller.strategies import Rules

        settings = self.training.plain()
        return Rules(
            learners=learners,
            rounds=self.rounds,
            seconds=self.seconds,
            training=settings,
            seed=seed,
            finishing=self.finishing,
            **self._parts(stages),
        )

    def _parts(self, stages: Collection[str]) -> dict[str, Any]:
        """The parts of the rules, as far as some stages go."""
        replaced = [key for key in ("pacing", "weighting") if getattr(self, key)]
        parts = self.policy.parts(self.task, replaced)
        if self.pacing is not None and "pacing" in stages:
            parts["pacing"] = made(PACING, self.pacing, self.parts)
        if self.weighting and "weighting" in stages:
            parts["weighting"] = tuple(made(WEIGHTING, each, self.parts) for each in self.weighting)
        if self.robust is not None and "robust" in stages:
            parts["robust"] = made(ROBUST, self.robust, self.parts)
        if self.server is not None and "server" in stages:
            parts["server"] = made(SERVER, self.server, self.parts)
        if self.privacy is not None and "privacy" in stages:
            parts["privacy"] = self.privacy.plain()
        return parts

    def pipeline(self) -> Pipeline:
        """The codec that updates travel in; with a privacy budget it clips and adds noise first."""
        from abaton.codecs import Clip, GaussianNoise, chain

        codec, budget = self._parsed(self.codec), self.privacy
        if budget is None:
            return codec
        if twice := {Clip.name, GaussianNoise.name} & {step.name for step in codec.steps}:
            raise SettingsError(
                f"[learning.privacy] clips and adds noise by itself, and the codec has '{min(twice)}', too",
                remedy="remove it from the codec's line",
            )
        return chain(Clip(budget.clip), GaussianNoise(budget.noise * budget.clip), codec)

    def way_down(self) -> Pipeline | None:
        """The codec that versions of the community model travel in; none if they travel as they are."""
        from abaton.codecs.downlink import downlink_of

        return None if self.downlink is None else downlink_of(self._parsed(self.downlink))

    def model(self, *, features: int, classes: int) -> Model:
        """The network, untrained, for so many columns and classes; layers that stay at a site are no part of it.

        One that learns times has an output for each interval of the follow-up.
        """
        named = components.network(self.network)
        classes = (self.intervals or _INTERVALS) if self.task == "time" else classes
        whole = components.build(named, self.task, self.parts, features=features, classes=classes)
        if self.personal is None:
            return whole
        from abaton.learners import Personal

        return Personal(whole, self.personal.patterns([tensor.name for tensor in whole.layout]))
