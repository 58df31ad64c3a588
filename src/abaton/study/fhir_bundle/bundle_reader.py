"""Conversion of an InteropEHRate Bundle to the table of a study document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from abaton.fhir.elements import resource_types
from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.data_requirement import read_requirement, read_timing
from abaton.study.fhir_bundle.group_resource import read_cohort
from abaton.study.fhir_bundle.primitives import (
    BundleIssues,
    BundleNode,
    from_extension,
    read_codings,
    read_concepts,
    read_period,
    read_telecom,
    without_none,
)

_IMPORTED = frozenset(
    {
        *("resourceType", "id", "meta", "language", "text", "extension", "identifier", "title", "status"),
        *("primaryPurposeType", "condition", "contact", "relatedArtifact", "location", "description"),
        *("enrollment", "period", "site"),
    }
)


def read_bundle(
    content: dict[str, Any], neighbours: Iterable[dict[str, Any]] = ()
) -> tuple[dict[str, Any], BundleIssues]:
    """Read a study from a FHIR Bundle as the table of a study document, and report problems.

    Args:
        content: A Bundle of type collection, or a ResearchStudy.
        neighbours: Resources that a lone ResearchStudy may reference.

    Returns:
        The table, to be validated by the study's model, and the report.
    """
    report = BundleIssues()
    root = BundleNode(content, _root_name(content), report)
    resources = _resources(root, neighbours)
    studies = [node for node in resources.values() if node.value.get("resourceType") == "ResearchStudy"]
    if len({node.path for node in studies}) != 1:
        root.add_problem(
            "there is not exactly one ResearchStudy", "a study document is a Bundle around one ResearchStudy"
        )
        return {}, report
    return _study(studies[0], resources), report


def _root_name(resource: dict[str, Any]) -> str:
    """Return the resource type for the paths of a study's Bundle; 'Bundle' if R4 does not have it."""
    name = resource.get("resourceType")
    return name if isinstance(name, str) and name in resource_types() else "Bundle"


def _resources(root: BundleNode, neighbours: Iterable[dict[str, Any]]) -> dict[str, BundleNode]:
    """Return every resource of a study's Bundle to read by the names under which it may be referenced."""
    if root.value.get("resourceType") == "ResearchStudy":
        beside = [BundleNode(item, _root_name(item), root.report) for item in neighbours]
        return {_reference_name(node): node for node in [*beside, root]}
    if root.value.get("resourceType") != "Bundle":
        root.add_problem(
            "this is not a study document", "give a FHIR Bundle of type collection, or a study.toml"
        )
        return {}
    if root.text("type", required=True) not in ("collection", None):
        root.add_problem(
            "the Bundle is not a collection", "InteropEHRate's study documents have type 'collection'"
        )
    resources: dict[str, BundleNode] = {}
    for entry in root.items("entry", required=True):
        resource = entry.get("resource", required=True)
        if resource is not None and isinstance(resource.value, dict):
            resources[_reference_name(resource)] = resource
            if url := entry.text("fullUrl"):
                resources[url] = resource
    return resources


def _reference_name(node: BundleNode) -> str:
    return f"{node.value.get('resourceType')}/{node.value.get('id')}"


def _target(
    holder: BundleNode | None, resources: dict[str, BundleNode], resource_type: str
) -> BundleNode | None:
    """Return the resource that a Reference in a study's Bundle points to."""
    reference = holder.text("reference", required=True) if holder else None
    if holder is None or reference is None:
        return None
    target = resources.get(reference) or resources.get("/".join(reference.split("/")[-2:]))
    if target is None or target.value.get("resourceType") != resource_type:
        holder.add_problem(f"the referenced {resource_type} is missing", "add it to the Bundle")
        return None
    return target


