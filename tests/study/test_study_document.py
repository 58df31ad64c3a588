"""The study document: what it refuses, with line and remedy, and what its hash depends on."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import pytest
import tomli_w
from tests.study.long_form import long_starter

from abaton.canonical_json import canonical
from abaton.documents.problems import Problem
from abaton.deid.settings import Function, Identity, Mechanism
from abaton.study import StudyError, load_study, notes_on, study_from_toml, write_toml
from abaton.study.document import FORMAT

TODAY = date(2026, 11, 16)
START = long_starter(TODAY)


BAD_PATH = "rules = [{ path = 'Patient.x', method = 'keep' }]"
BAD_METHOD = "rules = [{ path = 'Patient.name', method = 'no' }]"


def problems(text: str) -> tuple[Problem, ...]:
    with pytest.raises(StudyError) as caught:
        study_from_toml(text, "study.toml")
    return caught.value.problems


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_the_starter_passes_without_a_remark():
    assert notes_on(study_from_toml(START), TODAY) == []


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
        ("low = 18", "sex = ['male']", "eligibility.criteria[0]", "do not fit what = 'age'", "bounds"),
        ('last = "P2Y"', 'last = "2 years"', "data[1].dates[0].last", "not a span of time", "P5Y"),
        ('last = "P2Y"', "", "data[1].dates[0]", "one way to say when", "'on'"),
        ('type = "Patient"', 'typ = "Patient"', "data[0].typ", "known key", "did you mean 'type'?"),
        ('elements = ["gender", "birthDate"]', "", "data[0]", "function 'element'", "names what"),
        ("\nk = 5", "\nk = 0", "privacy.anonymity", "k must be", "anonymity"),
        ('type = "Observation"', 'type = "Observaton"', "data[1]", "no resource type 'Observaton'", "'Observation'?"),
        ('"birthDate"]', '"birthdate"]', "data[0]", "Patient has no element 'birthdate'", "'birthDate'?"),
        ('preset = "default"', BAD_PATH, "deidentification.rules[0]", "path", ""),
        ('preset = "default"', BAD_METHOD, "deidentification.rules[0]", "method", "keep"),
        ('shares = ["updates"]', "shares = []", "study", "'shares' is empty", "records"),
        ('retention = "P5Y"', "retention = 5", "study.retention", "text", "docs"),
        ("models-stay = ", "models-stays = ", "consent.statements.models-stays", "not one of", "models-stay"),
        ("bins = [5, 10, 20]", "bins = [5, 7]", "privacy.anonymity", "larger multiple", "anonymity"),
        ("preset = \"default\"", "shift_days = 0", "deidentification", "shift_days", "180"),
    ],
)  # fmt: skip
def test_every_problem_names_line_key_fault_and_remedy(old, new, key, what, remedy):
    assert old in START
    text = START.replace(old, new)
    found = problems(text)
    match = [p for p in found if p.key.startswith(key) and what in p.what and remedy in p.remedy]
    assert match, [str(problem) for problem in found]
    assert match[0].line is not None
    assert text.splitlines()[match[0].line - 1].split(" =")[0].strip("[] ") in key.replace("[0]", "").replace(
        "[1]", ""
    )


def test_all_problems_are_listed_in_the_order_of_the_file():
    text = (
        START.replace('title = "', 'titel = "').replace("low = 18", "low = true").replace("k = 5", "k = -1")
    )
    found = problems(text)
    lines = [problem.line for problem in found]
    assert len(found) >= 4
    assert lines == sorted(lines)
    assert {problem.file for problem in found} == {"study.toml"}


def test_a_missing_section_and_a_missing_key_are_told():
    text = START.replace("[centre]", "[center]").replace("id = ", "# id = ", 1)
    told = {problem.key: problem.what for problem in problems(text)}
    assert told["centre"] == "'centre' is missing"
    assert told["center"] == "'center' is not a known key"
    assert told["study.id"] == "'id' is missing"


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
        ("a = " + "[" * 9000, None),
    ],
)
def test_every_broken_toml_has_its_line(text, line):
    (problem,) = problems(text)
    assert problem.line == line


def test_what_has_no_fingerprint_is_refused(full_text):
    for old, new in (
        ("low = 18", "low = nan"),
        ("population = 3000000000", "population = 99999999999999999999"),
    ):
        assert problems(full_text.replace(old, new))
    (problem,) = problems(full_text.replace('linkId = "1"', 'linkId = "1"\nmaxLength = 99999999999999999'))
    assert "2^53" in problem.what
    assert problems(full_text.replace('linkId = "1"', 'linkId = "1"\nmaxLength = inf'))


def test_a_consent_must_say_what_applies():
    text = START.replace('shares = ["updates"]', 'shares = ["records", "updates"]')
    text = text.replace('mechanism = "pseudonymise"', 'mechanism = "anonymise"')
    (problem,) = problems(text)
    assert "exports-stay" in problem.what
    assert "exports-stay = " in problem.remedy


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe", b"<Bundle/>", b"", b"{}", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"[1"]
)
def test_files_that_are_no_study_are_refused(tmp_path: Path, raw: bytes):
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


def test_the_document_cannot_be_changed(full):
    with pytest.raises(ValueError, match="frozen"):
        full.study = full.study


def test_hash_does_not_depend_on_form(full, full_text):
    bare = "\n".join(line for line in full_text.splitlines() if not line.startswith("#"))
    assert study_from_toml(bare.replace(" = ", "=", 3)).hash == full.hash
    assert study_from_toml(write_toml(full)).hash == full.hash
    assert study_from_toml(full_text.replace("low = 18\n", "low = 18.0\n")).hash == full.hash
    assert study_from_toml(full_text.replace("\n", "\r\n")).hash == full.hash


@pytest.mark.parametrize("text", ["a\rb", 'a\n"""b\\', "e\u0301 \U0001f600\n''' \\n", "1.0", "x\u2028\ty"])
def test_any_text_survives_being_written(full_text, text):
    table = tomllib.loads(full_text)
    table["study"]["question"] = text
    study = study_from_toml(tomli_w.dumps(table))
    assert study.study.question == text
    assert study_from_toml(write_toml(study)).hash == study.hash


