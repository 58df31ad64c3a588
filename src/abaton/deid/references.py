"""References: every form of pointing at another resource is turned to its new identity.

The forms: relative (``Patient/1``), absolute (``https://server/fhir/Patient/1``), ``urn:uuid:``, contained
(``#p1``), versioned (``Patient/1/_history/2``), conditional (``Patient?identifier=…``), logical (an
identifier only).

Invariants:
(1) two references that meant the same resource mean the same one after, in one document and across files;
(2) inside a Bundle a reference becomes the new ``fullUrl`` of its entry, elsewhere ``Type/new-id``;
(3) nothing of the old address stays: no server, no version, no query;
(4) a reference that leads nowhere is dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import death_of
from abaton.deid.context import Beside, Handler, Node, Notes, Scope
from abaton.deid.free_text import words_of
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.reference_index import Addresses, Asks, identifiers, named_by
from abaton.fhir.bundles import LITERAL, SUBJECTS, by_query, server_of
from abaton.fhir.elements import resources

if TYPE_CHECKING:
    from abaton.deid.coded_values import Codes
    from abaton.deid.methods import Settings

_UUID = re.compile(
    r"urn:uuid:([0-9a-fA-F]{8})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{12})"
)
_REMEMBERED = 20_000


# An entry of a Bundle: the part of it that is needed, the whole, its type, its address, and its server if that counts.
Found = tuple[dict[str, Any] | None, dict[str, Any], str, Any, str]


class Document:
    """One document and where its references lead: a Bundle with its entries, or, without a root, single resources."""

    __slots__ = (
        "_deaths",
        "_found",
        "_identifiers",
        "_named",
        "_nowhere",
        "_places",
        "_unnamed",
        "_wanted",
        "_words",
        "addresses",
        "codes",
        "names",
        "notes",
        "only_subject",
        "root",
        "shift_days",
        "targets",
        "year",
    )

    def __init__(
        self,
        root: dict[str, Any] | None,
        names: Pseudonyms,
        notes: Notes,
        codes: Codes,
        *,
        year: int,
        shift_days: int,
        addresses: Addresses | None,
    ) -> None:
        self.addresses = addresses
        self._nowhere: set[str] = set()
        self.root, self.names, self.notes, self.codes = root, names, notes, codes
        self.year, self.shift_days = year, shift_days
        self.targets: dict[str, dict[str, str]] = {}
        self._found: Sequence[Found] = ()
        self._wanted: Sequence[tuple[str, str, str]] = ()
        self._named: Sequence[tuple[str, str]] = ()
        self.only_subject = ""
        self._unnamed: list[tuple[dict[str, str], str, str]] = []
        self._places: dict[tuple[str, str], str] | None = None
        self._identifiers: dict[str, set[str]] | None = None
        self._words: frozenset[str] | None = None
        self._deaths: dict[str, int] | None = None

    def enter(self, found: Sequence[Found]) -> list[tuple[str, str]]:
        """Give the entries of a Bundle their new identities and remember how they can be pointed at."""
        wanted = [
            (
                kind,
                old if (old := resource.get("id")).__class__ is str and old else _otherwise(resource, url),
                server,
            )
            for _, resource, kind, url, server in found
        ]
        named = self.names.pairs(wanted)
        patients = set()
        for (part, _, kind, url, _), (identity, address) in zip(found, named, strict=True):
            if url.__class__ is str:
                self.targets[url] = {"reference": f"{kind}/{identity}" if part is None else address}
            if kind == "Patient":
                patients.add(address)
        self.only_subject = patients.pop() if len(patients) == 1 else ""
        self._found, self._wanted, self._named = found, wanted, named
        return named

    @property
    def entries(self) -> list[tuple[dict[str, Any], str]]:
        """The resources of a Bundle with their new identities."""
        return [(found[1], named[0]) for found, named in zip(self._found, self._named, strict=True)]

    def pointer(self, reference: str) -> dict[str, str] | None:
        """The new form of a reference that is not to a contained resource; all that mean the same share it.

        What it says may be written into it later (:meth:`settle`).
        """
        found = self.targets.get(reference)
        if found is None and reference not in self._nowhere:
            found = self._turn(reference)
            if found is not None:
                self.targets[reference] = found
            elif len(self._nowhere) < _REMEMBERED:
                self._nowhere.add(reference)
        return found

    def settle(self) -> None:
        """Name what was pointed at since the last time: many at once are named more quickly than one by one."""
        if not self._unnamed:
            return
        unnamed, self._unnamed = self._unnamed, []
        new = self.names.identities([(kind, old, "") for _, kind, old in unnamed])
        for (pointer, kind, _), identity in zip(unnamed, new, strict=True):
            pointer["reference"] = f"{kind}/{identity}"

    def logical(self, kind: str, system: str, value: str) -> dict[str, Any] | None:
        """The new form of a reference by identifier."""
        if system == self.names.system and self.names.is_ours(value):
            return {"identifier": {"system": system, "value": value}}
        found = self._by_identifier(kind, f"{system}|{value}")
        return None if found is None else {"reference": found}

    def subject_of(self, scope: Scope) -> str:
        """The new identity of the person a resource is about."""
        if scope.raw.get("resourceType") == "Patient":
            return self.names.address(scope.identity)
        for name in SUBJECTS:
            pointer = scope.raw.get(name)
            if isinstance(pointer, dict):
                new = self._target(pointer)
                if new:
                    return new if new.startswith("urn:") else self.names.address(new.rpartition("/")[2])
        return self.only_subject

    def _target(self, pointer: dict[str, Any]) -> str:
        """The new address or name of what a reference leads to; empty if it leads nowhere else."""
        reference, by, kind = pointer.get("reference"), pointer.get("identifier"), pointer.get("type")
        if isinstance(reference, str):
            found = None if reference.startswith("#") else self.pointer(reference)
        elif isinstance(by, dict) and isinstance(by.get("value"), str):
            found = self.logical(
                kind if isinstance(kind, str) else "", str(by.get("system") or ""), by["value"]
            )
        else:
            found = None
        self.settle()
        return found.get("reference", "") if found else ""

    def last_year(self, scope: Scope) -> int:
        """The last year that counts for somebody's age: that of death as far as the document tells it, or this year."""
        if "deceasedDateTime" in scope.raw or "deceasedDate" in scope.raw:
            died = death_of(scope.raw)
            return self.year if died is True else died or self.year
        if self._deaths is None:
            people = (
                (person, new) for person, new in self.entries if person.get("resourceType") == "Patient"
            )
            died_in = ((self.names.address(new), death_of(person)) for person, new in people)
            self._deaths = {address: year for address, year in died_in if year is not True and year}
        return self._deaths.get(scope.subject(), self.year) if self._deaths else self.year

    def offset(self, subject: str) -> int:
        """How many days the dates of a subject move back; 0 when the subject is not known."""
        return 1 + self.names.number("offset", subject) % self.shift_days if subject else 0

    def words(self, scope: Scope) -> frozenset[str]:
        """What the persons in this document are known by."""
        if self.root is None:
            return words_of(scope.raw if scope.container is None else scope.container.raw)
        if self._words is None:
            self._words = words_of(self.root)
        return self._words

    def _turn(self, reference: str) -> dict[str, str] | None:
        kind, slash, old = reference.partition("/")
        if slash and kind in resources() and old.replace("-", "").isalnum():
            return self._literal(kind, old)  # as nearly always; the rest has more forms
        match = LITERAL.fullmatch(reference) if slash else None
        if match is not None and match[2] in resources():
            return self._literal(match[2], match[3])
        if (asked := by_query(reference)) is not None:
            new = self._by_identifier(*asked)
        else:
            same = _UUID.fullmatch(reference)
            ours = same is not None and self.names.proves(bytes.fromhex("".join(same.groups())))
            new = reference if ours else self._elsewhere(reference)
        return None if new is None else {"reference": new}

    def _literal(self, kind: str, old: str) -> dict[str, str]:
        """The new form of a reference by type and id: to an entry, or to something that is named later."""
        place = self._place(kind, old)
        pointer = {"reference": place or ""}
        if place is None:
            self._unnamed.append((pointer, kind, old))
        return pointer

    def _elsewhere(self, name: str) -> str | None:
        """What a name leads to that this document does not answer."""
        if self.addresses is None:
            raise Asks
        found = self.addresses.find(name)
        return None if found is None else f"{found[0]}/{self.names.identity(*found)}"

    def _place(self, kind: str, old: str) -> str | None:
        """The new address of an entry by its type and id; the first of two with the same counts."""
        if not self._found:
            return None
        if self._places is None:
            listed = zip(reversed(self._found), reversed(self._wanted), reversed(self._named), strict=True)
            self._places = {
                (k, o): address for found, (k, o, _), (_, address) in listed if found[0] is not None
            }
        return self._places.get((kind, old))

    def _by_identifier(self, kind: str, identifier: str) -> str | None:
        """The new address of the resource that an identifier names, here or elsewhere; without a type, of any."""
        if self._identifiers is None:
            self._identifiers = {}
            for (_, resource, its_kind, _, _), (_, address) in zip(self._found, self._named, strict=True):
                for each in identifiers(resource):
                    self._identifiers.setdefault(named_by(its_kind, each), set()).add(address)
                    self._identifiers.setdefault(named_by("", each), set()).add(address)
        here = self._identifiers.get(named_by(kind, identifier))
        if here is not None:
            return next(iter(here)) if len(here) == 1 else None
        return self._elsewhere(named_by(kind, identifier))


