"""Check the release gate and its register: noise, costs, epochs, budgets, restarts and losses."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from abaton.disclosure.levels import DisclosureLevel, NoiseSettings, format_count, strictest_level
from abaton.disclosure.release_gate import Question, Released, ReleaseGate, SumShare, sum_shares
from abaton.disclosure.release_register import ReleaseRegister
from abaton.errors import RefusedError, StoreError

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
LARGE = NoiseSettings(study_budget=1e6, yearly_budget=1e6)
CELLS = {
    "cases": [f"case {i}" for i in range(40)],
    "controls": [f"control {i}" for i in range(60)],
    "none": [],
}


class Site:
    """Files of one site, and gates on them."""

    def __init__(self, folder: Path) -> None:
        self.path, self.key_path, self.now = folder / "site.releases", folder / "site.releases.key", NOW

    def gate(
        self,
        level: DisclosureLevel = DisclosureLevel.NOISY,
        settings: NoiseSettings = LARGE,
        now: Callable[[], datetime] | None = None,
    ) -> ReleaseGate:
        """Open a gate as a new process would."""
        return ReleaseGate(
            ReleaseRegister(self.path, self.key_path), level, settings, now or (lambda: self.now)
        )


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def question(number: int = 0, study: str = "study", kind: str = "attrition") -> Question:
    return Question(kind, study, {"number": number})


# ---- noise ----------------------------------------------------------------------------------------------------------


def test_tables_are_unbiased_with_the_stated_variance(site):
    gate = site.gate()
    answers = [gate.table(question(i), CELLS) for i in range(700)]
    errors = np.array([[a.values[name] - len(CELLS[name]) for name in CELLS] for a in answers])
    assert {a.sd for a in answers} == {3.0}
    assert np.abs(errors.mean(0)).max() < 4 * 3 / 700**0.5
    # The variance of 2100 normal draws is chi-squared.
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], errors.size) * 9 / errors.size
    assert low < (errors**2).mean() < high
    assert abs(np.corrcoef(errors.T)[0, 1]) < 0.15
    assert (errors[:, 2] != 0).mean() > 0.8, "an empty cell has noise"


def test_totals_are_unbiased_with_the_stated_variance(site):
    gate, random = site.gate(), np.random.default_rng(3)
    rows = random.uniform(-0.5, 0.5, (50, 2))
    subjects = [f"p{i}" for i in range(50)]
    answers = [gate.total(question(i, kind="sum"), subjects, rows, 1.5, 2.0) for i in range(500)]
    errors = np.array([a.vector for a in answers]) - rows.sum(0)
    assert answers[0].sd == pytest.approx(3.0, rel=1e-4)
    assert answers[0].sd >= 3.0
    assert np.abs(errors.mean(0)).max() < 4 * 3 / 500**0.5
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], errors.size) * 9 / errors.size
    assert low < (errors**2).mean() < high
    assert stats.kstest(errors.ravel() / 3, "norm").pvalue > 1e-4


def test_all_rows_of_a_subject_are_one_clipped_contribution(site):
    gate = site.gate(DisclosureLevel.EXACT, replace(LARGE, threshold=1))
    rows = np.array([[3.0, 4.0], [0.3, 0.0], [0.3, 0.0], [0.0, 0.9], [0.0, 0.9]])
    released = gate.total(question(), ["long", "short", "short", "two", "two"], rows, 1.0, 1.0)
    # (3, 4) is clipped to (.6, .8); (.6, 0) stays; (0, 1.8) is clipped to (0, 1).
    assert released.vector == pytest.approx([1.2, 1.8])


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_removing_a_subject_moves_the_integers_by_at_most_the_bound(site, scale):
    """The noise is sized for integers; their norm including rounding must stay within it."""
    from abaton.disclosure.release_gate import _clipped_by_subject, _Grid

    random = np.random.default_rng(5)
    for coordinates in (1, 3, 40):
        rows = random.normal(size=(30, coordinates)) * scale * 10
        _, vectors = _clipped_by_subject([str(i) for i in range(30)], rows, scale)
        grid = _Grid.for_bound(scale, coordinates)
        assert np.linalg.norm(grid.round(vectors), axis=1).max() <= grid.bound
        assert grid.bound * grid.unit == pytest.approx(scale, rel=2e-5)


def test_overlapping_cells_are_refused(site):
    with pytest.raises(RefusedError, match="two cells"):
        site.gate().table(question(), {"a": ["x", "y"], "b": ["y"]})


@pytest.mark.parametrize("rows", [np.ones(3), np.ones((2, 1)), np.array([[1.0], [np.nan], [1.0]])])
def test_contributions_that_do_not_fit_are_refused(site, rows):
    with pytest.raises(ValueError, match=r"row of contributions|finite"):
        site.gate().total(question(), ["a", "b", "c"], rows, 1.0, 1.0)


@pytest.mark.parametrize("number", [0.0, -1.0, np.inf, np.nan])
def test_noise_of_no_size_is_refused(site, number):
    with pytest.raises(ValueError, match="above 0"):
        site.gate().table(question(), CELLS, sd=number)
    with pytest.raises(ValueError, match="above 0"):
        site.gate().total(question(), ["a"], np.ones((1, 1)), number, 1.0)


def test_only_a_gate_creates_released_numbers():
    with pytest.raises(TypeError, match="only a ReleaseGate"):
        Released({"a": 1.0}, 0.0)
    with pytest.raises(TypeError, match="only a ReleaseGate"):
        SumShare((1,), 1.0, 0.0)


# ---- repetition -----------------------------------------------------------------------------------------------------


def test_an_answer_is_repeated_after_a_restart_and_also_when_a_subject_left(site):
    first = site.gate().table(question(), CELLS)
    fewer = {**CELLS, "cases": CELLS["cases"][1:]}
    assert site.gate().table(question(), fewer) == first
    assert site.gate().remaining("study") == pytest.approx(float(1e6 - Fraction(1, 18)))


def test_an_answer_repeats_its_own_noise_size_when_settings_change(site):
    first = site.gate().table(question(), CELLS)
    assert site.gate(settings=replace(LARGE, table_sd=7.0)).table(question(), CELLS) == first


def test_a_new_epoch_draws_anew_and_costs_again(site):
    gate = site.gate()
    first = gate.table(question(), CELLS)
    site.now = NOW + timedelta(days=31)
    assert gate.cost(question(), 3.0) == pytest.approx(1 / 18)
    second = gate.table(question(), CELLS)
    assert second != first
    assert gate.cost(question(), 3.0) == 0.0
    assert gate.register.remaining("study", 2026, LARGE) == 10**6 - Fraction(2, 18)


def test_another_process_gives_the_same_answer_and_the_same_noise(site):
    """Another process finds the answer; with an empty copy of the register it derives the same noise."""
    gate = site.gate()
    gate.register.close()
    empty = site.path.read_bytes()
    gate = site.gate()
    first, sums = (
        gate.table(question(), CELLS),
        gate.total(question(1), ["a", "b"], np.ones((2, 2)), 2.0, 1.0),
    )
    program = """
