"""Parsing and conversion of UCUM units."""

from __future__ import annotations

from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abaton.fhir.ucum import convert, convertible, is_unit, parse_unit

SAME = ["mm[Hg]", "kPa", "Pa", "bar", "cm[H2O]"]


@pytest.mark.parametrize(
    ("value", "unit", "into", "converted"),
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
        (37, "Cel", "K", 310.15),
        (310.15, "K", "[degF]", 98.6),
        (29.6, "[degRe]", "Cel", 37),
        (500, "mCel", "K", 273.65),
        (7.4, "[pH]", "nmol/L", 39.8107),
        (40, "nmol/L", "[pH]", 7.39794),
        (3, "dB", "B", 0.3),
        (94, "dB[SPL]", "Pa", 1.00237),
        (5000, "{cells}/uL", "10*3/uL", 5),
        (5, "10^9/L", "10*9/L", 5),
        (90, "mL/min/{1.73_m2}", "mL/min", 90),
        (1, "kg.(m/s2)", "N", 1),
        (6, "g/(d.m2)", "g/m2/d", 6),
        (6, "/(L.h)", "/L/h", 6),
        (1, "m/s.s", "m", 1),
        (2, "m[IU]/mL", "k[iU]/m3", 2),
        (1, "m+2", "cm2", 10000),
        (4, "g%", "g/L", 40),
        (1, "[gal_us]", "L", 3.785411784),
        (1, "[stone_av]", "kg", 6.35029318),
        (1, "kcal_IT", "J", 4186.8),
        (1, "[wood'U]", "mm[Hg].min/L", 1),
        (1, "[in_i'H2O]", "cm[H2O]", 2.54),
        (1, "Mibit", "KiBy", 128),
        (30, "deg", "rad", 0.5235988),
    ],
)
def test_conversions(value, unit, into, converted):
    assert convert(value, unit, into) == pytest.approx(converted, rel=1e-5)


@pytest.mark.parametrize(
    ("unit", "into"),
    [
        ("kg", "L"),
        ("mmol/L", "mg/dL"),
        ("Smith", "kg"),
        ("{score}", "{INR}"),
        ("[IU]/L", "U/L"),
        ("", "kg"),
        ("Cel/min", "K/min"),
        ("Cel2", "K2"),
        ("B", "Np"),
        ("B", "1"),
        ("[hp'_X]", "1"),
        ("/[HPF]", "/[LPF]"),
        ("[arb'U]", "[IU]"),
        ("mol", "10*23"),
        ("mmHg", "kPa"),
        ("MG/DL", "mg/dL"),
        ("{beats}", "1"),
    ],
)
def test_units_of_different_dimensions_are_not_converted(unit, into):
    assert convert(1.0, unit, into) is None
    assert not convertible(unit, into)


def test_amount_and_mass_need_the_molar_mass():
    assert convert(5.172, "mmol/L", "mg/dL", molar_mass=386.65) == pytest.approx(200, abs=0.1)
    assert convert(200, "mg/dL", "mmol/L", molar_mass=386.65) == pytest.approx(5.172, abs=0.01)
    assert convert(1, "mmol/L", "kg", molar_mass=386.65) is None


@given(value=st.floats(1e-6, 1e6), unit=st.sampled_from(SAME), into=st.sampled_from(SAME))
def test_conversion_roundtrips(value, unit, into):
    there = convert(value, unit, into)
    assert convert(there, into, unit) == pytest.approx(value, rel=1e-9)


def test_values_without_logarithm_are_not_converted():
    assert convert(0.0, "mol/L", "[pH]") is None
    assert convert(-400.0, "[pH]", "mol/L") is None


@pytest.mark.parametrize(
    "text",
    ["", "/", "m/", "m//s", "(m", "m)", "()", "2m", "m 2", "kg.", ".kg", "{a", "a}", "m^2", "0", "m2.5x", "mmHg", "Kim",
     "(" * 50 + "m" + ")" * 50, "m" * 300, ".".join(["m"] * 60), "m99999999", "µg"],
)  # fmt: skip
def test_invalid_units_are_refused(text):
    assert parse_unit(text) is None
    assert not is_unit(text)


@pytest.mark.parametrize(
    "text", ["mg{Smith}", "kg.(m.(s.(g.(K.s))))", "1234/m", "{1.73_m2}{x}", "[lb_av]" * 8]
)
def test_units_with_free_text_are_not_shown(text):
    assert not is_unit(text)


def test_every_unit_of_the_table_has_a_size():
    codes = [
        line.split(" ")[0] for line in files("abaton.fhir").joinpath("units.txt").read_text().splitlines()
    ]
    assert len(codes) == len(set(codes)) == 312
    assert all(parse_unit(code) is not None and convert(1, code, code) == 1 for code in codes)
    assert all(is_unit(code) for code in codes if len(code) < 15)


TERM = st.recursive(
    st.sampled_from(["m", "kg", "mm[Hg]", "10*", "s-2", "L{dry}", "4", "{count}", "m[IU]", "d"]),
    lambda inner: st.tuples(inner, st.sampled_from("./"), inner).map(lambda t: f"{t[0]}{t[1]}({t[2]})"),
    max_leaves=6,
)


@given(TERM, TERM)
def test_products_and_quotients_follow_from_their_factors(left, right):
    one, two = parse_unit(left), parse_unit(right)
    both, over = parse_unit(f"({left}).({right})"), parse_unit(f"({left})/({right})")
    assert both.size == one.size * two.size
    assert over.size == one.size / two.size
    back = dict(over.dimension)
    for name, power in two.dimension:
        back[name] = back.get(name, 0) + power
    assert {name: power for name, power in back.items() if power} == dict(one.dimension)
