"""Nothing below the floor can be worked out from what is printed, by anybody who can add."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.errors import AbatonError
from abaton.site import Funnel, Stage, masked
from abaton.disclosure.suppression import bounds

STAGES = (Stage.READ, Stage.ELIGIBLE, Stage.CONSENTED, Stage.KEPT, Stage.ROWS)


def funnel(last: int, losses: list[list[int]]) -> Funnel:
    made, number = Funnel(stages=STAGES), last
    for stage, lost in reversed(list(zip(STAGES[1:], losses, strict=True))):
        made.reached[stage] = number
        made.stopped[stage] = Counter({f"reason {i}": n for i, n in enumerate(lost) if n})
        number += sum(lost)
    made.reached[Stage.READ] = number
    return made


funnels = st.builds(
    funnel,
    st.integers(0, 30),
    st.lists(st.lists(st.integers(0, 12), max_size=4), min_size=4, max_size=4),
)


@given(funnels, st.sampled_from([1, 2, 3, 5, 10]))
def test_no_small_number_is_printed_or_pinned(made, floor):
    assert made.adds_up
    for step, ranges in zip(shown := masked(made, floor), bounds(shown), strict=True):
        for cell, (low, high) in zip([step.reached, *step.reasons.values()], ranges, strict=True):
            assert low <= cell.count <= high
            if 0 < cell.count < floor:
                assert cell.text == f"<{floor}"
                assert low < high or floor == 2
            elif cell.is_masked:
                assert low < high


def worlds(steps, most: int):
    """Every funnel that prints like this one, by brute force: the honest form of what the observer computes."""
    cells = [[step.reached, *step.reasons.values()] for step in steps]
    ranges = [[range(c.range[0], min(c.range[1], most) + 1) for c in row] for row in cells]
    flat = [each for row in ranges for each in row]
    for values in product(*flat):
        rows, at = [], 0
        for row in ranges:
            rows.append(values[at : at + len(row)])
            at += len(row)
        if all(
            before[0] >= sum(after) if step.silent else before[0] == sum(after)
            for before, after, step in zip(rows, rows[1:], steps[1:], strict=False)
        ):
            yield values


@pytest.mark.parametrize("counts", [(9, 8, 7), (10, 7, 7), (4, 3, 2), (6, 5, 1), (3, 3, 0), (12, 4, 4)])
def test_bounds_are_what_trying_everything_finds(counts):
    read, eligible, consented = counts
    made = Funnel(stages=STAGES[:3])
    made.reached.update({Stage.READ: read, Stage.ELIGIBLE: eligible, Stage.CONSENTED: consented})
    made.stopped[Stage.ELIGIBLE] = Counter(young=read - eligible)
    made.stopped[Stage.CONSENTED] = Counter(refused=eligible - consented)
    steps = masked(made, 5)
    found = list(worlds(steps, 16))
    told = [each for row in bounds(steps) for each in row]
    for i, (low, high) in enumerate(told):
        seen = {world[i] for world in found}
        assert min(seen) == low
        assert max(seen) == min(high, max(seen))


def test_a_loss_of_three_hides_its_neighbour():
    made = funnel(7, [[3], [], [], []])
    steps = masked(made, 5)
    assert [step.reached.text for step in steps] == ["≥5", "7", "7", "7", "7"]
    assert steps[1].reasons["reason 0"].text == "<5"


def test_a_larger_reason_is_hidden_rather_than_a_stage():
    steps = masked(funnel(70, [[3, 20], [], [], []]), 5)
    assert [step.reached.text for step in steps] == ["93", "70", "70", "70", "70"]
    assert [cell.text for cell in steps[1].reasons.values()] == ["<5", "≥5"]


def test_large_numbers_and_zeros_are_printed_as_they_are():
    steps = masked(funnel(40, [[10, 20], [7], [0], [5]]), 5)
    assert [step.reached.text for step in steps] == ["82", "52", "45", "45", "40"]
    assert [cell.text for cell in steps[1].reasons.values()] == ["10", "20"]


def test_few_people_losing_one_at_every_stage_tell_no_reason():
    steps = masked(funnel(1, [[1], [1], [1], [0]]), 5)
    assert {step.reached.text for step in steps} == {"<5"}
    assert not any(step.reasons for step in steps)


def test_three_people_who_all_lack_consent_are_told_so_without_their_number():
    steps = masked(funnel(0, [[], [3], [], []]), 5)
    assert [step.reached.text for step in steps] == ["<5", "<5", "0", "0", "0"]
    assert steps[2].reasons["reason 0"].text == "<5"


def test_numbers_that_do_not_add_up_are_refused_instead_of_searched_for_ever():
    with pytest.raises(AbatonError, match="do not add up"):
        masked(Funnel(Counter({Stage.READ: 10, Stage.ELIGIBLE: 7}), {Stage.ELIGIBLE: Counter(young=3)}), 5)
