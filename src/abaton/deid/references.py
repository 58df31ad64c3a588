"""References: every form of reference is rewritten to the new identity of its target.

The forms: relative (``Patient/1``), absolute (``https://server/fhir/Patient/1``), ``urn:uuid:``, contained
(``#p1``), versioned (``Patient/1/_history/2``), conditional (``Patient?identifier=…``), logical (an
identifier only).

Invariants:
(1) two references to the same resource refer to the same resource afterwards, in one document and across files;
(2) inside a Bundle a reference becomes the new ``fullUrl`` of its entry, otherwise ``Type/new-id``;
(3) no part of the original address is kept: no server, version or query;
(4) a reference without a known target is dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import death_year
from abaton.deid.context import ElementPosition, Handler, SiblingCounter, TransformContext, TransformLog
from abaton.deid.free_text import person_terms
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.reference_index import ReferenceIndex, UnresolvedReferenceError, identifier_name, identifiers
from abaton.fhir.bundles import LITERAL_REFERENCE, SUBJECT_ELEMENTS, conditional_identifier, server_url
from abaton.fhir.elements import resource_types

if TYPE_CHECKING:
    from abaton.deid.coded_values import CodedValues
    from abaton.deid.methods import Settings

_UUID = re.compile(
    r"urn:uuid:([0-9a-fA-F]{8})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{12})"
)
_MAX_CACHED = 20_000


# An entry of a Bundle: its required elements, the resource, its type, its address, and its server if ids are ambiguous.
BundleEntry = tuple[dict[str, Any] | None, dict[str, Any], str, Any, str]


class DocumentReferences:
    """Reference targets of one document: of a Bundle with its entries, or, without a root, of single resources."""

    __slots__ = (
        "_deaths",
        "_entries",
        "_identifiers",
        "_identity_requests",
        "_new_names",
        "_pending",
        "_person_terms",
        "_targets_by_id",
        "_unresolved",
        "codes",
        "log",
        "only_subject",
        "pseudonyms",
        "reference_index",
        "root",
        "shift_days",
        "targets",
        "year",
    )

    def __init__(
        self,
        root: dict[str, Any] | None,
        pseudonyms: Pseudonyms,
        log: TransformLog,
        codes: CodedValues,
        *,
        year: int,
        shift_days: int,
        reference_index: ReferenceIndex | None,
    ) -> None:
        self.reference_index = reference_index
        self._unresolved: set[str] = set()
        self.root, self.pseudonyms, self.log, self.codes = root, pseudonyms, log, codes
        self.year, self.shift_days = year, shift_days
        self.targets: dict[str, dict[str, str]] = {}
        self._entries: Sequence[BundleEntry] = ()
        self._identity_requests: Sequence[tuple[str, str, str]] = ()
        self._new_names: Sequence[tuple[str, str]] = ()
        self.only_subject = ""
        self._pending: list[tuple[dict[str, str], str, str]] = []
        self._targets_by_id: dict[tuple[str, str], str] | None = None
        self._identifiers: dict[str, set[str]] | None = None
        self._person_terms: frozenset[str] | None = None
        self._deaths: dict[str, int] | None = None

    def add_entries(self, entries: Sequence[BundleEntry]) -> list[tuple[str, str]]:
        """Assign new identities to the entries of a Bundle and store them as reference targets."""
        identity_requests = [
            (
                resource_type,
                old
                if (old := resource.get("id")).__class__ is str and old
                else _entry_identity(resource, url),
                server,
            )
            for _, resource, resource_type, url, server in entries
        ]
        new_names = self.pseudonyms.identities_with_urls(identity_requests)
        patients = set()
        for (part, _, resource_type, url, _), (identity, full_url) in zip(entries, new_names, strict=True):
            if url.__class__ is str:
                self.targets[url] = {"reference": f"{resource_type}/{identity}" if part is None else full_url}
            if resource_type == "Patient":
                patients.add(full_url)
        self.only_subject = patients.pop() if len(patients) == 1 else ""
        self._entries, self._identity_requests, self._new_names = entries, identity_requests, new_names
        return new_names

    @property
    def entries(self) -> list[tuple[dict[str, Any], str]]:
        """Resources of a Bundle with their new identities, as targets of references."""
        return [
            (entry[1], new_name[0]) for entry, new_name in zip(self._entries, self._new_names, strict=True)
        ]

    def new_reference(self, reference: str) -> dict[str, str] | None:
        """Return the new form of a reference to a resource that is not contained; equal ones share the object.

        Its content may be written later (:meth:`resolve_pending`).
        """
        target = self.targets.get(reference)
        if target is None and reference not in self._unresolved:
            target = self._resolve(reference)
            if target is not None:
                self.targets[reference] = target
            elif len(self._unresolved) < _MAX_CACHED:
                self._unresolved.add(reference)
        return target

    def resolve_pending(self) -> None:
        """Write the new identities of pending references, which is faster for many at once."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        new = self.pseudonyms.identities([(resource_type, old, "") for _, resource_type, old in pending])
        for (reference, resource_type, _), identity in zip(pending, new, strict=True):
            reference["reference"] = f"{resource_type}/{identity}"

    def resolve_identifier(self, resource_type: str, system: str, value: str) -> dict[str, Any] | None:
        """Return the new form of a reference by identifier."""
        if system == self.pseudonyms.system and self.pseudonyms.is_own(value):
            return {"identifier": {"system": system, "value": value}}
        target = self._by_identifier(resource_type, f"{system}|{value}")
        return None if target is None else {"reference": target}

    def subject_of(self, context: TransformContext) -> str:
        """Return the new address of the subject that a resource references."""
        if context.raw.get("resourceType") == "Patient":
            return self.pseudonyms.full_url(context.identity)
        for name in SUBJECT_ELEMENTS:
            reference_element = context.raw.get(name)
            if isinstance(reference_element, dict):
                new = self._target(reference_element)
                if new:
                    return new if new.startswith("urn:") else self.pseudonyms.full_url(new.rpartition("/")[2])
        return self.only_subject

    def _target(self, reference_element: dict[str, Any]) -> str:
        """Return the new address of the target of a reference; empty if there is none outside the resource."""
        reference, identifier, resource_type = (
            reference_element.get("reference"),
            reference_element.get("identifier"),
            reference_element.get("type"),
        )
        if isinstance(reference, str):
            target = None if reference.startswith("#") else self.new_reference(reference)
        elif isinstance(identifier, dict) and isinstance(identifier.get("value"), str):
            target = self.resolve_identifier(
                resource_type if isinstance(resource_type, str) else "",
                str(identifier.get("system") or ""),
                identifier["value"],
            )
        else:
            target = None
        self.resolve_pending()
        return target.get("reference", "") if target else ""

    def last_year(self, context: TransformContext) -> int:
        """Return the last year of the subject a resource references: of death if stated, else the current one."""
        if "deceasedDateTime" in context.raw or "deceasedDate" in context.raw:
            death = death_year(context.raw)
            return self.year if death is True else death or self.year
        if self._deaths is None:
            patients = (
                (person, new) for person, new in self.entries if person.get("resourceType") == "Patient"
            )
            deaths = ((self.pseudonyms.full_url(new), death_year(person)) for person, new in patients)
            self._deaths = {full_url: year for full_url, year in deaths if year is not True and year}
        return self._deaths.get(context.subject(), self.year) if self._deaths else self.year

    def date_offset(self, subject: str) -> int:
        """Return the date offset of a referenced subject in days; 0 if the subject is unknown."""
        # frozen: part of the bytes
        return 1 + self.pseudonyms.secret_integer("offset", subject) % self.shift_days if subject else 0

    def person_terms(self, context: TransformContext) -> frozenset[str]:
        """Return the identifying terms of the persons in the document of these references."""
        if self.root is None:
            return person_terms(context.raw if context.container is None else context.container.raw)
        if self._person_terms is None:
            self._person_terms = person_terms(self.root)
        return self._person_terms

    def _resolve(self, reference: str) -> dict[str, str] | None:
        resource_type, slash, old = reference.partition("/")
        if slash and resource_type in resource_types() and old.replace("-", "").isalnum():
            return self._literal(resource_type, old)  # the common case; the others need a pattern
        match = LITERAL_REFERENCE.fullmatch(reference) if slash else None
        if match is not None and match[2] in resource_types():
            return self._literal(match[2], match[3])
        if (identifier := conditional_identifier(reference)) is not None:
            new = self._by_identifier(*identifier)
        else:
            uuid_match = _UUID.fullmatch(reference)
            is_own = uuid_match is not None and self.pseudonyms.has_valid_proof(
                bytes.fromhex("".join(uuid_match.groups()))
            )
            new = reference if is_own else self._indexed_target(reference)
        return None if new is None else {"reference": new}

    def _literal(self, resource_type: str, old: str) -> dict[str, str]:
        """Return the new form of a reference by type and id: to an entry, or to a pending identity."""
        target = self._target_of(resource_type, old)
        reference = {"reference": target or ""}
        if target is None:
            self._pending.append((reference, resource_type, old))
        return reference

    def _indexed_target(self, name: str) -> str | None:
        """Return the target of a reference that this document does not resolve."""
        if self.reference_index is None:
            raise UnresolvedReferenceError
        target = self.reference_index.find(name)
        return None if target is None else f"{target[0]}/{self.pseudonyms.identity(*target)}"

    def _target_of(self, resource_type: str, old: str) -> str | None:
        """Return the new address of the entry that a reference names by type and id; the first of several."""
        if not self._entries:
            return None
        if self._targets_by_id is None:
            listed = zip(
                reversed(self._entries),
                reversed(self._identity_requests),
                reversed(self._new_names),
                strict=True,
            )
            self._targets_by_id = {
                (k, o): full_url for entry, (k, o, _), (_, full_url) in listed if entry[0] is not None
            }
        return self._targets_by_id.get((resource_type, old))

    def _by_identifier(self, resource_type: str, identifier: str) -> str | None:
        """Return the new address of a resource referenced by identifier, in this document or the index."""
        if self._identifiers is None:
            self._identifiers = {}
            for (_, resource, entry_type, _, _), (_, full_url) in zip(
                self._entries, self._new_names, strict=True
            ):
                for listed in identifiers(resource):
                    self._identifiers.setdefault(identifier_name(entry_type, listed), set()).add(full_url)
                    self._identifiers.setdefault(identifier_name("", listed), set()).add(full_url)
        full_urls = self._identifiers.get(identifier_name(resource_type, identifier))
        if full_urls is not None:
            return next(iter(full_urls)) if len(full_urls) == 1 else None
        return self._indexed_target(identifier_name(resource_type, identifier))