import json, sys
from datetime import datetime
from pathlib import Path
import numpy as np
from abaton.disclosure.release_gate import Question, ReleaseGate
from abaton.disclosure.release_register import ReleaseRegister
path, key_path, cells = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
gate = ReleaseGate(ReleaseRegister(path, key_path), clock=lambda: datetime.fromisoformat(sys.argv[4]))
first = gate.table(Question("attrition", "study", {"number": 0}), cells)
sums = gate.total(Question("attrition", "study", {"number": 1}), ["b", "a"], np.ones((2, 2)), 2.0, 1.0)
print(json.dumps([dict(first.values), dict(sums.values)]))
"""

    def run(path: Path) -> list[dict[str, float]]:
        arguments = [
            sys.executable,
            "-c",
            program,
            str(path),
            str(site.key_path),
            json.dumps(CELLS),
            NOW.isoformat(),
        ]
        return json.loads(subprocess.run(arguments, capture_output=True, check=True, text=True).stdout)

    assert run(site.path) == [first.values, sums.values]
    restored = site.path.with_name("restored")
    restored.write_bytes(empty)
    assert run(restored) == [first.values, sums.values]


def test_without_its_register_a_group_without_one_subject_has_other_noise(site):
    site.gate().register.close()
    empty = site.path.read_bytes()
    noise = {}
    for name, cases in (("with", CELLS["cases"]), ("without", CELLS["cases"][1:])):
        site.path.write_bytes(empty)
        gate = site.gate()
        released = gate.table(question(), {**CELLS, "cases": cases})
        noise[name] = [released.values["controls"] - 60, released.values["none"]]
        gate.register.close()
    assert noise["with"] != noise["without"]


def test_equal_groups_in_two_questions_have_independent_noise(site):
    gate = site.gate()
    pairs = [
        [gate.table(question(i, study), CELLS).values["cases"] for study in ("a", "b")] for i in range(250)
    ]
    one, other = np.array(pairs).T
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.2
    # Two independent draws of sigma 3 are equal in 9.4 % of cases.
    assert 0.03 < (one == other).mean() < 0.17


# ---- budget ---------------------------------------------------------------------------------------------------------


def test_a_study_has_exactly_eighteen_tables(site):
    gate = site.gate(settings=NoiseSettings())
    for i in range(18):
        gate.table(question(i), CELLS)
    assert gate.register.remaining("study", 2026, NoiseSettings()) == 0
    with pytest.raises(RefusedError, match="privacy budget of the study is used up"):
        gate.table(question(18), CELLS)
    assert len(gate.register.releases()) == 18
    assert gate.table(question(3), CELLS).sd == 3.0, "answers are still repeated"


def test_a_year_has_one_budget_for_all_studies(site):
    gate = site.gate(settings=NoiseSettings())
    for i in range(36):
        gate.table(question(i, f"study {i % 4}"), CELLS)
    with pytest.raises(RefusedError, match="privacy budget of 2026 is used up"):
        gate.table(question(0, "one more"), CELLS)
    assert gate.remaining("one more") == 0.0
    site.now = datetime(2027, 1, 1, tzinfo=UTC)
    assert gate.remaining("one more") == 1.0
    assert gate.remaining("study 0") == pytest.approx(0.5), "the budget of a study is not renewed"
    gate.table(question(0, "one more"), CELLS)


def test_budgets_are_the_decimal_numbers_of_the_configuration(site):
    settings = NoiseSettings(study_budget=0.1, yearly_budget=0.3)
    gate = site.gate(settings=settings)
    sd = (
        5**0.5
    )  # 1/(2 sd²) is one tenth but for rounding: 0.1 as a float would be a little more than one tenth
    assert gate.register.remaining("study", 2026, settings) == Fraction(1, 10)
    gate.table(question(), CELLS, sd=sd + 1e-9)
    with pytest.raises(RefusedError):
        gate.table(question(1), CELLS, sd=sd)


def test_a_refused_question_costs_nothing_and_is_not_recorded(site):
    gate = site.gate(settings=NoiseSettings(study_budget=0.05))
    with pytest.raises(RefusedError):
        gate.table(question(), CELLS)
    assert gate.register.releases() == []


def test_a_crash_before_the_answer_leaves_has_charged_it(site, monkeypatch):
    """The process ends after the transaction and before the caller gets the answer."""
    gate = site.gate()
    original = ReleaseRegister.answer_once
    monkeypatch.setattr(ReleaseRegister, "answer_once", _crash_after(original))
    with pytest.raises(KeyboardInterrupt):
        gate.table(question(), CELLS)
    monkeypatch.setattr(ReleaseRegister, "answer_once", original)
    reopened = site.gate()
    assert reopened.register.remaining("study", 2026, LARGE) == 10**6 - Fraction(1, 18)
    assert reopened.cost(question(), 3.0) == 0.0
    reopened.table(question(), CELLS)
    assert len(reopened.register.releases()) == 1


def _crash_after(original):
    def crash(*args):
        original(*args)
        raise KeyboardInterrupt

    return crash


def test_a_crash_while_the_answer_is_computed_leaves_nothing(site, monkeypatch):
    gate = site.gate()
    monkeypatch.setattr("abaton.disclosure.release_gate.discrete_gaussian", _raise)
    with pytest.raises(KeyboardInterrupt):
        gate.table(question(), CELLS)
    assert gate.register.releases() == []


def _raise(*_args):
    raise KeyboardInterrupt


def test_threads_are_charged_once_and_get_one_answer(site):
    gates = [site.gate() for _ in range(4)]
    cohorts = [{**CELLS, "cases": CELLS["cases"][i:]} for i in range(4)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: gates[i % 4].table(question(), cohorts[i % 4]), range(24)))
    assert len({json.dumps(a.to_row()) for a in answers}) == 1
    assert len(gates[0].register.releases()) == 1


def _ask(path: str, key_path: str, first: int, queue) -> None:
    gate = ReleaseGate(
        ReleaseRegister(Path(path), Path(key_path)), settings=NoiseSettings(), clock=lambda: NOW
    )
    answers = []
    for i in range(20):
        try:
            answers.append(
                (i, dict(gate.table(question(i), {"a": [f"p{j}" for j in range(first, 50)]}).values))
            )
        except RefusedError:
            answers.append((i, None))
    queue.put(answers)


def test_processes_are_charged_once_and_the_budget_holds(site):
    """Three processes create the register together and ask the same 20 questions about other subjects."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [
        context.Process(target=_ask, args=(str(site.path), str(site.key_path), first, queue))
        for first in range(3)
    ]
    for process in processes:
        process.start()
    answers = [dict(queue.get(timeout=60)) for _ in processes]
    for process in processes:
        process.join()
    assert all(other == answers[0] for other in answers)
    assert sum(value is not None for value in answers[0].values()) == 18
    assert site.gate().register.remaining("study", 2026, NoiseSettings()) == 0


