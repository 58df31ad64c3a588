"""Shorthand studies: same tables and hash as the full form, and errors with the line of the shorthand."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from tests.deid.record_examples import LEGAL_BASIS
from tests.study.full_studies import long_starter

from abaton.deid import Deidentifier, Pseudonyms
from abaton.deid.settings import DataRequest
from abaton.features import InputKind, LabelKind, build_features
from abaton.fhir.terminology import is_known, is_public
from abaton.fhir.ucum import parse_unit
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS, records, study_text
from abaton.record_types import ConsentedRecord, Record
from abaton.site import load_site
from abaton.site.factory import open_source
from abaton.study import (
    StudyError,
    TemplateAnswers,
    describe,
    load_study,
    study_from_toml,
    study_template,
    write_bundle,
    write_toml,
)
from abaton.study.shorthand import DEFAULT_VIEWS, SYSTEMS, standard_views
from abaton.study.shorthand.codes import ShortCodes, common_inputs, find_common_inputs
from abaton.study.study_reader import read_toml, study_from_json
from abaton.study.template import inline_table

ROOT = Path(__file__).parents[2]
LONG = Path(__file__).parent / "full"
TODAY = date(2026, 11, 16)
START = study_template("study.toml", TODAY, TemplateAnswers())


def with_inputs(*lines: str, outcome: str = 'illness = { icd10 = "I50*" }', more: str = "") -> str:
    """Return the example with other inputs and another outcome."""
    start, _, end = START.partition("[inputs]\n")
    end = end[end.index("# De-identification of every") :].replace(
        'groups = [{ input = "sex" }, ', "groups = ["
    )
    end = end.replace('{ input = "age", bands = [50, 65] }', "")
    end = end[: end.index("# Anonymity required")] + end[end.index("# Training and evaluation") :]
    return f"{start}[inputs]\n" + "\n".join(lines) + f"\n\n[outcome]\n{outcome}\n\n{more}\n{end}"


def problems(text: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        study_from_toml(text, "study.toml")
    return [str(problem) for problem in caught.value.problems]


def table_of(study, resources, name="site"):
    deidentifier = Deidentifier(
        study.data_request(TODAY), Pseudonyms(study.study.id, bytes(range(32)), site=name), year=2026
    )
    deidentified = [deidentifier(ConsentedRecord(Record(resource), LEGAL_BASIS)) for resource in resources]
    return build_features(
        study.feature_spec(), [resource for resource in deidentified if resource is not None]
    )


def same(one, other) -> bool:
    return (
        one.table.columns == other.table.columns
        and one.table.subjects == other.table.subjects
        and one.table.x.tobytes() == other.table.x.tobytes()
        and one.table.y.tobytes() == other.table.y.tobytes()
    )


@pytest.mark.parametrize("name", FOUR_HOSPITALS.hospitals)
def test_shorthand_of_the_demo_builds_the_same_table_as_its_full_form(name):
    long = load_study(LONG / "hospitals.toml")
    raw = list(records(name, 1990, scale=0.15))
    tables = [table_of(study, raw, name) for study in (study_from_toml(study_text()), long)]
    assert len(study_text().splitlines()) <= 46
    assert same(*tables)
    assert tables[0].report == tables[1].report


@pytest.mark.shared
def test_shorthand_of_the_heart_study_builds_the_same_tables(shared, tmp_path):
    from tests.study_run.network.network_heart import FILES, write_hospitals

    text = (ROOT / "examples" / "heart" / "study.toml").read_text()
    assert len(text.splitlines()) <= 45
    write_hospitals(shared, tmp_path, {})
    both = study_from_toml(text), load_study(LONG / "heart.toml")
    for name in FILES:
        source = open_source(load_site(tmp_path / "sites" / f"{name}.toml"), None, DataRequest("everything"))
        raw = [record.content for record in source.records()]
        assert raw
        assert same(*(table_of(study, raw) for study in both))


@pytest.mark.parametrize("text", [study_text(), START, (ROOT / "examples/heart/study.toml").read_text()])
def test_shorthand_full_form_and_bundle_have_the_same_hash(text):
    short = study_from_toml(text)
    long = write_toml(short)
    assert "[inputs]" not in long
    assert "[[data]]" in long
    assert study_from_toml(long) == short
    assert study_from_toml(long).hash == short.hash
    assert read_toml(long).derived == ()
    assert study_from_json(json.dumps(write_bundle(short))).hash == short.hash


def test_derived_sections_are_stable():
    """Sites with other versions must compute the same hash: standard views and derivation are fixed."""
    assert (
        study_from_toml(study_text()).hash
        == "a50af5f0f22ed24fa858eba29e54d10a4daf76212cf3ad87e3981d0eb4246a1b"
    )


def test_derived_sections_are_listed_with_their_lines():
    text = study_text()
    derived = read_toml(text).derived
    lines = text.splitlines()
    by_key = {section.key: section for section in derived}
    systolic = by_key["inputs.systolic"]
    assert lines[systolic.line - 1].startswith("systolic = ")
    assert [section.description for section in derived if section.key == "inputs.cholesterol"] == [
        "input cholesterol: number in mg/dL from measurements.value where code is [loinc 2093-3] or [loinc 14647-2] "
        "latest (imputation: mean)"
    ]
    study = study_from_toml(text)
    descriptions = " ".join(section.description for section in derived)
    assert all(f"input {section.name}:" in descriptions for section in study.features.inputs)
    assert all(f"standard view {section.name} of" in descriptions for section in study.views)
    assert sum(section.description.startswith("data requirement: ") for section in derived) == len(study.data)
    for part in ("index date:", "label heart_failure:", "contact:", "consent statements"):
        assert part in descriptions


def test_data_requirements_cover_only_used_elements():
    study = study_from_toml(with_inputs('drug = { atc = "C03*" }'))
    assert {(line.type, line.elements) for line in study.data} == {
        ("Patient", ("id",)),
        ("Condition", ("code", "verificationStatus")),
        ("MedicationRequest", ("doNotPerform", "medication", "status")),
    }
    assert [view.columns for view in study.views] == [
        ("subject",),
        ("subject", "system", "code"),
        ("subject", "system", "code"),
    ]


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ('x = { lonic = "8480-6", unit = "mm[Hg]" }', "inputs.x.lonic: 'lonic' is not a known key", "'loinc'?"),
        ('x = { loinc = "8480-6" }', "inputs.x: a measured number has no unit", 'unit = "mm[Hg]"'),
        ('x = { loinc = "8480-6", unit = "mmHg" }', "inputs.x: this is not a UCUM unit", "mm[Hg]"),
        ('x = { loinc = "8480-7", unit = "a" }', "inputs.x.loinc[0]: this is not a code of", "correct it"),
        ('x = { icd10 = "E*1" }', "inputs.x.icd10: this is not a code", "at the end"),
        ('x = { icd10 = "*" }', "inputs.x.icd10: this is not a code", "at the end"),
        ("x = { icd10 = [] }", "inputs.x.icd10: the list of codes is empty", "add a code"),
        ("x = {}", "inputs.x: neither codes nor a view are given", "view = 'diagnoses'"),
        ('x = { snomed = "38341003", atc = "C03*" }', "inputs.x: the codes have no common default view", "view ="),
        ('x = { icd10 = "E11*", view = "diagnosis" }', "inputs.x.view: this is not a view", "'diagnoses'"),
        ('x = { loinc = "8480-6", unit = "a", aggregation = "new" }', "inputs.x.aggregation: this value", "latest"),
        ('x = { loinc = "72166-2", categories.snowmd = { a = "8517006" } }', "'snowmd' is not the short", "snomed"),
        ('x = { loinc = "72166-2", categories.snomed = { a = "8517007" } }', "this is not a code of", "correct"),
        ('x = { patient = "age", loinc = "8480-6" }', "inputs.x: 'patient' has no codes", "remove"),
        ('age = {}', "inputs.age: an age has no reference date", "or [index_date]"),
        ('x = { icd10 = "I50*" }', "inputs.x: the input 'x' contains the label", "remove it"),
        ('x = { icd10 = "E11*", missing_indicator = true }', "inputs.x: without a row this input is 0", "remove"),
    ],
)  # fmt: skip
def test_errors_contain_the_shorthand_line_and_remedy(line, what, remedy):
    text = with_inputs(line)
    number = text[: text.index(line)].count("\n") + 1
    reported = problems(text)
    match = [problem for problem in reported if what in problem and remedy in problem]
    assert match, reported
    assert int(match[0].split(":")[1]) == number


@pytest.mark.parametrize(
    ("outcome", "more", "what"),
    [
        ('a = { icd10 = "I50*", outcome_window = "P1Y" }', "", "outcome.a: an event has no index date"),
        ('a = { icd10 = "I50*", outcome_window = "P1Y" }', "[index_date]\nview = 'visits'", "reduced to years"),
        ('a = { icd10 = "I50*", follow_up = "visits" }', "", "outcome.a: 'follow_up' has neither 'outcome_window'"),
        ('a = { icd10 = "I50*", up_to = "P5Y" }', "", "outcome.a: an event has no index date"),
        ('a = { icd10 = "I50*", up_to = "P5Y" }', "[index_date]\nview = 'visits'", "reduced to years"),
        ('a = { icd10 = "I50*", up_to = "P5Y", outcome_window = "P1Y" }', "", "the outcome has two definitions"),
        ('a = { loinc = "8480-6", threshold = 140 }', "", "outcome.a: 'threshold' has no unit"),
        ('a = { icd10 = "I50*" }\nb = { icd10 = "I21*" }', "", "outcome.b: there are several outcomes"),
        ('a = { icd10 = "I50*" }', "[features.label]\nkind = 'any'", "outcome: both [outcome] and [features.label]"),
        ('a = { icd10 = "I50*" }', "[systems]\nloinc = 'urn:x'", "'loinc' is a reserved name"),
        ('a = { icd10 = "I50*" }', "[input]\nx = 1", "'input' is not a known key; did you mean 'inputs'?"),
    ],
)  # fmt: skip
def test_errors_of_outcome_and_index_date(outcome, more, what):
    reported = problems(with_inputs('drug = { atc = "C03*" }', outcome=outcome, more=more))
    assert any(what in problem for problem in reported), reported


@pytest.mark.parametrize(
    ("outcome", "kind", "classes"),
    [
        ('a = { icd10 = "I50*" }', LabelKind.ANY, ("no", "yes")),
        ('a = { patient = "death" }', LabelKind.ANY, ("no", "yes")),
        ('a = { loinc = "8480-6", unit = "mm[Hg]", threshold = 140 }', LabelKind.THRESHOLD, ("no", "yes")),
        (
            'a = { loinc = "72166-2", classes.snomed = { f = "8517006", n = "266919005" } }',
            LabelKind.CLASSES,
            ("f", "n"),
        ),
    ],
)  # fmt: skip
def test_every_kind_of_outcome(outcome, kind, classes):
    study = study_from_toml(with_inputs('drug = { atc = "C03*" }', outcome=outcome))
    assert (study.features.label.kind, study.features.label.class_names) == (kind, classes)
    assert study_from_toml(write_toml(study)).hash == study.hash


def timed(outcome: str, **learning: str) -> str:
    """Return the study of the four hospitals with a survival outcome."""
    lines = study_text().splitlines()
    lines[2] = f"outcome.heart_failure = {outcome}"
    begin = lines.index("[learning]") + 1
    common_lines = [line for line in lines[begin:] if not line.startswith(("model =", "evaluation ="))]
    keys = [f"{key} = {value}" for key, value in {"task": '"survival"', **learning}.items()]
    return "\n".join([*lines[:begin], *keys, *common_lines, ""])


def test_survival_outcome_is_one_line_with_follow_up():
    study = study_from_toml(timed('{ icd10 = "I50*", up_to = "P5Y" }'))
    label = study.features.label
    assert (label.kind, label.outcome_window, label.window_days, label.class_names) == (
        LabelKind.TIME,
        "P5Y",
        1826,
        (),
    )
    assert (label.follow_up.view, label.death.view, label.death.date_column) == ("visits", "deaths", "date")
    patient = next(need for need in study.data if need.type == "Patient" and "deceased" in need.elements)
    assert patient.purpose.value == "element"
    assert study.learning.metrics == ("concordance",)
    assert study.learning.build_strategy(3).validation.metric == "likelihood"
    model = study.learning.build_model(features=4, classes=0)
    assert [tensor.shape for tensor in model.layout] == [(1, 4), (10,)]
    longer = study_from_toml(
        timed('{ icd10 = "I50*", up_to = "P5Y" }', hazard_intervals="20", model='"mlp(4)"')
    )
    assert [*longer.learning.build_model(features=4, classes=0).layout][-1].shape == (20,)
    for form in (write_toml(study), json.dumps(write_bundle(study))):
        again = study_from_toml(form) if form[0] != "{" else study_from_json(form)
        assert again.hash == study.hash
    derived = read_toml(timed('{ icd10 = "I50*", up_to = "P5Y" }'), "study.toml").derived
    description = next(line.description for line in derived if line.description.startswith("label"))
    assert description.endswith(
        "time of diagnoses up to P5Y where code is [icd10 I50*] with follow-up from visits censored by deaths"
    )
    dying = study_from_toml(
        timed('{ patient = "death", up_to = "P5Y", follow_up = { atc = "C03*" } }')
    ).features.label
    assert (dying.view, dying.death, dying.follow_up.view) == ("deaths", None, "medicines")


@pytest.mark.parametrize(
    ("learning", "what"),
    [
        ({"task": '"classification"'}, "the task 'classification' does not fit a label of kind 'time'"),
        ({"evaluation.metrics": '["auroc"]'}, "'auroc' is listed twice or does not fit the task 'survival'"),
        ({"model": '"SGDClassifier"'}, "'SGDClassifier' does not fit the task 'survival'"),
        ({"model": '"linear"'}, "'linear' does not fit the task 'survival'"),
        ({"personalise": '["recalibrate"]'}, "survival models cannot be personalised"),
        ({"strategy": '{ name = "AsyncDVW(na)", metric = "mcc" }'}, "'mcc' does not fit the task 'survival'"),
        ({"hazard_intervals": "1"}, "hazard_intervals"),
    ],
)  # fmt: skip
def test_settings_incompatible_with_survival_are_refused(learning, what):
    reported = problems(timed('{ icd10 = "I50*", up_to = "P5Y" }', **learning))
    assert any(what in problem for problem in reported), reported


def test_hazard_intervals_need_survival():
    reported = problems(study_text().replace("[learning]\n", "[learning]\nhazard_intervals = 5\n"))
    assert any("the task 'classification' has no hazard intervals" in problem for problem in reported), (
        reported
    )


def test_shorthand_code_missing_from_data_is_refused():
    """The document's own view replaces the standard one, so its data requirements are not derived."""
    more = '\n[inputs]\nheart_rate = { loinc = "8867-4", unit = "/min" }\n'
    reported = problems(write_toml(study_from_toml(study_text())) + more)
    assert len(reported) == 1
    assert "inputs.heart_rate" in reported[0]
    assert "no [[data]] entry of Observation requires" in reported[0]
    known = more.replace("heart_rate", "pressure").replace("8867-4", "8480-6").replace("/min", "mm[Hg]")
    study_from_toml(write_toml(study_from_toml(study_text())) + known)


