"""One number for a model and its subjects: in the terminal, JSON, the report, the model card and the dashboard."""

from __future__ import annotations

import html
import json
import re
from functools import partial

import numpy as np
import pytest
from tests.cli_runner import abaton
from tests.dashboard.example_store import Client

from abaton.dashboard import DashboardState, make_dashboard
from abaton.lab.demo import NOW, make_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.store import Store
from abaton.study_run import StudyOptions, evaluation, run_study
from abaton.study_run.consented_learner import to_examples


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


SITES = ("athens", "kos", "pergamon", "trikala")


def html_rows(page: str) -> list[list[str]]:
    """Return the cells of all table rows of a page as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.S)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.S) for row in rows]
    return [[" ".join(html.unescape(re.sub(r"<[^>]+>", " ", c)).split()) for c in row] for row in cells]


def text_rows(text: str, mark: str) -> list[list[str]]:
    """Return the cells of the table rows of a terminal or Markdown text."""
    return [
        [cell.strip() for cell in line.strip().strip(mark).split(mark)]
        for line in text.splitlines()
        if mark in line
    ]


def metric_cells(rows: list[list[str]], group: str) -> set[str]:
    """Return the first metric of the community model in the rows of a group."""
    estimate = re.compile(r"\d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)|too few")
    selected = [row for row in rows if group in row and ("community" in row or row[0] == group)]
    return {
        next(cell for cell in row if estimate.fullmatch(cell))
        for row in selected
        if any(map(estimate.fullmatch, row))
    }


def whole_run(four, store):
    options = StudyOptions(3, four.profiles, baselines=True, bootstrap_resamples=50)
    return run_study(four.study, four.sites, store, options, now=NOW, watch=four.watch).row


@pytest.mark.slow
def test_one_run_has_the_same_numbers_everywhere(tmp_path):
    four = make_demo(tmp_path / "hospitals", 3, 1.5, rounds=4, cohort=FOUR_HOSPITALS)  # 15 cases at each site
    with Store(tmp_path / "store") as store:
        row = whole_run(four, store)
        client = Client(make_dashboard(DashboardState(store)), "http://localhost:8730")
        dashboard = client.get(f"/runs/{row.run}").text
        client.close()
    typed = partial(abaton, folder=tmp_path, COLUMNS="200", ABATON_STORE=str(tmp_path / "store"))
    data = json.loads(typed("show", row.run, "--json").stdout)
    terminal = typed("show", row.run).stdout
    assert typed("report", row.run, "-o", "report.html").returncode == 0
    assert typed("model", "card", row.run, "-o", "card.md").returncode == 0
    report, card = (tmp_path / "report.html").read_text(), (tmp_path / "card.md").read_text()
    outputs = {
        "terminal": text_rows(terminal, "│"),
        "report": html_rows(report),
        "card": text_rows(card, "|"),
        "dashboard": html_rows(dashboard),
    }

    rows = {line["group"]: line for line in data["rows"] if line["model"] == "community"}
    assert {"all sites", *SITES} <= set(rows)
    groups_with_metrics = 0
    for group, line in rows.items():
        if line["metrics"] is None:
            continue
        groups_with_metrics += 1
        auroc = line["metrics"]["auroc"]
        shown = f"{auroc['value']:.3f} ({auroc['low']:.3f} to {auroc['high']:.3f})"
        for output in ("terminal", "report", "card"):
            assert metric_cells(outputs[output], group) == {shown}, (output, group)
        if line["grouping"] not in ("all", "site"):
            assert metric_cells(outputs["dashboard"], group) == {shown}
    assert groups_with_metrics > 3

    benefits = {benefit["site"]: benefit for benefit in data["local_benefit"]}
    local_only = {
        line["group"]: line for line in data["rows"] if line["model"] == f"{line['group']} (local only)"
    }
    compared = [site for site in SITES if benefits[site]["community"]]
    assert compared
    for site in compared:
        benefit = benefits[site]
        assert benefit["community"] == rows[site]["metrics"]["auroc"], "one estimate of a site and a model"
        assert benefit["local_only"] == local_only[site]["metrics"]["auroc"]
        values = [f"{benefit[name]['value']:.3f}" for name in ("local_only", "community")]
        assert [site, *values] in [cells[:3] for cells in outputs["terminal"]]
        for output in ("report", "dashboard"):
            (cells,) = [
                cells
                for cells in outputs[output]
                if cells and cells[0].startswith(f"{site} ") and " subjects" in cells[0]
            ]
            assert [cell.split()[0] for cell in cells[1:3]] == values
            assert benefit["baseline"] in cells[0]
        assert f"{site} {benefit['baseline']}" in terminal
    sentence = data["finding"]["text"]
    assert sentence in terminal
    assert sentence in html.unescape(report)
    assert sentence in html.unescape(dashboard)


def test_rows_of_one_machine_equal_those_of_single_predictions(four, store, monkeypatch):
    """The counts of one machine are exact: no groups of subjects, no bins."""
    predictions = []

    def record(site, federation, predict, subjects, **options):
        predicted = predict(to_examples(site.test))
        eligible = np.array([subject in subjects for subject in site.test.subjects], dtype=bool)
        predictions.append(
            (site.name, predicted[eligible], site.test.y[eligible], site.test.weights[eligible])
        )
        return count_at_site(site, federation, predict, subjects, **options)

    count_at_site = evaluation.count_at_site
    monkeypatch.setattr(evaluation, "count_at_site", record)
    options = StudyOptions(3, four.profiles, bootstrap_resamples=0)
    row = run_study(four.study, four.sites, store, options, now=NOW).row
    from sklearn.metrics import roc_auc_score

    last = predictions[-len(row.recipe["tables"]) :]
    if row.recipe["method"]["interpretability"]:
        last = predictions[: len(row.recipe["tables"])]
    scores, labels, weights = (
        np.concatenate(parts) for parts in zip(*((p[:, 1], y, w) for _, p, y, w in last), strict=True)
    )
    assert weights.max() > 1, "some subjects have incomplete follow-up"
    rows = {line["group"]: line for line in row.result["evaluation"]["rows"]}
    assert rows["all sites"]["metrics"]["auroc"]["value"] == pytest.approx(
        roc_auc_score(labels, scores, sample_weight=weights), abs=1e-12
    )
    assert (rows["all sites"]["subjects"], rows["all sites"]["sites"]) == (str(len(labels)), len(last))
    for name, predicted, y, w in last:
        if rows[name]["metrics"]:
            exact = roc_auc_score(y, predicted[:, 1], sample_weight=w)
            assert rows[name]["metrics"]["auroc"]["value"] == pytest.approx(exact, abs=1e-12)
