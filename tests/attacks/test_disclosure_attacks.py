"""Thirteen attacks on what leaves a site about groups of subjects, each with a bound and a control that succeeds.

X is one subject. "Right" is how often the attacker finds out a fact about X; a guess is right in half of all cases.
The attacker knows everything about all other subjects unless a test says otherwise. Secrets are fixed, so each test
gives the same figures every time.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from abaton.disclosure.levels import DisclosureLevel, NoiseSettings
from abaton.disclosure.noise import KeyedStream, discrete_gaussian
from abaton.disclosure.privacy_budget import attacker_success
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.disclosure.release_register import ReleaseRegister
from abaton.errors import RefusedError

NOW = datetime(2026, 5, 4, tzinfo=UTC)
# Many trials share a site: each trial is a study with its own budget, and the year has room for all of them.
MANY_STUDIES = replace(NoiseSettings(), yearly_budget=1e9)
OTHERS = [f"p{i}" for i in range(100)]


def open_gate(
    folder: Path,
    level: DisclosureLevel = DisclosureLevel.NOISY,
    settings: NoiseSettings = MANY_STUDIES,
    name: str = "site",
    clock: Callable[[], datetime] = lambda: NOW,
) -> ReleaseGate:
    """Return a gate with a fixed secret."""
    register = ReleaseRegister(folder / f"{name}.register", folder / f"{name}.key")
    register.secret = name.encode() * 4
    return ReleaseGate(register, level, replace(settings, threshold=5), clock)


@pytest.fixture
def gate(tmp_path) -> ReleaseGate:
    return open_gate(tmp_path)


@pytest.fixture
def exact(tmp_path) -> ReleaseGate:
    """Return the control: exact numbers, small counts suppressed."""
    return open_gate(tmp_path, DisclosureLevel.EXACT, name="exact")


def ask(trial: object, what: str, **about: object) -> Question:
    return Question(what, f"study {trial}", about)


def share_right(attack: Callable[[int, bool], float], trials: int) -> float:
    """Return how often an attacker is right whose score is above 0 if a fact holds; a score of 0 is half right."""
    random = np.random.default_rng(0)
    right = 0.0
    for trial in range(trials):
        holds = bool(random.integers(2))
        score = attack(trial, holds)
        right += 0.5 if score == 0 else float((score > 0) == holds)
    return right / trials


def test_1_two_documents_that_differ_by_one_year_of_age(gate, exact):
    """X is the only subject aged 50; one document asks for 50 years, the other for 51."""

    def attack(site_gate: ReleaseGate) -> Callable[[int, bool], float]:
        def run(trial: int, holds: bool) -> float:
            older = site_gate.table(ask(trial, "attrition", age=51), {"rows": OTHERS}).values["rows"]
            cohort = [*OTHERS, "X"] if holds else OTHERS
            return (
                site_gate.table(ask(trial, "attrition", age=50), {"rows": cohort}).values["rows"]
                - older
                - 0.5
            )

        return run

    assert share_right(attack(gate), 300) <= 0.62
    assert share_right(attack(exact), 20) == 1.0


def test_2_equal_answers_to_two_questions_do_not_show_equal_groups(gate):
    """Two criteria, or two studies, that differ for X alone: equal answers would show that X is in neither."""

    def run(trial: int, holds: bool) -> float:
        one = gate.table(ask(trial, "attrition", criterion="a"), {"rows": OTHERS}).values
        other = gate.table(
            ask(f"{trial}b", "attrition"), {"rows": [*OTHERS, "X"] if holds else OTHERS}
        ).values
        return -1.0 if one == other else 1.0

    def run_by_set(trial: int, holds: bool) -> float:
        """The control derives noise from the group only, as the cell-key method does."""
        answers = []
        for group in (OTHERS, [*OTHERS, "X"] if holds else OTHERS):
            stream = KeyedStream(b"secret", f"{trial} {sorted(group)}".encode())
            answers.append(len(group) + discrete_gaussian(stream, Fraction(9)))
        return -1.0 if answers[0] == answers[1] else 1.0

    assert share_right(run, 300) <= 0.62
    assert share_right(run_by_set, 300) >= 0.85


def test_3_leaving_changes_nothing_within_an_epoch_and_shows_nothing_between_epochs(tmp_path, exact):
    now = [NOW]
    gate = open_gate(tmp_path, clock=lambda: now[0])
    is_equal: dict[bool, list[bool]] = {True: [], False: []}
    for trial, leaves in itertools.product(range(150), (True, False)):
        question, now[0] = ask(trial, "attrition", leaves=leaves), NOW
        later = {"rows": OTHERS if leaves else [*OTHERS, "X"]}
        first = gate.table(question, {"rows": [*OTHERS, "X"]})
        assert gate.table(question, later) == first
        now[0] = NOW + timedelta(days=30)
        is_equal[leaves].append(gate.table(question, later) == first)
    # Two draws of sigma 3 are equal in 9.4 % of cases, and in 9.3 % if the counts differ by one.
    assert abs(np.mean(is_equal[True]) - np.mean(is_equal[False])) < 0.08
    assert np.mean(is_equal[True]) < 0.17
    question = ask(0, "attrition")
    assert exact.table(question, {"rows": [*OTHERS, "X"]}) != exact.table(question, {"rows": OTHERS})


def values_of_others(random: np.random.Generator) -> np.ndarray:
    return random.uniform(80, 119, len(OTHERS))


def within_five_units(
    gate: ReleaseGate, estimate: Callable[[ReleaseGate, int, float], float], trials: int
) -> float:
    """Return how often the estimate of the value of X is within 5 units."""
    values = np.random.default_rng(1).uniform(120, 210, trials)
    return float(np.mean([abs(estimate(gate, trial, x) - x) <= 5 for trial, x in enumerate(values)]))


def test_4_other_limits_of_a_column_do_not_show_the_value_above_them(gate, exact):
    """X alone is above 120; the sums of the values limited to 120 and to 210 differ by the excess of X."""
    others = values_of_others(np.random.default_rng(2))

    def estimate(site_gate: ReleaseGate, trial: int, x: float) -> float:
        low, high = (
            site_gate.total(
                ask(trial, "sum", limit=limit),
                [*OTHERS, "X"],
                np.minimum([*others, x], limit)[:, None],
                limit,
                2.0,
            ).vector[0]
            for limit in (120.0, 210.0)
        )
        return 120 + high - low

    assert within_five_units(gate, estimate, 150) <= 0.1
    assert within_five_units(exact, estimate, 20) == 1.0


def test_5_sums_and_squares_with_and_without_x_are_not_solved_for_the_value(gate, exact):
    others = values_of_others(np.random.default_rng(3))
    bound = float(np.hypot(1.0, 1.0))

    def estimate(site_gate: ReleaseGate, trial: int, x: float) -> float:
        scaled = np.array([*others, x]) / 210
        rows = np.stack([scaled, scaled**2], axis=1)
        full = site_gate.total(ask(trial, "sums", x=True), [*OTHERS, "X"], rows, bound, 2.0).vector
        less = site_gate.total(ask(trial, "sums", x=False), OTHERS, rows[:-1], bound, 2.0).vector
        difference, squares = full - less
        return 210 * float(np.mean([difference, np.sqrt(max(squares, 0.0))]))

    assert within_five_units(gate, estimate, 150) <= 0.1
    assert within_five_units(exact, estimate, 20) == 1.0


def ask_until_refused(release: Callable[[int], float]) -> list[float]:
    """Return all answers that the budget allows."""
    answers: list[float] = []
    try:
        while True:
            answers.append(release(len(answers)))
    except RefusedError:
        return answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "expected"),
    [(("above",), attacker_success(1).membership), (("above", "below"), attacker_success(1).group)],
)
def test_6_a_threshold_sweep_by_crafted_models_uses_up_the_budget(gate, exact, cells, expected):
    """Each model moves the other subjects away from the threshold; X is above it, or below."""
    trials = 250

    def run(trial: int, holds: bool) -> float:
        def release(number: int) -> float:
            groups = {"above": [*OTHERS[:50], *(["X"] if holds else [])]}
            groups["below"] = [*OTHERS[50:], *([] if holds else ["X"])]
            shown = {name: groups[name] for name in cells}
            values = gate.table(ask(trial, "scores", model=number), shown).values
            return values["above"] - 50.5 - (values["below"] - 50.5 if len(cells) == 2 else 0)

        answers = ask_until_refused(release)
        assert len(answers) == 18
        return float(np.sum(answers))

    margin = 2 * (expected * (1 - expected) / trials) ** 0.5
    assert expected <= {1: 0.761, 2: 0.842}[len(cells)]
    assert 0.65 < share_right(run, trials) <= expected + margin
    one = exact.table(ask(0, "scores"), {"above": [*OTHERS[:50], "X"]}).values["above"]
    assert one == 51, "the control needs one answer"


def auroc_sum(scores: np.ndarray, is_case: np.ndarray) -> tuple[float, float]:
    """Return the sum over cases of the fraction of controls below, less 0.75, and the AUROC."""
    cases, controls = scores[is_case], scores[~is_case]
    placements = np.array([(controls < score).mean() for score in cases])
    return float((placements - 0.75).sum()), float(placements.mean())


def test_7_one_auroc_does_not_show_the_label_of_who_left(gate):
    """The attacker knows all scores and all other labels, and compares both hypotheses."""
    random = np.random.default_rng(4)

    def draw() -> tuple[np.ndarray, np.ndarray]:
        is_case = np.arange(100) < 15
        return random.normal(size=100) + 1.5 * is_case, is_case

    def run(trial: int, holds: bool) -> float:
        scores, is_case = draw()
        hypotheses = []
        for label in (True, False):
            labels = is_case.copy()
            labels[50] = label
            hypotheses.append(auroc_sum(scores, labels)[0])
        bound = max(1.0, 0.75 + 16 / 84)
        true_sum = hypotheses[0] if holds else hypotheses[1]
        rows = np.full((100, 1), true_sum / 100)  # contributions of equal size; only the sum is released
        released = gate.total(ask(trial, "auroc"), OTHERS, rows, bound, 1.0).vector[0]
        return abs(released - hypotheses[1]) - abs(released - hypotheses[0])

    def run_rounded(trial: int, holds: bool) -> float:
        """The control releases the AUROC with three digits."""
        scores, is_case = draw()
        is_case[50] = holds
        released, distances = round(auroc_sum(scores, is_case)[1], 3), []
        for label in (True, False):
            labels = is_case.copy()
            labels[50] = label
            distances.append(abs(round(auroc_sum(scores, labels)[1], 3) - released))
        return distances[1] - distances[0]

    assert share_right(run, 400) <= 0.60
    assert share_right(run_rounded, 200) >= 0.95


@pytest.mark.slow
def test_8_averaging_by_supersets_and_study_ids_ends_with_the_budget(tmp_path, gate):
    """A = (A and B) + (A and not B) for many B; then the same question under many study ids."""
    trials, random = 150, np.random.default_rng(5)

    def by_supersets(trial: int, holds: bool) -> float:
        group = [*OTHERS, "X"] if holds else OTHERS

        def release(number: int) -> float:
            half = set(random.permutation(len(group))[: len(group) // 2])
            cells = {
                "with B": [p for i, p in enumerate(group) if i in half],
                "without B": [p for i, p in enumerate(group) if i not in half],
            }
            return sum(gate.table(ask(trial, "attrition", b=number), cells).values.values())

        return float(np.mean(ask_until_refused(release))) - len(OTHERS) - 0.5

    one_year = replace(NoiseSettings(), epoch_days=30)

    def by_study_ids(trial: int, holds: bool) -> float:
        limited = open_gate(tmp_path, settings=one_year, name=f"site{trial}")
        group = [*OTHERS, "X"] if holds else OTHERS
        answers = ask_until_refused(
            lambda n: limited.table(ask(n, "attrition"), {"rows": group}).values["rows"]
        )
        limited.register.close()
        assert len(answers) == 36
        return float(np.mean(answers)) - len(OTHERS) - 0.5

    assert share_right(by_supersets, trials) <= 0.76
    yearly = attacker_success(2).membership
    assert share_right(by_study_ids, 60) <= yearly + 2 * (yearly * (1 - yearly) / 60) ** 0.5

    def without_budget(trial: int, holds: bool) -> float:
        noise = [discrete_gaussian(KeyedStream(b"k", b"%d %d" % (trial, i)), Fraction(9)) for i in range(400)]
        return float(np.mean(noise)) + holds - 0.5

    assert share_right(without_budget, 60) >= 0.95


def reconstruct(labels: np.ndarray, release: Callable[[Sequence[int]], float], answers: int) -> float:
    """Return the fraction of labels that least squares finds from counts of cases in random halves."""
    random = np.random.default_rng(6)
    queries = random.integers(0, 2, (answers, len(labels)))
    counts = np.array([release(np.flatnonzero(query).tolist()) for query in queries])
    # Shrunk towards the known prevalence, which is the best linear guess without answers.
    prior = 0.3
    weights = queries.T @ np.linalg.inv(0.21 * queries @ queries.T + 9 * np.eye(answers)) * 0.21
    solution = prior + weights @ (counts - prior * queries.sum(1))
    return float(((solution > 0.5) == labels).mean())


def test_9_labels_are_not_reconstructed_from_all_answers_of_the_budget(gate, exact):
    reconstructed, control = [], []
    for trial in range(12):
        labels = np.random.default_rng(trial).random(50) < 0.3

        def release(
            site_gate: ReleaseGate, subset: Sequence[int], trial: int = trial, labels: np.ndarray = labels
        ) -> float:
            cases = [OTHERS[i] for i in subset if labels[i]]
            released = site_gate.table(ask(trial, "cases", subset=list(subset)), {"cases": cases})
            return released.values.get("cases", 2.0)

        reconstructed.append(reconstruct(labels, lambda subset: release(gate, subset), 18))
        if trial < 2:
            control.append(reconstruct(labels, lambda subset: release(exact, subset), 300))
        with pytest.raises(RefusedError, match="used up"):
            release(gate, [1, 2, 3])
    assert np.mean(reconstructed) <= 0.70 + 0.05
    assert np.mean(control) >= 0.95


def test_10_partial_dependence_before_and_after_does_not_show_a_prediction(gate):
    """The mean prediction at 20 points, with X and, in the next epoch, without."""
    random, points = np.random.default_rng(7), 20
    within, within_rounded = [], []
    for trial in range(60):
        rows = random.uniform(0, 1, (101, points))
        answers = [
            gate.total(
                ask(trial, "dependence", part=n), OTHERS[:n] + ["X"] * (n > 100), rows[:n], points**0.5, 10.0
            )
            for n in (101, 100)
        ]
        estimate = answers[0].vector - answers[1].vector
        within.append(np.abs(estimate - rows[100]) <= 0.02)
        rounded = 101 * rows.mean(0).round(4) - 100 * rows[:100].mean(0).round(4)
        within_rounded.append(np.abs(rounded - rows[100]) <= 0.02)
    assert np.mean(within) <= 0.05
    assert np.mean(within_rounded) >= 0.95


def shares_of(
    gates: Sequence[ReleaseGate], trial: int, cohorts: Sequence[str], *, with_x: bool, colluding: int = 0
) -> np.ndarray:
    """Return every site's part of a count with noise of standard deviation 3; X is at the first site."""
    parts = []
    for i, (gate, cohort) in enumerate(zip(gates, cohorts, strict=True)):
        group = [*OTHERS[:20], "X"] if with_x and i == 0 else OTHERS[:20]
        share = gate.share(
            ask(trial, "count"), group, np.ones((len(group), 1)), 1.0, 3.0, len(gates), cohort, colluding
        )
        parts.append(share.units[0] * share.unit)
    return np.array(parts)


