"""Rules that cannot be kept are refused before anything starts."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.controller import (
    POLICIES,
    Asynchronous,
    Blend,
    ByExamples,
    ByValidation,
    Contribution,
    Median,
    Momentum,
    Plain,
    Rules,
    State,
    Synchronous,
    TrainSettings,
    Weighting,
    policy,
)
from abaton.errors import SettingsError


def test_the_papers_policies_are_all_there_and_fedbuff():
    names = ["SyncFedAvg", "SyncDVW", "AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)"]
    names += ["FedBuff", "FedBuffDVW"]
    assert list(POLICIES) == names
    assert all(Rules(learners=10, rounds=5, **policy(name)) for name in names)


class Own:
    """Has some of what a pacing is asked for, and a weight; and is no part of any kind."""

    attempts, adaptive, participants = 3, None, None

    def weight(self, made: object) -> float:
        return 1.0

    def ready(self, rules: Rules) -> None:
        """Takes less than a pacing is told."""

    def begin(self, rules: Rules, state: State, now: float) -> None:
        """As it should be."""


OPEN = {
    "pacing": ("Synchronous, SemiSynchronous, Asynchronous, Buffered", "Pacing"),
    "robust": ("Median, Trimmed, Krum, NormBound", "Robust"),
    "server": ("Plain, Momentum, Adam", "Optimiser"),
}
CLOSED = {"mixing": "Latest or Blend", "training": "TrainSettings", "privacy": "Privacy"}
WRONG = {"own": Own(), "word": "krum", "number": 3, "table": {"kind": "median"}}


@pytest.mark.parametrize("wrong", [*WRONG, "class"])
@pytest.mark.parametrize("name", CLOSED)
def test_what_is_no_part_that_there_is_is_refused_with_those_that_there_are(name, wrong):
    given = WRONG.get(wrong, Median)
    with pytest.raises(SettingsError) as raised:
        Rules(learners=4, rounds=2, **{name: given})
    assert raised.value.what == f"{name} is {given!r}"
    assert raised.value.remedy == f"use {CLOSED[name]}"


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", OPEN)
def test_what_is_no_part_of_an_open_kind_is_refused_with_what_it_lacks(name, wrong):
    known, kind = OPEN[name]
    with pytest.raises(SettingsError) as raised:
        Rules(learners=4, rounds=2, **{name: WRONG[wrong]})
    assert raised.value.what.startswith(f"{name} is {WRONG[wrong]!r}, which has no ")
    assert raised.value.remedy == f"use {known}, or a subclass of abaton.controller.{kind}"


def test_what_lacks_is_told_by_its_name_and_what_it_takes():
    with pytest.raises(SettingsError) as raised:
        Rules(pacing=Own())
    lacks = raised.value.what.partition("which has no ")[2]
    assert lacks.startswith("budgets, check, failed, fewest, joined, left, limit, mixes, rang, ready(")
    assert "begin" not in lacks
    with pytest.raises(SettingsError, match=r"robust is .*which has no least, mix \(rules\)"):
        Rules(robust=Own())


@pytest.mark.parametrize("name", OPEN)
def test_a_class_is_no_part(name):
    with pytest.raises(SettingsError, match=r"a class: Median\(\) would be a part"):
        Rules(**{name: Median})


@pytest.mark.parametrize("part", [Own(), "examples", ByExamples], ids=["own", "word", "class"])
def test_every_part_of_the_weighting_must_be_one(part):
    with pytest.raises(
        SettingsError, match="a part of weighting is .*use ByExamples, ByValidation, ByStaleness"
    ):
        Rules(learners=4, rounds=2, weighting=(ByExamples(), part))


class Twice(Weighting):
    """A weighting that inherits what it does not say."""

    def weight(self, made: Contribution) -> float:
        return 2.0 * made.update.examples


class Missing(Weighting):
    """A weighting that does not weigh."""


class Alike:
    """Not a subclass, but with all that a weighting has."""

    even, asks = False, ByValidation("mcc")

    def weight(self, made: Contribution) -> float:
        return 1.0


def test_parts_of_ones_own_are_taken_with_and_without_a_base_class():
    assert Rules(learners=4, weighting=(Twice(),)).validation is None
    assert Rules(learners=4, weighting=(Twice(), Alike())).validation == ByValidation("mcc")
    with pytest.raises(TypeError, match="weight"):
        Missing()


def test_numbers_of_numpy_are_the_numbers_they_are():
    rules = Rules(
        learners=np.int64(4),
        rounds=np.int64(3),
        seed=np.uint32(5),
        finishing=np.int8(0),
        seconds=np.float32(2.0),
        pacing=Synchronous(participants=np.int64(2)),
        training=TrainSettings(epochs=np.int64(2), learning_rate=np.float64(0.5)),
    )
    plain = Rules(4, 3, 2.0, Synchronous(2), training=TrainSettings(2, learning_rate=0.5), seed=5)
    assert repr(rules) == repr(plain)


@pytest.mark.parametrize(
    ("name", "value"), [("learners", 2.5), ("rounds", True), ("seed", "x"), ("seed", 0.5)]
)
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(SettingsError, match=f"{name} is .*whole number"):
        Rules(**{name: value})


@pytest.mark.parametrize(
    "wrong",
    [ByExamples(), [ByExamples()], (), None],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_weighting_is_a_tuple_of_parts(wrong):
    with pytest.raises(SettingsError, match="weighting is .*use a tuple of at least one part"):
        Rules(learners=4, rounds=2, weighting=wrong)


def test_parts_that_would_have_no_effect_together_are_refused():
    with pytest.raises(SettingsError, match="mixing is Blend.*asynchronous pacing"):
        Rules(4, 2, pacing=Synchronous(), mixing=Blend())
    with pytest.raises(SettingsError, match="server is Momentum.*use Plain"):
        Rules(4, 2, pacing=Asynchronous(), mixing=Blend(), server=Momentum())
    assert Rules(4, 2, pacing=Asynchronous(), mixing=Blend(), server=Plain())
