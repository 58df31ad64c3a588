"""InteropEHRate Bundle: lossless conversion, and problems with their FHIR path."""

from __future__ import annotations

import copy
import json
from datetime import date
from pathlib import Path

import pytest
from fhir.resources.R4B.bundle import Bundle
from tests.study.full_studies import long_starter

from abaton.study import (
    StudyError,
    load_study,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)
from abaton.study.fhir_bundle.primitives import from_extension, to_extension

REAL = [
    "ExpiredRDDBundle",
    "FTGMResearchStudy",
    "FunctionExampleRDD",
    "IEHRExampleBundle",
    "NoMatchRDDBundle",
    "RDDExampleBundle",
    "RDDExampleBundle-PDF",
    "ResearchStudyExample",
]


def test_roundtrip_through_bundle_preserves_the_study(full):
    bundle = json.dumps(write_bundle(full))
    back = study_from_json(bundle)
    assert back == full
    assert back.hash == full.hash
    again = study_from_toml(write_toml(back))
    assert again == full
    assert json.dumps(write_bundle(again)) == bundle


def test_written_bundles_are_valid_fhir(full):
    for study in (full, study_from_toml(long_starter(date(2026, 1, 1)))):
        Bundle.model_validate(write_bundle(study))


def test_the_guide_is_followed(full):
    study = write_bundle(full)["entry"][0]["resource"]
    urls = [extension["url"].rsplit("/", 1)[-1] for extension in study["extension"]]
    assert urls == [
        "EnrollmentPeriodExtension-IEHR",
        "AnonymizationExtension-IEHR",
        "DataSetDefinitionExtension-IEHR",
        "QuestionnaireExtension-IEHR",
        "urn:abaton:study:details",
    ]
    assert study["extension"][1]["valueCoding"]["code"] == "pseudonymization"
    for key in (
        "identifier",
        "title",
        "primaryPurposeType",
        "contact",
        "location",
        "period",
        "enrollment",
        "site",
        "text",
    ):
        assert study[key]
    assert len(study["id"]) <= 64


@pytest.mark.parametrize(
    "path",
    [
        "type",
        "entry",
        "entry.0.resource.identifier",
        "entry.0.resource.title",
        "entry.0.resource.language",
        "entry.0.resource.primaryPurposeType",
        "entry.0.resource.contact",
        "entry.0.resource.location",
        "entry.0.resource.period",
        "entry.0.resource.enrollment",
        "entry.0.resource.site",
        "entry.0.resource.status",
        "entry.0.resource.extension.0.valuePeriod",
        "entry.0.resource.extension.1.valueCoding.code",
        "entry.0.resource.extension.2.extension",
        "entry.0.resource.extension.2.extension.0.valueDataRequirement.type",
        "entry.0.resource.extension.2.extension.0.valueDataRequirement.codeFilter.0.path",
        "entry.1.resource.characteristic",
        "entry.1.resource.characteristic.0.code",
        "entry.1.resource.characteristic.0.exclude",
        "entry.2.resource.name",
        "entry.2.resource.type",
        "entry.2.resource.telecom",
        "entry.2.resource.address",
        "entry.2.resource.endpoint",
        "entry.3.resource.address",
        "entry.3.resource.status",
    ],
)
def test_missing_mandatory_element_is_refused_with_its_path(full, path):
    bundle = copy.deepcopy(write_bundle(full))
    *way, last = path.split(".")
    node = bundle
    for part in way:
        node = node[int(part) if part.isdigit() else part]
    del node[last]
    with pytest.raises(StudyError) as caught:
        study_from_json(json.dumps(bundle), "study.json")
    written = "Bundle" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in way)
    problems = [str(problem) for problem in caught.value.problems]
    assert any(written in line and last in line for line in problems), problems
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_missing_resource_is_refused_at_its_reference(full, number):
    bundle = write_bundle(full)
    removed = bundle["entry"].pop(number)["resource"]["resourceType"]
    with pytest.raises(StudyError, match=f"the referenced {removed} is missing"):
        study_from_json(json.dumps(bundle))


