"""Database aggregates agree with the journal, on SQLite and on a real PostgreSQL."""

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
    commits_by_interval,
    count_event_types,
    cycle_rows,
    latest_events,
    metric_points,
    most_active_learners,
    quartiles,
    recipe_codec,
    run_head,
    run_summaries,
    training_spans,
)

LEARNERS = ("a", "b", "c")
SIZES = (100, 250, 400)


@pytest.fixture
def store(tmp_path, database_url):
    with Store(tmp_path / "store", database_url) as opened:
        yield opened


def write(store: Store, run: str = "r", turns: int = 30, status: str = "finished") -> list[dict]:
    """Write a run and return its commits."""
    recipe = {"name": "heart", "study": {"title": "Heart"}}
    store.add_run(RunRow(run, "2026-03-01T12:00:00+00:00", "virtual", recipe, "abc", "running", None))
    wall_times = iter(range(10**6))
    journal = Journal(store, run, wall_clock=lambda: 1_772_366_400.0 + next(wall_times))
    journal.publish(ModelRow(0, 0.0, "d0", {"auroc": 0.5}))
    for name in LEARNERS:
        journal.append(
            "learner_joined",
            {"timestamp": 0.0, "learner": name, "examples": 50, "group": "fast", "labels": []},
        )
        journal.record_activity([{"learner": name, "task": f"0{name}", "version": 0, "timestamp": 0.0}], [])
    commits, version, size = [], 0, 0
    for turn in range(turns):
        for index, name in enumerate(LEARNERS[: 3 if turn < 20 else 2]):
            timestamp, task, sent = turn + 1.0 + index / 10, f"{turn}{name}", SIZES[index] + turn
            journal.append(
                "update_received",
                {"timestamp": timestamp, "learner": name, "task": task, "payload_bytes": sent},
            )
            evaluator = LEARNERS[(index + 1) % 3]
            journal.append(
                "evaluation_received",
                {"timestamp": timestamp + 0.05, "learner": evaluator, "task": f"{task}@{evaluator}"},
            )
            version, size = version + 1, size + sent
            commit = {
                "learner": name, "task": task, "version": version, "started_at": float(turn), "received_at": timestamp,
                "upload_seconds": 0.25, "timestamp": timestamp + 0.05, "payload_bytes": sent, "steps": 4 + index,
                "weight": 1.0 + turn, "versions_missed": index, "staleness": (turn * 7) % 13,
                "loss": 1.0 / version, "validation": None,
            }  # fmt: skip
            commits.append(commit)
            task_row = {
                "learner": name,
                "task": f"{turn + 1}{name}",
                "version": version,
                "timestamp": timestamp + 0.05,
            }
            journal.record_activity([task_row], [commit])
            journal.publish(
                ModelRow(version, timestamp + 0.05, f"d{version}", {"auroc": 0.9}), updates=version, size=size
            )
    journal.append("learner_left", {"timestamp": 25.0, "learner": "c"})
    journal.flush()
    if status != "running":
        store.finish_run(run, status, {"progress": [{"version": version, "timestamp": 1.0, "brier": 0.1}]})
    return commits


def test_the_run_list_has_the_progress_of_each_run(store):
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
    summaries, total = run_summaries(store)
    assert total == 2
    assert [summary.run for summary in summaries] == ["s", "r"]
    assert (summaries[0].version, summaries[0].updates, summaries[0].bytes, summaries[0].metrics) == (
        0,
        7,
        9,
        {},
    )
    assert (summaries[1].title, summaries[1].status, summaries[1].updates) == (
        "Heart",
        "finished",
        len(commits),
    )
    assert summaries[1].bytes == sum(commit["payload_bytes"] for commit in commits)
    assert summaries[1].metrics == {"auroc": 0.9, "brier": 0.1}
    assert run_summaries(store, 1, 1)[0][0].run == "r"


def test_the_head_of_a_run_is_that_of_its_newest_version(store):
    commits = write(store, status="running")
    with store.lock_run("r"):
        now = run_head(store, "r")
    assert (now.status, now.version, now.updates) == ("running", len(commits), len(commits))
    assert now.events == 3 + 2 * len(commits) + 1
    assert now.timestamp == 25.0
    assert run_head(store, "r").status == "interrupted"
    with pytest.raises(SettingsError, match="no run 'x'"):
        run_head(store, "x")


