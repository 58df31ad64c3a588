"""No count below min_cell_count can be derived from the printed counts."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.disclosure.suppression import feasible_ranges
from abaton.errors import AbatonError
from abaton.site import Attrition, AttritionStage, suppress_attrition

STAGES = (
    AttritionStage.READ,
    AttritionStage.ELIGIBLE,
    AttritionStage.CONSENTED,
    AttritionStage.RETAINED,
    AttritionStage.ROWS,
)


def make_attrition(last: int, losses: list[list[int]]) -> Attrition:
    attrition, count = Attrition(stages=STAGES), last
    for stage, lost in reversed(list(zip(STAGES[1:], losses, strict=True))):
        attrition.reached[stage] = count
        attrition.excluded[stage] = Counter({f"reason {i}": n for i, n in enumerate(lost) if n})
        count += sum(lost)
    attrition.reached[AttritionStage.READ] = count
    return attrition


attritions = st.builds(
    make_attrition,
    st.integers(0, 30),
    st.lists(st.lists(st.integers(0, 12), max_size=4), min_size=4, max_size=4),
)


@given(attritions, st.sampled_from([1, 2, 3, 5, 10]))
def test_no_small_count_is_printed_or_determined(attrition, min_cell_count):
    assert attrition.adds_up
    for step, ranges in zip(
        shown := suppress_attrition(attrition, min_cell_count), feasible_ranges(shown), strict=True
    ):
        for cell, (low, high) in zip([step.reached, *step.reasons.values()], ranges, strict=True):
            assert low <= cell.count <= high
            if 0 < cell.count < min_cell_count:
                assert cell.text == f"<{min_cell_count}"
                assert low < high or min_cell_count == 2
            elif cell.is_suppressed:
                assert low < high


def consistent_counts(steps, limit: int):
    """Yield all counts with the same printed form by brute force."""
    cells = [[step.reached, *step.reasons.values()] for step in steps]
    ranges = [[range(c.range[0], min(c.range[1], limit) + 1) for c in row] for row in cells]
    flat = [cell_range for row in ranges for cell_range in row]
    for values in product(*flat):
        rows, start = [], 0
        for row in ranges:
            rows.append(values[start : start + len(row)])
            start += len(row)
        if all(
            before[0] >= sum(after) if step.reasons_suppressed else before[0] == sum(after)
            for before, after, step in zip(rows, rows[1:], steps[1:], strict=False)
        ):
            yield values


@pytest.mark.parametrize("counts", [(9, 8, 7), (10, 7, 7), (4, 3, 2), (6, 5, 1), (3, 3, 0), (12, 4, 4)])
def test_feasible_ranges_equal_brute_force(counts):
    read, eligible, consented = counts
    attrition = Attrition(stages=STAGES[:3])
    attrition.reached.update(
        {AttritionStage.READ: read, AttritionStage.ELIGIBLE: eligible, AttritionStage.CONSENTED: consented}
    )
    attrition.excluded[AttritionStage.ELIGIBLE] = Counter(young=read - eligible)
    attrition.excluded[AttritionStage.CONSENTED] = Counter(refused=eligible - consented)
    steps = suppress_attrition(attrition, 5)
    consistent = list(consistent_counts(steps, 16))
    ranges = [cell_range for row in feasible_ranges(steps) for cell_range in row]
    for i, (low, high) in enumerate(ranges):
        values = {counts_tried[i] for counts_tried in consistent}
        assert min(values) == low
        assert max(values) == min(high, max(values))


def test_a_small_exclusion_suppresses_the_previous_stage():
    attrition = make_attrition(7, [[3], [], [], []])
    steps = suppress_attrition(attrition, 5)
    assert [step.reached.text for step in steps] == ["≥5", "7", "7", "7", "7"]
    assert steps[1].reasons["reason 0"].text == "<5"


def test_a_larger_reason_is_suppressed_before_a_stage():
    steps = suppress_attrition(make_attrition(70, [[3, 20], [], [], []]), 5)
    assert [step.reached.text for step in steps] == ["93", "70", "70", "70", "70"]
    assert [cell.text for cell in steps[1].reasons.values()] == ["<5", "≥5"]


def test_large_counts_and_zeros_are_exact():
    steps = suppress_attrition(make_attrition(40, [[10, 20], [7], [0], [5]]), 5)
    assert [step.reached.text for step in steps] == ["82", "52", "45", "45", "40"]
    assert [cell.text for cell in steps[1].reasons.values()] == ["10", "20"]


def test_small_cohorts_print_no_reasons():
    steps = suppress_attrition(make_attrition(1, [[1], [1], [1], [0]]), 5)
    assert {step.reached.text for step in steps} == {"<5"}
    assert not any(step.reasons for step in steps)


def test_a_reason_with_a_small_count_is_printed_without_the_count():
    steps = suppress_attrition(make_attrition(0, [[], [3], [], []]), 5)
    assert [step.reached.text for step in steps] == ["<5", "<5", "0", "0", "0"]
    assert steps[2].reasons["reason 0"].text == "<5"


def test_inconsistent_counts_are_refused():
    with pytest.raises(AbatonError, match="do not add up"):
        suppress_attrition(
            Attrition(
                Counter({AttritionStage.READ: 10, AttritionStage.ELIGIBLE: 7}),
                {AttritionStage.ELIGIBLE: Counter(young=3)},
            ),
            5,
        )
