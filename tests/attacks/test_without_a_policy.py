"""The same attacks where nothing holds them back: each of them works, so that its failing elsewhere means something."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.disclosure.rounding import coarse_score
from abaton.federation import read_sites
from abaton.lab.demo import NOW
from abaton.metrics.counts import micro_f1
from abaton.site import Ledger, load_site
from abaton.study_run.evaluation import counted
from abaton.study_run.preparation import deal, sums


@pytest.fixture
def reading(four):
    site = next(path for path in four.sites if path.parent.name == "athens")
    return read_sites(four.study, [load_site(site)], NOW)[0]


def test_as_many_deals_as_people_give_everybodys_value(four, reading):
    """To a tenth of a deviation. Held by `test_dealing_again_by_other_seeds_would_solve_for_every_value`."""
    table, learning = reading.table, four.study.learning
    deals = [deal(four.study, reading, table, seed) for seed in range(len(table) + 60)]
    told = [sums(learning, each).columns for each in deals]
    column = next(name for name, each in told[0].of.items() if each.count and each.deviation > 1)
    places = {subject: i for i, subject in enumerate(table.subjects)}
    chosen = np.zeros((len(deals), len(table)))
    for row, each in zip(chosen, deals, strict=True):
        row[[places[subject] for subject in each.seen.subjects]] = 1
    found = np.linalg.lstsq(chosen, [each.of[column].total for each in told], rcond=None)[0]
    values = table.x[:, [each.name for each in table.columns].index(column)]
    # As many of each class are dealt each time, so what is added to all of a class cannot be told from the rest.
    assert np.abs(found - values).max() < 0.1 * values.std()


@pytest.mark.parametrize(("floor", "alone"), [(1, True), (5, False)])
def test_a_model_of_one_column_tells_each_persons_value_unless_they_stand_among_others(floor, alone):
    """Held by `test_nobody_is_judged_among_fewer_than_the_smallest_count`."""
    rng = np.random.default_rng(0)
    value, outcome = rng.random(80), rng.integers(0, 2, 80)

    class Two:
        classes, label = ("no", "yes"), (0.0, 1.0)

    (told,) = counted(np.stack([1 - value, value], axis=1), outcome, Two(), floor)
    assert any((numbers == 1).any() for numbers in (told.cases, told.controls)) is alone
    assert told.subjects == 80


@pytest.mark.parametrize(("floor", "differ"), [(1, True), (5, False)])
def test_a_threshold_that_is_moved_by_one_person_shows_in_a_score_unless_it_is_coarse(floor, differ):
    """Held by `test_scores_come_in_stretches_and_never_of_small_classes`."""
    with_them, without = (10, 2, 12, 9, 17, 4), (11, 2, 12, 9, 18, 3)
    first, second = (coarse_score(each, floor, loss=False) for each in (with_them, without))
    assert (first != second) is differ


@pytest.mark.parametrize(("floor", "told"), [(1, True), (5, False)])
def test_the_one_who_left_is_the_difference_of_two_counts_unless_the_ledger_holds_the_second(
    tmp_path, floor, told
):
    """Held by `test_two_runs_with_one_person_withdrawn_between_tell_nothing_of_them`."""
    ledger = Ledger(tmp_path / "ledger", str, floor)
    people = [f"person {i}" for i in range(20)]
    assert ledger.may_tell("scores", people)
    assert ledger.may_tell("scores", people[1:]) is told


def test_a_thousand_million_million_people_would_outvote_everybody():
    """Held by `test_what_an_evaluator_cannot_have_counted_neither_crashes_nor_counts`."""
    honest, huge = np.array((4, 4, 5, 5, 5, 5), float), np.array((0, 0, 1e15, 1e15, 1e15, 1e15))
    assert micro_f1(tuple(honest * 3)) == pytest.approx(0.8)
    assert micro_f1(tuple(honest * 3 + huge)) < 1e-12
