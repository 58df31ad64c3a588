"""A centre that only watches: which sites the default policy lets send no update that it could learn from."""

from __future__ import annotations

import pytest

from abaton.federation.contract import Contract
from abaton.lab.hospitals import study_text
from abaton.site import PolicyPart
from abaton.study import study_from_toml


@pytest.mark.parametrize(
    ("learning", "small"),
    [
        ({}, False),
        ({"policy": "SyncFedAvg"}, False),
        ({"policy": "SyncDVW"}, False),
        ({"policy": "AsyncFedAvg", "privacy": {"epsilon": 50, "delta": 1e-3, "noise": 5}}, False),
        ({"policy": "SyncFedAvg", "privacy": {"epsilon": 50, "delta": 1e-3, "noise": 5}}, True),
    ],
)
def test_small_sites_take_part_only_in_rounds_without_scores_under_a_budget(learning, small):
    pytest.importorskip("dp_accounting")
    study = study_from_toml(study_text())
    content = study.model_dump(mode="json", exclude_none=True)
    content["learning"] |= learning
    made = type(study).model_validate(content)
    contract = Contract(made)
    assert contract.small_sites is small
    assert PolicyPart().fewest_rows == 50
    if small:
        assert 0 < contract.updates <= made.learning.rounds