def test_shorthand_and_full_form_can_be_combined():
    """A full input beside shorthand, and a view that replaces a standard one."""
    more = """
[[features.inputs]]
name = "visits_alone"
kind = "count"
view = "mine"

[[views]]
name = "mine"
resource = "Encounter"
select = [{ column = [{ name = "subject", path = "subject.getReferenceKey(Patient)" }] }]

[[views]]
name = "medicines"
resource = "MedicationRequest"
[[views.select]]
column = [{ name = "subject", path = "subject.getReferenceKey(Patient)" }]
[[views.select]]
forEach = "medication.ofType(CodeableConcept).coding"
column = [{ name = "system", path = "system" }, { name = "code", path = "code" }]

[[data]]
type = "Encounter"
purpose = "element"
elements = ["status"]

[[data]]
type = "MedicationRequest"
purpose = "element"
elements = ["medication"]
"""
    study = study_from_toml(with_inputs('drug = { atc = "C03*" }', more=more))
    assert [spec.name for spec in study.features.inputs] == ["drug", "visits_alone"]
    assert [view.name for view in study.views] == ["mine", "medicines", "patients", "diagnoses"]
    assert [line.type for line in study.data] == ["Encounter", "MedicationRequest", "Patient", "Condition"]
    invalid = with_inputs('drug = { atc = "C03*" }', more=more.replace('kind = "count"', 'kind = "cuont"'))
    (problem,) = problems(invalid)
    assert "features.inputs[0].kind" in problem
    assert invalid.splitlines()[int(problem.split(":")[1]) - 1] == 'kind = "cuont"'