# ---- register -------------------------------------------------------------------------------------------------------


def test_the_register_holds_no_identifier(site):
    gate = site.gate()
    cells = {"cases": ["Patient-Meier-7"], "controls": ["Patient-Huber-8"]}
    gate.table(Question("attrition", "study", {"criterion": "named in the question"}), cells)
    gate.total(question(1), ["Patient-Meier-7"], np.ones((1, 1)), 1.0, 1.0)
    site.gate(DisclosureLevel.EXACT).table(question(2), cells)
    gate.register.close()
    for path in site.path.parent.iterdir():
        content = path.read_bytes()
        assert b"Meier" not in content
        assert b"Huber" not in content
        assert b"named in" not in content
        assert not path.stat().st_mode & 0o077 or path.suffix == ".lock"
    with sqlite3.connect(site.path) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(releases)")]
    assert columns == ["question", "epoch", "level", "kind", "study", "year", "cost", "time", "answer"]


def lose_register(site: Site) -> None:
    site.path.unlink()


def lose_key(site: Site) -> None:
    site.key_path.unlink()


def replace_register(site: Site) -> None:
    other = Site(site.path.parent / "other")
    other.gate().register.close()
    shutil.copy(other.path, site.path)


def truncate_register(site: Site) -> None:
    site.path.write_bytes(b"")