def ambiguous_ids(entries: list[dict[str, Any]]) -> frozenset[tuple[str, str]]:
    """Return types and ids that two servers in one Bundle both use, so that references are ambiguous."""
    try:
        ids = {entry["resource"]["id"] for entry in entries}
    except (KeyError, TypeError):
        ids = set()
    if len(ids) == len(entries):  # the common case: all ids are different
        return frozenset()
    servers: dict[tuple[str, str], set[str]] = {}
    for entry in entries:
        resource = entry.get("resource")
        if resource.__class__ is dict:
            resource_type, old = resource.get("resourceType"), resource.get("id")
            if resource_type.__class__ is str and old.__class__ is str:
                servers.setdefault((resource_type, old), set()).add(server_url(entry.get("fullUrl")))
    return frozenset(key for key, server_names in servers.items() if len(server_names - {""}) > 1)


def _entry_identity(resource: dict[str, Any], full_url: Any) -> str:
    """Return the original identity, as reference target, of an entry without an id."""
    return full_url if full_url.__class__ is str and full_url else _content(resource)


def _content(resource: dict[str, Any]) -> str:
    # A resource without an id is identified by its content; only its keyed digest is used.
    return repr(resource)


def original_identity(resource: dict[str, Any], default: str = "") -> str:
    """Return the original identity by which references name a single resource."""
    old = resource.get("id")
    return old if old.__class__ is str and old else default or _content(resource)


