"""From an InteropEHRate Bundle to the table of a study document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from abaton.study.fhir_bundle import primitives
from abaton.study.fhir_bundle.data_requirement import read_requirement, read_timing
from abaton.study.fhir_bundle.group_resource import read_cohort
from abaton.study.fhir_bundle.primitives import (
    Node,
    Report,
    concepts,
    from_extension,
    read_period,
    read_telecom,
    terms,
    without_none,
)

_CARRIED = frozenset(
    {
        *("resourceType", "id", "meta", "language", "text", "extension", "identifier", "title", "status"),
        *("primaryPurposeType", "condition", "contact", "relatedArtifact", "location", "description"),
        *("enrollment", "period", "site"),
    }
)


def read_bundle(
    content: dict[str, Any], neighbours: Iterable[dict[str, Any]] = ()
) -> tuple[dict[str, Any], Report]:
    """The table of a study document, and what was found wrong on the way.

    Args:
        content: A Bundle of type collection, or a ResearchStudy.
        neighbours: Resources that a lone ResearchStudy may point to.

    Returns:
        The table (to be checked by the study's model) and the report.
    """
    report = Report()
    root = Node(content, str(content.get("resourceType", "")), report)
    resources = _resources(root, neighbours)
    studies = [node for node in resources.values() if node.value.get("resourceType") == "ResearchStudy"]
    if len({node.path for node in studies}) != 1:
        root.wrong(
            "there is not exactly one ResearchStudy", "a study document is a Bundle around one ResearchStudy"
        )
        return {}, report
    return _study(studies[0], resources), report


def _resources(root: Node, neighbours: Iterable[dict[str, Any]]) -> dict[str, Node]:
    """Every resource by the names under which it may be referred to."""
    if root.value.get("resourceType") == "ResearchStudy":
        beside = [Node(item, str(item.get("resourceType")), root.report) for item in neighbours]
        return {_name(node): node for node in [*beside, root]}
    if root.value.get("resourceType") != "Bundle":
        root.wrong("this is not a study document", "give a FHIR Bundle of type collection, or a study.toml")
        return {}
    if root.text("type", needed=True) not in ("collection", None):
        root.wrong("the Bundle is not a collection", "InteropEHRate's study documents have type 'collection'")
    found: dict[str, Node] = {}
    for entry in root.each("entry", needed=True):
        resource = entry.get("resource", needed=True)
        if resource is not None and isinstance(resource.value, dict):
            found[_name(resource)] = resource
            if url := entry.text("fullUrl"):
                found[url] = resource
    return found


def _name(node: Node) -> str:
    return f"{node.value.get('resourceType')}/{node.value.get('id')}"


def _target(holder: Node | None, resources: dict[str, Node], kind: str) -> Node | None:
    """The resource that a Reference points to."""
    reference = holder.text("reference", needed=True) if holder else None
    if holder is None or reference is None:
        return None
    target = resources.get(reference) or resources.get("/".join(reference.split("/")[-2:]))
    if target is None or target.value.get("resourceType") != kind:
        holder.wrong(f"the {kind} that this points to is not there", "put it into the Bundle")
        return None
    return target


def _study(node: Node, resources: dict[str, Node]) -> dict[str, Any]:
    origins = node.report.origins
    for key in node.value:
        if key == "modifierExtension":
            node.wrong("an unknown modifierExtension may change the meaning of everything", "remove it")
        elif key not in _CARRIED:
            node.report.passed_over.append(f"{node.path}.{key}")
    details = _details(node)
    protection = details.pop("deidentification", {})
    table = {
        "study": {
            **_identification(node),
            **_picked(details, "version", "legal_basis", "shares", "retention"),
        },
        "centre": _centre(_target(node.one("site"), resources, "Location"), resources),
        "contacts": [
            without_none({"name": contact.text("name"), "telecom": read_telecom(contact)})
            for contact in node.each("contact", needed=True)
        ],
        "eligibility": read_cohort(_target(node.one("enrollment"), resources, "Group"), node.report),
        "data": _data(node),
        "deidentification": {**protection, **_mechanism(node)}
        if isinstance(protection, dict)
        else protection,
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


def _details(node: Node) -> dict[str, Any]:
    """What the guide has no code for, from our own extension."""
    found = node.extension(primitives.DETAILS)
    if found is None:
        return {}
    for key in ("deidentification", "privacy", "views", "features", "learning", "consent", "persons"):
        node.report.origins[(key,)] = f"{found.path}.{key}"
    try:
        details = from_extension(found.value)
    except ValueError as error:
        found.wrong(f"this is {error}", "let 'abaton study export' write it")
        return {}
    return details if isinstance(details, dict) else {}


def _picked(details: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: details.pop(key) for key in keys if key in details}


def _identification(node: Node) -> dict[str, Any]:
    identifiers = node.each("identifier", needed=True)
    enrolment = node.extension(primitives.ENROLMENT, needed=True)
    purpose = node.get("primaryPurposeType", needed=True)
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
            "id": identifiers[0].text("value", needed=True) if identifiers else None,
            "system": identifiers[0].text("system") if identifiers else None,
            "title": node.text("title", needed=True),
            "language": node.text("language", needed=True),
            "status": node.text("status", needed=True),
            "purpose": _purpose(purpose) if purpose else None,
            "question": node.text("description"),
            "regions": concepts(node.each("location", needed=True)),
            "conditions": concepts(node.each("condition")),
            "period": read_period(node.get("period", needed=True)),
            "enrolment": read_period(enrolment.get("valuePeriod", needed=True)) if enrolment else None,
        }
    )


def _purpose(node: Node) -> str | None:
    found = [term.get("code") for term in terms(node) if term.get("system") == primitives.PURPOSES]
    if not found:
        node.wrong("the purpose has no code of HL7's list", f"use a code of {primitives.PURPOSES}")
    return str(found[0]) if found else None


def _mechanism(node: Node) -> dict[str, str]:
    extension = node.extension(primitives.ANONYMISATION)
    coding = extension.get("valueCoding", needed=True) if extension else None
    if coding is None:
        return {}
    # The code system says that its codes are not case sensitive.
    words = {"anonymization": "anonymise", "pseudonymization": "pseudonymise"}
    word = words.get((coding.text("code", needed=True) or "").lower())
    if word is None:
        coding.wrong("this way of anonymisation is not known", f"use one of {', '.join(words)}")
        return {}
    return {"mechanism": word}


def _data(node: Node) -> list[dict[str, Any]]:
    extension = node.extension(primitives.DATA_SET, needed=True)
    if extension is None:
        return []
    found = [
        child for child in extension.each("extension", needed=True) if child.text("url") == "DataRequirement"
    ]
    if not found:
        extension.wrong("there is no DataRequirement", "name what the study needs to know")
    made: list[dict[str, Any]] = []
    for child in found:
        requirement = child.get("valueDataRequirement", needed=True)
        if requirement is not None:
            node.report.origins[("data", len(made))] = requirement.path
            made.append(read_requirement(requirement))
    return made


def _centre(node: Node | None, resources: dict[str, Node]) -> dict[str, Any]:
    if node is None:
        return {}
    identifier = node.one("identifier", needed=False)
    address = node.get("address", needed=True)
    node.report.origins[("centre",)] = node.path
    node.report.origins[("centre", "kinds")] = f"{node.path}.type"
    return without_none(
        {
            "name": node.text("name", needed=True),
            "id": identifier.text("value") if identifier else None,
            "system": identifier.text("system") if identifier else None,
            "kinds": concepts(node.each("type", needed=True)),
            "telecom": read_telecom(node, needed=True),
            "address": _address(address) if address else None,
            "endpoint": _endpoint(_target(node.one("endpoint"), resources, "Endpoint")),
        }
    )


def _address(node: Node) -> dict[str, Any]:
    names = {"postcode": "postalCode", "kind": "type"}
    names |= {key: key for key in ("city", "district", "state", "country", "text", "use")}
    made: dict[str, Any] = {key: node.text(name) for key, name in names.items()}
    return without_none({"lines": [line.value for line in node.each("line")], **made})


def _endpoint(node: Node | None) -> dict[str, Any]:
    if node is None:
        return {}
    node.report.origins[("centre", "endpoint")] = node.path
    connection = node.get("connectionType", needed=True)
    return without_none(
        {
            "url": node.text("address", needed=True),
            "name": node.text("name"),
            "status": node.text("status", needed=True),
            "connection": connection.value if connection else None,
            "payloads": concepts(node.each("payloadType", needed=True)),
        }
    )


def _documentation(node: Node) -> list[Node]:
    found = []
    for artifact in node.each("relatedArtifact"):
        if artifact.text("type") == "documentation" and artifact.get("document"):
            found.append(artifact)
        else:
            node.report.passed_over.append(artifact.path)
    return found


def _document(node: Node) -> dict[str, Any]:
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
    made = {key: document.text(name) for key, name in names.items()}
    return without_none({**made, "created": created[:10] if created else None})


def _questionnaire(node: Node, resources: dict[str, Node]) -> dict[str, Any]:
    reference, deadline, reminder = (
        node.extension(name, needed=True) for name in ("Questionnaire", "Deadline", "ReminderFrequency")
    )
    target = reference.get("valueReference", needed=True) if reference else None
    timing = reminder.get("valueTiming", needed=True) if reminder else None
    name = target.text("reference", needed=True) if target else None
    due = (deadline.text("valueDateTime") or deadline.text("valueDate")) if deadline else None
    short = "/".join((name or "").split("/")[-2:])
    # The real documents point to questionnaires that live elsewhere, so this one may be missing.
    resource = resources.get(name or "") or resources.get(short)
    return without_none(
        {
            "reference": short or None,
            "deadline": due[:10] if due else None,
            "reminder": read_timing(timing) if timing else None,
            "resource": resource.value if resource else None,
        }
    )
