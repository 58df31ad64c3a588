"""De-identification of Bundles: their entries, the ages that a study requires, and the Bundle itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from abaton.deid.ages import age_at, age_observation
from abaton.deid.context import TransformContext
from abaton.deid.references import BundleEntry, DocumentReferences, ambiguous_ids, new_identity
from abaton.deid.rule_compiler import ResourceDroppedError
from abaton.deid.settings import RequirementPurpose
from abaton.errors import RefusedError
from abaton.fhir.bundles import server_url
from abaton.fhir.elements import element_table, resource_types

if TYPE_CHECKING:
    from abaton.deid.deidentifier import Deidentifier

_BUNDLE_ELEMENTS = ("language", "timestamp")
_MAX_NESTED = 8


class BundleDeidentifier:
    """De-identifier of Bundles, with the rules, pseudonyms and log of a :class:`Deidentifier`."""

    def __init__(self, deidentifier: Deidentifier) -> None:
        self._deidentifier = deidentifier

    def deidentify(self, raw: dict[str, Any], depth: int) -> dict[str, Any] | None:
        """Return the de-identified Bundle, or None if the study needs none of its resources."""
        if depth > _MAX_NESTED:
            raise RefusedError("Bundles are nested too deeply", remedy="export one Bundle per document")
        mark = self._deidentifier.log.mark()
        newly_dropped: dict[int, str] = {}
        output = self._deidentify_entries(raw, depth, {}, newly_dropped)
        if newly_dropped:
            # Dropped resources are known only afterwards: repeat without them, since no reference may lead to them.
            self._deidentifier.log.revert(mark)
            output = self._deidentify_entries(raw, depth, newly_dropped, {})
        return output

    def _deidentify_entries(
        self, raw: dict[str, Any], depth: int, dropped_ids: dict[int, str], newly_dropped: dict[int, str]
    ) -> dict[str, Any] | None:
        self._deidentifier.log.read.append("Bundle")
        document = self._deidentifier.open_document(raw)
        raw_entries = raw.get("entry")
        entries = (
            [entry for entry in raw_entries if entry.__class__ is dict]
            if raw_entries.__class__ is list
            else []
        )
        ambiguous, patients = ambiguous_ids(entries), self._patients(entries)
        known, read, has_requirements = (
            resource_types(),
            self._deidentifier.log.read,
            bool(self._deidentifier.request.requirements),
        )
        entries_to_process: list[BundleEntry] = []
        for entry in entries:
            resource = entry.get("resource")
            if resource is None:
                self._deidentifier.log.drops.append(("Bundle.entry", "entry without a resource"))
                continue
            resource_type = resource.get("resourceType") if resource.__class__ is dict else None
            if resource_type.__class__ is not str or resource_type not in known:
                resource_type = self._deidentifier.resource_type_of(resource)
            if resource_type == "Bundle":
                entries_to_process.append((resource, resource, resource_type, "", ""))
                continue
            read.append(resource_type)
            if resource_type == "Patient" and self._deidentifier.link_identifier:
                self._deidentifier.link_patient(resource)
            part = (
                self._deidentifier.minimise(resource, resource_type, patients)
                if has_requirements
                else resource
            )
            if id(resource) in dropped_ids:
                self._deidentifier.log.dropped_resources.append((resource_type, dropped_ids[id(resource)]))
                part = None
            elif part is None and not self._requires_age(resource_type):
                continue
            url = entry.get("fullUrl")
            server = ""
            if (
                ambiguous
                and (old := resource.get("id")).__class__ is str
                and (resource_type, old) in ambiguous
            ):
                server = server_url(url)
            entries_to_process.append((part, resource, resource_type, url, server))
        named = iter(document.add_entries([item for item in entries_to_process if item[2] != "Bundle"]))
        output = self._output_entries(document, entries_to_process, named, depth, dropped_ids, newly_dropped)
        document.resolve_pending()
        if has_requirements and not output:
            self._deidentifier.log.dropped_resources.append(
                ("Bundle", "nothing in it is needed by the study")
            )
            return None
        return self._output_bundle(raw, document, output)

    def _output_entries(
        self,
        document: DocumentReferences,
        entries_to_process: list[BundleEntry],
        named: Iterator[tuple[str, str]],
        depth: int,
        dropped_ids: dict[int, str],
        newly_dropped: dict[int, str],
    ) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        seen: set[str] = set()
        context, has_requirements = (
            TransformContext({}, "", document),
            bool(self._deidentifier.request.requirements),
        )
        for part, raw, resource_type, _, _ in entries_to_process:
            if resource_type == "Bundle":
                inner = self.deidentify(raw, depth + 1)
                if inner is not None:
                    entries.append(
                        {"fullUrl": self._deidentifier.pseudonyms.full_url(inner["id"]), "resource": inner}
                    )
                continue
            identity, address = next(named)
            if id(raw) in dropped_ids:
                continue
            context.set_resource(raw, identity)
            if has_requirements:
                ages = self._age_observations(resource_type, context)
                entries.extend(
                    {"fullUrl": self._deidentifier.pseudonyms.full_url(resource["id"]), "resource": resource}
                    for resource in ages
                )
            if part is None:
                continue
            try:
                out = self._deidentifier.transform_resource(part, resource_type, context)
            except ResourceDroppedError as error:
                newly_dropped[id(raw)] = str(error)
                continue
            # bdl-7: two versions of one resource cannot both have the fullUrl.
            entries.append({"resource": out} if address in seen else {"fullUrl": address, "resource": out})
            seen.add(address)
        return entries

    def _output_bundle(
        self, raw: dict[str, Any], document: DocumentReferences, entries: list[dict[str, Any]]
    ) -> dict[str, Any]:
        self._deidentifier.log.kept_resources.append("Bundle")
        content_ids = "" if raw.get("id") else "|".join(entry["resource"]["id"] for entry in entries)
        identity = new_identity(raw, "Bundle", self._deidentifier.pseudonyms, default=content_ids)
        out = self._deidentifier.header_elements(raw, "Bundle", identity, marked=False)
        is_document = raw.get("type") == "document" and bool(entries)
        is_document = is_document and entries[0]["resource"]["resourceType"] == "Composition"
        elements = {key: raw[key] for key in _BUNDLE_ELEMENTS if key in raw}
        context = TransformContext(raw, identity, document)
        context.is_deidentified = raw.get("id") == identity
        body = self._deidentifier.rules.body("Bundle")(elements, context) or {}
        if is_document or "identifier" in raw:
            out["identifier"] = self._deidentifier.new_identifier(identity)
        out["type"] = "document" if is_document else "collection"
        out.update((key, body[key]) for key in _BUNDLE_ELEMENTS if key in body)
        dropped_keys = raw.keys() - {
            "resourceType",
            "id",
            "meta",
            "identifier",
            "type",
            "entry",
            *_BUNDLE_ELEMENTS,
        }
        for key in dropped_keys:
            name = key if key in element_table()["Bundle"] else "(unknown)"
            self._deidentifier.log.drops.append((f"Bundle.{name}", "no rule"))
        if entries:
            out["entry"] = entries
        return out

    def _patients(self, entries: list[dict[str, Any]]) -> dict[str, str]:
        """Return the Patient that each ``fullUrl`` of a Bundle names, if the study counts subjects."""
        requirements = self._deidentifier.request.requirements
        if not any(requirement.purpose is RequirementPurpose.COUNT for requirement in requirements):
            return {}
        resources = [(entry.get("fullUrl"), entry.get("resource")) for entry in entries]
        return {
            url: f"Patient/{resource['id']}"
            for url, resource in resources
            if isinstance(url, str)
            and isinstance(resource, dict)
            and resource.get("resourceType") == "Patient"
            and isinstance(resource.get("id"), str)
        }

    def _requires_age(self, resource_type: str) -> bool:
        ages = {
            requirement.type
            for requirement in self._deidentifier.request.requirements
            if requirement.purpose is RequirementPurpose.AGE_FROM_DATE
        }
        return resource_type in ages or (resource_type == "Patient" and bool(ages))

    def _age_observations(self, resource_type: str, context: TransformContext) -> list[dict[str, Any]]:
        observations = []
        for name, requirement in self._deidentifier.minimiser.matching_requirements(
            context.raw, resource_type
        ):
            if requirement.purpose is not RequirementPurpose.AGE_FROM_DATE:
                continue
            age, subject = age_at(requirement.elements, context)
            if age is None:
                self._deidentifier.log.dropped_resources.append(
                    (resource_type, "age without a known birth date")
                )
                continue
            # frozen: part of the bytes
            new = self._deidentifier.pseudonyms.identity("Observation", f"age of {context.identity} {name}")
            out = self._deidentifier.header_elements({}, "Observation", new, marked=True) | {
                "identifier": [self._deidentifier.new_identifier(new)]
            }
            observations.append(out | age_observation(age, subject))
            self._deidentifier.log.kept_resources.append("Observation")
        return observations