@pytest.mark.parametrize("lose", [lose_register, lose_key, replace_register, truncate_register])
def test_a_lost_register_refuses_until_the_site_confirms(site, lose):
    gate = site.gate(settings=NoiseSettings())
    first = gate.table(question(), CELLS)
    gate.register.close()
    secret = gate.register.secret
    lose(site)
    for _ in range(2):
        with pytest.raises(RefusedError, match="--confirm-loss"):
            site.gate()
    ReleaseRegister.confirm_loss(site.path, site.key_path, NOW).close()
    gate = site.gate(settings=NoiseSettings())
    assert gate.register.loss_years() == [2026]
    assert gate.remaining("study") == 0.0
    assert gate.remaining("another study") == 0.0
    if lose is not lose_key:
        assert gate.register.secret == secret, "the secret stays, and with it the noise"
        with pytest.raises(RefusedError, match="2026 is used up"):
            gate.table(question(), CELLS)
    else:
        assert gate.table(question(), CELLS) == first
    site.now = datetime(2027, 1, 1, tzinfo=UTC)
    gate.table(question(5), CELLS)


def test_there_is_nothing_to_confirm_without_a_loss(site):
    gate = site.gate()
    with pytest.raises(RefusedError, match="not lost"):
        ReleaseRegister.confirm_loss(site.path, site.key_path, NOW)
    assert gate.remaining("study") > 0


def test_an_interrupted_creation_is_completed(site):
    site.gate().register.close()
    site.key_path.unlink()  # the register has no release yet
    assert site.gate().table(question(), CELLS).sd == 3.0


def test_a_key_that_others_can_read_or_that_is_damaged_is_refused(site):
    site.gate().register.close()
    site.key_path.chmod(0o644)
    with pytest.raises(StoreError, match="other users"):
        site.gate()
    site.key_path.chmod(0o600)
    site.key_path.write_text("12\n")
    with pytest.raises(StoreError, match="not readable"):
        site.gate()


