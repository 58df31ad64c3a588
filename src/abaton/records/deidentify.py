"""De-identification of a whole document: a resource or a Bundle, with everything in it.

Invariants:
(1) ``id`` and ``identifier`` of a resource carry the same new value, and every reference to it follows;
(2) every resource that leaves is marked: the anonymisation extension, and the label ANONYED or PSEUDED;
(3) a contained resource stays only if something still refers to it (dom-3);
(4) a refusal leaves nothing: a document is answered whole or not at all.
"""

from __future__ import annotations

from typing import Any

from abaton.errors import Refused
from abaton.records.ages import age_at, age_observation
from abaton.records.elements import resources, table
from abaton.records.minimise import Minimiser
from abaton.records.need import Function, Mechanism, Need, Preset
from abaton.records.plan import Plan, Shape
from abaton.records.presets import rules
from abaton.records.pseudonyms import Pseudonyms
from abaton.records.references import Document, identity_of, server_of
from abaton.records.repair import Repair
from abaton.records.scope import Node, Notes, Scope
from abaton.records.stages import Consented, Deidentified
from abaton.records.tally import Tally
from abaton.records.terminology import Codes
from abaton.records.vocabulary import profiles

MARK = "http://interopehrate.eu/fhir/StructureDefinition/AnonymizationExtension-IEHR"
_MARK_SYSTEM = "http://interopehrate.eu/fhir/CodeSystem/AnonymizationType-IEHR"
_LABELS = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_CONFIDENTIALITY = "http://terminology.hl7.org/CodeSystem/v3-Confidentiality"
_PEOPLE = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})
_IDENTIFIED = frozenset({"Patient", "Organization"})
_MOST_NESTED = 8


