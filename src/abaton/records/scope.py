"""What a method may know while it works: the resource it is in, the document around it, the study's names.

A scope lives for one resource and is then thrown away; nothing of it reaches a log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from abaton.records.pseudonyms import Pseudonyms
    from abaton.records.references import Document

Handler = Callable[[Any, "Scope"], Any]
"""Takes an element's value and returns what stays of it; ``None`` drops it."""

MASKED_URL = "http://hl7.org/fhir/StructureDefinition/data-absent-reason"


class Node(NamedTuple):
    """A place in a record: its path, its type, and the type and name it is an element of."""

    path: str
    type: str
    parent: str
    name: str


class Notes:
    """Counts made while walking: cheap to take, sorted out at the end."""

    __slots__ = ("drops", "passes", "seen")

    def __init__(self) -> None:
        self.seen: defaultdict[Any, int] = defaultdict(int)
        self.drops: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.passes: defaultdict[tuple[str, str], int] = defaultdict(int)


class Scope:
    """One resource on its way through the plan."""

    __slots__ = (
        "container",
        "document",
        "drops",
        "identity",
        "local",
        "names",
        "ours",
        "raw",
        "seen",
        "used",
    )

    def __init__(
        self, raw: dict[str, Any], identity: str, document: Document, container: Scope | None = None
    ) -> None:
        self.raw, self.identity, self.document, self.container = raw, identity, document, container
        self.names: Pseudonyms = document.names
        self.seen, self.drops = document.notes.seen, document.notes.drops
        self.local: dict[str, str] = {} if container is None else container.local
        self.used: set[str] = set() if container is None else container.used
        self.ours = False

    def drop(self, node: Node, reason: str) -> None:
        """Count a value that does not stay."""
        self.drops[node.path, reason] += 1

    def subject(self) -> str:
        """The new identity of the person this resource is about; empty when that is not known."""
        return self.document.subject_of(self if self.container is None else self.container)


def masked() -> list[dict[str, str]]:
    """The extension that says a value was taken out on purpose."""
    return [{"url": MASKED_URL, "valueCode": "masked"}]