def _study(node: BundleNode, resources: dict[str, BundleNode]) -> dict[str, Any]:
    origins = node.report.origins
    for key in node.value:
        if key == "modifierExtension":
            node.add_problem(
                "modifierExtension is not supported: it may change the meaning of the study", "remove it"
            )
        elif key not in _IMPORTED:
            node.report.ignored_keys.append(f"{node.path}.{key}")
    details = _details(node)
    deidentification = details.pop("deidentification", {})
    table = {
        "study": {
            **_identification(node),
            **_pop_keys(details, "version", "legal_basis", "shared_data", "retention"),
        },
        "centre": _centre(_target(node.single("site"), resources, "Location"), resources),
        "contacts": [
            without_none({"name": contact.text("name"), "telecom": read_telecom(contact)})
            for contact in node.items("contact", required=True)
        ],
        "eligibility": read_cohort(_target(node.single("enrollment"), resources, "Group"), node.report),
        "data": _data(node),
        "deidentification": {**deidentification, **_mechanism(node)}
        if isinstance(deidentification, dict)
        else deidentification,
        "documents": [_document(artifact) for artifact in _documentation(node)],
        "questionnaires": [
            _questionnaire(item, resources) for item in node.extensions(primitives.QUESTIONNAIRE)
        ],
        **details,
    }
    origins[("study",)] = node.path
    for name, key in (("contacts", "contact"), ("documents", "relatedArtifact")):
        for i in range(len(table[name])):
            origins[(name, i)] = f"{node.path}.{key}[{i}]"
    return {key: value for key, value in table.items() if value}


def _details(node: BundleNode) -> dict[str, Any]:
    """Read the content of Abaton's own extension in a study's Bundle, for which the guide has no codes."""
    extension = node.extension(primitives.DETAILS)
    if extension is None:
        return {}
    for key in ("deidentification", "privacy", "views", "features", "learning", "consent", "citizens"):
        node.report.origins[(key,)] = f"{extension.path}.{key}"
    try:
        details = from_extension(extension.value)
    except ValueError as error:
        extension.add_problem(f"this is {error}", "write it with 'abaton study export'")
        return {}
    return details if isinstance(details, dict) else {}


def _pop_keys(details: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: details.pop(key) for key in keys if key in details}


def _identification(node: BundleNode) -> dict[str, Any]:
    identifiers = node.items("identifier", required=True)
    enrolment = node.extension(primitives.ENROLMENT, required=True)
    purpose = node.get("primaryPurposeType", required=True)
    origins = node.report.origins
    names = {
        "id": "identifier[0].value",
        "system": "identifier[0].system",
        "purpose": "primaryPurposeType",
        "question": "description",
        "regions": "location",
        "conditions": "condition",
        **{key: key for key in ("title", "language", "status", "period")},
    }
    origins.update({("study", key): f"{node.path}.{name}" for key, name in names.items()})
    if enrolment:
        origins[("study", "enrolment")] = f"{enrolment.path}.valuePeriod"
    return without_none(
        {
            "id": identifiers[0].text("value", required=True) if identifiers else None,
            "system": identifiers[0].text("system") if identifiers else None,
            "title": node.text("title", required=True),
            "language": node.text("language", required=True),
            "status": node.text("status", required=True),
            "purpose": _purpose(purpose) if purpose else None,
            "question": node.text("description"),
            "regions": read_concepts(node.items("location", required=True)),
            "conditions": read_concepts(node.items("condition")),
            "period": read_period(node.get("period", required=True)),
            "enrolment": read_period(enrolment.get("valuePeriod", required=True)) if enrolment else None,
        }
    )


def _purpose(node: BundleNode) -> str | None:
    codes = [code.get("code") for code in read_codings(node) if code.get("system") == primitives.PURPOSES]
    if not codes:
        node.add_problem(
            "the purpose has no code of HL7's code system", f"use a code of {primitives.PURPOSES}"
        )
    return str(codes[0]) if codes else None


def _mechanism(node: BundleNode) -> dict[str, str]:
    extension = node.extension(primitives.ANONYMISATION)
    coding = extension.get("valueCoding", required=True) if extension else None
    if coding is None:
        return {}
    # The codes of this system are not case sensitive.
    mechanisms = {"anonymization": "anonymise", "pseudonymization": "pseudonymise"}
    mechanism = mechanisms.get((coding.text("code", required=True) or "").lower())
    if mechanism is None:
        coding.add_problem("this anonymisation type is unknown", f"use one of {', '.join(mechanisms)}")
        return {}
    return {"mechanism": mechanism}


