"""Study document: validation with line and remedy, and what the hash depends on."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
import tomli_w
from tests.study.full_studies import long_starter

from abaton.canonical_json import to_canonical_json
from abaton.deid.settings import Mechanism, PseudonymScheme, RequirementPurpose
from abaton.documents.problems import DocumentProblem
from abaton.study import StudyError, lint_study, load_study, study_from_toml, write_toml
from abaton.study.document import FORMAT

TODAY = date(2026, 11, 16)
START = long_starter(TODAY)


BAD_PATH = "rules = [{ path = 'Patient.x', method = 'keep' }]"
BAD_METHOD = "rules = [{ path = 'Patient.name', method = 'no' }]"


def problems(text: str) -> tuple[DocumentProblem, ...]:
    with pytest.raises(StudyError) as caught:
        study_from_toml(text, "study.toml")
    return caught.value.problems


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_the_starter_passes_without_a_remark():
    assert lint_study(study_from_toml(START), TODAY) == []


@pytest.mark.parametrize(
    ("old", "new", "key", "what", "remedy"),
    [
        ("title = ", "titel = ", "study.titel", "'titel' is not a known key", "did you mean 'title'?"),
        ("k = 5", "kk = 5", "privacy.anonymity", "'kk' is not a known key", "did you mean 'k'?"),
        ('mechanism = "', 'mechanismm = "', "deidentification.mechanismm", "known key", "'mechanism'?"),
        ('"pseudonymise"', '"pseudonymize"', "deidentification.mechanism", "not one", "'pseudonymise'?"),
        ('purpose = "diagnostic"', "purpose = 3", "study.purpose", "not one of", "screening"),
        ("low = 18", 'low = "18"', "eligibility.criteria[0].low", "number", "docs"),
        ("low = 18", "low = 90", "eligibility.criteria[0]", "'low' is above 'high'", "swap"),
        ("low = 18", "sex = ['male']", "eligibility.criteria[0]", "do not fit type = 'age'", "bounds"),
        ('last = "P2Y"', 'last = "2 years"', "data[1].dates[0].last", "not a duration", "P5Y"),
        ('last = "P2Y"', "", "data[1].dates[0]", "none or several of 'on'", "one of them"),
        ('type = "Patient"', 'typ = "Patient"', "data[0].typ", "known key", "did you mean 'type'?"),
        ('elements = ["gender", "birthDate"]', "", "data[0]", "purpose 'element'", "elements to keep"),
        ("\nk = 5", "\nk = 0", "privacy.anonymity", "k is 0", "anonymity"),
        ('type = "Observation"', 'type = "Observaton"', "data[1]", "not an R4 resource type", "'Observation'?"),
        ('"birthDate"]', '"birthdate"]', "data[0]", "one of 'elements' is not an element of Patient", "'birthDate'?"),
        ('preset = "default"', BAD_PATH, "deidentification.rules[0]", "path", ""),
        ('preset = "default"', BAD_METHOD, "deidentification.rules[0]", "method", "keep"),
        ('shared_data = ["updates"]', "shared_data = []", "study", "'shared_data' is empty", "records"),
        ('retention = "P5Y"', "retention = 5", "study.retention", "text", "docs"),
        ("models-stay = ", "models-stays = ", "consent.statements.models-stays", "not one of", "models-stay"),
        ("bins = [5, 10, 20]", "bins = [5, 7]", "privacy.anonymity", "larger multiple", "anonymity"),
        ("preset = \"default\"", "max_shift_days = 0", "deidentification", "max_shift_days", "180"),
    ],
)  # fmt: skip
def test_every_problem_has_line_key_text_and_remedy(old, new, key, what, remedy):
    assert old in START
    text = START.replace(old, new)
    reported = problems(text)
    match = [p for p in reported if p.key.startswith(key) and what in p.what and remedy in p.remedy]
    assert match, [str(problem) for problem in reported]
    assert match[0].line is not None
    assert text.splitlines()[match[0].line - 1].split(" =")[0].strip("[] ") in key.replace("[0]", "").replace(
        "[1]", ""
    )


def test_all_problems_are_listed_in_the_order_of_the_file():
    text = (
        START.replace('title = "', 'titel = "').replace("low = 18", "low = true").replace("k = 5", "k = -1")
    )
    reported = problems(text)
    lines = [problem.line for problem in reported]
    assert len(reported) >= 4
    assert lines == sorted(lines)
    assert {problem.file for problem in reported} == {"study.toml"}


def test_missing_section_and_missing_key_are_reported():
    text = START.replace("[centre]", "[center]").replace("id = ", "# id = ", 1)
    problem_by_key = {problem.key: problem.what for problem in problems(text)}
    assert problem_by_key["centre"] == "'centre' is missing"
    assert problem_by_key["center"] == "'center' is not a known key"
    assert problem_by_key["study.id"] == "'id' is missing"


def test_broken_toml_has_line_and_column():
    (problem,) = problems("[study]\nid = \n")
    assert (problem.line, problem.column) == (2, 6)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[study]\nid = "a', 2),
        ("[study]\n\nx = [", 3),
        ("[a]\n[a]\n", 2),
        ("a = 1\na = 2", 2),
        ("\na = " + "[" * 9000, 2),
        ("\n" + "a." * 40_000 + "a = 1", 2),
        ("[" + "a." * 40_000 + "a]", 1),
        ("\n" + "a" * 201 + " = 1", 2),
        ("a = " + "1" * 5000, 1),
    ],
)
def test_every_broken_toml_has_its_line(text, line):
    (problem,) = problems(text)
    assert problem.line == line


def test_study_without_a_canonical_form_is_refused(full_text):
    for old, new in (
        ("low = 18", "low = nan"),
        ("population = 3000000000", "population = 99999999999999999999"),
    ):
        assert problems(full_text.replace(old, new))
    (problem,) = problems(full_text.replace('linkId = "1"', 'linkId = "1"\nmaxLength = 99999999999999999'))
    assert "2^53" in problem.what
    assert problems(full_text.replace('linkId = "1"', 'linkId = "1"\nmaxLength = inf'))


def test_required_consent_statements_must_be_present():
    text = START.replace('shared_data = ["updates"]', 'shared_data = ["records", "updates"]')
    text = text.replace('mechanism = "pseudonymise"', 'mechanism = "anonymise"')
    (problem,) = problems(text)
    assert "exports-stay" in problem.what
    assert "exports-stay = " in problem.remedy


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe", b"<Bundle/>", b"", b"{}", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"[1"]
)
def test_files_without_a_study_are_refused(tmp_path: Path, raw: bytes):
    file = tmp_path / "study.any"
    file.write_bytes(raw)
    with pytest.raises(StudyError) as caught:
        load_study(file)
    assert caught.value.exit_code == 2
    assert str(file) in str(caught.value)


def test_deep_and_marked_json_is_refused(tmp_path: Path):
    for name, text in (("deep", '{"a":' * 5000 + "1" + "}" * 5000), ("bom", "\ufeff{}")):
        file = tmp_path / f"{name}.json"
        file.write_text(text, "utf-8")
        with pytest.raises(StudyError):
            load_study(file)


def test_missing_file_and_directory_are_refused(tmp_path: Path):
    for file in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(StudyError, match="cannot be read"):
            load_study(file)


def test_study_is_immutable(full):
    with pytest.raises(ValueError, match="frozen"):
        full.study = full.study


def test_hash_does_not_depend_on_form(full, full_text):
    bare = "\n".join(line for line in full_text.splitlines() if not line.startswith("#"))
    assert study_from_toml(bare.replace(" = ", "=", 3)).hash == full.hash
    assert study_from_toml(write_toml(full)).hash == full.hash
    assert study_from_toml(full_text.replace("low = 18\n", "low = 18.0\n")).hash == full.hash
    assert study_from_toml(full_text.replace("\n", "\r\n")).hash == full.hash


@pytest.mark.parametrize("text", ["a\rb", 'a\n"""b\\', "e\u0301 \U0001f600\n''' \\n", "1.0", "x\u2028\ty"])
def test_any_text_roundtrips_through_toml(full_text, text):
    table = tomllib.loads(full_text)
    table["study"]["question"] = text
    study = study_from_toml(tomli_w.dumps(table))
    assert study.study.question == text
    assert study_from_toml(write_toml(study)).hash == study.hash


