"""The paper's tables and figures can be made, say what was reduced, and refuse what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from abaton.errors import SettingsError
from abaton.lab.paper_figures import PLANS, community_costs, paper_figure, pivot, resnet_parameters
from abaton.lab.paper_tables import DownscaleChoice

QUICK = DownscaleChoice(scale=0.006, seeds=1, rows=800)


def test_every_table_and_figure_of_the_paper_has_a_name():
    assert set(PLANS) == {"table1", "table2", "table3", *(f"fig{n}" for n in range(2, 10))}


@pytest.mark.parametrize("name", ["table3", "fig3", "fig4"])
def test_evidence_without_any_data_folder(name, monkeypatch):
    monkeypatch.delenv("ABATON_DATA", raising=False)
    messages: list[str] = []
    figure = paper_figure(name, QUICK, messages.append)
    assert figure.rows
    assert all(len(row) == len(figure.columns) for row in figure.rows)
    assert any("'synthetic' stands in" in line for line in figure.reduced)
    assert any("1.7 rounds" in line for line in figure.reduced)
    assert json.loads(json.dumps(figure.data))
    assert figure.figure().data
    assert messages or name == "fig3"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["table1", "table2", "fig5", "fig6", "fig7", "fig8", "fig9"])
def test_the_long_ones_without_any_data_folder(name, monkeypatch):
    monkeypatch.delenv("ABATON_DATA", raising=False)
    figure = paper_figure(name, replace(QUICK, rows=2000))  # fewer leave the smallest nothing to validate on
    assert all(len(row) == len(figure.columns) for row in figure.rows)
    assert figure.figure().data


@pytest.mark.slow
@pytest.mark.shared
def test_the_second_table_on_the_data_that_stands_in(shared):
    table = paper_figure("table2", DownscaleChoice(scale=0.001, seeds=1, folder=shared / "data"))
    assert len(table.rows) == 6
    assert "(0.444)" in str(table.rows)
    assert "10,000 of the 50,000" in table.reduced[0]


def test_costs_with_and_without_the_cache():
    rows = community_costs([1, 3], {"small": 1000, "large": 10**9}, memory=10**6)
    assert [row["full"] is None for row in rows] == [False, False, True, True]
    assert all(row["cached"] > 0 for row in rows[:2])
    assert resnet_parameters(56, classes=10) == 853018


def test_a_table_has_a_line_for_each_environment():
    line = {
        "environment": "a",
        "strategy": "SyncDVW",
        "accuracy": {"mean": 0.5, "half_width": 0.01},
        "paper": 0.7,
    }
    other = {**line, "strategy": "FedAsync", "accuracy": {"mean": 0.25, "half_width": None}, "paper": None}
    assert pivot([line, other]) == (
        ("environment", "SyncDVW", "FedAsync"),
        [["a", "0.500 ± 0.010 (0.700)", "0.250"]],
    )


@pytest.mark.parametrize(
    ("name", "choice", "says"),
    [
        ("fig1", DownscaleChoice(), "no 'fig1'"),
        ("table1", DownscaleChoice(scale=0), "scale is 0"),
        ("table1", DownscaleChoice(scale=2), "scale is 2"),
        ("table1", DownscaleChoice(seeds=0), "seeds is 0"),
        ("table1", DownscaleChoice(data="nothing"), "no data set"),
    ],
)
def test_wrong_choices_are_refused(name, choice, says):
    with pytest.raises(SettingsError, match=says):
        paper_figure(name, choice)
