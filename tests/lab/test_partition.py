"""Every row at most once, sizes and classes exactly as asked, the same seed the same rows."""

from __future__ import annotations

import json
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from abaton.errors import SettingsError
from abaton.lab.partition import Partition, by_group, partition_data
from abaton.lab.skew import parse_classes, partition_sizes

FORMS = ("uniform", "skewed", "power-law", "power-law-true")
BALANCED = np.arange(10_000) % 10


def partition_of(labels, seed=1990, **settings) -> Partition:
    return partition_data(np.asarray(labels), rng=np.random.default_rng(seed), **settings)


def check(part: Partition, labels: np.ndarray) -> None:
    """What must be true of any partition."""
    used = np.concatenate(part.rows)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0
    assert used.max() < len(labels)
    names = np.array(part.classes)
    for rows, counts in zip(part.rows, part.counts, strict=True):
        row_classes = labels[rows].astype(str)
        assert [int((row_classes == name).sum()) for name in names] == counts.tolist()


# sizes


@given(st.sampled_from(FORMS), st.integers(2, 40), st.integers(1, 100_000))
def test_sizes_are_sorted_positive_and_use_what_there_is(form, learners, total):
    try:
        amounts = partition_sizes(form, learners, total)
    except SettingsError:
        assert total < 60 * learners or learners > 10, "only too few examples are refused"
        return
    assert (np.diff(amounts) <= 0).all()
    assert amounts[-1] >= 1
    if form == "uniform":
        assert len(set(amounts.tolist())) == 1
        assert 0 <= total - amounts.sum() < learners
    else:
        assert amounts.sum() == total
    if form == "skewed":
        assert (np.diff(amounts) < 0).all(), "no two learners are equal"


def test_skewed_sizes_lean_to_the_right():
    amounts = partition_sizes("skewed", 10, 50_000)
    assert amounts.mean() > np.median(amounts)


def test_the_power_law_of_the_original_is_geometric():
    amounts = partition_sizes("power-law", 10, 10_000)
    assert np.allclose(amounts[:-1] / amounts[1:], 1.5, rtol=0.01)
    known = [3348, 2231, 1486, 990, 660, 440, 293, 195, 130, 87]  # these use 9,860 of 10,000 rows
    assert np.abs(partition_sizes("power-law", 10, sum(known)) - known).max() <= 4


def test_a_true_power_law_is_a_straight_line_in_logarithms():
    amounts = partition_sizes("power-law-true", 10, 1_000_000)
    slope = np.polyfit(np.log(np.arange(1, 11)), np.log(amounts), 1)[0]
    assert slope == pytest.approx(-1.5, abs=1e-3)
    steeper = partition_sizes("power-law-true(2)", 10, 1_000_000)
    assert np.polyfit(np.log(np.arange(1, 11)), np.log(steeper), 1)[0] == pytest.approx(-2, abs=1e-3)


@pytest.mark.parametrize(
    ("form", "learners", "total", "says"),
    [
        ("zipfian", 10, 1000, "no size distribution"),
        ("power-law(1)", 10, 1000, "above 1"),
        ("power-law(.)", 10, 1000, "out of range"),
        ("skewed(0)", 10, 1000, "out of range"),
        ("uniform(3)", 10, 1000, "takes no number"),
        ("uniform", 1, 1000, "two learners"),
        ("uniform", 0, 1000, "two learners"),
        ("uniform", -3, 1000, "two learners"),
        ("uniform", 10, 9, "too few"),
        ("skewed", 10, 54, "at least 55"),
        ("power-law", 40, 1000, "gets none"),
    ],
)
def test_unusable_sizes_are_refused(form, learners, total, says):
    with pytest.raises(SettingsError, match=says):
        partition_sizes(form, learners, total)


# class forms


