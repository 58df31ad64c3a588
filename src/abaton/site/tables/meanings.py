"""What a column, or a word in it, means: the mapping's words made ready to be asked row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from abaton.errors import SettingsError
from abaton.site.sources.fhir_builders import Json, concept, quantity
from abaton.site.sources.tabular.cell_parser import NO, YES, CellError, number, plain
from abaton.site.tables.mapping import Meaning, TableMapping

Codings = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Person:
    """What the tables say of who somebody is."""

    sex: str | None = None
    born: str | None = None
    died: str | None = None

    def with_more(self, other: Person) -> Person | None:
        """Both together; nothing if they contradict each other."""
        pairs = ((self.sex, other.sex), (self.born, other.born), (self.died, other.died))
        if any(one and two and one != two for one, two in pairs):
            return None
        return Person(*(one or two for one, two in pairs))


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a column or a word means, ready to be asked row by row."""

    type: str
    codings: Codings
    unit: str | None = None
    values: dict[str, Any] | None = None
    missing: frozenset[str] = frozenset()
    when: str | None = None
    integer: bool = False

    def happens(self, text: str) -> bool:
        """Whether a cell says that there is something; of an observation it always does."""
        if self.type == "observation":
            return True
        if self.values:
            return bool(self._word(text))
        if text.lower() in YES or text.lower() in NO:
            return text.lower() in YES
        word = plain(text)
        if word not in ("0", "1"):
            raise CellError("this says neither yes nor no", "write values = { 'pos' = true, 'neg' = false }")
        return word == "1"

    def value(self, text: str) -> Json:
        """The value of an observation whose words are listed."""
        found = self._word(text)
        return {"valueBoolean": found} if isinstance(found, bool) else {
            key: dict(each) for key, each in found.items()
        }  # fmt: skip

    def _word(self, text: str) -> Any:
        assert self.values is not None
        found = self.values.get(plain(text))
        if found is None:
            raise CellError("the mapping does not say what this means", "name it under 'values' or 'missing'")
        return found


def compiled(mapping: TableMapping, each: Meaning) -> Compiled:
    """What the mapping says of a column or a word, made ready."""
    values = {plain(word): _meant(mapping, each, told) for word, told in each.values.items()}
    missing = frozenset(plain(word.lower()) for word in each.missing)
    integer = each.number == "integer"
    codings = mapping.codings(each.code)
    return Compiled(each.type or "observation", codings, each.unit, values, missing, each.when, integer)


def _meant(mapping: TableMapping, each: Meaning, told: object) -> Any:
    """What a word of the mapping stands for: yes or no, a code, or a number such as '>120'."""
    if isinstance(told, bool):
        return told
    text = str(told)
    if "|" in text:
        return {"valueCodeableConcept": concept(mapping.codings(text))}
    try:
        sign, found = number(text, ".")
    except CellError:
        raise SettingsError(
            f"'{text}' is neither a code nor a number",
            where="values of the mapping",
            remedy="write 'snomed|449868002', '>120', true or false",
        ) from None
    return {"valueQuantity": quantity(found, each.unit, sign)}
