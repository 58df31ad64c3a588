"""Runs side by side: what cannot be compared is refused, and page, table and JSON say the same."""

from __future__ import annotations

import re

import pytest
from tests.report.test_run import EVENTS as STUDY_EVENTS
from tests.report.test_run import row as study_row

from abaton.errors import SettingsError
from abaton.report import comparison, comparison_page, lab_page, lab_report, page_of, report_of, run_report
from abaton.store import ModelRow, RunRow

EVENTS = [
    ("Joined", {"at": 0.0, "learner": "kos", "examples": 30, "group": "fast"}),
    ("Joined", {"at": 0.0, "learner": "<b>", "examples": 20, "group": "slow"}),
    ("Arrived", {"at": 1.0, "learner": "kos", "size": 100, "steps": 4}),
    ("Arrived", {"at": 2.0, "learner": "<b>", "size": 50, "steps": 2}),
    ("Failed", {"at": 3.0, "learner": "kos", "task": "t", "reason": "lost"}),
    ("Arrived", {"at": 4.0, "learner": "kos", "size": 100, "steps": 4}),
]


def lab(name: str = "one", *, measures=(0.5, 0.7, 0.8), measure: str = "accuracy", **settings) -> dict:
    recipe = {
        "name": "four",
        "settings": {"seed": 1, "rounds": 2, "scale": 1.0, **settings},
        "versions": {},
    }
    result = {
        "reason": "done",
        "version": 2,
        "digest": "d" * 64,
        "seconds": 4.0,
        "updates": 3,
        "bytes_up": 250,
        "bytes_down": 900,
    }
    models = [ModelRow(i, 2.0 * i, "m", {measure: value}) for i, value in enumerate(measures)]
    row = RunRow(name, "2026-11-16T08:00:00", "virtual", recipe, "9" * 64, "finished", result)
    return lab_report(row, models, EVENTS)


def test_a_lab_run_is_told_in_all_parts_and_escaped():
    made = lab()
    assert {"question", "cohort", "privacy", "method", "results", "reproduce"} <= set(made)
    assert [point["bytes"] for point in made["results"]["course"]["points"]] == [0, 150, 250]
    kos = made["results"]["course"]["learners"][1]
    assert (kos["updates"], kos["bytes"], kos["failed"], kos["last"]) == (2, 200, 1, 4.0)
    page = lab_page(made)
    for words in (
        "How good does the community model become?",
        "Cohort",
        "Privacy",
        "Method",
        "Results",
        "How to do it again",
        "&lt;b&gt;",
        "d" * 64,
    ):
        assert words in page, words
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "<b>" not in outside
    assert "default-src &#39;none&#39;" in page
    assert page_of(made) == page


def test_either_kind_of_run_has_its_report():
    assert report_of(study_row(), [], STUDY_EVENTS)["kind"] == "study"
    row = RunRow("x", "", "virtual", {"name": "four", "settings": {}}, "9", "running", None)
    with pytest.raises(SettingsError, match="has not ended"):
        report_of(row, [], [])


def test_differences_come_first_and_the_page_holds_the_numbers():
    made = comparison([lab(), lab("two", measures=(0.4, 0.75, 0.9), seed=2)])
    assert made["differences"] == [{"setting": "seed", "values": {"one": 1, "two": 2}}]
    assert made["target"] == 0.8
    assert [line["reached"]["version"] for line in made["results"]] == [2, 2]
    assert [line["measure"] for line in made["results"]] == [0.8, 0.9]
    page = comparison_page(made)
    assert page.index("What was set differently") < page.index(">Results<") < page.index(">Curves<")
    assert all(f'data-figure="{axis}"' in page for axis in ("version", "at", "bytes"))
    assert "A: one" in page
    assert "0.9000" in page


def test_what_could_not_be_judged_is_left_out():
    nothing = float("nan")
    made = lab(measures=(nothing, 0.7, 0.8))["results"]["course"]["points"]
    assert [point["accuracy"] for point in made] == [None, 0.7, 0.8]
    assert comparison([lab(measures=(nothing, 0.7, 0.8)), lab("two")])["target"] == 0.8
    with pytest.raises(SettingsError, match="share no measure"):
        comparison([lab(measures=(nothing,)), lab("two")])


def test_less_is_better_where_it_is():
    made = comparison(
        [lab(measure="loss", measures=(1.0, 0.6, 0.5)), lab("two", measure="loss", measures=(1.0, 0.4, 0.45))]
    )
    assert made["target"] == 0.5
    assert [line["reached"]["version"] for line in made["results"]] == [2, 1]
    assert made["results"][1]["best"] == 0.4


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        (lambda: [lab()], "one run"),
        (lambda: [lab(), lab()], "named twice"),
        (lambda: [lab(), run_report(study_row(), STUDY_EVENTS)], "kind is 'lab'"),
        (lambda: [lab(), lab("two", measure="loss")], "share no measure"),
    ],
)
def test_what_does_not_mean_the_same_is_refused(reports, words):
    with pytest.raises(SettingsError, match=words):
        comparison(reports())


def test_other_studies_and_other_outcomes_are_refused():
    one = run_report(study_row(), STUDY_EVENTS)
    for key, value in (("id", "t"), ("outcome", "dead")):
        other = {**one, "run": "s-2", "study": {**one["study"], key: value}}
        with pytest.raises(SettingsError, match="cannot be compared"):
            comparison([one, other])


def test_runs_of_one_study_show_intervals_and_say_if_data_differ():
    one = run_report(study_row(), STUDY_EVENTS)
    about = {**one["reproduce"], "tables": {"north": "0" * 64}}
    made = comparison([one, {**one, "run": "s-2", "reproduce": about}])
    assert made["measure"] == "auroc"
    assert made["results"][0]["interval"] == [0.7, 0.9]
    assert "tables differ" in made["remarks"][0]
    with pytest.raises(SettingsError, match="they share auroc"):
        comparison([one, {**one, "run": "s-2"}], "brier")