def test_versions_are_sampled_with_the_last(store):
    commits = write(store)
    every, sampled = metric_points(store, "r"), metric_points(store, "r", 10)
    assert [point.version for point in every] == list(range(len(commits) + 1))
    assert every[-1].bytes == sum(commit["payload_bytes"] for commit in commits)
    assert every[-1].metrics["brier"] == 0.1
    assert every[5].metrics["training loss"] == pytest.approx(commits[4]["loss"])
    assert [point.wall_time for point in every] == sorted(point.wall_time for point in every)
    assert len(sampled) <= 12
    assert sampled[-1].version == len(commits)
    assert sampled[1].metrics["training loss"] == pytest.approx(
        mean(c["loss"] for c in commits[: sampled[1].version])
    )


def test_learner_totals_are_aggregated(store):
    commits = write(store, status="running")
    summaries, total = most_active_learners(store, "r")
    assert total == 3
    assert [summary.learner for summary in summaries] == list(LEARNERS)
    for summary in summaries:
        learner_commits = [commit for commit in commits if commit["learner"] == summary.learner]
        assert summary.commits == len(learner_commits)
        assert summary.bytes == sum(commit["payload_bytes"] for commit in learner_commits)
        assert summary.staleness == pytest.approx(mean(commit["staleness"] for commit in learner_commits))
        assert summary.weight == learner_commits[-1]["weight"]
        assert summary.upload_seconds == pytest.approx(0.25 * len(learner_commits))
    assert [summary.state for summary in summaries] == ["training", "training", "lost"]
    assert [summary.learner for summary in most_active_learners(store, "r", 1)[0]] == ["a"]


def test_spans_cover_what_learners_did(store):
    commits = write(store, status="running")
    spans = training_spans(store, "r")
    activities = Counter(span.activity for span in spans)
    assert activities["training"] == len(commits) + 2  # two are under way
    assert activities["uploading"] == activities["evaluating"] == len(commits)
    assert activities["lost"] == 1
    assert all(span.end >= span.start for span in spans)
    first_spans = training_spans(store, "r", 10, first=True)
    assert max(span.end for span in first_spans) < 6
    assert min(span.start for span in training_spans(store, "r", 10) if span.activity == "training") > 20


def test_intervals_contain_every_commit(store):
    commits = write(store)
    for wall_clock in (False, True):
        all_commits, width = commits_by_interval(store, "r", wall_time=wall_clock)
        assert sum(item.commits for item in all_commits) == len(commits)
        assert len(all_commits) <= 121
        assert width > 0
        by_learner, _ = commits_by_interval(store, "r", wall_time=wall_clock, learners=["a", "b"])
        assert sum(item.commits for item in by_learner) == sum(c["learner"] in "ab" for c in commits)
    assert commits_by_interval(store, "unknown") == ([], 1.0)


def test_quartiles_are_those_of_the_values(store):
    commits = write(store)
    for item in quartiles(store, "r", "staleness"):
        values = sorted(c["staleness"] for c in commits if c["learner"] == item.name)
        assert (item.count, item.low, item.high) == (len(values), values[0], values[-1])
        assert item.median == values[-(-len(values) // 2) - 1]
        assert item.mean == pytest.approx(mean(values))
    (sizes,) = quartiles(store, "r", "payload_bytes", by_learner=False)
    assert (sizes.count, sizes.low) == (len(commits), 100)


def test_cycles_are_numbered_and_sampled(store):
    commits = write(store)
    every = cycle_rows(store, "r", ["a"])
    assert [summary.cycle for summary in every] == list(range(1, 31))
    assert [summary.loss for summary in every] == [c["loss"] for c in commits if c["learner"] == "a"]
    sampled = cycle_rows(store, "r", ["a", "c"], 5)
    assert [summary.cycle for summary in sampled if summary.learner == "a"] == [1, 7, 13, 19, 25, 30]


def test_events_are_filtered_and_show_few_fields(store):
    write(store)
    assert count_event_types(store, "r") == {
        "update_received": 80,
        "learner_joined": 3,
        "learner_left": 1,
        "evaluation_received": 80,
    }
    newest = latest_events(store, "r", limit=2)
    assert [summary.type for summary in newest] == ["learner_left", "evaluation_received"]
    only = latest_events(store, "r", types=["update_received"], learner="c", limit=100)
    assert len(only) == 20
    assert latest_events(store, "r", before=only[-1].sequence, types=["update_received"], learner="c") == []
    assert set(only[0].detail) == {"payload_bytes", "task"}


def test_the_codec_is_that_of_the_recipe():
    assert recipe_codec({"method": {"codec": "stc"}, "settings": {"codec": "raw"}}) == "stc"
    assert recipe_codec({}) == "raw"