def test_dataset_and_enrolment_extensions_are_required(full):
    for number, name in ((0, "EnrollmentPeriod"), (2, "DataSetDefinition")):
        bundle = copy.deepcopy(write_bundle(full))
        del bundle["entry"][0]["resource"]["extension"][number]
        with pytest.raises(StudyError, match=name):
            study_from_json(json.dumps(bundle))


@pytest.mark.parametrize(
    ("where", "key", "value"),
    [
        ("requirement", "limit", 3),
        ("requirement", "profile", ["http://example.org/p"]),
        ("requirement", "extension", [{"url": "http://example.org/x", "valueString": "y"}]),
        ("characteristic", "valueReference", {"reference": "Group/1"}),
        ("study", "modifierExtension", [{"url": "http://example.org/x", "valueBoolean": True}]),
    ],
)
def test_unsupported_restrictions_are_refused(full, where, key, value):
    bundle = copy.deepcopy(write_bundle(full))
    study = bundle["entry"][0]["resource"]
    parts = {
        "study": study,
        "requirement": study["extension"][2]["extension"][0]["valueDataRequirement"],
        "characteristic": bundle["entry"][1]["resource"]["characteristic"][0],
    }
    parts[where][key] = value
    with pytest.raises(StudyError):
        study_from_json(json.dumps(bundle))


def test_invalid_value_is_reported_with_its_fhir_path(full):
    bundle = copy.deepcopy(write_bundle(full))
    bundle["entry"][0]["resource"]["period"]["start"] = "soon"
    bundle["entry"][1]["resource"]["characteristic"][0]["valueRange"]["low"]["value"] = 200
    with pytest.raises(StudyError) as caught:
        study_from_json(json.dumps(bundle))
    assert [problem.key for problem in caught.value.problems] == [
        "Bundle.entry[0].resource.period.start",
        "Bundle.entry[1].resource.characteristic[0]",
    ]


def test_nested_extensions_are_exact():
    value = {"a": [1, 2.5, [True]], "b": {"c": "x"}, "d": 2**40}
    assert from_extension(to_extension("u", value)) == value
    for broken in ({"url": "u"}, {"url": "u", "extension": [{}]}, {"url": "u", "valueString": {}}):
        with pytest.raises(ValueError, match="extension"):
            from_extension(broken)


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
def test_published_documents_roundtrip(shared: Path, name: str):
    study = load_study(shared / "data/fhir/iehr-rdd" / f"{name}.json")
    bundle = write_bundle(study)
    Bundle.model_validate(bundle)
    assert study_from_json(json.dumps(bundle)) == study
    back = study_from_toml(write_toml(study))
    assert back == study
    assert back.hash == study.hash


@pytest.mark.shared
def test_golden_hash_of_a_published_document(shared: Path):
    study = load_study(shared / "data/fhir/iehr-rdd/FunctionExampleRDD.json")
    assert study.hash == "1b361fc901d3c7e260394c132d36c32fef9ab12165100a9589cea688ae7d1657"


@pytest.mark.shared
def test_malformed_document_is_refused_with_line_and_column(shared: Path, tmp_path: Path):
    file = shared / "data/fhir/iehr-rdd/ResearchStudy-FTGM-Frequency.json"
    with pytest.raises(StudyError) as caught:
        load_study(file)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (18, 61)
    mended = tmp_path / "mended.json"
    mended.write_text(json.dumps(json.loads(file.read_text("utf-8"), strict=False)))
    once = [r.frequency for r in load_study(mended).data if r.frequency]
    assert [(f.count, f.on) for f in once] == [(1, (date(2022, 6, 15),))]


@pytest.mark.shared
def test_a_bundle_without_a_study_is_refused(shared: Path):
    with pytest.raises(StudyError, match="not exactly one ResearchStudy"):
        load_study(shared / "data/fhir/iehr-rdd/CodedQuestionnaireExample.json")
