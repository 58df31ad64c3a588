import doctest

import numpy as np
import polars as pl
import pytest

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    Diversity,
    QuasiIdentifier,
    Sensitive,
    api,
    equivalence_classes,
    examine,
    risk_metrics,
)
from abaton.anonymity.risk_metrics import risk
from abaton.errors import SettingsError

AGE = (QuasiIdentifier("age", BinHierarchy((10.0,))),)


def test_the_risks_of_known_classes():
    found = risk(np.array([1.0, 1.0, 3.0, 5.0, 10.0]))
    assert (found.prosecutor_highest, found.prosecutor_average, found.marketer) == (1.0, 0.25, 0.25)
    assert (found.journalist_highest, found.journalist_average) == (None, None)
    assert (found.unique, found.below_2, found.below_5, found.below_11) == (0.1, 0.1, 0.25, 1.0)


def test_a_population_lowers_the_journalists_and_the_marketers_risk():
    frame = pl.DataFrame({"age": [31, 31, 52, 52]})
    asked = AnonymitySettings(AGE, k=2, population=40, rows_are_people=True)
    same = AnonymitySettings(AGE, k=2, sampling_fraction=0.1, rows_are_people=True)
    for found in (examine(frame, asked).before.risk, examine(frame, same).before.risk):
        assert found.prosecutor_highest == 0.5
        assert found.journalist_highest == found.journalist_average == found.marketer == pytest.approx(0.05)
    with pytest.raises(SettingsError, match="smaller than the table"):
        examine(frame, AnonymitySettings(AGE, population=3, rows_are_people=True))


def test_losses_by_hand():
    made = examine(
        pl.DataFrame({"age": [31, 34, 38, 77]}),
        AnonymitySettings(AGE, k=3, suppression_limit=0.25, rows_are_people=True),
    )
    after = made.after
    assert (after.records, after.suppressed, after.classes, after.k) == (3, 1, 1, 3)
    # Three of four values covered by three records, everything by the one left out: raw 3.25, least 1, most 4.
    assert after.utility.loss == pytest.approx((3 * 0.75 + 1 - 1) / 3)
    assert after.utility.ncp == pytest.approx((3 * 0.75 + 1) / 4)
    assert after.utility.discernibility == 3 * 3 + 1 * 4
    assert after.utility.average_class_size == 1.0
    assert made.before.utility.discernibility == 4
    assert [bar for bar in after.histogram if bar[1]] == [(3, 1, 3)]


def test_what_the_worst_class_gives_away():
    frame = pl.DataFrame({"age": [1, 1, 1, 2, 2], "s": ["x", "x", "y", "x", "z"]})
    asked = AnonymitySettings(
        AGE, k=2, sensitive=(Sensitive("s", Diversity(2, "recursive", 2.5)),), rows_are_people=True
    )
    (found,) = examine(frame, asked).before.sensitive
    assert (found.values, found.distinct, found.recursive_c) == (3, 2, 2.0)
    assert found.certain == pytest.approx(2 / 3)
    assert found.equal == pytest.approx(0.3)
    assert found.ordered == pytest.approx(0.2)


def test_a_release_of_nobody_is_measured_too():
    made = examine(
        pl.DataFrame({"age": [1, 2]}),
        AnonymitySettings(AGE, k=5, suppression_limit=1.0, rows_are_people=True),
    )
    assert (made.after.records, made.after.k, made.after.risk.prosecutor_highest) == (0, 0, 0.0)


def test_measuring_only_never_changes_a_table():
    frame = pl.DataFrame({"age": [1, 1, 2]})
    kept = examine(frame, AnonymitySettings(AGE, k=1, method="measure", rows_are_people=True))
    assert kept.shown.method == "as is"
    refused = examine(frame, AnonymitySettings(AGE, k=2, method="measure", rows_are_people=True))
    assert refused.shown is None
    assert refused.row()["after"] is None
    assert "as it is" in str(refused.refusal)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "unique"), [("cleveland", 4.6), ("hungarian", 7.1), ("switzerland", 13.8), ("va", 7.0)]
)
def test_age_and_sex_single_out_heart_patients(shared, name, unique):
    lines = (shared / f"data/heart/processed.{name}.data").read_text().split()
    frame = pl.DataFrame([line.split(",")[:2] for line in lines], schema=["age", "sex"], orient="row")
    asked = AnonymitySettings((*AGE, QuasiIdentifier("sex")), rows_are_people=True)
    assert round(100 * examine(frame, asked).before.risk.unique, 1) == unique


def test_examples_run():
    assert not any(doctest.testmod(module).failed for module in (risk_metrics, api, equivalence_classes))