def test_hash_depends_on_every_word(full, full_text):
    for old, new in (("Second line", "Second  line"), ("low = 18", "low = 19"), ('"en-GB"', '"en"')):
        assert study_from_toml(full_text.replace(old, new)).hash != full.hash


def test_golden_hash(full):
    """The hash of a document never changes: consents are pinned to it."""
    assert full.hash == "5d08c001d81bf737861d50957e66258119d8f5fcaf9224b2946748e542e98270"
    assert study_from_toml(START).hash == "6e59c75f824714e3b782b4f625e53b905f2420e8ff908a95738012e1e1276187"
    assert canonical({"format": FORMAT, **full.content()}).startswith(b'{"centre":{"address":{"city":"Pisa"')


def test_what_the_deidentifier_gets(full_text):
    text = full_text.replace(
        'value_set = "http://hl7.org/fhir/ValueSet/observation-category"',
        "any = [{ system = 'a', code = 'b' }]",
    )
    need = study_from_toml(text).need(date(2026, 3, 1))
    assert need.study == "heart/2026-11"
    assert [want.function for want in need.wants[:3]] == [
        Function.ELEMENT,
        Function.AGE_FROM_DATE,
        Function.COUNT,
    ]
    assert need.wants[0].dates[0].start == "2020-01-01"
    assert need.wants[1].elements == ("effectiveDateTime",)
    assert need.wants[1].dates[0].start == need.wants[1].dates[0].end == "2026-01-31"
    assert need.wants[2].dates[0].start == "2026-02-28"
    assert need.deidentification.mechanism is Mechanism.PSEUDONYMISE
    assert need.deidentification.identity is Identity.PSEUDO_IDENTITY
    assert need.deidentification.rules[0].settings == (("to", "year"), ("cap", "89"))


def test_what_a_site_cannot_evaluate_is_refused_not_widened(full):
    with pytest.raises(Exception, match="value set"):
        full.need(TODAY)
    assert any("sites cannot evaluate" in remark for remark in notes_on(full, TODAY))


def test_codes_by_how_they_begin_reach_the_site():
    text = START.replace(
        "[[data]]",
        """[[data]]
type = "Condition"
[[data.codes]]
path = "code"
any = [{ system = "http://hl7.org/fhir/sid/icd-10", code = "I5", match = "startsWith" }]

[[data]]""",
        1,
    )
    study = study_from_toml(text)
    assert not any("cannot evaluate" in remark for remark in notes_on(study, TODAY))
    (code,) = study.need(TODAY).wants[0].codes[0].codes
    assert code.begins
    assert code.means("http://hl7.org/fhir/sid/icd-10", "I50.1")
    assert not code.means("http://hl7.org/fhir/sid/icd-10", "J50.1")
