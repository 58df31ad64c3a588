"""De-identification of a whole document: a resource or a Bundle, with everything in it.

Invariants:
(1) ``id`` and ``identifier`` of a resource carry the same new value, and every reference to it follows;
(2) every resource that leaves is marked: the anonymisation extension, and the label ANONYED or PSEUDED;
(3) a contained resource stays only if something still refers to it (dom-3);
(4) a refusal leaves nothing: a document is answered whole or not at all;
(5) a resource that must not leave is left out alone, and references to it stay whole;
(6) a record that is handed out shares nothing with any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from abaton.deid.ages import age_at, age_observation
from abaton.deid.coded_values import Codes
from abaton.deid.context import Handler, Notes, Scope, resting
from abaton.deid.minimisation import Minimiser
from abaton.deid.presets import rules
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.reference_index import NOWHERE, Addresses, Asks, identifier_of
from abaton.deid.references import Document, Found, clashes, identity_of, old_name
from abaton.deid.repair import Repair
from abaton.deid.rule_compiler import LeftOut, Plan
from abaton.deid.settings import Dates, Function, Mechanism, Need, Preset, Rule
from abaton.deid.transform_counts import Tally
from abaton.errors import Refused
from abaton.fhir.bundles import server_of
from abaton.fhir.elements import resources, table
from abaton.fhir.json_format import bounded
from abaton.fhir.terminology import profiles
from abaton.fhir.versions import refuse, version_of
from abaton.record_types import Consented, ConsentedLot, Deidentified

MARK = "http://interopehrate.eu/fhir/StructureDefinition/AnonymizationExtension-IEHR"
_MARK_SYSTEM = "http://interopehrate.eu/fhir/CodeSystem/AnonymizationType-IEHR"
_LABELS = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_CONFIDENTIALITY = "http://terminology.hl7.org/CodeSystem/v3-Confidentiality"
_IDENTIFIED = frozenset({"Patient", "Organization"})
_ENVELOPE = ("language", "timestamp")
_MOST_NESTED = 8
UNEXPECTED = "a record has a form that no FHIR resource has"
_MOST_NOTES, _MOST_TARGETS = 20_000, 50_000
_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _Kind(NamedTuple):
    """What has to be known of a resource type for every resource of it."""

    body: Handler
    repair: Repair
    marked: bool
    identifier: str
    always: bool
    plain: bool


class Deidentifier:
    """Turns consented records into de-identified ones, for one study at one site.

    Args:
        need: What the study needs and how it wants it de-identified.
        names: The study's pseudonyms.
        year: The current year, against which ages are capped.
        trace: Whether to count what is kept, too.
        addresses: Where references lead that a document does not answer itself; nothing means that it must be asked
            for (:class:`~abaton.deid.reference_index.Asks`).

    >>> make = Deidentifier(Need("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    >>> patient = {"resourceType": "Patient", "id": "7", "gender": "male", "birthDate": "1980-02-03"}
    >>> made = make.plain(patient)
    >>> made["birthDate"], made["id"] == made["identifier"][0]["value"]
    ('1980', True)
    """

    def __init__(
        self,
        need: Need,
        names: Pseudonyms,
        *,
        year: int,
        trace: bool = False,
        addresses: Addresses | None = NOWHERE,
    ) -> None:
        self.need, self.names, self.year, self._addresses = need, names, year, addresses
        self._link_by = need.deidentification.link_by
        for old, value in addresses.linked.items() if addresses is not None else ():
            names.link(old, value)
        self.plan = Plan(rules(need.deidentification), self._inside, trace=trace)
        self._chosen = Minimiser(need)
        self._codes = Codes(
            frozenset(
                (c.system, c.code) for want in need.wants for f in want.codes for c in f.codes if not c.begins
            )
        )
        self._kinds: dict[str, _Kind] = {}
        self._notes, self._total = Notes(), Tally()
        self._paper = need.deidentification.preset is Preset.PAPER
        pseudonymised = need.deidentification.mechanism is Mechanism.PSEUDONYMISE
        label = "PSEUDED" if pseudonymised else "ANONYED"
        self._meta: dict[str, Any] = {"security": [{"system": _LABELS, "code": label}]}
        self._profiled = {profile: {**self._meta, "profile": [profile]} for profile in profiles()}
        mark = "pseudonymization" if pseudonymised else "anonymization"
        coding = {"system": _MARK_SYSTEM, "code": mark, "display": mark.capitalize()}
        self._marks = [{"url": MARK, "valueCoding": coding}]
        # Resources that stand alone take turns in one document and one scope: what they point at is remembered.
        self._alone = self._document(None)
        self._scope = Scope({}, "", self._alone)

    def __call__(self, consented: Consented) -> Deidentified | None:
        """The de-identified record, or nothing if the study does not need it."""
        made = self.plain(consented.record.content)
        return None if made is None else Deidentified(made)

    def plain(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """What is left of a document, for whoever holds it to look at: it is no :class:`Deidentified`, for no study."""
        bounded(content)
        (made,) = self._lot((content,))
        if isinstance(made, Refused):
            raise made
        return None if made is None else _own(made)

    def lot(self, consented: ConsentedLot) -> list[dict[str, Any] | Refused | None]:
        """What is left of each of several documents: nothing if it is not needed, or why it is refused.

        Small documents are quicker together, because what has to be set up is set up once. What comes back is to
        be written and let go: equal parts of it are one object.
        """
        return self._lot(consented.contents)

    def _lot(self, contents: Sequence[dict[str, Any]]) -> list[dict[str, Any] | Refused | None]:
        mark = self._notes.mark()
        made: list[dict[str, Any] | Refused | None]
        try:
            with resting():
                made = self._documents(contents)
        except Asks:
            self._notes.take_back(mark)
            raise
        except (LeftOut, Refused, RecursionError, *_ERRORS) as error:
            self._notes.take_back(mark)
            if len(contents) > 1:  # one of them is to blame, and only that one
                return [self._lot((each,))[0] for each in contents]
            if isinstance(error, LeftOut):
                kind = contents[0]["resourceType"]
                self._notes.read.append(kind)
                self._notes.left_out.append((kind, str(error)))
                return [None]
            return [_refusal(error)]
        if len(self._notes.seen) > _MOST_NOTES:
            self._total.note(self._notes)
        return made

    def stricter(
        self, rules: tuple[Rule, ...], dates: Dates | None = None
    ) -> Callable[[Deidentified], Deidentified]:
        """A second passage for records that went through this one, with further rules before the others.

        It works on what was let through and on nothing else, so whatever its rules say, no more can come out
        than after the first passage.

        Args:
            rules: The further rules.
            dates: What happens to dates, if it is to be stricter.
        """
        wish = self.need.deidentification
        again = replace(wish, rules=rules + wish.rules, dates=dates or wish.dates)
        second = Deidentifier(Need(self.need.study, (), again), self.names, year=self.year)
        second._codes = self._codes

        def run(made: Deidentified) -> Deidentified:
            out = second.plain(made.content)
            assert out is not None  # without a list of needs nothing is left out whole
            return Deidentified(out)

        return run

    def forget(self) -> None:
        """Drop what was remembered for speed."""
        self.names.forget()
        self._alone.targets.clear()

    def tally(self) -> Tally:
        """What was counted since the last time this was asked."""
        self._total.note(self._notes)
        counted, self._total = self._total, Tally()
        return counted

    # Documents

    def _documents(self, contents: Sequence[dict[str, Any]]) -> list[dict[str, Any] | Refused | None]:
        known, notes = resources(), self._notes
        wanted = [
            (
                kind
                if (kind := raw.get("resourceType")).__class__ is str and kind in known
                else self._name(raw),
                old if (old := raw.get("id")).__class__ is str and old else _alone(raw),
                "",
            )
            for raw in contents
        ]
        if self._link_by:
            for raw, (kind, _, _) in zip(contents, wanted, strict=True):
                if kind == "Patient":
                    self._link(raw)
        if len(self._alone.targets) > _MOST_TARGETS:
            self._alone.targets.clear()
        made: list[dict[str, Any] | Refused | None] = []
        scope, wants = self._scope, bool(self.need.wants)
        for raw, (kind, _, _), identity in zip(contents, wanted, self.names.identities(wanted), strict=True):
            if kind == "Bundle":
                made.append(self._bundle(raw, 0))
                continue
            notes.read.append(kind)
            part = self._needed(raw, kind) if wants else raw
            if part is None:
                made.append(None)
                continue
            scope.turn(raw, identity)
            made.append(self._resource(part, kind, scope))
        self._alone.settle()
        return made

    def _document(self, root: dict[str, Any] | None) -> Document:
        days = self.need.deidentification.shift_days
        return Document(
            root,
            self.names,
            self._notes,
            self._codes,
            year=self.year,
            shift_days=days,
            addresses=self._addresses,
        )

    def _link(self, resource: dict[str, Any]) -> None:
        """Note by which identifier a Patient is known at other sites."""
        value, old = identifier_of(resource, self._link_by), resource.get("id")
        if value and isinstance(old, str):
            self.names.link(old, value)
        else:
            self._notes.drops.append(
                ("Patient.identifier", "no linking identifier: not linked with other sites")
            )

    def _name(self, raw: Any) -> str:
        kind = raw.get("resourceType") if raw.__class__ is dict else None
        if kind.__class__ is not str or kind not in resources():
            if kind.__class__ is str and (version := version_of(kind)):
                refuse(version)
            raise Refused(
                "a resource has no type that R4 knows", remedy="export FHIR R4; other versions are not read"
            )
        name: str = kind
        return name

    def _needed(self, raw: dict[str, Any], kind: str) -> dict[str, Any] | None:
        if not self.need.wants:
            return raw
        for name, want in self._chosen.matching(raw, kind):
            if want.function is Function.COUNT:
                self._notes.answers.append(f"count {name}")
        part = self._chosen.part(raw, kind, self._notes)
        if part is None:
            self._notes.left_out.append((kind, "not needed by the study"))
        return part

    def _bundle(self, raw: dict[str, Any], depth: int) -> dict[str, Any] | None:
        if depth > _MOST_NESTED:
            raise Refused("Bundles are nested too deeply", remedy="export one Bundle per document")
        mark = self._notes.mark()
        left_out: dict[int, str] = {}
        made = self._opened(raw, depth, {}, left_out)
        if left_out:
            # Known only after the walk, so it is walked again: references to them must not lead to an entry.
            self._notes.take_back(mark)
            made = self._opened(raw, depth, left_out, {})
        return made

    def _opened(
        self, raw: dict[str, Any], depth: int, without: dict[int, str], left_out: dict[int, str]
    ) -> dict[str, Any] | None:
        self._notes.read.append("Bundle")
        document = self._document(raw)
        listed = raw.get("entry")
        entries = [entry for entry in listed if entry.__class__ is dict] if listed.__class__ is list else []
        clashing = clashes(entries)
        known, read, wants = resources(), self._notes.read, bool(self.need.wants)
        todo: list[Found] = []
        for entry in entries:
            resource = entry.get("resource")
            if resource is None:
                self._notes.drops.append(("Bundle.entry", "entry without a resource"))
                continue
            kind = resource.get("resourceType") if resource.__class__ is dict else None
            if kind.__class__ is not str or kind not in known:
                kind = self._name(resource)
            if kind == "Bundle":
                todo.append((resource, resource, kind, "", ""))
                continue
            read.append(kind)
            if kind == "Patient" and self._link_by:
                self._link(resource)
            part = self._needed(resource, kind) if wants else resource
            if id(resource) in without:
                self._notes.left_out.append((kind, without[id(resource)]))
                part = None
            elif part is None and not self._wants_age(kind):
                continue
            url = entry.get("fullUrl")
            server = ""
            if clashing and (old := resource.get("id")).__class__ is str and (kind, old) in clashing:
                server = server_of(url)
            todo.append((part, resource, kind, url, server))
        named = iter(document.enter([found for found in todo if found[2] != "Bundle"]))
        made = self._collect(document, todo, named, depth, without, left_out)
        document.settle()
        if wants and not made:
            self._notes.left_out.append(("Bundle", "nothing in it is needed by the study"))
            return None
        return self._envelope(raw, document, made)

    def _collect(
        self,
        document: Document,
        todo: list[Found],
        named: Iterator[tuple[str, str]],
        depth: int,
        without: dict[int, str],
        left_out: dict[int, str],
    ) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        seen: set[str] = set()
        scope, wants = Scope({}, "", document), bool(self.need.wants)
        for part, raw, kind, _, _ in todo:
            if kind == "Bundle":
                inner = self._bundle(raw, depth + 1)
                if inner is not None:
                    made.append({"fullUrl": self.names.address(inner["id"]), "resource": inner})
                continue
            identity, address = next(named)
            if id(raw) in without:
                continue
            scope.turn(raw, identity)
            if wants:
                ages = self._ages(kind, scope)
                made.extend({"fullUrl": self.names.address(each["id"]), "resource": each} for each in ages)
            if part is None:
                continue
            try:
                out = self._resource(part, kind, scope)
            except LeftOut as error:
                left_out[id(raw)] = str(error)
                continue
            # bdl-7: two versions of one resource cannot both have the address.
            made.append({"resource": out} if address in seen else {"fullUrl": address, "resource": out})
            seen.add(address)
        return made

    def _envelope(
        self, raw: dict[str, Any], document: Document, entries: list[dict[str, Any]]
    ) -> dict[str, Any]:
        self._notes.kept.append("Bundle")
        inside = "" if raw.get("id") else "|".join(entry["resource"]["id"] for entry in entries)
        identity = identity_of(raw, "Bundle", self.names, otherwise=inside)
        out = self._head(raw, "Bundle", identity, marked=False)
        is_document = raw.get("type") == "document" and bool(entries)
        is_document = is_document and entries[0]["resource"]["resourceType"] == "Composition"
        kept = {key: raw[key] for key in _ENVELOPE if key in raw}
        scope = Scope(raw, identity, document)
        scope.ours = raw.get("id") == identity
        body = self.plan.body("Bundle")(kept, scope) or {}
        if is_document or "identifier" in raw:
            out["identifier"] = self._identifier(identity)
        out["type"] = "document" if is_document else "collection"
        out.update((key, body[key]) for key in _ENVELOPE if key in body)
        gone = raw.keys() - {"resourceType", "id", "meta", "identifier", "type", "entry", *_ENVELOPE}
        for key in gone:
            name = key if key in table()["Bundle"] else "(unknown)"
            self._notes.drops.append((f"Bundle.{name}", "no rule"))
        if entries:
            out["entry"] = entries
        return out

    def _wants_age(self, kind: str) -> bool:
        ages = {want.type for want in self.need.wants if want.function is Function.AGE_FROM_DATE}
        return kind in ages or (kind == "Patient" and bool(ages))

    def _ages(self, kind: str, scope: Scope) -> list[dict[str, Any]]:
        made = []
        for name, want in self._chosen.matching(scope.raw, kind):
            if want.function is not Function.AGE_FROM_DATE:
                continue
            age, subject = age_at(want.elements, scope)
            if age is None:
                self._notes.left_out.append((kind, "age without a birth date at hand"))
                continue
            new = self.names.identity("Observation", f"age of {scope.identity} {name}")
            out = self._head({}, "Observation", new, marked=True) | {"identifier": [self._identifier(new)]}
            made.append(out | age_observation(age, subject))
            self._notes.kept.append("Observation")
        return made

    # Resources

    def _resource(self, part: dict[str, Any], name: str, scope: Scope) -> dict[str, Any]:
        kind = self._kinds.get(name) or self._learn(name)
        raw, identity = scope.raw, scope.identity
        # An identity made here tells that the resource went through before: dates are not moved twice.
        scope.ours = raw.get("id") == identity
        inside = part.get("contained")
        if inside.__class__ is list:
            scope.local = self._local(inside, identity)
        body = kind.body(part, scope)
        if body is None:
            body = {}
            kind.repair(body, part, scope)
        # Most resources need nothing but a head before their body: that is made in one go.
        if kind.plain and not scope.used and "extension" not in body:
            meta = self._kept_meta(raw["meta"]) if "meta" in raw else self._meta
            self._notes.kept.append(name)
            if "identifier" not in raw or not kind.identifier:
                return {"resourceType": name, "id": identity, "meta": meta, "extension": self._marks, **body}
            made = self._identifier(identity)
            return {
                "resourceType": name, "id": identity, "meta": meta, "extension": self._marks,
                "identifier": [made] if kind.identifier == "many" else made, **body,
            }  # fmt: skip
        out = self._head(raw, name, identity, marked=kind.marked)
        contained = self._contained(inside, scope) if scope.used else None
        if contained:
            out["contained"] = contained
        if kind.identifier:
            if "identifier" in body:
                del body["identifier"]
            if kind.always or "identifier" in raw:
                made = self._identifier(identity)
                out["identifier"] = [made] if kind.identifier == "many" else made
        if "extension" in body:
            out["extension"] = [*out.get("extension", ()), *body.pop("extension")]
        out.update(body)
        self._notes.kept.append(name)
        return out

    def _learn(self, name: str) -> _Kind:
        fields = table()[name]
        listed = fields.get("identifier")
        form = "" if listed is None or listed.type != "Identifier" else "many" if listed.many else "one"
        always = name in _IDENTIFIED or (listed is not None and listed.required)
        marked = "extension" in fields
        plain = marked and not always and not self._paper
        made = _Kind(self.plan.body(name), Repair(name), marked, form, always, plain)
        self._kinds[name] = made
        return made

    def _local(self, inside: list[Any], identity: str) -> dict[str, str]:
        names = [each.get("id") for each in inside if each.__class__ is dict]
        return {
            name: name if self.names.is_ours(name) else self.names.identity("contained", f"{identity}#{name}")
            for name in names
            if name.__class__ is str
        }

    def _contained(self, inside: Any, scope: Scope) -> list[dict[str, Any]]:
        done: dict[str, dict[str, Any]] = {}
        while scope.used - done.keys():
            for each in inside:
                old = each.get("id") if each.__class__ is dict else None
                if old.__class__ is not str or old not in scope.used or old in done:
                    continue
                name = self._name(each)
                kind = self._kinds.get(name) or self._learn(name)
                inner = Scope(each, scope.local[old], scope.document, scope)
                inner.ours = scope.ours
                body = kind.body(each, inner)
                if body is None:
                    body = {}
                    kind.repair(body, each, inner)
                body.pop("extension", None)
                body.pop("identifier", None)
                done[old] = {"resourceType": name, "id": inner.identity}
                if kind.identifier and kind.always and name != "Patient":
                    made = self._identifier(inner.identity)
                    done[old]["identifier"] = [made] if kind.identifier == "many" else made
                done[old].update(body)
        names = [each.get("id") for each in inside if each.__class__ is dict]
        return [done[name] for name in names if name.__class__ is str and name in done]

    def _inside(self, raw: Any, scope: Scope) -> Any:
        """A whole resource inside an element, as in Parameters."""
        name = self._name(raw)
        if name == "Bundle":
            return self._bundle(raw, 1)
        self._notes.read.append(name)
        part = self._needed(raw, name)
        if part is None:
            return None
        return self._resource(part, name, Scope(raw, identity_of(raw, name, self.names), scope.document))

    def _head(self, raw: dict[str, Any], name: str, identity: str, *, marked: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"resourceType": name, "id": identity}
        if not self._paper:
            out["meta"] = self._kept_meta(raw["meta"]) if "meta" in raw else self._meta
        if marked:
            out["extension"] = self._marks
        return out

    def _kept_meta(self, raw: Any) -> dict[str, Any]:
        """Only published profiles and the confidentiality of the source stay."""
        if raw.__class__ is not dict:
            return self._meta
        listed, security = raw.get("profile"), raw.get("security")
        if security is None and listed.__class__ is list and len(listed) == 1:
            (only,) = listed
            return self._profiled.get(only, self._meta) if only.__class__ is str else self._meta
        out: dict[str, Any] = {"security": [*self._meta["security"]]}
        if listed.__class__ is list:
            known = [p for p in listed if p.__class__ is str and p in profiles()]
            if known:
                out["profile"] = known
        for each in security if security.__class__ is list else ():
            system, code = (each.get("system"), each.get("code")) if each.__class__ is dict else ("", "")
            if system == _CONFIDENTIALITY and self._codes.knows(system, code):
                out["security"].append({"system": system, "code": code})
        return out

    def _identifier(self, identity: str) -> dict[str, Any]:
        return {"value": identity} if self._paper else {"system": self.names.system, "value": identity}


def _alone(resource: dict[str, Any]) -> str:
    """What a resource without an id is known by; a Bundle is known by what is left in it."""
    return "" if resource["resourceType"] == "Bundle" else old_name(resource)


def _refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, RecursionError):
        return Refused("a record is nested too deeply", remedy="no FHIR record needs that")
    # Python's own message may quote what it stumbled over (a KeyError is nothing but a quotation).
    return Refused(UNEXPECTED, remedy="check it with 'abaton records check'")


def _own(node: Any) -> Any:
    """A copy that shares nothing that can be changed."""
    if node.__class__ is dict:
        return {key: _own(each) for key, each in node.items()}
    return [_own(each) for each in node] if node.__class__ is list else node