def new_identity(
    resource: dict[str, Any], resource_type: str, pseudonyms: Pseudonyms, default: str = ""
) -> str:
    """Return the new identity to which references to a single resource are rewritten."""
    return pseudonyms.identity(resource_type, original_identity(resource, default))


def remap(_: Settings, node: ElementPosition) -> Handler:
    """Rewrite a reference to the new identity; its display and identifier are dropped."""
    known_types = resource_types()
    siblings = SiblingCounter(node, ("reference", "type"), "text beside a reference")

    display = siblings.of(("reference", "display"))

    def run(value: Any, context: TransformContext) -> Any:
        try:
            new = context.targets.get(value["reference"])
        except (KeyError, TypeError):
            return general(value, context)
        if new is not None:
            if len(value) == 1:
                return new
            if len(value) == 2 and "display" in value:
                context.log_shape_drops(display)
                return new
        return general(value, context)

    def general(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not dict:
            return context.drop(node, "malformed")
        reference, resource_type = value.get("reference"), ""
        if len(value) > 1:
            context.log_shape_drops(siblings.of(tuple(value)))
            type_name = value.get("type")
            resource_type = type_name if type_name.__class__ is str and type_name in known_types else ""
        if reference.__class__ is str and reference:
            if reference[0] == "#":
                return _contained(reference, context, node)
            new = context.document.new_reference(reference)
            if new is None:
                return context.drop(node, "reference to an unknown resource")
            if not resource_type:
                return new
            context.document.resolve_pending()
            return {**new, "type": resource_type}
        identifier = value.get("identifier")
        if identifier.__class__ is dict and identifier.get("value").__class__ is str:
            system = identifier.get("system")
            rewritten = context.document.resolve_identifier(
                resource_type, system if system.__class__ is str else "", identifier["value"]
            )
            if rewritten is None:
                return context.drop(node, "reference to an unknown resource")
            return {**rewritten, "type": resource_type} if resource_type else rewritten
        return context.drop(node, "reference without a target")

    return run


def _contained(reference: str, context: TransformContext, node: ElementPosition) -> Any:
    if reference == "#":
        return {"reference": "#"}
    new = context.local.get(reference[1:])
    if new is None:
        return context.drop(node, "missing contained resource")
    context.used.add(reference[1:])
    return {"reference": f"#{new}"}
