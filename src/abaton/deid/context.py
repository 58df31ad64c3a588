"""What a method may know while it works: the resource it is in, the document around it, the study's names.

A scope lives for one resource and is then thrown away; nothing of it reaches a log.

Python's search for cycles, resting while a document is worked on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from abaton.fhir.elements import table

if TYPE_CHECKING:
    from abaton.deid.pseudonyms import Pseudonyms
    from abaton.deid.references import Document


Handler = Callable[[Any, "Scope"], Any]
"""Takes an element's value and returns what stays of it; ``None`` drops it."""

_MOST = 4096
_NONE: dict[str, str] = {}
MASKED_URL = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"


class Node(NamedTuple):
    """A place in a record: its path, its type, and the type and name it is an element of."""

    path: str
    type: str
    parent: str
    name: str


class Dropped:
    """Elements that are dropped together, counted together; each is a count of its own."""

    __slots__ = ("drops",)

    def __init__(self, drops: tuple[tuple[str, str], ...]) -> None:
        self.drops = drops


class Beside:
    """Counts what stands beside the few elements of an object that may stay.

    >>> count = Beside(Node("Observation.subject", "Reference", "", ""), {"reference"}, "text")
    >>> count.of(("reference", "display")).drops
    (('Observation.subject.display', 'text'),)
    """

    __slots__ = ("_known", "_node", "_reason", "_stay")

    def __init__(self, node: Node, stay: Collection[str], reason: str) -> None:
        self._node, self._stay, self._reason = node, stay, reason
        self._known: dict[tuple[str, ...], Dropped] = {}

    def of(self, keys: tuple[str, ...]) -> Dropped:
        """The count for objects with these keys."""
        found = self._known.get(keys)
        if found is None:
            fields = table()[self._node.type]
            names = (key if key in fields else "(unknown)" for key in keys if key not in self._stay)
            found = Dropped(tuple((f"{self._node.path}.{name}", self._reason) for name in names))
            if len(self._known) < _MOST:
                self._known[keys] = found
        return found


class Notes:
    """What happened while walking: notes in lists, cheap to take and to take back, counted later."""

    __slots__ = ("answers", "drops", "kept", "left_out", "passes", "read", "seen")

    def __init__(self) -> None:
        self.seen: list[Dropped] = []
        self.drops: list[tuple[str, str]] = []
        self.passes: list[tuple[str, str]] = []
        self.left_out: list[tuple[str, str]] = []
        self.read: list[str] = []
        self.kept: list[str] = []
        self.answers: list[str] = []

    def _all(self) -> tuple[list[Any], ...]:
        return self.seen, self.drops, self.passes, self.left_out, self.read, self.kept, self.answers

    def mark(self) -> tuple[int, ...]:
        """Where the notes stand now."""
        return tuple(map(len, self._all()))

    def take_back(self, mark: tuple[int, ...]) -> None:
        """Forget what was noted since a mark: the document was refused."""
        for notes, length in zip(self._all(), mark, strict=True):
            del notes[length:]

    def clear(self) -> None:
        """Forget everything."""
        for notes in self._all():
            notes.clear()


class Scope:
    """One resource on its way through the plan."""

    __slots__ = (
        "by_code",
        "codes",
        "container",
        "document",
        "drops",
        "identity",
        "local",
        "names",
        "ours",
        "raw",
        "seen",
        "targets",
        "tells",
        "used",
        "year",
    )

    def __init__(
        self, raw: dict[str, Any], identity: str, document: Document, container: Scope | None = None
    ) -> None:
        self.raw, self.identity, self.document, self.container = raw, identity, document, container
        self.names: Pseudonyms = document.names
        self.codes, self.targets, self.year = document.codes, document.targets, document.year
        self.by_code = document.codes.by_code
        self.seen, self.drops = document.notes.seen.append, document.notes.drops.append
        self.local: dict[str, str] = _NONE if container is None else container.local
        self.used: set[str] = set() if container is None else container.used
        self.ours = False
        self.tells = False  # whether a code in the resource says that a value is an age

    def turn(self, raw: dict[str, Any], identity: str) -> None:
        """Turn to the next resource of the same document."""
        self.raw, self.identity, self.local, self.tells = raw, identity, _NONE, False
        if self.used:
            self.used = set()

    def drop(self, node: Node, reason: str) -> None:
        """Count a value that does not stay."""
        self.drops((node.path, reason))

    def subject(self) -> str:
        """The new identity of the person this resource is about; empty when that is not known."""
        return self.document.subject_of(self if self.container is None else self.container)


def masked() -> list[dict[str, str]]:
    """The extension that says a value was taken out on purpose."""
    return [{"url": MASKED_URL, "valueCode": "masked"}]


@contextmanager
def resting() -> Iterator[None]:
    """Let the search for cycles rest: a document and what is made of it are trees, freed when nobody holds them.

    Searching them costs a tenth of the time. It is taken up again where the document is gone already, otherwise
    all of it would be searched at once.

    >>> with resting():
    ...     gc.isenabled()
    False
    """
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()
