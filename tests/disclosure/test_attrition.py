"""Check the released attrition: stages add up, small counts are suppressed, cells are fixed."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.disclosure.attrition import (
    OTHER_REASON,
    RELEASED_STAGES,
    AttritionStage,
    assign_cells,
    attrition_cell,
    attrition_steps,
)

NAMES = ("retained/refused", "rows/no label", "rows/no value", f"rows/{OTHER_REASON}", "rows")


def stage_counts(counts: dict[str, float]) -> list[float]:
    """Return the subjects at each stage by counting backwards from the rows, as an independent reference."""
    rows = counts["rows"]
    retained = rows + sum(counts[name] for name in NAMES[1:4])
    return [retained + counts["retained/refused"], retained, rows]


@pytest.mark.parametrize("seed", range(20))
def test_exact_stages_add_up_and_hide_small_counts(seed):
    counts = dict(zip(NAMES, np.random.default_rng(seed).integers(0, 12, 5).tolist(), strict=True))
    suppressed = [name for name, n in counts.items() if 0 < n < 5]
    known = {name: n for name, n in counts.items() if name not in suppressed}
    steps = attrition_steps(RELEASED_STAGES, known, suppressed, 5, is_noisy=False)
    for step, expected in zip(steps, stage_counts(counts), strict=True):
        text = step["subjects"]
        if text.startswith("≥"):
            assert expected >= int(text[1:])
        elif text.startswith("<"):
            assert expected < int(text[1:])
        else:
            assert expected == int(text)
    shown = {f"{step['stage']}/{e['reason']}": e["subjects"] for step in steps for e in step["excluded"]}
    assert shown == {
        name: "<5" if n < 5 else str(n) for name, n in counts.items() if n > 0 and name != "rows"
    }


def test_noisy_stages_are_sums_of_noisy_cells():
    counts = {
        "retained/refused": -2.0,
        "rows/no label": 14.0,
        "rows/no value": 3.0,
        f"rows/{OTHER_REASON}": 0.0,
    }
    steps = attrition_steps(RELEASED_STAGES, {**counts, "rows": 101.0}, (), 10, is_noisy=True)
    assert [step["subjects"] for step in steps] == ["116", "118", "101"]
    assert steps[2]["excluded"] == [{"reason": "no label", "subjects": "14"}]
    assert steps[1]["excluded"] == []
    small = attrition_steps(
        RELEASED_STAGES, {**dict.fromkeys(NAMES, 0.0), "rows": 4.0}, (), 10, is_noisy=True
    )
    assert [step["subjects"] for step in small] == ["<10", "<10", "<10"]


def test_noisy_stages_are_unbiased_with_the_variance_of_their_cells():
    """The first stage is a sum of all cells, so its noise has sd * sqrt(cells)."""
    random = np.random.default_rng(1)
    shown = []
    for _ in range(2000):
        counts = dict(zip(NAMES, (100 + random.normal(0, 3, 5)).tolist(), strict=True))
        shown.append(int(attrition_steps(RELEASED_STAGES, counts, (), 10, is_noisy=True)[0]["subjects"]))
    assert np.mean(shown) == pytest.approx(500, abs=0.6)
    assert np.std(shown) == pytest.approx(3 * 5**0.5, rel=0.06)


def test_a_reason_that_the_study_does_not_name_is_another_reason():
    outcomes = {
        "a": (AttritionStage.ROWS, ""),
        "b": (AttritionStage.ROWS, "no label"),
        "c": (AttritionStage.ROWS, "a text with the value 17"),
    }
    cells = assign_cells(outcomes, NAMES)
    assert tuple(cells) == NAMES
    assert cells["rows"] == ("a",)
    assert cells["rows/no label"] == ("b",)
    assert cells[attrition_cell(AttritionStage.ROWS, OTHER_REASON)] == ("c",)
