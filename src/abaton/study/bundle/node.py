"""A place in a FHIR document: a value that knows its path and reports what is missing or wrong there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Origins = dict[tuple[str | int, ...], str]
Complaint = tuple[str, str, str]
"""FHIR path, what is wrong, remedy."""


@dataclass
class Report:
    """What was found while reading: complaints, where each key came from, and what was passed over."""

    complaints: list[Complaint] = field(default_factory=list)
    origins: Origins = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Node:
    """A JSON value with its FHIR path; reading past what is there gives nothing, or a complaint."""

    value: Any
    path: str
    report: Report

    def wrong(self, what: str, remedy: str) -> None:
        """Report that something is wrong here."""
        self.report.complaints.append((self.path, what, remedy))

    def get(self, key: str, *, needed: bool = False) -> Node | None:
        """The member of that name, if it is there."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        if found is None or found in ("", [], {}):
            if needed:
                Node(None, f"{self.path}.{key}", self.report).wrong(f"'{key}' is missing", "add it")
            return None
        return Node(found, f"{self.path}.{key}", self.report)

    def each(self, key: str, *, needed: bool = False) -> list[Node]:
        """The items of the list of that name."""
        found = self.get(key, needed=needed)
        if found is None:
            return []
        if not isinstance(found.value, list):
            found.wrong("this must be a list", "put it in [ ]")
            return []
        return [Node(item, f"{found.path}[{i}]", self.report) for i, item in enumerate(found.value)]

    def one(self, key: str, *, needed: bool = True) -> Node | None:
        """The only item of the list of that name; several are more than a study document can carry."""
        found = self.each(key, needed=needed)
        if len(found) > 1:
            found[1].wrong(f"there are {len(found)} of '{key}', one is understood", "keep one")
        return found[0] if found else None

    def text(self, key: str, *, needed: bool = False) -> str | None:
        """The text of that name."""
        found = self.get(key, needed=needed)
        if found is None:
            return None
        if not isinstance(found.value, str):
            found.wrong("this must be text", "put it in quotes")
            return None
        return found.value

    def only(self, *known: str) -> None:
        """Complain about every member that would be lost although it narrows what is asked for."""
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in (*known, "id"):
                where = Node(None, f"{self.path}.{key}", self.report)
                where.wrong("this narrows the study in a way that cannot be kept", "say it in another way")

    def extensions(self, url: str) -> list[Node]:
        """The extensions of that name."""
        return [node for node in self.each("extension") if node.text("url") == url]

    def extension(self, url: str, *, needed: bool = False) -> Node | None:
        """The extension of that name, which may be there once."""
        found = self.extensions(url)
        if len(found) > 1:
            found[1].wrong("this extension stands twice", "keep one")
        if not found and needed:
            Node(None, f"{self.path}.extension", self.report).wrong(f"extension '{url}' is missing", "add it")
        return found[0] if found else None