def clashes(entries: list[dict[str, Any]]) -> frozenset[tuple[str, str]]:
    """Type and id of resources that two servers in one Bundle both use, for different things."""
    try:
        ids = {entry["resource"]["id"] for entry in entries}
    except (KeyError, TypeError):
        ids = set()
    if len(ids) == len(entries):  # no id twice, as nearly always
        return frozenset()
    servers: dict[tuple[str, str], set[str]] = {}
    for entry in entries:
        resource = entry.get("resource")
        if resource.__class__ is dict:
            kind, old = resource.get("resourceType"), resource.get("id")
            if kind.__class__ is str and old.__class__ is str:
                servers.setdefault((kind, old), set()).add(server_of(entry.get("fullUrl")))
    return frozenset(key for key, found in servers.items() if len(found - {""}) > 1)


def _otherwise(resource: dict[str, Any], full_url: Any) -> str:
    """What an entry without an id is known by."""
    return full_url if full_url.__class__ is str and full_url else _content(resource)


def _content(resource: dict[str, Any]) -> str:
    # A resource without an id is told apart by what it holds; only the keyed digest of this is ever used.
    return repr(resource)


def old_name(resource: dict[str, Any], otherwise: str = "") -> str:
    """What a resource that stands alone is known by."""
    old = resource.get("id")
    return old if old.__class__ is str and old else otherwise or _content(resource)