@pytest.mark.parametrize(
    ("text", "classes", "power_law", "full"),
    [
        ("IID", 10, False, "IID"),
        ("iid", 10, True, "IID"),
        ("Non-IID(3)", 10, False, "Non-IID(3)"),
        ("Non-IID(3)", 10, True, "Non-IID(8x1,4x1,3x8)"),
        ("Non-IID(3x8)", 10, True, "Non-IID(8x1,4x1,3x8)"),
        ("non-iid( 3 x 8 )", 10, True, "Non-IID(8x1,4x1,3x8)"),
        ("8x1,4x1,3x8", 10, True, "Non-IID(8x1,4x1,3x8)"),
        ("Non-IID(8x1, 4x1, 3x8)", 62, False, "Non-IID(8x1,4x1,3x8)"),
        ("Non-IID(5x7)", 10, True, "Non-IID(8x1,7x1,6x1,5x7)"),
        ("Non-IID(5)", 10, True, "Non-IID(8x1,7x1,6x1,5x7)"),
        ("Non-IID(50x5)", 100, True, "Non-IID(84x1,76x1,68x1,64x1,55x1,50x5)"),
        ("Non-IID(50)", 100, True, "Non-IID(84x1,76x1,68x1,64x1,55x1,50x5)"),
        ("Non-IID(50)", 100, False, "Non-IID(50)"),
        ("Non-IID(4)", 10, True, "Non-IID(4)"),
        ("2x10", 10, False, "Non-IID(2)"),
        ("Dirichlet(0.5)", 10, False, "Dirichlet(0.5)"),
        ("dirichlet(1e2)", 10, False, "Dirichlet(100)"),
    ],
)
def test_forms_are_read_as_the_paper_writes_them(text, classes, power_law, full):
    form = parse_classes(text, learners=10, classes=classes, power_law=power_law)
    assert str(form) == full
    assert parse_classes(full, learners=10, classes=classes, power_law=power_law) == form


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a label skew"),
        ("non-iid", "not a label skew"),
        ("Non-IID()", "not a label skew"),
        ("Non-IID(3", "not a label skew"),
        ("Non-IID(3,4)", "not a label skew"),
        ("Non-IID(3x8,2)", "not a label skew"),
        ("Non-IID(-3)", "not a label skew"),
        ("Non-IID(3.5)", "not a label skew"),
        ("__import__('os')", "not a label skew"),
        ("Non-IID(3x9999999999)", "not a label skew"),
        ("Non-IID(3x999999)", "999999 learners, but there are 10"),
        ("Non-IID(4x8)", "8 learners, but there are 10"),
        ("8x1,4x1,3x9", "11 learners, but there are 10"),
        ("8x0,3x10", "10 learners"),
        ("Non-IID(11)", "11 classes, but the data has 10"),
        ("Non-IID(0)", "0 classes"),
        ("11x1,3x9", "11 classes, but the data has 10"),
        ("Dirichlet(0)", "concentration"),
        ("Dirichlet(e)", "concentration"),
        ("Dirichlet(-1)", "concentration"),
    ],
)
def test_invalid_label_skews_are_refused_with_the_remedy(text, says):
    with pytest.raises(SettingsError, match=says.replace("(", r"\(")) as caught:
        parse_classes(text, learners=10, classes=10)
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        form = parse_classes(text, learners=4, classes=6)
    except SettingsError:
        return
    assert form.alpha is not None or len(form.class_counts) in (0, 4)


# partitions


@pytest.mark.parametrize("rows", [20_000, 10_000])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("form", "classes", "class_counts"),
    [
        ("uniform", "IID", [10] * 10),
        ("uniform", "Non-IID(5)", [5] * 10),
        ("uniform", "Non-IID(3)", [3] * 10),
        ("skewed", "IID", [10] * 10),
        ("skewed", "Non-IID(5)", [5] * 10),
        ("skewed", "Non-IID(3)", [3] * 10),
        ("power-law", "IID", [10] * 10),
        ("power-law", "Non-IID(5x7)", [8, 7, 6] + [5] * 7),
        ("power-law", "Non-IID(3x8)", [8, 4] + [3] * 8),
        ("power-law-true", "Non-IID(3x8)", [8, 4] + [3] * 8),
        ("uniform", "Non-IID(1)", [1] * 10),
    ],
)
def test_the_nine_environments_of_table_i_use_every_row(form, classes, class_counts, seed, rows):
    labels = np.arange(rows) % 10
    part = partition_of(labels, seed, learners=10, sizes_as=form, classes_as=classes)
    check(part, labels)
    assert part.sizes.tolist() == partition_sizes(form, 10, rows).tolist()
    assert (part.counts > 0).sum(1).tolist() == class_counts
    assert part.counts.sum() == rows