def test_inputs_without_an_outcome_and_the_other_way_round():
    text = with_inputs('drug = { atc = "C03*" }')
    assert (
        "inputs: the study has no outcome; add [outcome]"
        in problems(text.replace("[outcome]", "[nothing.x]"))[0]
    )
    assert "the study has no inputs" in problems(text.replace("[inputs]\ndrug = ", "[inputs]\n#"))[0]


@pytest.mark.parametrize(("right", "misspelt"), [("[inputs]", "[input]"), ("outcome.", "outcomes.")])
def test_misspelt_section_is_suggested(right, misspelt):
    name = right.strip("[].")
    with pytest.raises(StudyError, match=rf"did you mean \[{name}\] by \[{misspelt.strip('[].')}\]"):
        study_from_toml(study_text().replace(f"\n{right}", f"\n{misspelt}"))


def test_names_of_systems_alone_derive_nothing():
    assert read_toml(long_starter(TODAY) + '\n[systems]\nheart = "urn:x"\n').study == study_from_toml(
        long_starter(TODAY)
    )


def test_full_form_derives_nothing():
    assert read_toml(long_starter(TODAY)).derived == ()


def test_every_short_name_is_a_public_system_with_a_default_view():
    assert set(SYSTEMS) == set(DEFAULT_VIEWS) == set(ShortCodes.model_fields) - {"codes"}
    assert all(is_public(system) for system in SYSTEMS.values())
    assert set(DEFAULT_VIEWS.values()) <= set(standard_views())