def _data(node: BundleNode) -> list[dict[str, Any]]:
    extension = node.extension(primitives.DATA_SET, required=True)
    if extension is None:
        return []
    children = [
        child
        for child in extension.items("extension", required=True)
        if child.text("url") == "DataRequirement"
    ]
    if not children:
        extension.add_problem("there is no DataRequirement", "add the data that the study requires")
    requirements: list[dict[str, Any]] = []
    for child in children:
        requirement = child.get("valueDataRequirement", required=True)
        if requirement is not None:
            node.report.origins[("data", len(requirements))] = requirement.path
            requirements.append(read_requirement(requirement))
    return requirements


def _centre(node: BundleNode | None, resources: dict[str, BundleNode]) -> dict[str, Any]:
    if node is None:
        return {}
    identifier = node.single("identifier", required=False)
    address = node.get("address", required=True)
    node.report.origins[("centre",)] = node.path
    node.report.origins[("centre", "types")] = f"{node.path}.type"
    return without_none(
        {
            "name": node.text("name", required=True),
            "id": identifier.text("value") if identifier else None,
            "system": identifier.text("system") if identifier else None,
            "types": read_concepts(node.items("type", required=True)),
            "telecom": read_telecom(node, required=True),
            "address": _address(address) if address else None,
            "endpoint": _endpoint(_target(node.single("endpoint"), resources, "Endpoint")),
        }
    )


def _address(node: BundleNode) -> dict[str, Any]:
    names = {"postcode": "postalCode", "kind": "type"}
    names |= {key: key for key in ("city", "district", "state", "country", "text", "use")}
    address: dict[str, Any] = {key: node.text(name) for key, name in names.items()}
    return without_none({"lines": [line.value for line in node.items("line")], **address})


def _endpoint(node: BundleNode | None) -> dict[str, Any]:
    if node is None:
        return {}
    node.report.origins[("centre", "endpoint")] = node.path
    connection = node.get("connectionType", required=True)
    return without_none(
        {
            "url": node.text("address", required=True),
            "name": node.text("name"),
            "status": node.text("status", required=True),
            "connection": connection.value if connection else None,
            "payloads": read_concepts(node.items("payloadType", required=True)),
        }
    )


def _documentation(node: BundleNode) -> list[BundleNode]:
    artifacts = []
    for artifact in node.items("relatedArtifact"):
        if artifact.text("type") == "documentation" and artifact.get("document"):
            artifacts.append(artifact)
        else:
            node.report.ignored_keys.append(artifact.path)
    return artifacts


def _document(node: BundleNode) -> dict[str, Any]:
    document = node.get("document")
    assert document is not None
    names = {
        "title": "title",
        "content_type": "contentType",
        "language": "language",
        "url": "url",
        "data": "data",
    }
    created = document.text("creation")
    attachment = {key: document.text(name) for key, name in names.items()}
    return without_none({**attachment, "created": created[:10] if created else None})


def _questionnaire(node: BundleNode, resources: dict[str, BundleNode]) -> dict[str, Any]:
    reference, deadline, reminder = (
        node.extension(name, required=True) for name in ("Questionnaire", "Deadline", "ReminderFrequency")
    )
    target = reference.get("valueReference", required=True) if reference else None
    timing = reminder.get("valueTiming", required=True) if reminder else None
    name = target.text("reference", required=True) if target else None
    due = (deadline.text("valueDateTime") or deadline.text("valueDate")) if deadline else None
    short = "/".join((name or "").split("/")[-2:])
    # Published documents reference external questionnaires, so this one may be missing.
    resource = resources.get(name or "") or resources.get(short)
    return without_none(
        {
            "reference": short or None,
            "deadline": due[:10] if due else None,
            "reminder": read_timing(timing) if timing else None,
            "resource": resource.value if resource else None,
        }
    )
