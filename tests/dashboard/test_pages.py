"""What pages show: the numbers of the store, escaped, masked, and in a bounded size."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from tests.dashboard.told import HOSTILE, LEARNERS, tell
from tests.report.test_run import row

from abaton.report import AXES, TITLES, activity_figures, html_renderer
from abaton.store import RunRow, activity, head, points


def figures(client, run="r", **asked):
    return client.get(f"/runs/{run}/figures", params=asked).json()


def test_the_list_has_all_runs_the_newest_first(looking, store):
    assert "No runs yet" in looking.get("/").text
    for name in ("one", "two"):
        tell(store, name)
    page = looking.get("/").text
    assert page.index(">two<") < page.index(">one<")
    assert page.count(">finished<") == 2
    assert "AUROC 0.974" in page


def test_long_lists_come_in_pages(looking, store):
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
    first, second = looking.get("/").text, looking.get("/?after=200").text
    assert first.count('name="run"') == 200
    assert second.count('name="run"') == 3
    assert "Older runs" in first
    assert "Newer runs" in second


@pytest.mark.parametrize("axis", ["wall", "at", "version", "bytes"])
def test_the_metric_is_drawn_over_every_axis(looking, store, axis):
    version = tell(store, "r")
    (trace,) = figures(looking, axis=axis)["figures"]["metric"]["data"]
    told = points(store, "r")
    assert trace["x"] == [getattr(point, axis) for point in told]
    assert trace["y"] == [point.metrics["auroc"] for point in told]
    assert len(told) == version + 1


def test_a_metric_can_be_chosen(looking, store):
    tell(store, "r")
    told = figures(looking, metric="validation loss")
    assert told["metrics"] == ["auroc", "loss", "validation loss", "training loss"]
    assert told["figures"]["metric"]["data"][0]["y"] == pytest.approx([2.0 / v for v in range(1, 19)])
    assert figures(looking, metric="nonsense")["metric"] == "auroc"
    assert looking.get("/runs/r/figures?axis=nonsense").status_code == 422


def test_all_figures_hold_the_data(looking, store):
    tell(store, "r", method={"codec": "stc(sparsity=0.1)"})
    told = figures(looking)["figures"]
    assert {trace["name"]: len(trace["x"]) for trace in told["timeline"]["data"]} == {
        "training": 18, "uploading": 18, "evaluating": 0, "waiting": 15, "lost": 0,
    }  # fmt: skip
    shares = {trace["name"]: trace["y"][-1] for trace in told["weights"]["data"]}
    assert shares == pytest.approx({"athens": 1 / 6, "kos": 2 / 6, "pergamon": 3 / 6})
    assert told["staleness"]["data"][0]["median"] == [12.0] * 3
    assert [trace["name"] for trace in told["cycles"]["data"]] == list(LEARNERS)
    assert told["payloads"]["data"][0]["y"] == ["stc(sparsity=0.1)"]
    assert told["payloads"]["data"][0]["median"] == [110.0]
    pace = told["pace"]["data"][0]
    width = pace["width"][0] / 0.9
    assert sum(pace["y"]) * width / 60 == pytest.approx(18)
    for figure in told.values():
        assert figure["table"]["rows"]
        assert all(len(row) == len(figure["table"]["heads"]) for row in figure["table"]["rows"])


def test_a_run_without_commits_has_a_page_too(looking, store):
    store.add_run(RunRow("bare", "2026-01-01T00:00:00", "local", {"name": "x"}, "", "failed", None))
    assert looking.get("/runs/bare").status_code == 200
    assert "metric" not in figures(looking, "bare")["figures"]
    assert looking.get("/compare?run=bare").status_code == 200


@pytest.mark.parametrize("policy", ["SyncFedAvg", "AsyncDVW(a)", "SomethingNew"])
def test_nothing_of_a_study_tells_how_many_people_a_site_has(looking, store, policy):
    tell(store, "r", study={"title": "Falls"}, method={"policy": {"name": policy}})
    told = figures(looking)
    heads = re.findall(r'scope="col"[^>]*>([^<]*)<', told["tables"]["learners"])
    assert not {"examples", "steps", "staleness"} & set(heads)
    by_validation = policy == "AsyncDVW(a)"
    assert ("weight" in heads) == ("weights" in told["figures"]) == by_validation
    assert ('data-figure="weights"' in looking.get("/runs/r").text) == by_validation
    assert "steps" not in json.dumps(told["figures"])
    log = looking.get("/runs/r/log").text
    assert "Arrived" in log
    assert not re.search("examples|steps|cohort", log)


def test_an_experiment_tells_examples_and_steps(looking, store):
    tell(store, "r")
    heads = re.findall(r'scope="col"[^>]*>([^<]*)<', figures(looking)["tables"]["learners"])
    assert {"examples", "steps", "weight", "staleness"} <= set(heads)
    assert "examples 23" in looking.get("/runs/r/log?kind=Joined").text


def test_the_log_is_filtered_by_kind_and_learner_and_comes_in_pages(looking, store):
    tell(store, "r", rounds=40)
    page = looking.get("/runs/r/log").text
    assert len(re.findall('<th scope="row"', page)) == 50
    older = re.search(r'href="(/runs/r/log\?[^"]+)">Older', page).group(1).replace("&amp;", "&")
    assert len(re.findall('<th scope="row"', looking.get(older).text)) == 50
    only = looking.get("/runs/r/log", params={"kind": ["Failed", "Joined"], "learner": "athens"}).text
    assert len(re.findall('<th scope="row"', only)) == 2
    assert "dropped out" in only
    assert "No event fits" in looking.get("/runs/r/log?learner=nobody").text
    assert "No event fits" not in looking.get("/runs/r/log?kind=nonsense").text


def test_runs_are_compared(looking, store):
    tell(store, "one")
    tell(store, "two", rounds=3, settings={"seed": 2, "rounds": 3})
    page = looking.get("/compare?run=one&run=two").text
    assert ">seed<" in page
    assert ">rounds<" in page
    assert re.findall(r"<p>A: .*?>one</a> · B: .*?>two</a></p>", page), "which letter is which run"
    assert ">B</th>" in page
    told = looking.get("/compare/figures?run=one&run=two&axis=bytes&metric=loss").json()
    assert [trace["name"] for trace in told["figures"]["metric"]["data"]] == ["A: one", "B: two"]
    assert told["figures"]["metric"]["data"][1]["x"][-1] == head(store, "two").bytes
    assert looking.get("/compare?run=one&run=absent").status_code == 404
    assert looking.get("/compare?" + "&".join(f"run=r{i}" for i in range(9))).status_code == 422


def test_names_are_shown_and_never_run(looking, store):
    name = HOSTILE.replace("/", "")
    tell(store, name, learners=(HOSTILE, "kos"), study={"title": HOSTILE}, method={"codec": HOSTILE})
    link = re.search(r'href="(/runs/[^"]+)"', looking.get("/").text).group(1)
    pages = [looking.get(path).text for path in ("/", link, f"{link}/log", "/compare")]
    told = looking.get(f"{link}/figures")
    pages += json.loads(told.text)["tables"].values()
    for page in pages:
        assert "<script>" not in page
        assert "<img" not in page
        assert "&lt;script&gt;" in page
    assert told.headers["content-type"] == "application/json"
    assert "<" not in "".join(
        str(trace.get("name")) + str(trace.get("y") or "")
        for f in told.json()["figures"].values()
        for trace in f["data"]
    )
    assert HOSTILE not in looking.get("/runs/r/log", params={"learner": HOSTILE}).text


def test_a_run_is_known_by_its_whole_name(looking, store):
    tell(store, "heart-1")
    assert looking.get("/runs/heart").status_code == 404
    assert looking.get("/runs/heart-1").status_code == 200


def test_answers_are_tagged_and_not_sent_twice(looking, store):
    tell(store, "r")
    first = looking.get("/runs/r/figures")
    assert looking.get("/runs/r/figures", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    script = looking.get("/static/plotly.js")
    assert script.headers["content-encoding"] == "gzip"
    assert (
        looking.get("/static/plotly.js", headers={"if-none-match": script.headers["etag"]}).status_code == 304
    )
    plain = looking.get("/static/dashboard.css", headers={"accept-encoding": ""})
    assert "content-encoding" not in plain.headers


def test_a_run_is_pruned_unless_somebody_works_on_it(store, closed, tokens):
    tell(store, "r")
    asked = {"authorization": f"Bearer {tokens[1]['operator']}"}
    with store.holding("r"):
        assert "held" in closed.post("/runs/r/prune", headers=asked, data={"last": "2"}).headers["location"]
    assert "pruned" in closed.post("/runs/r/prune", headers=asked, data={"last": "2"}).headers["location"]
    assert "Pruned" in closed.get("/runs/r?notice=pruned", headers=asked).text
    assert "taken" not in closed.get("/runs/r?notice=taken", headers=asked).text
    assert closed.post("/runs/r/prune", headers=asked, data={"last": "0"}).status_code == 422
    assert closed.post("/runs/absent/prune", headers=asked, data={}).status_code == 404


def test_pages_do_not_grow_with_the_number_of_events(looking, store):
    tell(store, "small", rounds=250)
    tell(store, "large", rounds=1000)
    sizes = [len(looking.get(f"/runs/{run}/figures").content) for run in ("small", "large")]
    assert sizes[1] < 1.2 * sizes[0] < 200_000


def test_the_report_draws_what_the_page_draws(looking, store):
    tell(store, "r")
    shown = figures(looking, axis="at", stretch="first")["figures"]
    del shown["metric"]
    drawn = activity_figures(activity(store, "r", first=True), words=AXES["at"])
    assert json.loads(json.dumps(drawn)) == shown
    assert set(shown) == set(TITLES)
    page = html_renderer.environment().get_template("machine.html").module.activity(drawn, TITLES)
    for name, (title, _) in TITLES.items():
        assert f'data-figure="{name}"' in page
        assert f'<h3 id="f-{name}">{title}</h3>' in page


def test_a_study_shows_what_it_found_what_sites_gain_and_its_report(looking, store):
    judged = row()
    store.add_run(replace(judged, status="running", result=None))
    page = looking.get("/runs/s-1").text
    assert "Operations" not in page
    assert looking.get("/runs/s-1/report").status_code == 404
    store.finish_run(judged.run, "finished", judged.result)
    page = looking.get("/runs/s-1").text
    for words in ("predicts ill with an AUROC of 0.800", "What each site gains", "+0.100 (+0.020 to +0.200)",
                  "≤8 left out", 'href="/runs/s-1/report"'):  # fmt: skip
        assert words in page, words
    assert 'href="/runs/s-1/report"' in looking.get("/").text
    report = looking.get("/runs/s-1/report")
    assert report.headers["content-type"].startswith("text/html")
    assert '<h2 id="the-finding">' in report.text
    assert "<style" not in report.text
    assert not re.search(r"<script(?! src=| type=\"application/json\")", report.text)
