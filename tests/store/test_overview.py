"""What the database adds up is what the journal tells, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections import Counter
from statistics import mean

import pytest

from abaton.errors import SettingsError
from abaton.store import (
    Journal,
    ModelRow,
    RunRow,
    Store,
    busiest,
    codec_of,
    cycle_lines,
    events_of,
    head,
    kinds_of,
    points,
    quartiles,
    run_lines,
    spans,
    stretches,
)

LEARNERS = ("a", "b", "c")
SIZES = (100, 250, 400)


@pytest.fixture
def store(tmp_path, database_url):
    with Store(tmp_path / "store", database_url) as opened:
        yield opened


def write(store: Store, run: str = "r", turns: int = 30, status: str = "finished") -> list[dict]:
    """Write a run; its commits."""
    recipe = {"name": "told", "study": {"title": "Heart"}}
    store.add_run(RunRow(run, "2026-03-01T12:00:00+00:00", "virtual", recipe, "abc", "running", None))
    walls = iter(range(10**6))
    journal = Journal(store, run, wall=lambda: 1_772_366_400.0 + next(walls))
    journal.publish(ModelRow(0, 0.0, "d0", {"auroc": 0.5}))
    for name in LEARNERS:
        journal.append("Joined", {"at": 0.0, "learner": name, "examples": 50, "group": "fast", "labels": []})
        journal.note([{"learner": name, "task": f"0{name}", "version": 0, "at": 0.0}], [])
    made, version, size = [], 0, 0
    for turn in range(turns):
        for place, name in enumerate(LEARNERS[: 3 if turn < 20 else 2]):
            at, task, sent = turn + 1.0 + place / 10, f"{turn}{name}", SIZES[place] + turn
            journal.append("Arrived", {"at": at, "learner": name, "task": task, "size": sent})
            scorer = LEARNERS[(place + 1) % 3]
            journal.append("Scored", {"at": at + 0.05, "learner": scorer, "task": f"{task}@{scorer}"})
            version, size = version + 1, size + sent
            commit = {
                "learner": name, "task": task, "version": version, "began": float(turn), "arrived": at,
                "uploading": 0.25, "at": at + 0.05, "size": sent, "steps": 4 + place, "weight": 1.0 + turn,
                "missed": place, "staleness": (turn * 7) % 13, "loss": 1.0 / version, "validation": None,
            }  # fmt: skip
            made.append(commit)
            asked = {"learner": name, "task": f"{turn + 1}{name}", "version": version, "at": at + 0.05}
            journal.note([asked], [commit])
            journal.publish(
                ModelRow(version, at + 0.05, f"d{version}", {"auroc": 0.9}), updates=version, size=size
            )
    journal.append("Left", {"at": 25.0, "learner": "c"})
    journal.flush()
    if status != "running":
        store.finish_run(run, status, {"progress": [{"version": version, "at": 1.0, "brier": 0.1}]})
    return made


def test_the_list_tells_how_far_each_run_came(store):
    commits = write(store)
    store.add_run(
        RunRow(
            "s",
            "2026-03-02T12:00:00+00:00",
            "local",
            {"name": "x"},
            "",
            "failed",
            {"updates": 7, "bytes_up": 9},
        )
    )
    lines, total = run_lines(store)
    assert total == 2
    assert [line.run for line in lines] == ["s", "r"]
    assert (lines[0].version, lines[0].updates, lines[0].bytes, lines[0].metrics) == (0, 7, 9, {})
    assert (lines[1].title, lines[1].status, lines[1].updates) == ("Heart", "finished", len(commits))
    assert lines[1].bytes == sum(commit["size"] for commit in commits)
    assert lines[1].metrics == {"auroc": 0.9, "brier": 0.1}
    assert run_lines(store, 1, 1)[0][0].run == "r"


def test_the_head_of_a_run_is_that_of_its_newest_version(store):
    commits = write(store, status="running")
    with store.holding("r"):
        now = head(store, "r")
    assert (now.status, now.version, now.updates) == ("running", len(commits), len(commits))
    assert now.events == 3 + 2 * len(commits) + 1
    assert now.at == 25.0
    assert head(store, "r").status == "interrupted"
    with pytest.raises(SettingsError, match="no run 'x'"):
        head(store, "x")


def test_versions_are_thinned_out_and_the_last_is_kept(store):
    commits = write(store)
    every, few = points(store, "r"), points(store, "r", 10)
    assert [point.version for point in every] == list(range(len(commits) + 1))
    assert every[-1].bytes == sum(commit["size"] for commit in commits)
    assert every[-1].metrics["brier"] == 0.1
    assert every[5].metrics["training loss"] == pytest.approx(commits[4]["loss"])
    assert [point.wall for point in every] == sorted(point.wall for point in every)
    assert len(few) <= 12
    assert few[-1].version == len(commits)
    assert few[1].metrics["training loss"] == pytest.approx(
        mean(c["loss"] for c in commits[: few[1].version])
    )


def test_learners_are_added_up(store):
    commits = write(store, status="running")
    lines, total = busiest(store, "r")
    assert total == 3
    assert [line.learner for line in lines] == list(LEARNERS)
    for line in lines:
        mine = [commit for commit in commits if commit["learner"] == line.learner]
        assert line.commits == len(mine)
        assert line.bytes == sum(commit["size"] for commit in mine)
        assert line.staleness == pytest.approx(mean(commit["staleness"] for commit in mine))
        assert line.weight == mine[-1]["weight"]
        assert line.uploading == pytest.approx(0.25 * len(mine))
    assert [line.state for line in lines] == ["training", "training", "lost"]
    assert [line.learner for line in busiest(store, "r", 1)[0]] == ["a"]


def test_spans_cover_what_learners_did(store):
    commits = write(store, status="running")
    made = spans(store, "r")
    kinds = Counter(span.what for span in made)
    assert kinds["training"] == len(commits) + 2  # two are under way
    assert kinds["uploading"] == kinds["evaluating"] == len(commits)
    assert kinds["lost"] == 1
    assert all(span.end >= span.begin for span in made)
    some = spans(store, "r", 10, first=True)
    assert max(span.end for span in some) < 6
    assert min(span.begin for span in spans(store, "r", 10) if span.what == "training") > 20


def test_stretches_hold_every_commit(store):
    commits = write(store)
    for wall in (False, True):
        together, width = stretches(store, "r", wall=wall)
        assert sum(each.commits for each in together) == len(commits)
        assert len(together) <= 121
        assert width > 0
        apart, _ = stretches(store, "r", wall=wall, learners=["a", "b"])
        assert sum(each.commits for each in apart) == sum(c["learner"] in "ab" for c in commits)
    assert stretches(store, "nobody") == ([], 1.0)


def test_quartiles_are_those_of_the_numbers(store):
    commits = write(store)
    for each in quartiles(store, "r", "staleness"):
        numbers = sorted(c["staleness"] for c in commits if c["learner"] == each.name)
        assert (each.count, each.low, each.high) == (len(numbers), numbers[0], numbers[-1])
        assert each.median == numbers[-(-len(numbers) // 2) - 1]
        assert each.mean == pytest.approx(mean(numbers))
    (sizes,) = quartiles(store, "r", "size", by_learner=False)
    assert (sizes.count, sizes.low) == (len(commits), 100)


def test_cycles_are_numbered_and_thinned_out(store):
    commits = write(store)
    every = cycle_lines(store, "r", ["a"])
    assert [line.cycle for line in every] == list(range(1, 31))
    assert [line.loss for line in every] == [c["loss"] for c in commits if c["learner"] == "a"]
    few = cycle_lines(store, "r", ["a", "c"], 5)
    assert [line.cycle for line in few if line.learner == "a"] == [1, 7, 13, 19, 25, 30]


def test_events_are_filtered_and_show_little(store):
    write(store)
    assert kinds_of(store, "r") == {"Arrived": 80, "Joined": 3, "Left": 1, "Scored": 80}
    newest = events_of(store, "r", most=2)
    assert [line.kind for line in newest] == ["Left", "Scored"]
    only = events_of(store, "r", kinds=["Arrived"], learner="c", most=100)
    assert len(only) == 20
    assert events_of(store, "r", before=only[-1].sequence, kinds=["Arrived"], learner="c") == []
    assert set(only[0].detail) == {"size", "task"}


def test_the_codec_is_that_of_the_recipe():
    assert codec_of({"method": {"codec": "stc"}, "settings": {"codec": "raw"}}) == "stc"
    assert codec_of({}) == "raw"
