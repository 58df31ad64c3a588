"""Numbers told in another unit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.records.fhir.conversion import convert, convertible

SAME = ["mm[Hg]", "kPa", "Pa", "bar", "cm[H2O]"]


@pytest.mark.parametrize(
    ("value", "unit", "into", "told"),
    [
        (120, "mm[Hg]", "kPa", 15.9987),
        (5, "g/dL", "g/L", 50),
        (4.5, "10*9/L", "10*3/uL", 4.5),
        (60, "{beats}/min", "/min", 60),
        (1, "a", "mo", 12),
        (2, "[lb_av]", "kg", 0.90718474),
        (37, "Cel", "[degF]", 98.6),
        (310.15, "K", "K", 310.15),
        (7, "%", "%", 7),
    ],
)
def test_conversions(value, unit, into, told):
    assert convert(value, unit, into) == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize(
    ("unit", "into"),
    [
        ("kg", "L"),
        ("mmol/L", "mg/dL"),
        ("Smith", "kg"),
        ("{score}", "{INR}"),
        ("[IU]/L", "U/L"),
        ("", "kg"),
        ("Cel", "K"),
    ],
)
def test_what_does_not_measure_the_same_is_not_converted(unit, into):
    assert convert(1.0, unit, into) is None
    assert not convertible(unit, into)


def test_amount_and_mass_need_the_molar_mass():
    assert convert(5.172, "mmol/L", "mg/dL", molar_mass=386.65) == pytest.approx(200, abs=0.1)
    assert convert(200, "mg/dL", "mmol/L", molar_mass=386.65) == pytest.approx(5.172, abs=0.01)
    assert convert(1, "mmol/L", "kg", molar_mass=386.65) is None


@given(value=st.floats(1e-6, 1e6), unit=st.sampled_from(SAME), into=st.sampled_from(SAME))
def test_there_and_back_is_the_same(value, unit, into):
    there = convert(value, unit, into)
    assert convert(there, into, unit) == pytest.approx(value, rel=1e-9)