class Deidentifier:
    """Turns consented records into de-identified ones, for one study at one site.

    Args:
        need: What the study needs and how it wants it de-identified.
        names: The study's pseudonyms.
        year: The current year, against which ages are capped.
        trace: Whether to count what is kept, too.

    >>> from abaton.records.stages import Record
    >>> make = Deidentifier(Need("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    >>> patient = Record({"resourceType": "Patient", "id": "7", "gender": "male", "birthDate": "1980-02-03"})
    >>> made = make(Consented.on_ground(patient, "example"))
    >>> made.content["birthDate"], made.content["id"] == made.content["identifier"][0]["value"]
    ('1980', True)
    """

    def __init__(self, need: Need, names: Pseudonyms, *, year: int, trace: bool = False) -> None:
        self.need, self.names, self.year = need, names, year
        self.plan = Plan(rules(need.deidentification), self._inside, trace=trace)
        self.tally = Tally()
        self._chosen = Minimiser(need)
        self._codes = Codes(
            frozenset((c.system, c.code) for want in need.wants for f in want.codes for c in f.codes)
        )
        self._notes = Notes()
        self._repairs: dict[str, Repair] = {}
        self._paper = need.deidentification.preset is Preset.PAPER
        pseudonymised = need.deidentification.mechanism is Mechanism.PSEUDONYMISE
        self._label = "PSEUDED" if pseudonymised else "ANONYED"
        self._mark = (
            ("pseudonymization", "Pseudonymization") if pseudonymised else ("anonymization", "Anonymization")
        )

    def __call__(self, consented: Consented) -> Deidentified | None:
        """The de-identified record, or nothing if the study does not need it."""
        raw = consented.record.content
        try:
            made = self._top(raw)
        except RecursionError:
            raise Refused("a record is nested too deeply", remedy="no FHIR record needs that") from None
        finally:
            self._sort_out()
        return None if made is None else Deidentified(made)

    # Documents
    # -----------------------------------------------------------------------------------------------

    def _top(self, raw: dict[str, Any]) -> dict[str, Any] | None:
        kind = self._kind(raw)
        if kind == "Bundle":
            return self._bundle(raw, 0)
        self.tally.read[kind] += 1
        document = self._document()
        self._meet(document, raw, kind)
        part = self._needed(raw, kind, document)
        if part is None:
            return None
        return self._resource(part, kind, identity_of(raw, kind, self.names), document, raw=raw)

    def _document(self) -> Document:
        wish = self.need.deidentification
        return Document(self.names, self._notes, self._codes, year=self.year, shift_days=wish.shift_days)

    def _kind(self, raw: Any) -> str:
        kind = raw.get("resourceType") if isinstance(raw, dict) else None
        if not isinstance(kind, str) or kind not in resources():
            raise Refused(
                "a resource has no type that R4 knows", remedy="export FHIR R4; other versions are not read"
            )
        return kind

    def _meet(self, document: Document, raw: dict[str, Any], kind: str) -> None:
        if kind in _PEOPLE:
            document.people.append(raw)
        contained = raw.get("contained")
        for each in contained if isinstance(contained, list) else ():
            if isinstance(each, dict) and each.get("resourceType") in _PEOPLE:
                document.people.append(each)

    def _needed(self, raw: dict[str, Any], kind: str, document: Document) -> dict[str, Any] | None:
        if self.need.wants:
            for name, want in self._chosen.matching(raw, kind):
                if want.function is Function.COUNT:
                    self.tally.answers[f"count {name}"] += 1
        part = self._chosen.part(raw, kind, self._notes)
        if part is None:
            self.tally.left_out[kind, "not needed by the study"] += 1
        return part

    def _bundle(self, raw: dict[str, Any], depth: int) -> dict[str, Any] | None:
        if depth > _MOST_NESTED:
            raise Refused("Bundles are nested too deeply", remedy="export one Bundle per document")
        self.tally.read["Bundle"] += 1
        document = self._document()
        listed = raw.get("entry")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        clashes = _clashes(entries)
        todo: list[tuple[dict[str, Any] | None, dict[str, Any], str, str]] = []
        for entry in entries:
            resource = entry.get("resource")
            if resource is None:
                self._notes.drops["Bundle.entry", "entry without a resource"] += 1
                continue
            kind = self._kind(resource)
            qualify = (kind, resource.get("id")) in clashes
            self._meet(document, resource, kind)
            if kind == "Bundle":
                todo.append((resource, resource, kind, ""))
                continue
            self.tally.read[kind] += 1
            part = self._needed(resource, kind, document)
            if part is None and not self._wants_age(kind):
                continue
            identity = document.enter(
                resource, kind, entry.get("fullUrl"), qualify=qualify, stays=part is not None
            )
            todo.append((part, resource, kind, identity))
        patients = {identity for _, _, kind, identity in todo if kind == "Patient"}
        document.only_subject = self.names.address(patients.pop()) if len(patients) == 1 else ""
        return self._collect(raw, document, todo, depth)

    def _collect(
        self,
        raw: dict[str, Any],
        document: Document,
        todo: list[tuple[dict[str, Any] | None, dict[str, Any], str, str]],
        depth: int,
    ) -> dict[str, Any] | None:
        made: list[dict[str, Any]] = []
        seen: set[str] = set()
        for part, resource, kind, identity in todo:
            if kind == "Bundle":
                inner = self._bundle(resource, depth + 1)
                if inner is not None:
                    made.append({"fullUrl": self.names.address(inner["id"]), "resource": inner})
                continue
            ages = self._ages(resource, kind, identity, document)
            made.extend({"fullUrl": self.names.address(each["id"]), "resource": each} for each in ages)
            if part is None:
                continue
            out = self._resource(part, kind, identity, document, raw=resource)
            address = self.names.address(identity)
            # bdl-7: two versions of one resource cannot both have the address.
            made.append({"resource": out} if address in seen else {"fullUrl": address, "resource": out})
            seen.add(address)
        if self.need.wants and not made:
            self.tally.left_out["Bundle", "nothing in it is needed by the study"] += 1
            return None
        return self._envelope(raw, document, made)

    def _envelope(
        self, raw: dict[str, Any], document: Document, entries: list[dict[str, Any]]
    ) -> dict[str, Any]:
        self.tally.kept["Bundle"] += 1
        inside = "|".join(entry["resource"]["id"] for entry in entries)
        identity = identity_of(raw, "Bundle", self.names, otherwise=inside)
        out = self._head(raw, "Bundle", identity)
        is_document = raw.get("type") == "document" and bool(entries)
        is_document = is_document and entries[0]["resource"]["resourceType"] == "Composition"
        scope = Scope({"resourceType": "Bundle"}, identity, document)
        kept = {key: raw[key] for key in ("language", "timestamp") if key in raw}
        body = self.plan.body("Bundle")(kept, scope) or {}
        body.pop("_type", None)
        if is_document or "identifier" in raw:
            out["identifier"] = self._identifier(identity)
        out.update(body)
        out["type"] = "document" if is_document else "collection"
        for key in raw:
            if key not in (
                "resourceType",
                "id",
                "meta",
                "identifier",
                "language",
                "timestamp",
                "type",
                "entry",
            ):
                self._notes.drops[
                    f"Bundle.{key}" if key in table()["Bundle"] else "Bundle.(unknown)", "no rule"
                ] += 1
        if entries:
            out["entry"] = entries
        return out

    def _wants_age(self, kind: str) -> bool:
        return any(want.function is Function.AGE_FROM_DATE for want in self.need.wants_of(kind))

    def _ages(
        self, raw: dict[str, Any], kind: str, identity: str, document: Document
    ) -> list[dict[str, Any]]:
        made = []
        for name, want in self._chosen.matching(raw, kind) if self.need.wants else ():
            if want.function is not Function.AGE_FROM_DATE:
                continue
            age, subject = age_at(raw, kind, want.elements, document, identity)
            if age is None:
                self.tally.left_out[kind, "age without a birth date at hand"] += 1
                continue
            new = self.names.identity("Observation", f"age of {identity} {name}")
            out = self._head({}, "Observation", new) | {"identifier": [self._identifier(new)]}
            made.append(out | age_observation(age, subject))
            self.tally.kept["Observation"] += 1
        return made

    # Resources
    # -----------------------------------------------------------------------------------------------

    def _resource(
        self,
        part: dict[str, Any],
        kind: str,
        identity: str,
        document: Document,
        *,
        raw: dict[str, Any],
    ) -> dict[str, Any]:
        scope = Scope(raw, identity, document)
        old = raw.get("id")
        scope.ours = old.__class__ is str and self.names.is_ours(old)
        inside = part.get("contained")
        inside = inside if inside.__class__ is list else ()
        for each in inside:
            name = each.get("id") if each.__class__ is dict else None
            if name.__class__ is str:
                scope.local[name] = self.names.identity(
                    "contained", name if self.names.is_ours(name) else f"{identity}#{name}"
                )
        body = self._body(part, kind, scope)
        out = self._head(raw, kind, identity)
        contained = self._contained(inside, scope) if scope.used else None
        if contained:
            out["contained"] = contained
        fields = table()[kind]
        listed = fields.get("identifier")
        if listed is not None and listed.type == "Identifier":
            if "identifier" in raw or kind in _IDENTIFIED or listed.required:
                made = self._identifier(identity)
                out["identifier"] = [made] if listed.many else made
            body.pop("identifier", None)
        extra = body.pop("extension", None)
        out.update(body)
        if extra:
            out["extension"] = [*out.get("extension", ()), *(e for e in extra if e.get("url") != MARK)]
        self.tally.kept[kind] += 1
        return out

    def _body(self, part: dict[str, Any], kind: str, scope: Scope) -> dict[str, Any]:
        made: dict[str, Any] | None = self.plan.body(kind)(part, scope)
        if made is None:
            made = {}
            repair = self._repairs.get(kind)
            if repair is None:
                repair = self._repairs[kind] = Repair(kind)
            repair(made, part, scope)
        return made

    def _contained(self, inside: Any, scope: Scope) -> list[dict[str, Any]]:
        done: dict[str, dict[str, Any]] = {}
        while scope.used - done.keys():
            for each in inside:
                name = each.get("id") if each.__class__ is dict else None
                if name not in scope.used or name in done:
                    continue
                kind = self._kind(each)
                inner = Scope(each, scope.local[name], scope.document, scope)
                inner.ours = scope.ours
                body = self._body(each, kind, inner)
                for key in ("identifier", "extension"):
                    body.pop(key, None)
                done[name] = {
                    "resourceType": kind,
                    "id": scope.local[name],
                    **self._named(kind, each, inner),
                    **body,
                }
        return [done[each["id"]] for each in inside if each.__class__ is dict and each.get("id") in done]

    def _named(self, kind: str, raw: dict[str, Any], scope: Scope) -> dict[str, Any]:
        listed = table()[kind].get("identifier")
        if listed is None or listed.type != "Identifier" or not (listed.required or kind == "Organization"):
            return {}
        made = self._identifier(scope.identity)
        return {"identifier": [made] if listed.many else made}

    def _inside(self, raw: Any, scope: Scope) -> Any:
        """A whole resource inside an element, as in Parameters."""
        kind = self._kind(raw)
        if kind == "Bundle":
            return self._bundle(raw, 1)
        self.tally.read[kind] += 1
        self._meet(scope.document, raw, kind)
        part = self._needed(raw, kind, scope.document)
        if part is None:
            return None
        return self._resource(part, kind, identity_of(raw, kind, self.names), scope.document, raw=raw)

    def _head(self, raw: dict[str, Any], kind: str, identity: str) -> dict[str, Any]:
        out: dict[str, Any] = {"resourceType": kind, "id": identity}
        if not self._paper:
            out["meta"] = self._meta(raw.get("meta"))
        if "extension" in table()[kind]:
            code, display = self._mark
            coding = {"system": _MARK_SYSTEM, "code": code, "display": display}
            out["extension"] = [{"url": MARK, "valueCoding": coding}]
        return out

    def _meta(self, raw: Any) -> dict[str, Any]:
        out: dict[str, Any] = {}
        labels: list[dict[str, Any]] = [{"system": _LABELS, "code": self._label}]
        if raw.__class__ is dict and raw:
            listed = raw.get("profile")
            known = (
                [p for p in listed if p.__class__ is str and p in profiles()]
                if listed.__class__ is list
                else []
            )
            if known:
                out["profile"] = known
            security = raw.get("security")
            for each in security if security.__class__ is list else ():
                system, code = (each.get("system"), each.get("code")) if each.__class__ is dict else ("", "")
                if system == _CONFIDENTIALITY and self._codes(system, code):
                    labels.append({"system": system, "code": code})
        out["security"] = labels
        return out

    def _identifier(self, identity: str) -> dict[str, Any]:
        return {"value": identity} if self._paper else {"system": self.names.system, "value": identity}

    def _sort_out(self) -> None:
        """Turn the quick counts of the walk into the tally."""
        notes, dropped = self._notes, self.tally.dropped
        for key, count in notes.seen.items():
            if isinstance(key, Shape):
                for where in key.drops:
                    dropped[where] += count
            else:
                node, what, keys = key
                _sort_out_keys(node, what, keys, count, dropped)
        dropped.update(notes.drops)
        self.tally.passed.update(notes.passes)
        for counts in (notes.seen, notes.drops, notes.passes):
            counts.clear()


_STAY = {
    "display": frozenset({"reference", "type"}),
    "coding": frozenset({"system", "code"}),
    "measure": frozenset({"value", "comparator", "system", "code"}),
}
_REASON = {
    "display": "text beside a reference",
    "coding": "text beside a code",
    "measure": "text beside a number",
}


def _sort_out_keys(node: Node, what: str, keys: tuple[str, ...], count: int, dropped: Any) -> None:
    fields = table()[node.type]
    for key in keys:
        if key not in _STAY[what]:
            dropped[f"{node.path}.{key}" if key in fields else f"{node.path}.(unknown)", _REASON[what]] += (
                count
            )


def _clashes(entries: list[dict[str, Any]]) -> frozenset[tuple[str, Any]]:
    """Type and id of resources that two servers in one Bundle both use, for different things."""
    servers: dict[tuple[str, Any], str] = {}
    clashes = set()
    for entry in entries:
        resource = entry.get("resource")
        if not isinstance(resource, dict) or not isinstance(resource.get("id"), str):
            continue
        key = (str(resource.get("resourceType")), resource["id"])
        server = server_of(entry.get("fullUrl"))
        if server and servers.setdefault(key, server) != server:
            clashes.add(key)
    return frozenset(clashes)
