"""Context of a transformation: the resource, its document and the study's pseudonyms, and a log of the changes.

A context exists for one resource; none of it reaches a log file. Garbage collection is paused until a document is
released, because a collection while it is referenced costs about a tenth of the total time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from abaton.fhir.elements import element_table

if TYPE_CHECKING:
    from abaton.deid.pseudonyms import Pseudonyms
    from abaton.deid.references import DocumentReferences


Handler = Callable[[Any, "TransformContext"], Any]
"""Function from an element's value to the kept value; ``None`` drops the element."""

_MAX_KEY_SETS = 4096
_NONE: dict[str, str] = {}
ABSENT_REASON_URL = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"


class ElementPosition(NamedTuple):
    """Position of an element: its path and type, the type of its parent, and its name."""

    path: str
    type: str
    parent: str
    name: str


class DroppedElements:
    """Elements of an object shape that are dropped and counted together."""

    __slots__ = ("drops",)

    def __init__(self, drops: tuple[tuple[str, str], ...]) -> None:
        self.drops = drops


class SiblingCounter:
    """Counter of the dropped siblings of kept elements.

    >>> count = SiblingCounter(ElementPosition("Observation.subject", "Reference", "", ""), {"reference"}, "text")
    >>> count.of(("reference", "display")).drops
    (('Observation.subject.display', 'text'),)
    """

    __slots__ = ("_kept_names", "_known", "_node", "_reason")

    def __init__(self, node: ElementPosition, kept_names: Collection[str], reason: str) -> None:
        self._node, self._kept_names, self._reason = node, kept_names, reason
        self._known: dict[tuple[str, ...], DroppedElements] = {}

    def of(self, keys: tuple[str, ...]) -> DroppedElements:
        """Return the dropped siblings of kept elements, for the log, of objects with these keys."""
        dropped = self._known.get(keys)
        if dropped is None:
            fields = element_table()[self._node.type]
            names = (key if key in fields else "(unknown)" for key in keys if key not in self._kept_names)
            dropped = DroppedElements(tuple((f"{self._node.path}.{name}", self._reason) for name in names))
            if len(self._known) < _MAX_KEY_SETS:
                self._known[keys] = dropped
        return dropped


class TransformLog:
    """Log of a transformation as lists, which are cheap to append to and to revert; counted later."""

    __slots__ = (
        "dropped_resources",
        "drops",
        "kept_resources",
        "passes",
        "read",
        "requirement_subjects",
        "shape_drops",
    )

    def __init__(self) -> None:
        self.shape_drops: list[DroppedElements] = []
        self.drops: list[tuple[str, str]] = []
        self.passes: list[tuple[str, str]] = []
        self.dropped_resources: list[tuple[str, str]] = []
        self.read: list[str] = []
        self.kept_resources: list[str] = []
        self.requirement_subjects: list[tuple[str, int]] = []

    def _lists(self) -> tuple[list[Any], ...]:
        return (
            self.shape_drops,
            self.drops,
            self.passes,
            self.dropped_resources,
            self.read,
            self.kept_resources,
            self.requirement_subjects,
        )

    def mark(self) -> tuple[int, ...]:
        """Return the current lengths of the lists of the transform log, to revert to."""
        return tuple(map(len, self._lists()))

    def revert(self, mark: tuple[int, ...]) -> None:
        """Remove the entries of the transform log since a mark, because the document was refused."""
        for entries, length in zip(self._lists(), mark, strict=True):
            del entries[length:]

    def clear(self) -> None:
        """Remove all entries of the transform log."""
        for entries in self._lists():
            entries.clear()


class TransformContext:
    """State of one resource during its transformation."""

    __slots__ = (
        "by_code",
        "codes",
        "container",
        "document",
        "identity",
        "is_deidentified",
        "local",
        "log_drop",
        "log_shape_drops",
        "pseudonyms",
        "raw",
        "reveals_age",
        "targets",
        "used",
        "year",
    )

    def __init__(
        self,
        raw: dict[str, Any],
        identity: str,
        document: DocumentReferences,
        container: TransformContext | None = None,
    ) -> None:
        self.raw, self.identity, self.document, self.container = raw, identity, document, container
        self.pseudonyms: Pseudonyms = document.pseudonyms
        self.codes, self.targets, self.year = document.codes, document.targets, document.year
        self.by_code = document.codes.by_code
        self.log_shape_drops, self.log_drop = document.log.shape_drops.append, document.log.drops.append
        self.local: dict[str, str] = _NONE if container is None else container.local
        self.used: set[str] = set() if container is None else container.used
        self.is_deidentified = False
        self.reveals_age = False  # whether a code in the resource states that a value is an age

    def set_resource(self, raw: dict[str, Any], identity: str) -> None:
        """Set the transform context to the next resource of the same document."""
        self.raw, self.identity, self.local, self.reveals_age = raw, identity, _NONE, False
        if self.used:
            self.used = set()

    def drop(self, node: ElementPosition, reason: str) -> None:
        """Log a dropped value in the transform context."""
        self.log_drop((node.path, reason))

    def subject(self) -> str:
        """Return the new address of the subject of this context's resource; empty if it is unknown."""
        return self.document.subject_of(self if self.container is None else self.container)


def absent_extension() -> list[dict[str, str]]:
    """Return the extension that marks a de-identified value as masked."""
    return [{"url": ABSENT_REASON_URL, "valueCode": "masked"}]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection while transforming: documents are trees, freed by reference counting.

    >>> with gc_paused():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