@pytest.mark.parametrize("entry", common_inputs(), ids=lambda entry: entry.name)
def test_every_common_code_is_well_formed_and_makes_an_input(entry):
    for name in SYSTEMS:
        codes = entry.shorthand.get(name, ())
        for code in [codes] if isinstance(codes, str) else codes:
            assert is_known(SYSTEMS[name], code.removesuffix("*")), (name, code)
    assert "unit" not in entry.shorthand or parse_unit(entry.shorthand["unit"]) is not None
    study = study_from_toml(
        with_inputs(f"it = {inline_table(entry.shorthand)}", outcome='x = { patient = "death" }')
    )
    assert study.features.inputs[0].kind in InputKind
    assert find_common_inputs(entry.label)[0].name == entry.name


@pytest.mark.parametrize(
    ("text", "name"),
    [("blood pressure", "systolic"), ("BMI", "bmi"), ("hemoglobin", "haemoglobin"), ("I50", "heart_failure"),
     ("sistolic", "systolic"), ("creatinin", "creatinine"), ("statins", "statin")],
)  # fmt: skip
def test_common_inputs_are_found_by_name_code_and_typo(text, name):
    assert name in [entry.name for entry in find_common_inputs(text)[:4]]
    assert find_common_inputs("xyzzy") == []