@pytest.fixture
def ten(tmp_path) -> list[ReleaseGate]:
    return [open_gate(tmp_path, name=f"site{i:04}") for i in range(10)]


def right_by_difference(variance: float) -> float:
    """Return how often an attacker is right who sees a difference of 0 or 1 with this variance of the noise."""
    return float(stats.norm.cdf(0.5 / variance**0.5))


def test_11_in_a_secure_sum_all_sites_draw_anew_if_one_changes(ten):
    differences, control = [], []
    for trial in range(40):
        before = shares_of(ten, trial, ["all"] * 10, with_x=True)
        after = shares_of(ten, trial, ["without X"] * 10, with_x=False)
        assert (before[1:] != after[1:]).all()
        differences.append((before - after).sum() - 1)
        # The control: the other sites keep their noise, because they are not given the new digest.
        unchanged = shares_of(ten, trial, ["only here", *["all"] * 9], with_x=False)
        assert (before[1:] == unchanged[1:]).all()
        control.append((before - unchanged).sum() - 1)
    assert right_by_difference(float(np.var(differences))) <= 0.60
    assert right_by_difference(float(np.var(control))) >= 0.62


def test_12_a_centre_and_all_but_two_sites_together(ten):
    """The others subtract their own noise; what remains is the noise of two sites."""
    remaining, control = [], []
    for trial in range(50):
        protected = shares_of(ten, trial, ["all"] * 10, with_x=True, colluding=8)
        remaining.append(protected[:2].sum() - 41)
        control.append(shares_of(ten, trial, ["all"] * 10, with_x=True)[:2].sum() - 41)
    # X is protected as in one answer of a single site: Phi(1/6) = .566.
    assert right_by_difference(float(np.var(remaining))) <= 0.60
    assert right_by_difference(float(np.var(control))) >= 0.62


def _release_and_crash(path: str, key_path: str, *, is_charged: bool) -> None:
    """Release a table in a process that ends before the answer is sent."""
    gate = ReleaseGate(ReleaseRegister(Path(path), Path(key_path)), clock=lambda: NOW)
    if is_charged:
        gate.table(ask(0, "attrition"), {"rows": OTHERS})
    else:  # the control computes the answer first, and would charge it afterwards
        discrete_gaussian(KeyedStream(gate.register.secret, b"rows"), Fraction(9))
    os._exit(1)


@pytest.mark.parametrize("is_charged", [True, False])
def test_13_a_crash_does_not_give_answers_without_a_charge(tmp_path, is_charged):
    """Once per question and epoch under concurrency: tests/disclosure/test_release_gate.py."""
    paths = tmp_path / "site.register", tmp_path / "site.key"
    process = multiprocessing.get_context("fork").Process(
        target=_release_and_crash, args=tuple(map(str, paths)), kwargs={"is_charged": is_charged}
    )
    process.start()
    process.join(60)
    assert process.exitcode == 1
    register = ReleaseRegister(*paths)
    spent = 1 - register.remaining("study 0", 2026, NoiseSettings())
    assert spent == (Fraction(1, 18) if is_charged else 0)