def identity_of(resource: dict[str, Any], kind: str, names: Pseudonyms, otherwise: str = "") -> str:
    """The new identity of a resource that stands alone."""
    return names.identity(kind, old_name(resource, otherwise))


def remap(_: Settings, node: Node) -> Handler:
    """Point a reference at the new identity; its display and identifier do not stay."""
    kinds = resources()
    beside = Beside(node, ("reference", "type"), "text beside a reference")

    display = beside.of(("reference", "display"))

    def run(value: Any, scope: Scope) -> Any:
        try:
            new = scope.targets.get(value["reference"])
        except (KeyError, TypeError):
            return general(value, scope)
        if new is not None:
            if len(value) == 1:
                return new
            if len(value) == 2 and "display" in value:
                scope.seen(display)
                return new
        return general(value, scope)

    def general(value: Any, scope: Scope) -> Any:
        if value.__class__ is not dict:
            return scope.drop(node, "malformed")
        reference, kind = value.get("reference"), ""
        if len(value) > 1:
            scope.seen(beside.of(tuple(value)))
            named = value.get("type")
            kind = named if named.__class__ is str and named in kinds else ""
        if reference.__class__ is str and reference:
            if reference[0] == "#":
                return _contained(reference, scope, node)
            new = scope.document.pointer(reference)
            if new is None:
                return scope.drop(node, "reference that leads nowhere")
            if not kind:
                return new
            scope.document.settle()
            return {**new, "type": kind}
        by = value.get("identifier")
        if by.__class__ is dict and by.get("value").__class__ is str:
            system = by.get("system")
            made = scope.document.logical(kind, system if system.__class__ is str else "", by["value"])
            if made is None:
                return scope.drop(node, "reference that leads nowhere")
            return {**made, "type": kind} if kind else made
        return scope.drop(node, "reference without a target")

    return run


def _contained(reference: str, scope: Scope, node: Node) -> Any:
    if reference == "#":
        return {"reference": "#"}
    new = scope.local.get(reference[1:])
    if new is None:
        return scope.drop(node, "contained resource is missing")
    scope.used.add(reference[1:])
    return {"reference": f"#{new}"}
