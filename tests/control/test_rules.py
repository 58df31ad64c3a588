"""Rules that cannot be kept are refused before anything starts."""

from __future__ import annotations

import pytest

from abaton.control import (
    POLICIES,
    Asynchronous,
    Blend,
    ByExamples,
    Median,
    Momentum,
    Plain,
    Rules,
    Synchronous,
    policy,
)
from abaton.errors import SettingsError


def test_the_papers_policies_are_all_there():
    names = ["SyncFedAvg", "SyncDVW", "AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)"]
    assert list(POLICIES) == names
    assert all(Rules(learners=10, rounds=5, **policy(name)) for name in names)


class Own:
    """Has all that a pacing is asked for before it is used, and a weight; and is none that there is."""

    attempts, adaptive, participants = 3, None, None

    def weight(self, made: object) -> float:
        return 1.0


KINDS = {
    "pacing": "Synchronous, SemiSynchronous or Asynchronous",
    "mixing": "Latest or Blend",
    "robust": "Median, Trimmed, Krum or NormBound",
    "server": "Plain, Momentum or Adam",
    "training": "TrainSettings",
    "privacy": "Privacy",
}


@pytest.mark.parametrize(
    "wrong",
    [Own(), "krum", 3, Median, {"kind": "median"}],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_part_that_there_is_is_refused_with_those_that_there_are(name, wrong):
    with pytest.raises(SettingsError) as raised:
        Rules(learners=4, rounds=2, **{name: wrong})
    assert raised.value.what == f"{name} is {wrong!r}"
    assert raised.value.remedy == f"use {KINDS[name]}"


@pytest.mark.parametrize("part", [Own(), "examples", ByExamples])
def test_every_part_of_the_weighting_must_be_one_that_there_is(part):
    with pytest.raises(SettingsError, match="use ByExamples, ByValidation or ByStaleness"):
        Rules(learners=4, rounds=2, weighting=(ByExamples(), part))


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