def test_first_values_and_counted_names_survive_a_restart(site):
    register = site.gate().register
    assert register.first_value("seed", "study", "7") == "7"
    assert [register.count_once("updates", task, 2) for task in ("a", "b", "a", "c")] == [
        True,
        True,
        True,
        False,
    ]
    register.close()
    reopened = site.gate().register
    assert reopened.first_value("seed", "study", "8") == "7"
    assert reopened.first_value("seed", "another study", "8") == "8"
    assert [reopened.count_once("updates", task, 2) for task in ("c", "a")] == [False, True]
    assert reopened.count_once("other updates", "c", 2)


# ---- levels ---------------------------------------------------------------------------------------------------------


def test_exact_numbers_are_suppressed_below_the_threshold_and_cost_nothing(site):
    gate = site.gate(DisclosureLevel.EXACT, replace(NoiseSettings(), threshold=5))
    released = gate.table(question(), {"few": list("abcd"), "some": list("efghi"), "none": []})
    assert released.values == {"some": 5.0, "none": 0.0}
    assert released.suppressed == {"few"}
    assert released.sd == 0.0
    assert gate.remaining("study") == 1.0
    assert gate.table(question(), {"few": [], "some": list("efghi"), "none": []}).values["few"] == 0.0
    assert gate.total(question(1), list("abcde"), np.full((5, 1), 0.1), 1.0, 1.0).vector == pytest.approx(
        [0.5]
    )
    with pytest.raises(RefusedError, match="fewer than 5"):
        gate.total(question(2), list("abcd"), np.ones((4, 1)), 1.0, 1.0)
    assert len(gate.register.releases()) == 2


def test_at_level_summed_no_number_of_one_site_leaves(site):
    gate = site.gate(DisclosureLevel.SUMMED)
    with pytest.raises(RefusedError, match="single site"):
        gate.table(question(), CELLS)
    with pytest.raises(RefusedError, match="single site"):
        gate.total(question(), ["a"], np.ones((1, 1)), 1.0, 1.0)
    with pytest.raises(RefusedError, match="2 sites"):
        gate.share(question(), ["a"], np.ones((1, 1)), 1.0, 1.0, 2, "cohorts")
    share = gate.share(question(), ["a", "b"], np.ones((2, 1)), 1.0, 1.0, 3, "cohorts")
    assert share.units[0] * share.unit == 2.0
    assert share.sd == 0.0


def test_shares_add_up_to_one_noise(tmp_path):
    gates = [Site(tmp_path / str(i)).gate() for i in range(4)]
    rows = np.array([[0.25], [0.5]])
    errors = []
    for i in range(300):
        shares = [g.share(question(i), ["a", "b"], rows, 1.0, 2.0, 4, "cohorts") for g in gates]
        errors.append(sum(s.units[0] for s in shares) * shares[0].unit - 3.0)
    assert shares[0].sd == pytest.approx(2.0, rel=1e-4)
    assert abs(np.mean(errors)) < 4 * 2 / 300**0.5
    low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], 300) * 4 / 300
    assert low < np.square(errors).mean() < high
    assert gates[0].register.releases()[0].cost == Fraction(1, 8)


def test_shares_of_three_sites_are_added_and_fewer_are_refused(tmp_path):
    gates = [Site(tmp_path / str(i)).gate(DisclosureLevel.SUMMED) for i in range(3)]
    shares = [
        g.share(question(), ["a", "b"], np.array([[1.0, 0.5], [0.0, 0.5]]), 2.0, 1.0, 3, "c") for g in gates
    ]
    assert sum_shares(shares, ["one", "two"]).values == {"one": 3.0, "two": 3.0}
    with pytest.raises(ValueError, match="three or more"):
        sum_shares(shares[:2])
    other = gates[0].share(question(1), ["a"], np.ones((1, 2)), 9.0, 1.0, 3, "c")
    with pytest.raises(ValueError, match="same question"):
        sum_shares([*shares, other])


def test_the_strictest_level_applies():
    order = [DisclosureLevel.NOISY, DisclosureLevel.SUMMED, DisclosureLevel.EXACT]
    for i, level in enumerate(order):
        assert strictest_level(order[i:][::-1]) is level


@pytest.mark.parametrize(("count", "text"), [(9.4, "<10"), (10, "10"), (-3, "<10"), (123.6, "124")])
def test_counts_below_the_threshold_are_not_shown(count, text):
    assert format_count(count, 10) == text
