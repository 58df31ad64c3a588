"""The shipped tables are what the definitions give."""

from __future__ import annotations

import pytest
from make_tables import PACKAGE, elements, vocabulary

from abaton.records.elements import is_primitive, resources, table
from abaton.records.ucum import is_unit


@pytest.mark.shared
def test_the_tables_can_be_made_again(shared):
    assert elements(shared) == (PACKAGE / "elements.txt").read_text()
    assert vocabulary(shared) == (PACKAGE / "vocabulary.json").read_text()


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
