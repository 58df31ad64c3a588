"""The shipped tables are what the definitions give."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest
from make_letters import TABLE, UNICODE, letters
from make_tables import PACKAGE, elements, vocabulary

from abaton.deid.free_text import folded
from abaton.fhir.elements import is_primitive, resources, table
from abaton.fhir.ucum import is_unit


@pytest.mark.shared
def test_the_tables_can_be_made_again(shared):
    assert elements(shared) == (PACKAGE / "elements.txt").read_text()
    assert vocabulary(shared) == (PACKAGE / "vocabulary.json").read_text()


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE, reason="the table is made from another version")
def test_the_letters_can_be_made_again():
    assert letters() == TABLE.read_text(encoding="ascii")


def test_letters_do_not_hang_on_the_interpreter():
    code = (
        "import sys\nsys.modules['unicodedata'] = None\n"
        "from abaton.deid.free_text import black_out, words_of\n"
        "known = words_of({'resourceType': 'Patient', 'name': [{'family': 'Müller'}]})\n"
        "assert black_out('\u041c\u00fcller 한글', known) == '[…] 한글', black_out('\u041c\u00fcller', known)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\ud55c\uae00", "\u1112\u1161\u11ab\u1100\u1173\u11af"),
        ("ΟΔΟΣ", "οδος"),
        ("Straße", "STRASSE"),
        ("٢٠٢٠", "2020"),
        ("Ёлкин", "елкин"),
        ("ﬁ", "fi"),
    ],
)
def test_what_is_the_same_name_is_folded_alike(one, other):
    assert folded(one) == folded(other)


def test_every_type_an_element_names_is_there():
    assert len(table()) == 662
    assert sum(len(fields) for fields in table().values()) == 8207
    assert len(resources()) == 146
    for fields in table().values():
        for element in fields.values():
            assert is_primitive(element.type) or element.type in table()


@pytest.mark.parametrize(
    "unit", ["mg", "mmol/L", "10*9/L", "mm[Hg]", "kg/m2", "/min", "%", "[IU]/L", "mL/min/{1.73_m2}", "Cel"]
)
def test_units(unit):
    assert is_unit(unit)
