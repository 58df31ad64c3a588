"""Parts of one's own in a run: told apart by their code, gone on with after a crash, refused if they are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import FunctionType

import numpy as np
import pytest

from abaton import Examples, Federation, Rules, logistic
from abaton.codecs import Codec, Key, Raw, chain
from abaton.controller import Answer, Contribution, Optimiser, Pacing, Robust, State, Weighting, ask, mix, rest
from abaton.errors import Refused, SettingsError
from abaton.store import Journal, Store
from abaton.kernels import Layout, Vector


def site(seed: int, rows: int = 30) -> Examples:
    x = np.random.default_rng(seed).normal(size=(rows, 3)).astype(np.float32)
    return Examples(x, (x[:, 0] > 0).astype(np.int64))


SITES = {name: site(seed) for seed, name in enumerate(("athens", "kos", "rhodes"))}


@dataclass(frozen=True)
class Turns(Pacing):
    """Learners in turns, as many times in a row as is said; how often is remembered in the notes."""

    times: int = 2

    def begin(self, rules: Rules, state: State, now: float) -> Answer:
        return self._next(rules, state, sorted(state.present)[0])

    def ready(self, rules: Rules, state: State, made: Sequence[Contribution], now: float) -> Answer:
        state, said = mix(rules, state, made)
        if state.stopped is not None:
            return state, said
        state, asked = self._next(rules, state, made[-1].update.learner)
        return state, said + asked

    def _next(self, rules: Rules, state: State, learner: str) -> Answer:
        done = state.notes.get(learner, 0.0)
        if done >= self.times:
            state = state._replace(notes=state.notes.set(learner, 0.0))
            names = sorted(state.present)
            learner = next((name for name in names if name > learner), names[0])
            done = 0.0
        state = state._replace(notes=state.notes.set(learner, done + 1))
        state, asked = ask(rules, state, learner)
        return (state, asked) if asked else rest(rules, state)


@dataclass(frozen=True)
class Halved(Optimiser):
    """Half of each change, and half of the one before."""

    def start(self, size: int) -> tuple[Vector, ...]:
        return (np.zeros(size, np.float32),)

    def apply(self, change: Vector, memory: tuple[Vector, ...]) -> tuple[Vector, tuple[Vector, ...]]:
        return (change + memory[0]) / 2, (change,)


@dataclass(frozen=True)
class Rooted(Weighting):
    """The root of the number of examples."""

    def weight(self, made: Contribution) -> float:
        return float(made.update.examples**0.5)


@dataclass(frozen=True)
class Largest(Robust):
    """The update of most weight."""

    def mix(self, rows: np.ndarray, weights: np.ndarray) -> Vector:
        return rows[int(np.argmax(weights))]


@dataclass(frozen=True)
class Doubled(Codec):
    """Every number in eight bytes."""

    name = "doubled"
    code = 200

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        return update.astype("<f8").tobytes()

    def decode(self, payload: bytes, layout: Layout, key: Key) -> Vector:
        return np.frombuffer(payload, "<f8").astype(np.float32)


PARTS = {
    "pacing": Turns(),
    "server": Halved(),
    "weighting": (Rooted(),),
    "robust": Largest(),
}


def made(codec: object = "raw", **parts) -> Federation:
    return Federation(logistic(features=3), SITES, Rules(rounds=6, **parts), codec)


def edited(part, method: str):
    """The same class by name, with a method that does one thing more."""
    cls = type(part)
    body = {**vars(cls), method: _more(vars(cls)[method])}
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    return type(cls)(cls.__name__, cls.__bases__, body)()


def _more(function: FunctionType) -> FunctionType:
    def other(*args):
        return function(*args)

    return FunctionType(other.__code__, function.__globals__, function.__name__, None, other.__closure__)


METHODS = {"pacing": "ready", "server": "apply", "weighting": "weight", "robust": "mix"}


@pytest.mark.parametrize("kind", METHODS)
def test_an_edited_part_is_another_run(tmp_path, kind):
    given = PARTS[kind]
    with Store(tmp_path) as store:
        made(**{kind: given}).run("mine", store=store)
        made(**{kind: given}).run("mine", store=store)
        one = given[0] if isinstance(given, tuple) else given
        other = edited(one, METHODS[kind])
        with pytest.raises(Refused) as refused:
            made(**{kind: (other,) if isinstance(given, tuple) else other}).run("mine", store=store)
        told = store.run("mine").recipe["fingerprint"]["rules"]
    name = f"{type(one).__module__}.{type(one).__qualname__}, code "
    assert f"rules.{kind}" in refused.value.where
    assert name in refused.value.where
    assert next(value for key, value in told.items() if key.startswith(kind)).startswith(name)


def test_an_edited_codec_is_another_run(tmp_path):
    with Store(tmp_path) as store:
        made(Doubled()).run("mine", store=store)
        with pytest.raises(Refused, match="codec was doubled, code"):
            made(edited(Doubled(), "decode")).run("mine", store=store)


def test_a_parts_setting_is_told(tmp_path):
    with Store(tmp_path) as store:
        made(pacing=Turns()).run("mine", store=store)
        with pytest.raises(Refused, match=r"rules\.pacing\.times was 2 and is 3"):
            made(pacing=Turns(3)).run("mine", store=store)


class Crash(BaseException):
    """The process dies here."""


def test_a_run_of_own_parts_goes_on_after_a_crash_at_any_event(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)

    def die(left: list[int]):
        def watch(*_: object) -> None:
            left[0] -= 1
            if not left[0]:
                raise Crash

        return watch

    with Store(tmp_path) as store:
        run = made(Doubled(), **PARTS).run("whole", store=store)
        assert run.result["bytes_up"] == 6 * 8 * logistic(features=3).layout.size
        digests = [model.digest for model in store.models("whole")]
        order = [row[1]["learner"] for row in Journal(store, "whole").rows() if row[0] == "Arrived"]
        for cut in range(1, Journal(store, "whole").known + 1):
            with pytest.raises(Crash):
                made(Doubled(), **PARTS).run(f"cut{cut}", store=store, watch=die([cut]))
            made(Doubled(), **PARTS).run(f"cut{cut}", store=store)
            assert [model.digest for model in store.models(f"cut{cut}")] == digests
    assert order == ["athens", "athens", "kos", "kos", "rhodes", "rhodes"]


def test_a_codec_that_is_none_is_refused_with_what_it_lacks():
    class Half:
        name, code = "half", 130

        def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
            return b""

        def decode(self, payload: bytes) -> Vector:
            return np.zeros(1, np.float32)

    with pytest.raises(
        SettingsError, match=r"has no accumulator, decode\(payload, layout, key\), spec, unbiased"
    ):
        made(Half())

    class Claims(Doubled):
        code = Raw.code

    with pytest.raises(SettingsError, match="has the code 1: use one from 128 to 255"):
        chain(Claims())


def test_a_model_that_is_none_is_refused_with_what_it_lacks():
    class Half:
        layout = logistic(features=3).layout

        def initial(self, seed: int) -> Vector:
            return self.layout.zeros()

    with pytest.raises(
        SettingsError, match="this is a .*Half .*it has no epochs, remembers, score, steps, way"
    ):
        Federation(Half(), SITES)


def test_a_weight_that_is_none_stops_the_run_and_says_whose():
    class Wild(Rooted):
        def weight(self, made: Contribution) -> float:
            return float("nan")

    with pytest.raises(SettingsError, match="the weight of learner 'athens' is nan"):
        made(weighting=(Wild(),)).run("wild")


def test_a_pacing_says_that_it_keeps_a_privacy_budget():
    from abaton.controller import Privacy

    privacy = Privacy(epsilon=8.0, delta=1e-5, noise=9.0)
    with pytest.raises(SettingsError, match="Turns does not say that it keeps a privacy budget"):
        Rules(pacing=Turns(), privacy=privacy)

    class Private(Turns):
        budgets = frozenset({"controller"})

    assert Rules(pacing=Private(), privacy=privacy)
    assert replace(Turns(), times=3) == Turns(3)
