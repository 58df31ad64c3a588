"""Pages of the dashboard: values of the store, escaped, suppressed and of bounded size."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.dashboard.example_store import HOSTILE, LEARNERS, write_run
from tests.report.test_run_report import row

from abaton.report import AXES, TITLES, activity_figures, html_renderer
from abaton.store import RunRow, metric_points, run_head, visible_activity


def figures(client, run="r", **query):
    return client.get(f"/runs/{run}/figures", params=query).json()


def test_the_list_has_all_runs_the_newest_first(local, store):
    assert "No runs yet" in local.get("/").text
    for name in ("one", "two"):
        write_run(store, name)
    page = local.get("/").text
    assert page.index(">two<") < page.index(">one<")
    assert page.count(">finished<") == 2
    assert "AUROC 0.974" in page


def test_long_lists_are_paginated(local, store):
    for number in range(203):
        store.add_run(
            RunRow(
                f"r{number:03}",
                f"2026-01-01T00:00:00.{number:03}",
                "virtual",
                {"name": "x"},
                "",
                "failed",
                None,
            )
        )
    first, second = local.get("/").text, local.get("/?after=200").text
    assert first.count('name="run"') == 200
    assert second.count('name="run"') == 3
    assert "Older runs" in first
    assert "Newer runs" in second


@pytest.mark.parametrize("axis", ["wall_time", "timestamp", "version", "bytes"])
def test_the_metric_is_drawn_over_every_axis(local, store, axis):
    version = write_run(store, "r")
    (trace,) = figures(local, axis=axis)["figures"]["metric"]["data"]
    points = metric_points(store, "r")
    assert trace["x"] == [getattr(point, axis) for point in points]
    assert trace["y"] == [point.metrics["auroc"] for point in points]
    assert len(points) == version + 1


def test_a_metric_can_be_selected(local, store):
    write_run(store, "r")
    response = figures(local, metric="validation loss")
    assert response["metrics"] == ["auroc", "loss", "validation loss", "training loss"]
    assert response["figures"]["metric"]["data"][0]["y"] == pytest.approx([2.0 / v for v in range(1, 19)])
    assert figures(local, metric="nonsense")["metric"] == "auroc"
    assert local.get("/runs/r/figures?axis=nonsense").status_code == 422


def test_all_figures_contain_the_data(local, store):
    write_run(store, "r", method={"codec": "stc(sparsity=0.1)"})
    drawn_figures = figures(local)["figures"]
    assert {trace["name"]: len(trace["x"]) for trace in drawn_figures["timeline"]["data"]} == {
        "training": 18, "uploading": 18, "evaluating": 0, "waiting": 15, "lost": 0,
    }  # fmt: skip
    fractions = {trace["name"]: trace["y"][-1] for trace in drawn_figures["weights"]["data"]}
    assert fractions == pytest.approx({"athens": 1 / 6, "kos": 2 / 6, "pergamon": 3 / 6})
    assert drawn_figures["staleness"]["data"][0]["median"] == [12.0] * 3
    assert [trace["name"] for trace in drawn_figures["cycles"]["data"]] == list(LEARNERS)
    assert drawn_figures["payloads"]["data"][0]["y"] == ["stc(sparsity=0.1)"]
    assert drawn_figures["payloads"]["data"][0]["median"] == [110.0]
    commit_rate = drawn_figures["commit_rate"]["data"][0]
    width = commit_rate["width"][0] / 0.9
    assert sum(commit_rate["y"]) * width / 60 == pytest.approx(18)
    for figure in drawn_figures.values():
        assert figure["table"]["rows"]
        assert all(len(row) == len(figure["table"]["columns"]) for row in figure["table"]["rows"])


def test_a_run_without_commits_has_a_page_too(local, store):
    store.add_run(RunRow("bare", "2026-01-01T00:00:00", "local", {"name": "x"}, "", "failed", None))
    assert local.get("/runs/bare").status_code == 200
    assert "metric" not in figures(local, "bare")["figures"]
    assert local.get("/compare?run=bare").status_code == 200


@pytest.mark.parametrize("strategy", ["SyncFedAvg", "AsyncDVW(a)", "SomethingNew"])
def test_pages_of_a_study_suppress_the_number_of_subjects(local, store, strategy):
    write_run(store, "r", study={"title": "Falls"}, method={"strategy": {"name": strategy}})
    response = figures(local)
    column_names = re.findall(r'scope="col"[^>]*>([^<]*)<', response["tables"]["learners"])
    assert not {"examples", "steps", "staleness"} & set(column_names)
    by_validation = strategy == "AsyncDVW(a)"
    assert ("weight" in column_names) == ("weights" in response["figures"]) == by_validation
    assert ('data-figure="weights"' in local.get("/runs/r").text) == by_validation
    assert "steps" not in json.dumps(response["figures"])
    log = local.get("/runs/r/log").text
    assert "update_received" in log
    assert not re.search("examples|steps|cohort", log)


def test_pages_of_an_experiment_show_examples_and_steps(local, store):
    write_run(store, "r")
    column_names = re.findall(r'scope="col"[^>]*>([^<]*)<', figures(local)["tables"]["learners"])
    assert {"examples", "steps", "weight", "staleness"} <= set(column_names)
    assert "examples 23" in local.get("/runs/r/log?type=learner_joined").text


def test_the_log_is_filtered_by_type_and_learner_and_paginated(local, store):
    write_run(store, "r", rounds=40)
    page = local.get("/runs/r/log").text
    assert len(re.findall('<th scope="row"', page)) == 50
    older = re.search(r'href="(/runs/r/log\?[^"]+)">Older', page).group(1).replace("&amp;", "&")
    assert len(re.findall('<th scope="row"', local.get(older).text)) == 50
    only = local.get(
        "/runs/r/log", params={"type": ["task_failed", "learner_joined"], "learner": "athens"}
    ).text
    assert len(re.findall('<th scope="row"', only)) == 2
    assert "dropped out" in only
    assert "No event matches" in local.get("/runs/r/log?learner=unknown").text
    assert "No event matches" not in local.get("/runs/r/log?type=nonsense").text


def test_runs_are_compared(local, store):
    write_run(store, "one")
    write_run(store, "two", rounds=3, settings={"seed": 2, "rounds": 3})
    page = local.get("/compare?run=one&run=two").text
    assert ">seed<" in page
    assert ">rounds<" in page
    assert re.findall(r"<p>A: .*?>one</a> · B: .*?>two</a></p>", page), "labels of the runs"
    assert ">B</th>" in page
    response = local.get("/compare/figures?run=one&run=two&axis=bytes&metric=loss").json()
    assert [trace["name"] for trace in response["figures"]["metric"]["data"]] == ["A: one", "B: two"]
    assert response["figures"]["metric"]["data"][1]["x"][-1] == run_head(store, "two").bytes
    assert local.get("/compare?run=one&run=absent").status_code == 404
    assert local.get("/compare?" + "&".join(f"run=r{i}" for i in range(9))).status_code == 422


def test_names_are_escaped(local, store):
    name = HOSTILE.replace("/", "")
    write_run(store, name, learners=(HOSTILE, "kos"), study={"title": HOSTILE}, method={"codec": HOSTILE})
    link = re.search(r'href="(/runs/[^"]+)"', local.get("/").text).group(1)
    pages = [local.get(path).text for path in ("/", link, f"{link}/log", "/compare")]
    response = local.get(f"{link}/figures")
    pages += json.loads(response.text)["tables"].values()
    for page in pages:
        assert "<script>" not in page
        assert "<img" not in page
        assert "&lt;script&gt;" in page
    assert response.headers["content-type"] == "application/json"
    assert "<" not in "".join(
        str(trace.get("name")) + str(trace.get("y") or "")
        for f in response.json()["figures"].values()
        for trace in f["data"]
    )
    assert HOSTILE not in local.get("/runs/r/log", params={"learner": HOSTILE}).text


def test_a_run_needs_its_full_name(local, store):
    write_run(store, "heart-1")
    assert local.get("/runs/heart").status_code == 404
    assert local.get("/runs/heart-1").status_code == 200


def test_responses_have_entity_tags(local, store):
    write_run(store, "r")
    first = local.get("/runs/r/figures")
    assert local.get("/runs/r/figures", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    script = local.get("/static/plotly.js")
    assert script.headers["content-encoding"] == "gzip"
    assert (
        local.get("/static/plotly.js", headers={"if-none-match": script.headers["etag"]}).status_code == 304
    )
    uncompressed = local.get("/static/dashboard.css", headers={"accept-encoding": ""})
    assert "content-encoding" not in uncompressed.headers


def test_a_run_is_pruned_unless_it_is_running(store, protected, tokens):
    write_run(store, "r")
    headers = {"authorization": f"Bearer {tokens[1]['operator']}"}
    with store.lock_run("r"):
        assert (
            "locked"
            in protected.post("/runs/r/prune", headers=headers, data={"last": "2"}).headers["location"]
        )
    assert (
        "pruned" in protected.post("/runs/r/prune", headers=headers, data={"last": "2"}).headers["location"]
    )
    assert "were deleted" in protected.get("/runs/r?notice=pruned", headers=headers).text
    assert "taken" not in protected.get("/runs/r?notice=taken", headers=headers).text
    assert protected.post("/runs/r/prune", headers=headers, data={"last": "0"}).status_code == 422
    assert protected.post("/runs/absent/prune", headers=headers, data={}).status_code == 404


def test_pages_do_not_grow_with_the_number_of_events(local, store):
    write_run(store, "small", rounds=250)
    write_run(store, "large", rounds=1000)
    sizes = [len(local.get(f"/runs/{run}/figures").content) for run in ("small", "large")]
    assert sizes[1] < 1.2 * sizes[0] < 200_000


def test_the_report_has_the_figures_of_the_page(local, store):
    write_run(store, "r")
    shown = figures(local, axis="timestamp", interval="first")["figures"]
    del shown["metric"]
    report_figures = activity_figures(visible_activity(store, "r", first=True), time_label=AXES["timestamp"])
    assert json.loads(json.dumps(report_figures)) == shown
    assert set(shown) == set(TITLES)
    page = html_renderer.environment().get_template("training.html").module.activity(report_figures, TITLES)
    for name, (title, _) in TITLES.items():
        assert f'data-figure="{name}"' in page
        assert f'<h3 id="f-{name}">{title}</h3>' in page


def test_a_study_shows_finding_local_benefit_and_report(local, store):
    finished = row()
    store.add_run(replace(finished, status="running", result=None))
    page = local.get("/runs/s-1").text
    assert "Operations" not in page
    assert local.get("/runs/s-1/report").status_code == 404
    store.finish_run(finished.run, "finished", finished.result)
    page = local.get("/runs/s-1").text
    for text in ("predicts ill with an AUROC of 0.800", "Local benefit", "+0.100 (+0.020 to +0.200)",
                  "≤8 excluded", 'href="/runs/s-1/report"'):  # fmt: skip
        assert text in page, text
    assert 'href="/runs/s-1/report"' in local.get("/").text
    report = local.get("/runs/s-1/report")
    assert report.headers["content-type"].startswith("text/html")
    assert '<h2 id="finding">' in report.text
    assert "<style" not in report.text
    assert not re.search(r"<script(?! src=| type=\"application/json\")", report.text)
