"""User-defined components in a run: identified by their code, resumed after a crash, refused if incomplete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FunctionType

import numpy as np
import pytest

from abaton import Examples, Federation, Strategy, logistic
from abaton.codecs import Codec, CodecKey, RawCodec, build_pipeline
from abaton.controller import (
    Contribution,
    ControllerState,
    RobustAggregator,
    Scheduler,
    ServerOptimiser,
    Transition,
    Weighting,
    aggregate_and_publish,
    drain,
    request_training,
)
from abaton.errors import RefusedError, SettingsError
from abaton.layout import Layout, Vector
from abaton.store import Journal, Store


def site(seed: int, rows: int = 30) -> Examples:
    x = np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)
    return Examples(x, (x[:, 0] > 0).astype(np.int64))


SITES = {name: site(seed) for seed, name in enumerate(("athens", "kos", "rhodes"))}


@dataclass(frozen=True)
class InTurns(Scheduler):
    """Scheduler that lets one learner train `times` times in a row; the count is in the scheduler state."""

    times: int = 2

    def on_start(self, strategy: Strategy, state: ControllerState, now: float) -> Transition:
        return self._next(strategy, state, sorted(state.present)[0])

    def on_updates_ready(
        self, strategy: Strategy, state: ControllerState, contributions: Sequence[Contribution], now: float
    ) -> Transition:
        state, instructions = aggregate_and_publish(strategy, state, contributions)
        if state.stop_reason is not None:
            return state, instructions
        state, requests = self._next(strategy, state, contributions[-1].update.learner)
        return state, instructions + requests

    def _next(self, strategy: Strategy, state: ControllerState, learner: str) -> Transition:
        done = state.scheduler_state.get(learner, 0.0)
        if done >= self.times:
            state = state._replace(scheduler_state=state.scheduler_state.set(learner, 0.0))
            names = sorted(state.present)
            learner = next((name for name in names if name > learner), names[0])
            done = 0.0
        state = state._replace(scheduler_state=state.scheduler_state.set(learner, done + 1))
        state, requests = request_training(strategy, state, learner)
        return (state, requests) if requests else drain(strategy, state)


@dataclass(frozen=True)
class Halved(ServerOptimiser):
    """Server optimiser: half of each change and half of the previous one."""

    def start(self, size: int) -> tuple[Vector, ...]:
        return (np.zeros(size, np.float32),)

    def apply(self, change: Vector, state: tuple[Vector, ...]) -> tuple[Vector, tuple[Vector, ...]]:
        return (change + state[0]) / 2, (change,)


@dataclass(frozen=True)
class RootWeighting(Weighting):
    """Weighting by the square root of the number of examples."""

    def weight(self, contribution: Contribution) -> float:
        return float(contribution.update.examples**0.5)


@dataclass(frozen=True)
class HeaviestUpdate(RobustAggregator):
    """Aggregation that returns the update with the largest weight."""

    def aggregate(self, rows: np.ndarray, weights: np.ndarray) -> Vector:
        return rows[int(np.argmax(weights))]


@dataclass(frozen=True)
class Doubled(Codec):
    """Codec of 64-bit values."""

    name = "doubled"
    code = 200

    def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
        return update.astype("<f8").tobytes()

    def decode(self, payload: bytes, layout: Layout, key: CodecKey) -> Vector:
        return np.frombuffer(payload, "<f8").astype(np.float32)


COMPONENTS = {
    "scheduler": InTurns(),
    "server_optimiser": Halved(),
    "weighting": (RootWeighting(),),
    "robust_aggregation": HeaviestUpdate(),
}


def build_federation(codec: object = "raw", **components) -> Federation:
    return Federation(logistic(features=3), SITES, Strategy(rounds=6, **components), codec)


def edited(component, method: str):
    """Return an instance of a class of the same name with a changed method."""
    cls = type(component)
    body = {**vars(cls), method: _wrapped(vars(cls)[method])}
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    return type(cls)(cls.__name__, cls.__bases__, body)()


def _wrapped(function: FunctionType) -> FunctionType:
    def other(*args):
        return function(*args)

    return FunctionType(other.__code__, function.__globals__, function.__name__, None, other.__closure__)


METHODS = {
    "scheduler": "on_updates_ready",
    "server_optimiser": "apply",
    "weighting": "weight",
    "robust_aggregation": "aggregate",
}


@pytest.mark.parametrize("field", METHODS)
def test_an_edited_component_is_another_run(tmp_path, field):
    component = COMPONENTS[field]
    with Store(tmp_path) as store:
        build_federation(**{field: component}).run("mine", store=store)
        build_federation(**{field: component}).run("mine", store=store)
        original = component[0] if isinstance(component, tuple) else component
        other = edited(original, METHODS[field])
        with pytest.raises(RefusedError) as refused:
            build_federation(**{field: (other,) if isinstance(component, tuple) else other}).run(
                "mine", store=store
            )
        stored_settings = store.run("mine").recipe["manifest"]["strategy"]
    name = f"{type(original).__module__}.{type(original).__qualname__}, code "
    assert f"strategy.{field}" in refused.value.where
    assert name in refused.value.where
    assert next(value for key, value in stored_settings.items() if key.startswith(field)).startswith(name)


def test_an_edited_codec_is_another_run(tmp_path):
    with Store(tmp_path) as store:
        build_federation(Doubled()).run("mine", store=store)
        with pytest.raises(RefusedError, match="codec was doubled, code"):
            build_federation(edited(Doubled(), "decode")).run("mine", store=store)


def test_a_changed_setting_of_a_component_is_named(tmp_path):
    with Store(tmp_path) as store:
        build_federation(scheduler=InTurns()).run("mine", store=store)
        with pytest.raises(RefusedError, match=r"strategy\.scheduler\.times was 2 and is 3"):
            build_federation(scheduler=InTurns(3)).run("mine", store=store)


class Crash(BaseException):
    """The process dies here."""


def test_a_run_with_user_defined_components_resumes_after_a_crash_at_any_event(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)

    def die(remaining: list[int]):
        def watch(*_: object) -> None:
            remaining[0] -= 1
            if not remaining[0]:
                raise Crash

        return watch

    with Store(tmp_path) as store:
        run = build_federation(Doubled(), **COMPONENTS).run("whole", store=store)
        assert run.result["bytes_up"] == 6 * 8 * logistic(features=3).layout.size
        digests = [model.digest for model in store.models("whole")]
        order = [row[1]["learner"] for row in Journal(store, "whole").rows() if row[0] == "update_received"]
        for cut in range(1, Journal(store, "whole").stored_events + 1):
            with pytest.raises(Crash):
                build_federation(Doubled(), **COMPONENTS).run(f"cut{cut}", store=store, watch=die([cut]))
            build_federation(Doubled(), **COMPONENTS).run(f"cut{cut}", store=store)
            assert [model.digest for model in store.models(f"cut{cut}")] == digests
    assert order == ["athens", "athens", "kos", "kos", "rhodes", "rhodes"]


def test_an_incomplete_codec_is_refused():
    class Incomplete:
        name, code = "incomplete", 130

        def encode(self, update: Vector, layout: Layout, key: CodecKey) -> bytes:
            return b""

        def decode(self, payload: bytes) -> Vector:
            return np.zeros(1, np.float32)

    with pytest.raises(
        SettingsError, match=r"has no accumulator, decode\(payload, layout, key\), is_unbiased, spec"
    ):
        build_federation(Incomplete())

    class ReservedCode(Doubled):
        code = RawCodec.code

    with pytest.raises(SettingsError, match="has the code 1: use a code from 128 to 255"):
        build_pipeline(ReservedCode())


def test_an_incomplete_model_is_refused():
    class Incomplete:
        layout = logistic(features=3).layout

        def initial(self, seed: int) -> Vector:
            return self.layout.zeros()

    with pytest.raises(
        SettingsError,
        match="the argument is a .*Incomplete .*it has no epochs, is_stateful, parallel_mode, score, steps",
    ):
        Federation(Incomplete(), SITES)


def test_an_invalid_weight_stops_the_run_with_the_learner():
    class InvalidWeight(RootWeighting):
        def weight(self, contribution: Contribution) -> float:
            return float("nan")

    with pytest.raises(SettingsError, match="the weight of learner 'athens' is nan"):
        build_federation(weighting=(InvalidWeight(),)).run("wild")


def test_a_scheduler_declares_that_it_accounts_a_privacy_budget():
    from abaton.controller import DifferentialPrivacy

    privacy = DifferentialPrivacy(epsilon=8.0, delta=1e-5, noise_multiplier=9.0)
    with pytest.raises(SettingsError, match="InTurns does not declare that it accounts a privacy budget"):
        Strategy(scheduler=InTurns(), privacy=privacy)

    class Private(InTurns):
        accounted_adversaries = frozenset({"controller"})

    assert Strategy(scheduler=Private(), privacy=privacy)
    assert replace(InTurns(), times=3) == InTurns(3)