def test_hash_depends_on_every_text(full, full_text):
    for old, new in (("Second line", "Second  line"), ("low = 18", "low = 19"), ('"en-GB"', '"en"')):
        assert study_from_toml(full_text.replace(old, new)).hash != full.hash


def test_golden_hash(full):
    """The hash of a document is stable, because consents refer to it."""
    assert full.hash == "92068d2c01bfa16391bfb4e88d3f835330825046bf61a47b9220495b310ee4ce"
    assert study_from_toml(START).hash == "d2762759164078411f5be1cbf0a837b2044ceace7bec8cb99af3d043d7bd49ed"
    assert to_canonical_json({"format": FORMAT, **full.content()}).startswith(
        b'{"centre":{"address":{"city":"Pisa"'
    )


def test_data_request_matches_the_document(full_text):
    text = full_text.replace(
        'value_set = "http://hl7.org/fhir/ValueSet/observation-category"',
        "any_of = [{ system = 'a', code = 'b' }]",
    )
    request = study_from_toml(text).data_request(date(2026, 3, 1))
    assert request.study == "heart/2026-11"
    assert [requirement.purpose for requirement in request.requirements[:3]] == [
        RequirementPurpose.ELEMENT,
        RequirementPurpose.AGE_FROM_DATE,
        RequirementPurpose.COUNT,
    ]
    assert request.requirements[0].dates[0].start == "2020-01-01"
    assert request.requirements[1].elements == ("effectiveDateTime",)
    assert request.requirements[1].dates[0].start == request.requirements[1].dates[0].end == "2026-01-31"
    assert request.requirements[2].dates[0].start == "2026-02-28"
    assert request.deidentification.mechanism is Mechanism.PSEUDONYMISE
    assert request.deidentification.identity is PseudonymScheme.PSEUDO_IDENTITY
    assert request.deidentification.rules[0].settings == (("to", "year"), ("cap", "89"))


def test_value_set_filter_is_refused_at_a_site(full):
    with pytest.raises(Exception, match="value set"):
        full.data_request(TODAY)
    assert any("sites cannot evaluate" in remark for remark in lint_study(full, TODAY))


def test_prefix_codes_are_in_the_data_request():
    text = START.replace(
        "[[data]]",
        """[[data]]
type = "Condition"
[[data.codes]]
path = "code"
any_of = [{ system = "http://hl7.org/fhir/sid/icd-10", code = "I5", match = "startsWith" }]

[[data]]""",
        1,
    )
    study = study_from_toml(text)
    assert not any("cannot evaluate" in remark for remark in lint_study(study, TODAY))
    (code,) = study.data_request(TODAY).requirements[0].codes[0].codes
    assert code.is_prefix
    assert code.matches("http://hl7.org/fhir/sid/icd-10", "I50.1")
    assert not code.matches("http://hl7.org/fhir/sid/icd-10", "J50.1")
