import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.anonymity import LDiversity, SensitiveAttribute, TCloseness
from abaton.anonymity.equivalence_classes import SensitiveCounts
from abaton.anonymity.privacy_models import (
    class_counts,
    measure_closeness,
    measure_diversity,
    satisfying_combinations,
)

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=40)


def counted(rows, requested=None):
    """Rows of (class, value, count) as the models see them; every class is a combination of its own."""
    owners = sorted({row[0] for row in rows})
    values = sorted({row[1] for row in rows})
    combinations = np.array([owners.index(row[0]) for row in rows])
    codes = np.array([values.index(row[1]) for row in rows])
    sensitive = SensitiveCounts(
        requested or SensitiveAttribute("s"),
        tuple(map(str, values)),
        combinations,
        codes,
        np.array([row[2] for row in rows]),
    )
    return class_counts(sensitive, np.arange(len(owners)), len(owners), sensitive.overall), sensitive


def histograms(rows):
    overall, classes = Counter(), {}
    for owner, value, count in rows:
        overall[value] += count
        classes.setdefault(owner, Counter())[value] += count
    return overall, [classes[owner] for owner in sorted(classes)]


def plain_entropy(tally):
    total = sum(tally.values())
    return math.exp(-sum(n / total * math.log(n / total) for n in tally.values()))


def plain_ratio(tally, l):  # noqa: E741
    ranked = sorted(tally.values(), reverse=True)
    tail = sum(ranked[l - 1 :])
    return ranked[0] / tail if tail else math.inf


def plain_distance(tally, overall, *, ordered):
    total, everything = sum(tally.values()), sum(overall.values())
    gaps = [tally[v] / total - overall[v] / everything for v in sorted(overall)]
    if not ordered:
        return 0.5 * sum(abs(gap) for gap in gaps)
    return sum(abs(sum(gaps[: i + 1])) for i in range(len(gaps))) / (len(gaps) - 1) if len(gaps) > 1 else 0.0


@given(ROWS, st.integers(1, 4))
def test_diversity_is_what_its_definition_says(rows, l):  # noqa: E741
    counts, _ = counted(rows)
    _, classes = histograms(rows)
    assert measure_diversity(counts, LDiversity(l)).tolist() == [len(tally) for tally in classes]
    assert measure_diversity(counts, LDiversity(l, "entropy")) == pytest.approx(
        [plain_entropy(t) for t in classes]
    )
    ratios = measure_diversity(counts, LDiversity(l, "recursive"))
    assert ratios == pytest.approx([plain_ratio(tally, l) for tally in classes])


@given(ROWS)
def test_closeness_is_what_its_definition_says(rows):
    counts, _ = counted(rows)
    overall, classes = histograms(rows)
    for distance in ("equal", "ordered"):
        expected = [plain_distance(tally, overall, ordered=distance == "ordered") for tally in classes]
        assert measure_closeness(counts, TCloseness(0.1, distance)) == pytest.approx(expected, abs=1e-9)


@given(ROWS, st.integers(1, 6))
def test_safe_keeps_exactly_the_classes_that_satisfy_everything(rows, k):
    requested = SensitiveAttribute("s", LDiversity(2), TCloseness(0.4, "ordered"))
    _, sensitive = counted(rows, requested)
    overall, classes = histograms(rows)
    sizes = np.array([float(sum(tally.values())) for tally in classes])
    is_safe = satisfying_combinations(np.arange(len(classes)), sizes, k, (sensitive,), [sensitive.overall])
    assert is_safe.tolist() == [
        sum(tally.values()) >= k
        and len(tally) >= 2
        and plain_distance(tally, overall, ordered=True) <= 0.4 + 1e-9
        for tally in classes
    ]


def test_a_class_on_the_threshold_is_safe():
    # Two of four against one half: the distance is exactly 0.25.
    rows = [(0, 0, 3), (0, 1, 1), (1, 0, 1), (1, 1, 3)]
    _, sensitive = counted(rows, SensitiveAttribute("s", closeness=TCloseness(0.25)))
    assert satisfying_combinations(
        np.arange(2), np.array([4.0, 4.0]), 1, (sensitive,), [sensitive.overall]
    ).all()
    _, sensitive = counted(rows, SensitiveAttribute("s", LDiversity(2, "recursive", 3.0)))
    assert not satisfying_combinations(
        np.arange(2), np.array([4.0, 4.0]), 1, (sensitive,), [sensitive.overall]
    ).any()
