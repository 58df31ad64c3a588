from __future__ import annotations

from abaton.report import accuracy_over_time, community_cost, exchanges, staleness_boxes, validation_cycles


def test_each_environment_has_a_panel_and_each_strategy_a_line():
    curves = {f"e{i}": {"SyncDVW": [(0, 0.1), (1, 0.2)], "FedAsync": [(0, 0.1), (1, 0.3)]} for i in range(4)}
    figure = accuracy_over_time(curves, title="t")
    assert len(figure.data) == 8
    assert sum(bool(line.showlegend) for line in figure.data) == 2
    assert len({line.line.color for line in figure.data if line.name == "SyncDVW"}) == 1


def test_bars_boxes_cycles_and_costs():
    row = {"environment": "e", "strategy": "p", "requests": 1, "exchanged": 11, "evaluations": 9}
    assert list(exchanges([row]).data[0].y) == [1, 11, 9]
    boxes = staleness_boxes([{"learner": "a", "group": "fast", "staleness": [1, 2]}])
    assert list(boxes.data[0].y) == [1, 2]
    lines = validation_cycles({"a": [[3.0, 2.0], [2.5]]}).data
    assert [list(line.x) for line in lines] == [[1, 2], [3]]
    rows = [
        {"network": "n", "learners": 1, "cached": 0.1, "full": 0.2},
        {"network": "n", "learners": 9, "cached": None, "full": None},
    ]
    assert [len(line.x) for line in community_cost(rows).data] == [1, 1]