SPLINED = (
    "age = { reference_date = 2026-01-01, spline = [45, 62, 79] }",
    'creatinine = { loinc = "2160-0", unit = "mg/dL", spline = [0.62, 1.0, 1.62], scale = "log" }',
)


def test_splines_are_the_same_in_every_form():
    text = with_inputs(*SPLINED)
    study = study_from_toml(text)
    age, creatinine = study.features.inputs
    assert (age.spline, age.scale) == ((45.0, 62.0, 79.0), None)
    assert (creatinine.spline, creatinine.scale) == ((0.62, 1.0, 1.62), "log")
    assert study_from_toml(write_toml(study)).hash == study.hash
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    assert study_from_toml(text.replace("79]", "80]")).hash != study.hash
    summary = describe(study)
    assert "spline with knots 45, 62, 79" in summary
    assert "log spline with knots 0.62, 1, 1.62" in summary


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (
            "age = { reference_date = 2026-01-01, spline = [62, 45, 79] }",
            "inputs.age: the knots of a spline do not increase; sort them",
        ),
        (
            "age = { reference_date = 2026-01-01, spline = [45, 79] }",
            "inputs.age: a spline has 2 knots; give 3 to 7",
        ),
        ("sex = { spline = [1, 2, 3] }", "inputs.sex: 'spline' is not a key of kind 'category'"),
        ('age = { reference_date = 2026-01-01, scale = "log" }', "inputs.age: 'scale' has no 'spline'"),
    ],
)
def test_bad_knots_have_the_line_of_the_shorthand(line, what):
    text = with_inputs(line)
    (problem,) = problems(text)
    number = text.splitlines().index(line) + 1
    assert problem.startswith(f"study.toml:{number}: {what}")


def test_plausible_ranges_are_the_same_in_every_form():
    line = 'systolic = { loinc = "8480-6", unit = "mm[Hg]", plausible = [60, 280], on_implausible = "keep" }'
    study = study_from_toml(with_inputs(line))
    (systolic,) = study.features.inputs
    assert (systolic.plausible, systolic.on_implausible) == ((60.0, 280.0), "keep")
    assert study_from_toml(write_toml(study)).hash == study.hash
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    assert "plausible from 60 to 280 with implausible values" in describe(study)
    (problem,) = problems(with_inputs(line.replace("[60, 280]", "[280, 60]")))
    assert "'plausible' is not a range" in problem
