"""The shipped tables equal those generated from the definitions."""

from __future__ import annotations

import subprocess
import sys
import unicodedata

import pytest
from tests.deid.make_text_folding import TABLE, UNICODE, folding_table
from tests.fhir.make_element_tables import PACKAGE, elements, vocabulary

from abaton.deid.free_text import fold
from abaton.fhir.elements import element_table, is_primitive, resource_types
from abaton.fhir.ucum import is_unit


@pytest.mark.shared
def test_the_tables_are_reproducible(shared):
    assert elements(shared) == (PACKAGE / "elements.txt").read_text()
    assert vocabulary(shared) == (PACKAGE / "vocabulary.json").read_text()


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE, reason="the table is made from another version")
def test_the_text_folding_table_is_reproducible():
    assert folding_table() == TABLE.read_text(encoding="ascii")


def test_letters_do_not_depend_on_the_interpreter():
    code = (
        "import sys\nsys.modules['unicodedata'] = None\n"
        "from abaton.deid.free_text import redact_text, person_terms\n"
        "known = person_terms({'resourceType': 'Patient', 'name': [{'family': 'Müller'}]})\n"
        "assert redact_text('\u041c\u00fcller 한글', known) == '[…] 한글', redact_text('\u041c\u00fcller', known)\n"
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
def test_equal_names_are_folded_alike(one, other):
    assert fold(one) == fold(other)


def test_every_element_type_exists():
    assert len(element_table()) == 662
    assert sum(len(fields) for fields in element_table().values()) == 8207
    assert len(resource_types()) == 146
    for fields in element_table().values():
        for element in fields.values():
            assert is_primitive(element.type) or element.type in element_table()


@pytest.mark.parametrize(
    "unit", ["mg", "mmol/L", "10*9/L", "mm[Hg]", "kg/m2", "/min", "%", "[IU]/L", "mL/min/{1.73_m2}", "Cel"]
)
def test_units(unit):
    assert is_unit(unit)
