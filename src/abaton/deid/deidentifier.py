"""De-identification of documents: a resource or a Bundle, with all resources in it.

Invariants:
(1) ``id`` and ``identifier`` of a resource have the same new value, and all references to it follow;
(2) every output resource is marked by the anonymisation extension and the label ANONYED or PSEUDED;
(3) a contained resource is kept only if it is still referenced (dom-3);
(4) a refused document has no output, not even a part;
(5) a dropped resource does not affect the others, and references to it stay valid;
(6) an output record shares no object with another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from abaton.deid.bundle_deidentifier import BundleDeidentifier
from abaton.deid.coded_values import CodedValues
from abaton.deid.context import Handler, TransformContext, TransformLog, gc_paused
from abaton.deid.minimisation import Minimiser
from abaton.deid.presets import preset_rules
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.reference_index import EMPTY_INDEX, ReferenceIndex, UnresolvedReferenceError, identifier_of
from abaton.deid.references import (
    DocumentReferences,
    new_identity,
    original_identity,
)
from abaton.deid.repair import Repair
from abaton.deid.rule_compiler import CompiledRules, ResourceDroppedError
from abaton.deid.settings import (
    DataRequest,
    DateHandling,
    DeidentificationRule,
    Mechanism,
    RequirementPurpose,
    RulePreset,
)
from abaton.deid.transform_counts import TransformCounts
from abaton.errors import RefusedError
from abaton.fhir.bundles import SUBJECT_ELEMENTS, reference_target
from abaton.fhir.elements import element_table, resource_types
from abaton.fhir.json_format import check_depth
from abaton.fhir.terminology import known_profiles
from abaton.fhir.versions import foreign_version, refuse_version
from abaton.record_types import ConsentedBatch, ConsentedRecord, DeidentifiedRecord

MARK = "http://interopehrate.eu/fhir/StructureDefinition/AnonymizationExtension-IEHR"
_MARK_SYSTEM = "http://interopehrate.eu/fhir/CodeSystem/AnonymizationType-IEHR"
_LABELS = "http://terminology.hl7.org/CodeSystem/v3-ObservationValue"
_CONFIDENTIALITY = "http://terminology.hl7.org/CodeSystem/v3-Confidentiality"
_ALWAYS_IDENTIFIED = frozenset({"Patient", "Organization"})
UNEXPECTED = "a record has a form that no FHIR resource has"
_MAX_LOG, _MAX_TARGETS = 20_000, 50_000
_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class _ResourceType(NamedTuple):
    """Properties of a resource type that are needed for each of its resources."""

    body: Handler
    repair: Repair
    marked: bool
    identifier: str
    always_identified: bool
    is_simple: bool


class Deidentifier:
    """De-identifier of consented records, for one study at one site.

    Args:
        request: Data requirements and de-identification settings of the study.
        pseudonyms: The study's pseudonyms.
        year: The current year, for the cap of ages.
        trace: Whether to count kept elements, too.
        reference_index: Targets of references that a document does not resolve itself; with None such a reference
            raises :class:`~abaton.deid.reference_index.UnresolvedReferenceError`.

    >>> deidentifier = Deidentifier(DataRequest("heart"), Pseudonyms("heart", bytes(range(32))), year=2026)
    >>> patient = {"resourceType": "Patient", "id": "7", "gender": "male", "birthDate": "1980-02-03"}
    >>> output = deidentifier.deidentify_content(patient)
    >>> output["birthDate"], output["id"] == output["identifier"][0]["value"]
    ('1980', True)
    """

    def __init__(
        self,
        request: DataRequest,
        pseudonyms: Pseudonyms,
        *,
        year: int,
        trace: bool = False,
        reference_index: ReferenceIndex | None = EMPTY_INDEX,
    ) -> None:
        self.request, self.pseudonyms, self.year, self._reference_index = (
            request,
            pseudonyms,
            year,
            reference_index,
        )
        self.link_identifier = request.deidentification.link_identifier
        for patient_id, value in reference_index.linked.items() if reference_index is not None else ():
            pseudonyms.link(patient_id, value)
        self.rules = CompiledRules(preset_rules(request.deidentification), self._nested_resource, trace=trace)
        self.minimiser = Minimiser(request)
        self._codes = CodedValues(
            frozenset(
                (c.system, c.code)
                for requirement in request.requirements
                for f in requirement.codes
                for c in f.codes
                if not c.is_prefix
            )
        )
        self._type_cache: dict[str, _ResourceType] = {}
        self.log, self._total = TransformLog(), TransformCounts()
        self._paper = request.deidentification.preset is RulePreset.PAPER
        is_pseudonymised = request.deidentification.mechanism is Mechanism.PSEUDONYMISE
        label = "PSEUDED" if is_pseudonymised else "ANONYED"
        self._meta: dict[str, Any] = {"security": [{"system": _LABELS, "code": label}]}
        self._profiled = {profile: {**self._meta, "profile": [profile]} for profile in known_profiles()}
        mark = "pseudonymization" if is_pseudonymised else "anonymization"
        coding = {"system": _MARK_SYSTEM, "code": mark, "display": mark.capitalize()}
        self._marks = [{"url": MARK, "valueCoding": coding}]
        self._bundles = BundleDeidentifier(self)
        # Single resources share one document and one context, so that reference targets are cached.
        self._single_document = self.open_document(None)
        self._context = TransformContext({}, "", self._single_document)

    def __call__(self, consented: ConsentedRecord) -> DeidentifiedRecord | None:
        """De-identify a consented record; return None if the study does not need it."""
        content = self.deidentify_content(consented.record.content)
        return None if content is None else DeidentifiedRecord(content)

    def deidentify_content(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """De-identify the content of a document for inspection; it is not a :class:`DeidentifiedRecord`."""
        check_depth(content)
        (output,) = self._deidentify_batch((content,))
        if isinstance(output, RefusedError):
            raise output
        return None if output is None else _deep_copy(output)

    def deidentify_batch(self, consented: ConsentedBatch) -> list[dict[str, Any] | RefusedError | None]:
        """De-identify the contents of several documents: None if not needed, or the refusal.

        A batch of small documents is faster, because the context is set up once. Outputs share equal objects, so
        they must be written and not changed.
        """
        return self._deidentify_batch(consented.contents)

    def _deidentify_batch(
        self, contents: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any] | RefusedError | None]:
        mark = self.log.mark()
        outputs: list[dict[str, Any] | RefusedError | None]
        try:
            with gc_paused():
                outputs = self._documents(contents)
        except UnresolvedReferenceError:
            self.log.revert(mark)
            raise
        except (ResourceDroppedError, RefusedError, RecursionError, *_ERRORS) as error:
            self.log.revert(mark)
            if len(contents) > 1:  # find the document that caused the error
                return [self._deidentify_batch((content,))[0] for content in contents]
            if isinstance(error, ResourceDroppedError):
                resource_type = contents[0]["resourceType"]
                self.log.read.append(resource_type)
                self.log.dropped_resources.append((resource_type, str(error)))
                return [None]
            return [_to_refusal(error)]
        if len(self.log.shape_drops) > _MAX_LOG:
            self._total.add_log(self.log)
        return outputs

    def with_extra_rules(
        self, rules: tuple[DeidentificationRule, ...], dates: DateHandling | None = None
    ) -> Callable[[DeidentifiedRecord], DeidentifiedRecord]:
        """Return a second pass of the de-identifier for output records, with further rules before the others.

        Its input is the output of the first pass, so its rules cannot restore a value.

        Args:
            rules: The further rules.
            dates: Stricter handling of dates.
        """
        settings = self.request.deidentification
        settings_with_rules = replace(settings, rules=rules + settings.rules, dates=dates or settings.dates)
        second = Deidentifier(
            DataRequest(self.request.study, (), settings_with_rules), self.pseudonyms, year=self.year
        )
        second._codes = self._codes

        def run(deidentified: DeidentifiedRecord) -> DeidentifiedRecord:
            out = second.deidentify_content(deidentified.content)
            assert out is not None  # without data requirements no resource is dropped
            return DeidentifiedRecord(out)

        return run

    def clear_cache(self) -> None:
        """Clear the caches of the de-identifier: pseudonyms and reference targets."""
        self.pseudonyms.clear_cache()
        self._single_document.targets.clear()

    def take_counts(self) -> TransformCounts:
        """Return the counts of the de-identifier since the last call."""
        self._total.add_log(self.log)
        counts, self._total = self._total, TransformCounts()
        return counts

    # Documents

    def _documents(self, contents: Sequence[dict[str, Any]]) -> list[dict[str, Any] | RefusedError | None]:
        known, log = resource_types(), self.log
        identity_requests = [
            (
                resource_type
                if (resource_type := raw.get("resourceType")).__class__ is str and resource_type in known
                else self.resource_type_of(raw),
                old if (old := raw.get("id")).__class__ is str and old else _identity_of_single(raw),
                "",
            )
            for raw in contents
        ]
        if self.link_identifier:
            for raw, (resource_type, _, _) in zip(contents, identity_requests, strict=True):
                if resource_type == "Patient":
                    self.link_patient(raw)
        if len(self._single_document.targets) > _MAX_TARGETS:
            self._single_document.targets.clear()
        outputs: list[dict[str, Any] | RefusedError | None] = []
        context, has_requirements = self._context, bool(self.request.requirements)
        for raw, (resource_type, _, _), identity in zip(
            contents, identity_requests, self.pseudonyms.identities(identity_requests), strict=True
        ):
            if resource_type == "Bundle":
                outputs.append(self._bundles.deidentify(raw, 0))
                continue
            log.read.append(resource_type)
            part = self.minimise(raw, resource_type) if has_requirements else raw
            if part is None:
                outputs.append(None)
                continue
            context.set_resource(raw, identity)
            outputs.append(self.transform_resource(part, resource_type, context))
        self._single_document.resolve_pending()
        return outputs

    def open_document(self, root: dict[str, Any] | None) -> DocumentReferences:
        """Return the reference targets of a new document of the de-identifier."""
        days = self.request.deidentification.max_shift_days
        return DocumentReferences(
            root,
            self.pseudonyms,
            self.log,
            self._codes,
            year=self.year,
            shift_days=days,
            reference_index=self._reference_index,
        )

    def link_patient(self, resource: dict[str, Any]) -> None:
        """Give the de-identifier's pseudonyms the identifier that links a Patient across sites."""
        value, old = identifier_of(resource, self.link_identifier), resource.get("id")
        if value and isinstance(old, str):
            self.pseudonyms.link(old, value)
        else:
            self.log.drops.append(
                ("Patient.identifier", "no linking identifier: not linked with other sites")
            )

    def resource_type_of(self, raw: Any) -> str:
        """Return the type of a resource to de-identify; raise an error if it is not in R4."""
        resource_type = raw.get("resourceType") if raw.__class__ is dict else None
        if resource_type.__class__ is not str or resource_type not in resource_types():
            if resource_type.__class__ is str and (version := foreign_version(resource_type)):
                refuse_version(version)
            raise RefusedError(
                "a resource has no R4 resource type",
                remedy="export FHIR R4; other versions are not supported",
            )
        type_name: str = resource_type
        return type_name

    def minimise(
        self, raw: dict[str, Any], resource_type: str, patients: Mapping[str, str] | None = None
    ) -> dict[str, Any] | None:
        """Minimise a resource before it is de-identified: return the elements the study requires, or None.

        Args:
            raw: The resource.
            resource_type: Its type.
            patients: For a Bundle, the Patient (``Patient/1``) that each ``fullUrl`` names.
        """
        if not self.request.requirements:
            return raw
        for name, requirement in self.minimiser.matching_requirements(raw, resource_type):
            if requirement.purpose is RequirementPurpose.COUNT:
                subject = _subject_name(raw, resource_type)
                subject = (patients or {}).get(subject, subject)
                if subject:  # a record without a subject is no person's
                    digest = self.pseudonyms.secret_integer("count", subject)
                    self.log.requirement_subjects.append((f"count {name}", digest))
        part = self.minimiser.select_elements(raw, resource_type, self.log)
        if part is None:
            self.log.dropped_resources.append((resource_type, "not needed by the study"))
        return part

    # Resources

    def transform_resource(
        self, part: dict[str, Any], name: str, context: TransformContext
    ) -> dict[str, Any]:
        """De-identify the resource of a context."""
        type_info = self._type_cache.get(name) or self._describe_type(name)
        raw, identity = context.raw, context.identity
        # A pseudonym as id means that the resource was de-identified before: dates are not shifted twice.
        context.is_deidentified = raw.get("id") == identity
        contained_resources = part.get("contained")
        if contained_resources.__class__ is list:
            context.local = self._local(contained_resources, identity)
        body = type_info.body(part, context)
        if body is None:
            body = {}
            type_info.repair(body, part, context)
        # The common case: header elements, then the body.
        if type_info.is_simple and not context.used and "extension" not in body:
            meta = self._new_meta(raw["meta"]) if "meta" in raw else self._meta
            self.log.kept_resources.append(name)
            if "identifier" not in raw or not type_info.identifier:
                return {"resourceType": name, "id": identity, "meta": meta, "extension": self._marks, **body}
            identifier = self.new_identifier(identity)
            return {
                "resourceType": name, "id": identity, "meta": meta, "extension": self._marks,
                "identifier": [identifier] if type_info.identifier == "many" else identifier, **body,
            }  # fmt: skip
        output = self.header_elements(raw, name, identity, marked=type_info.marked)
        contained = self._contained(contained_resources, context) if context.used else None
        if contained:
            output["contained"] = contained
        if type_info.identifier:
            if "identifier" in body:
                del body["identifier"]
            if type_info.always_identified or "identifier" in raw:
                identifier = self.new_identifier(identity)
                output["identifier"] = [identifier] if type_info.identifier == "many" else identifier
        if "extension" in body:
            output["extension"] = [*output.get("extension", ()), *body.pop("extension")]
        output.update(body)
        self.log.kept_resources.append(name)
        return output

    def _describe_type(self, name: str) -> _ResourceType:
        fields = element_table()[name]
        element = fields.get("identifier")
        identifier_form = (
            "" if element is None or element.type != "Identifier" else "many" if element.is_list else "one"
        )
        always_identified = name in _ALWAYS_IDENTIFIED or (element is not None and element.is_required)
        has_extension = "extension" in fields
        is_simple = has_extension and not always_identified and not self._paper
        type_info = _ResourceType(
            self.rules.body(name), Repair(name), has_extension, identifier_form, always_identified, is_simple
        )
        self._type_cache[name] = type_info
        return type_info

    def _local(self, contained_resources: list[Any], identity: str) -> dict[str, str]:
        original_ids = [resource.get("id") for resource in contained_resources if resource.__class__ is dict]
        return {
            original_id: original_id
            if self.pseudonyms.is_own(original_id)
            else self.pseudonyms.identity("contained", f"{identity}#{original_id}")
            for original_id in original_ids
            if original_id.__class__ is str
        }

    def _contained(self, contained_resources: Any, context: TransformContext) -> list[dict[str, Any]]:
        transformed: dict[str, dict[str, Any]] = {}
        while context.used - transformed.keys():
            for resource in contained_resources:
                old = resource.get("id") if resource.__class__ is dict else None
                if old.__class__ is not str or old not in context.used or old in transformed:
                    continue
                name = self.resource_type_of(resource)
                type_info = self._type_cache.get(name) or self._describe_type(name)
                inner = TransformContext(resource, context.local[old], context.document, context)
                inner.is_deidentified = context.is_deidentified
                body = type_info.body(resource, inner)
                if body is None:
                    body = {}
                    type_info.repair(body, resource, inner)
                body.pop("extension", None)
                body.pop("identifier", None)
                transformed[old] = {"resourceType": name, "id": inner.identity}
                if type_info.identifier and type_info.always_identified and name != "Patient":
                    identifier = self.new_identifier(inner.identity)
                    transformed[old]["identifier"] = (
                        [identifier] if type_info.identifier == "many" else identifier
                    )
                transformed[old].update(body)
        original_ids = [resource.get("id") for resource in contained_resources if resource.__class__ is dict]
        return [
            transformed[original_id]
            for original_id in original_ids
            if original_id.__class__ is str and original_id in transformed
        ]

    def _nested_resource(self, raw: Any, context: TransformContext) -> Any:
        """De-identify a resource inside an element of another, as in Parameters."""
        name = self.resource_type_of(raw)
        if name == "Bundle":
            return self._bundles.deidentify(raw, 1)
        self.log.read.append(name)
        part = self.minimise(raw, name)
        if part is None:
            return None
        return self.transform_resource(
            part, name, TransformContext(raw, new_identity(raw, name, self.pseudonyms), context.document)
        )

    def header_elements(
        self, raw: dict[str, Any], name: str, identity: str, *, marked: bool
    ) -> dict[str, Any]:
        """Return the first elements of a de-identified resource: type, id, meta and mark."""
        out: dict[str, Any] = {"resourceType": name, "id": identity}
        if not self._paper:
            out["meta"] = self._new_meta(raw["meta"]) if "meta" in raw else self._meta
        if marked:
            out["extension"] = self._marks
        return out

    def _new_meta(self, raw: Any) -> dict[str, Any]:
        """Return the metadata of a de-identified resource: published profiles and confidentiality only."""
        if raw.__class__ is not dict:
            return self._meta
        profiles, security = raw.get("profile"), raw.get("security")
        if security is None and profiles.__class__ is list and len(profiles) == 1:
            (only,) = profiles
            return self._profiled.get(only, self._meta) if only.__class__ is str else self._meta
        out: dict[str, Any] = {"security": [*self._meta["security"]]}
        if profiles.__class__ is list:
            known = [p for p in profiles if p.__class__ is str and p in known_profiles()]
            if known:
                out["profile"] = known
        for label in security if security.__class__ is list else ():
            system, code = (label.get("system"), label.get("code")) if label.__class__ is dict else ("", "")
            if system == _CONFIDENTIALITY and self._codes.is_kept(system, code):
                out["security"].append({"system": system, "code": code})
        return out

    def new_identifier(self, identity: str) -> dict[str, Any]:
        """Return the Identifier of a de-identified resource with its new identity."""
        return {"value": identity} if self._paper else {"system": self.pseudonyms.system, "value": identity}


def _identity_of_single(resource: dict[str, Any]) -> str:
    """Return the original identity of a resource without an id; a Bundle is identified by its output."""
    return "" if resource["resourceType"] == "Bundle" else original_identity(resource)


def _to_refusal(error: Exception) -> RefusedError:
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, RecursionError):
        return RefusedError(
            "a record is nested too deeply", remedy="check the record; FHIR records are not nested so deeply"
        )
    # Python's message may contain values (a KeyError consists of one).
    return RefusedError(UNEXPECTED, remedy="check it with 'abaton records check'")


def _deep_copy(node: Any) -> Any:
    """Return a copy of a de-identified resource that shares no mutable object."""
    if node.__class__ is dict:
        return {key: _deep_copy(item) for key, item in node.items()}
    return [_deep_copy(item) for item in node] if node.__class__ is list else node


def _subject_name(raw: dict[str, Any], resource_type: str) -> str:
    """Return one name for the subject of a resource to de-identify; empty if it names none."""
    if resource_type == "Patient":
        return f"Patient/{raw['id']}" if isinstance(raw.get("id"), str) else ""
    return next((name for key in SUBJECT_ELEMENTS if (name := reference_target(raw.get(key)))), "")