def test_a_class_that_is_held_is_more_than_a_token():
    part = partition_of(BALANCED, learners=10, sizes_as="power-law", classes_as="Non-IID(3x8)")
    even = part.sizes[:, None] / (part.counts > 0).sum(1, keepdims=True)
    assert (
        part.counts[part.counts > 0] >= 0.1 * np.broadcast_to(even, part.counts.shape)[part.counts > 0]
    ).all()


def test_cifar_100_as_in_table_ii():
    labels = np.arange(10_000) % 100
    part = partition_of(labels, learners=10, sizes_as="power-law", classes_as="Non-IID(50x5)")
    check(part, labels)
    assert (part.counts > 0).sum(1).tolist() == [84, 76, 68, 64, 55, 50, 50, 50, 50, 50]
    iid = partition_of(labels, learners=10, sizes_as="power-law")
    assert (iid.counts > 0).sum(1).tolist() == [100] * 9 + [88], "88 examples cannot show 100 classes"


@given(
    st.integers(0, 2**32),
    st.sampled_from(FORMS),
    st.integers(2, 12),
    st.lists(st.integers(1, 400), min_size=2, max_size=12),
    st.data(),
)
def test_sizes_and_classes_are_exact_or_refused(seed, form, learners, supply, data):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(supply)), supply))
    class_counts = data.draw(st.lists(st.integers(1, len(supply)), min_size=learners, max_size=learners))
    class_counts = sorted(class_counts, reverse=True)
    rows = data.draw(st.integers(max(1, len(labels) // 2), len(labels)))
    settings = {"learners": learners, "sizes_as": form, "rows": rows}
    classes = ",".join(f"{count}x1" for count in class_counts)
    try:
        part = partition_of(labels, seed, classes_as=classes, **settings)
    except SettingsError:
        return
    check(part, labels)
    assert part.sizes.tolist() == partition_sizes(form, learners, rows).tolist()
    assert (part.counts > 0).sum(1).tolist() == class_counts
    assert part == partition_of(labels, seed, classes_as=classes, **settings), (
        "the same seed gives the same rows"
    )


@given(
    st.integers(0, 2**32),
    st.sampled_from(FORMS),
    st.integers(2, 12),
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.sampled_from(["IID", "Dirichlet(0.01)", "Dirichlet(0.5)", "Dirichlet(1000)"]),
)
def test_alike_and_drawn_classes_fill_every_size(seed, form, learners, supply, classes):
    labels = np.repeat(np.arange(len(supply)), supply)
    try:
        amounts = partition_sizes(form, learners, len(labels))
    except SettingsError:
        assume(False)
    part = partition_of(labels, seed, learners=learners, sizes_as=form, classes_as=classes)
    check(part, labels)
    assert part.sizes.tolist() == amounts.tolist()
    assert part == partition_of(labels, seed, learners=learners, sizes_as=form, classes_as=classes)
    if classes == "IID":
        share = amounts[:, None] * np.array(supply) / sum(supply)
        # Only the minimum of one example per class and rounding change the proportions.
        assert np.abs(part.counts - share).max() <= learners + len(supply)


def test_iid_learners_have_the_proportions_of_the_whole():
    labels = np.repeat(np.arange(4), [6000, 3000, 900, 100])
    part = partition_of(labels, learners=10, sizes_as="power-law", classes_as="IID")
    share = part.sizes[:, None] * np.array([0.6, 0.3, 0.09, 0.01])
    assert np.abs(part.counts - share).max() < 8, "of 3,392 examples of the largest learner"


def test_iid_learners_hold_every_class_that_has_an_example_for_each():
    labels = np.repeat(np.arange(4), [5000, 3000, 12, 3])
    part = partition_of(labels, learners=10, sizes_as="power-law", classes_as="IID")
    assert (part.counts[:, :3] > 0).all()
    assert part.counts[:, 3].sum() == 3


def test_a_small_concentration_gives_few_classes_and_a_large_one_all():
    sparse_counts = partition_of(BALANCED, learners=10, classes_as="Dirichlet(0.01)").counts
    all_ = partition_of(BALANCED, learners=10, classes_as="Dirichlet(1000)").counts
    assert (sparse_counts.max(1) > 500).mean() > 0.7
    assert all_.min() > 70


def test_another_seed_gives_other_rows():
    one, other = (partition_of(BALANCED, seed, learners=10, classes_as="Non-IID(3)") for seed in (1, 2))
    assert one != other
    assert one.digest != other.digest
    assert len({one, partition_of(BALANCED, 1, learners=10, classes_as="Non-IID(3)")}) == 1


def test_rows_of_a_learner_lie_in_order_of_class():
    part = partition_of(np.random.default_rng(0).permutation(BALANCED), learners=5, classes_as="IID")
    labels = np.random.default_rng(0).permutation(BALANCED)
    assert all((np.diff(labels[rows]) >= 0).all() for rows in part.rows)


def test_labels_may_be_names():
    part = partition_of(np.array(["ill", "well"] * 50), learners=4, classes_as="Non-IID(1)")
    assert part.classes == ("ill", "well")


@pytest.mark.parametrize(
    ("labels", "settings", "says"),
    [
        (BALANCED, {"learners": 10, "sizes_as": "power-law", "classes_as": "Non-IID(1)"}, "learner 1 of 10"),
        (BALANCED[:60], {"learners": 10, "classes_as": "Non-IID(7)"}, "too few for 7 classes"),
        (BALANCED, {"learners": 10, "rows": 10_001}, "rows is 10001"),
        (BALANCED, {"learners": 10, "rows": 0}, "rows is 0"),
        (np.repeat([0, 1], [900, 100]), {"learners": 2, "classes_as": "Non-IID(1)"}, "no allocation of"),
        (BALANCED.reshape(-1, 2), {"learners": 10}, "labels have shape"),
        (BALANCED.astype(float), {"learners": 10}, "labels have shape"),
        (BALANCED[:0], {"learners": 10}, "labels have shape"),
    ],
)
def test_impossible_partitions_are_explained(labels, settings, says):
    with pytest.raises(SettingsError, match=says) as caught:
        partition_of(labels, **settings)
    assert caught.value.remedy


# natural groups


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_natural_groups_keep_all_their_rows(seed, minimum):
    rng = np.random.default_rng(seed)
    groups, labels = rng.integers(0, 12, 300), rng.integers(0, 5, 300)
    big = [g for g in range(12) if (groups == g).sum() >= minimum]
    if len(big) < 2:
        with pytest.raises(SettingsError, match="groups have"):
            by_group(labels, groups, minimum=minimum)
        return
    part = by_group(labels, groups, minimum=minimum)
    check(part, labels)
    assert set(part.learners) == {str(g) for g in big}
    for name, rows in zip(part.learners, part.rows, strict=True):
        assert rows.tolist() == np.flatnonzero(groups == int(name)).tolist()
    sampled = by_group(labels, groups, minimum=minimum, learners=2, rng=np.random.default_rng(seed))
    assert set(sampled.learners) < set(part.learners) or len(part) == 2
    assert sampled == by_group(labels, groups, minimum=minimum, learners=2, rng=np.random.default_rng(seed))


def test_natural_groups_that_cannot_be_are_refused():
    labels, groups = np.zeros(4, int), np.array([1, 1, 2, 3])
    with pytest.raises(SettingsError, match="4 labels but 3 groups"):
        by_group(labels, groups[:3])
    with pytest.raises(SettingsError, match="only 1 of 3 groups"):
        by_group(labels, groups, minimum=2)
    with pytest.raises(SettingsError, match="only 3 of 3 groups"):
        by_group(labels, groups, learners=4, rng=np.random.default_rng(0))
    with pytest.raises(SettingsError, match="learners is 1"):
        by_group(labels, groups, learners=1, rng=np.random.default_rng(0))


# saving


@given(st.integers(0, 1000), st.sampled_from(["IID", "Non-IID(2)", "Dirichlet(0.3)"]))
def test_a_partition_survives_json(seed, classes):
    part = partition_of(np.arange(200) % 4, seed, learners=4, sizes_as="skewed", classes_as=classes)
    again = Partition.from_json(json.loads(json.dumps(part.to_json())))
    assert again == part
    assert again.form == part.form
    assert again.table() == part.table()


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("learners"),
        lambda d: d["learners"][0].pop("rows"),
        lambda d: d["learners"][0]["rows"].append(d["learners"][1]["rows"][0]),
        lambda d: d["learners"][0]["rows"].__setitem__(0, d["learners"][1]["rows"][0]),
        lambda d: d["learners"][0]["rows"].__setitem__(0, -1),
        lambda d: d["learners"][0]["rows"].__setitem__(0, 0.5),
        lambda d: d["learners"][0]["rows"].__setitem__(0, 2**70),
        lambda d: d["learners"][0]["counts"].append(1),
        lambda d: d["learners"][1].__setitem__("name", d["learners"][0]["name"]),
        lambda d: d.__setitem__("classes", 3),
    ],
)
def test_a_damaged_partition_is_refused(damage):
    data = partition_of(np.arange(100) % 4, learners=4).to_json()
    damage(data)
    with pytest.raises(SettingsError, match="partition"):
        Partition.from_json(data)


# completeness


def possible(amounts: np.ndarray, class_counts: list[int], supply: np.ndarray) -> bool:
    """Whether any choice of classes works: tried one by one, each judged by a maximal flow."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    learners, classes = len(amounts), len(supply)
    source, sink = learners + classes, learners + classes + 1
    for choice in product(*(combinations(range(classes), count) for count in class_counts)):
        holders = np.bincount(np.concatenate(choice).astype(int), minlength=classes)
        if (holders > supply).any() or (amounts < class_counts).any():
            continue
        graph = np.zeros((sink + 1, sink + 1), np.int32)
        graph[source, :learners] = amounts - class_counts
        graph[learners:source, sink] = supply - holders
        for k, classes_of_learner in enumerate(choice):
            graph[k, [learners + j for j in classes_of_learner]] = 10_000
        if maximum_flow(csr_array(graph), source, sink).flow_value == (amounts - class_counts).sum():
            return True
    return False


@given(
    st.integers(0, 2**32),
    st.sampled_from(FORMS),
    st.lists(st.integers(1, 30), min_size=2, max_size=4),
    st.data(),
)
def test_only_what_is_impossible_is_refused(seed, form, supply, data):
    class_counts = data.draw(st.lists(st.integers(1, len(supply)), min_size=2, max_size=4))
    labels = np.repeat(np.arange(len(supply)), supply)
    try:
        amounts = partition_sizes(form, len(class_counts), len(labels))
    except SettingsError:
        assume(False)
    settings = {
        "learners": len(class_counts),
        "sizes_as": form,
        "classes_as": ",".join(f"{x}x1" for x in class_counts),
    }
    if possible(amounts, class_counts, np.array(supply)):
        assert (partition_of(labels, seed, **settings).counts > 0).sum(1).tolist() == class_counts
    else:
        with pytest.raises(SettingsError):
            partition_of(labels, seed, **settings)
