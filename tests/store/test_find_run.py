"""Finding a run by its name, a part of it, its number, or as the latest."""

from __future__ import annotations

import pytest

from abaton.errors import SettingsError
from abaton.store import RunRow, Store
from abaton.store.store import find_run

NAMES = ["heart-20260101-aa", "heart-20260102-bb", "lungs-20260103-cc", "7"]


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("heart-20260101-aa", 0),
        ("#1", 0),
        ("2", 1),
        ("#4", 3),
        ("latest", 3),
        ("lungs", 2),
        ("0102", 1),
        ("cc", 2),
        ("7", 3),  # a full name takes precedence over a number
    ],
)
def test_a_run_is_found(text, index):
    assert find_run(NAMES, text, "store") == index


@pytest.mark.parametrize("text", ["unknown", "#5", "#0", "99", "", "latest "])
def test_text_without_a_match_is_refused(text):
    with pytest.raises(SettingsError, match="there is no run"):
        find_run(NAMES[:3], text, "store")


def test_an_empty_store_has_no_latest_run():
    with pytest.raises(SettingsError, match="there is no run 'latest'"):
        find_run([], "latest", "store")


def test_ambiguous_text_is_refused_with_the_candidates():
    with pytest.raises(SettingsError) as refused:
        find_run(NAMES, "heart", "store")
    assert "matches 2 runs" in str(refused.value)
    assert "heart-20260101-aa (#1), heart-20260102-bb (#2)" in str(refused.value)
    many = [f"run-{n:02}" for n in range(30)]
    with pytest.raises(SettingsError, match=r"run-29 \(#30\) and 25 older ones"):
        find_run(many, "run", "store")


def test_the_number_of_a_run_stays_when_others_follow(tmp_path):
    with Store(tmp_path) as store:
        for day, name in enumerate(("b", "a", "c"), 1):
            store.add_run(RunRow(name, f"2026-01-0{day}T00:00:00", "virtual", {}, "x", "finished", None))
            assert store.run("#1").run == "b"
        assert [store.run(str(n)).run for n in (1, 2, 3)] == ["b", "a", "c"]
        assert store.run("latest").run == "c"
