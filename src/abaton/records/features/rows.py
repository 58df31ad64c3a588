"""From de-identified records to the rows of each view, sorted by subject."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from abaton.errors import AbatonError, Refused
from abaton.features.specification import Plan
from abaton.records.fhir.bundles import opened
from abaton.record_types import Deidentified
from abaton.views.definition import View

Cells = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one view: each subject's, how many belong to nobody, and how many records it cannot read."""

    of: Mapping[str, list[Cells]]
    nobody: int
    unread: int

    def __repr__(self) -> str:
        return "Rows(…)"  # rows are people


class Gatherer:
    """Makes the rows of every view of a plan; the views are compiled once."""

    def __init__(self, plan: Plan) -> None:
        self._subject = plan.subject
        self._views = {name: View.load(definition) for name, definition in plan.views.items()}
        self._by_type: dict[str, list[tuple[str, View, list[str]]]] = defaultdict(list)
        for name, view in self._views.items():
            self._by_type[view.resource].append((name, view, [column.name for column in view.columns]))

    def __call__(self, records: Iterable[Deidentified]) -> dict[str, Rows]:
        """The rows of every view, in one pass over the records.

        Raises:
            Refused: A record has not been de-identified.
        """
        found: dict[str, dict[str, list[Cells]]] = {name: defaultdict(list) for name in self._views}
        nobody, unread = Counter[str](), Counter[str]()
        for resource in _once(_resources(records)):
            for name, view, columns in self._by_type.get(resource.get("resourceType", ""), ()):
                try:
                    rows = view.rows(resource)
                except AbatonError:
                    unread[name] += (
                        1  # what is wrong with the record is its content: only that it is, is told
                    )
                    continue
                for row in rows:
                    cells = dict(zip(columns, row, strict=True))
                    whose = cells.get(self._subject)
                    if isinstance(whose, str) and whose:
                        found[name][whose].append(cells)
                    else:
                        nobody[name] += 1
        return {name: Rows(dict(found[name]), nobody[name], unread[name]) for name in self._views}


def _once(resources: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every resource once: exports overlap, and a visit that stands in two files is one visit."""
    seen: set[tuple[str, str]] = set()
    for resource in resources:
        key = (resource.get("resourceType", ""), resource.get("id", ""))
        if key[1] and key in seen:
            continue
        seen.add(key)
        yield resource


def _resources(records: Iterable[Deidentified]) -> Iterator[dict[str, Any]]:
    for record in records:
        if not isinstance(record, Deidentified):
            raise Refused(
                "a record that was not de-identified cannot become a feature",
                where="features",
                remedy="pass it through the de-identifier first",
            )
        yield from opened(record.content)
