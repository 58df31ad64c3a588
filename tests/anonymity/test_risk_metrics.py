import doctest

import numpy as np
import polars as pl
import pytest

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    LDiversity,
    QuasiIdentifier,
    SensitiveAttribute,
    api,
    equivalence_classes,
    examine,
    risk_metrics,
)
from abaton.anonymity.risk_metrics import estimate_risk
from abaton.errors import SettingsError

AGE = (QuasiIdentifier("age", BinHierarchy((10.0,))),)


def test_the_risks_of_known_classes():
    risks = estimate_risk(np.array([1.0, 1.0, 3.0, 5.0, 10.0]))
    assert (risks.prosecutor_highest, risks.prosecutor_average, risks.marketer) == (1.0, 0.25, 0.25)
    assert (risks.journalist_highest, risks.journalist_average) == (None, None)
    assert (risks.unique, risks.below_2, risks.below_5, risks.below_11) == (0.1, 0.1, 0.25, 1.0)


def test_a_population_lowers_the_journalists_and_the_marketers_risk():
    frame = pl.DataFrame({"age": [31, 31, 52, 52]})
    requested = AnonymitySettings(AGE, k=2, population=40, one_row_per_subject=True)
    same = AnonymitySettings(AGE, k=2, sampling_fraction=0.1, one_row_per_subject=True)
    for risks in (examine(frame, requested).before.risk, examine(frame, same).before.risk):
        assert risks.prosecutor_highest == 0.5
        assert risks.journalist_highest == risks.journalist_average == risks.marketer == pytest.approx(0.05)
    with pytest.raises(SettingsError, match="but the table has 4 subjects"):
        examine(frame, AnonymitySettings(AGE, population=3, one_row_per_subject=True))


def test_losses_by_hand():
    examined = examine(
        pl.DataFrame({"age": [31, 34, 38, 77]}),
        AnonymitySettings(AGE, k=3, suppression_limit=0.25, one_row_per_subject=True),
    )
    after = examined.after
    assert (after.records, after.suppressed, after.classes, after.k) == (3, 1, 1, 3)
    # Three of four values covered by three records, all of it by the suppressed one: raw 3.25, minimum 1, maximum 4.
    assert after.utility.loss == pytest.approx((3 * 0.75 + 1 - 1) / 3)
    assert after.utility.ncp == pytest.approx((3 * 0.75 + 1) / 4)
    assert after.utility.discernibility == 3 * 3 + 1 * 4
    assert after.utility.average_class_size == 1.0
    assert examined.before.utility.discernibility == 4
    assert [bar for bar in after.histogram if bar[1]] == [(3, 1, 3)]


def test_the_worst_class_of_sensitive_values():
    frame = pl.DataFrame({"age": [1, 1, 1, 2, 2], "s": ["x", "x", "y", "x", "z"]})
    requested = AnonymitySettings(
        AGE,
        k=2,
        sensitive=(SensitiveAttribute("s", LDiversity(2, "recursive", 2.5)),),
        one_row_per_subject=True,
    )
    (sensitive_metrics,) = examine(frame, requested).before.sensitive
    assert (sensitive_metrics.values, sensitive_metrics.distinct, sensitive_metrics.recursive_c) == (
        3,
        2,
        2.0,
    )
    assert sensitive_metrics.max_confidence == pytest.approx(2 / 3)
    assert sensitive_metrics.equal == pytest.approx(0.3)
    assert sensitive_metrics.ordered == pytest.approx(0.2)


def test_an_empty_release_is_measured():
    examined = examine(
        pl.DataFrame({"age": [1, 2]}),
        AnonymitySettings(AGE, k=5, suppression_limit=1.0, one_row_per_subject=True),
    )
    assert (examined.after.records, examined.after.k, examined.after.risk.prosecutor_highest) == (0, 0, 0.0)


def test_measuring_only_never_changes_a_table():
    frame = pl.DataFrame({"age": [1, 1, 2]})
    examined = examine(frame, AnonymitySettings(AGE, k=1, method="measure", one_row_per_subject=True))
    assert examined.release.method == "as is"
    refused = examine(frame, AnonymitySettings(AGE, k=2, method="measure", one_row_per_subject=True))
    assert refused.release is None
    assert refused.row()["after"] is None
    assert "unchanged" in str(refused.refusal)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "unique"), [("cleveland", 4.6), ("hungarian", 7.1), ("switzerland", 13.8), ("va", 7.0)]
)
def test_age_and_sex_single_out_heart_patients(shared, name, unique):
    lines = (shared / f"data/heart/processed.{name}.data").read_text().split()
    frame = pl.DataFrame([line.split(",")[:2] for line in lines], schema=["age", "sex"], orient="row")
    requested = AnonymitySettings((*AGE, QuasiIdentifier("sex")), one_row_per_subject=True)
    assert round(100 * examine(frame, requested).before.risk.unique, 1) == unique


def test_examples_run():
    assert not any(doctest.testmod(module).failed for module in (risk_metrics, api, equivalence_classes))
