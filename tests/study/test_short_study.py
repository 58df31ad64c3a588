"""The short study: the same tables and the same hash as the long form, and errors that name the line somebody wrote."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from tests.records.making import HELD
from tests.study.long_form import long_starter

from abaton.deid.settings import Need
from abaton.features import Kind, Outcome, featurise
from abaton.fhir.terminology import is_known, is_public
from abaton.fhir.ucum import read_unit
from abaton.lab.synthetic_hospitals import HOSPITALS, records, study_text
from abaton.records import Consented, Deidentifier, Pseudonyms, Record
from abaton.site import load_site
from abaton.site.factory import open_source
from abaton.study import Answers, StudyError, load_study, starter, study_from_toml, write_bundle, write_toml
from abaton.study.shorthand import HOMES, SYSTEMS, standard_views
from abaton.study.shorthand.codes import Coded, common, found_by
from abaton.study.study_reader import read_toml, study_from_json
from abaton.study.template import inline

ROOT = Path(__file__).parents[2]
LONG = Path(__file__).parent / "long"
TODAY = date(2026, 11, 16)
START = starter("study.toml", TODAY, Answers())


def with_inputs(*lines: str, outcome: str = 'illness = { icd10 = "I50*" }', more: str = "") -> str:
    """The example with other inputs and another outcome."""
    head, _, rest = START.partition("[inputs]\n")
    rest = rest[rest.index("# How every record") :].replace('groups = [{ input = "sex" }, ', "groups = [")
    rest = rest.replace('{ input = "age", bands = [50, 65] }', "")
    rest = rest[: rest.index("# How well")] + rest[rest.index("# How the community") :]
    return f"{head}[inputs]\n" + "\n".join(lines) + f"\n\n[outcome]\n{outcome}\n\n{more}\n{rest}"


def problems(text: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        study_from_toml(text, "study.toml")
    return [str(problem) for problem in caught.value.problems]


def table_of(study, resources, name="site"):
    make = Deidentifier(study.need(TODAY), Pseudonyms(study.study.id, bytes(range(32)), site=name), year=2026)
    kept = [make(Consented(Record(each), HELD)) for each in resources]
    return featurise(study.plan(), [each for each in kept if each is not None])


def same(one, other) -> bool:
    return (
        one.table.columns == other.table.columns
        and one.table.subjects == other.table.subjects
        and one.table.x.tobytes() == other.table.x.tobytes()
        and one.table.y.tobytes() == other.table.y.tobytes()
    )


@pytest.mark.parametrize("name", HOSPITALS)
def test_the_demonstration_makes_the_same_table_in_45_lines_as_in_343(name):
    long = load_study(LONG / "hospitals.toml")
    raw = list(records(name, 1990, scale=0.15))
    made = [table_of(study, raw, name) for study in (study_from_toml(study_text()), long)]
    assert len(study_text().splitlines()) <= 45
    assert same(*made)
    assert made[0].report == made[1].report


@pytest.mark.shared
def test_the_heart_study_makes_the_same_tables_in_45_lines(shared, tmp_path):
    from tests.federation.network.heart import FILES, write_hospitals

    text = (ROOT / "examples" / "heart" / "study.toml").read_text()
    assert len(text.splitlines()) <= 45
    write_hospitals(shared, tmp_path, {})
    both = study_from_toml(text), load_study(LONG / "heart.toml")
    for name in FILES:
        source = open_source(load_site(tmp_path / "sites" / f"{name}.toml"), None, Need("everything"))
        raw = [record.content for record in source.records()]
        assert raw
        assert same(*(table_of(each, raw) for each in both))


@pytest.mark.parametrize("text", [study_text(), START, (ROOT / "examples/heart/study.toml").read_text()])
def test_the_hash_of_a_short_study_is_that_of_its_long_form_in_every_form(text):
    short = study_from_toml(text)
    long = write_toml(short)
    assert "[inputs]" not in long
    assert "[[data]]" in long
    assert study_from_toml(long) == short
    assert study_from_toml(long).hash == short.hash
    assert read_toml(long).derived == ()
    assert study_from_json(json.dumps(write_bundle(short))).hash == short.hash


def test_what_is_derived_never_changes():
    """A site with another version must find the same hash: this fails if a standard view or a derivation changes."""
    assert (
        study_from_toml(study_text()).hash
        == "e5f3b757a6dc61720f7c55d79504bcd69c04198f1bc176350916a005a09e6345"
    )


def test_every_derived_part_is_explained_with_the_line_it_comes_from():
    text = study_text()
    told = read_toml(text).derived
    lines = text.splitlines()
    by_key = {each.key: each for each in told}
    systolic = by_key["inputs.systolic"]
    assert lines[systolic.line - 1].startswith("systolic = ")
    assert [each.words for each in told if each.key == "inputs.cholesterol"] == [
        "input cholesterol: number in mg/dL from measurements.value where code is [loinc 2093-3] or [loinc 14647-2] "
        "latest (missing: mean)"
    ]
    study = study_from_toml(text)
    words = " ".join(each.words for each in told)
    assert all(f"input {each.name}:" in words for each in study.features.inputs)
    assert all(f"standard view {each.name} of" in words for each in study.views)
    assert sum(each.words.startswith("may be known: ") for each in told) == len(study.data)
    for part in ("index date:", "label heart_failure:", "contact:", "people are told"):
        assert part in words


def test_nothing_is_asked_for_that_is_not_used():
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
        ('x = { loinc = "8480-6" }', "inputs.x: a measured number needs its unit", 'unit = "mm[Hg]"'),
        ('x = { loinc = "8480-6", unit = "mmHg" }', "inputs.x: this is not a unit of UCUM", "mm[Hg]"),
        ('x = { loinc = "8480-7", unit = "a" }', "inputs.x.loinc: '8480-7' is not a code of", "correct it"),
        ('x = { icd10 = "E*1" }', "inputs.x.icd10: 'E*1' is not a code", "at the end"),
        ('x = { icd10 = "*" }', "inputs.x.icd10: '*' is not a code", "at the end"),
        ("x = { icd10 = [] }", "inputs.x.icd10: the list of codes is empty", "at least one"),
        ("x = {}", "inputs.x: it names neither codes nor a view", "view = 'diagnoses'"),
        ('x = { snomed = "38341003", atc = "C03*" }', "inputs.x: it is not said in which records", "view ="),
        ('x = { icd10 = "E11*", view = "diagnosis" }', "inputs.x.view: 'diagnosis' is not a view", "'diagnoses'"),
        ('x = { loinc = "8480-6", unit = "a", take = "newest" }', "inputs.x.take: this value is not", "latest"),
        ('x = { loinc = "72166-2", categories.snowmd = { a = "8517006" } }', "'snowmd' is not the short", "snomed"),
        ('x = { loinc = "72166-2", categories.snomed = { a = "8517007" } }', "'8517007' is not a code of", "correct"),
        ('x = { patient = "age", loinc = "8480-6" }', "inputs.x: what a Patient says has no codes", "remove"),
        ('age = {}', "inputs.age: an age needs a day at which it is told", "or [index]"),
        ('x = { icd10 = "I50*" }', "inputs.x: the input 'x' holds the label itself", "leave it out"),
        ('x = { icd10 = "E11*", indicator = true }', "inputs.x: without a row this is 0", "remove"),
    ],
)  # fmt: skip
def test_errors_name_the_short_line_and_the_remedy(line, what, remedy):
    text = with_inputs(line)
    number = text[: text.index(line)].count("\n") + 1
    found = problems(text)
    match = [each for each in found if what in each and remedy in each]
    assert match, found
    assert int(match[0].split(":")[1]) == number


@pytest.mark.parametrize(
    ("outcome", "more", "what"),
    [
        ('a = { icd10 = "I50*", within = "P1Y" }', "", "outcome.a: an event is counted from an index date"),
        ('a = { icd10 = "I50*", within = "P1Y" }', "[index]\nview = 'visits'", "dates are cut to their year"),
        ('a = { icd10 = "I50*", follow_up = "visits" }', "", "outcome.a: 'follow_up' belongs to 'within' or 'up_to'"),
        ('a = { icd10 = "I50*", up_to = "P5Y" }', "", "outcome.a: an event is counted from an index date"),
        ('a = { icd10 = "I50*", up_to = "P5Y" }', "[index]\nview = 'visits'", "dates are cut to their year"),
        ('a = { icd10 = "I50*", up_to = "P5Y", within = "P1Y" }', "", "the outcome is told in two ways"),
        ('a = { loinc = "8480-6", above = 140 }', "", "outcome.a: 'above' has no unit"),
        ('a = { icd10 = "I50*" }\nb = { icd10 = "I21*" }', "", "outcome.b: a study learns one outcome"),
        ('a = { icd10 = "I50*" }', "[features.label]\nkind = 'any'", "outcome: [outcome] and [features.label] say"),
        ('a = { icd10 = "I50*" }', "[systems]\nloinc = 'urn:x'", "'loinc' already has a meaning"),
        ('a = { icd10 = "I50*" }', "[input]\nx = 1", "'input' is not a known key; did you mean 'inputs'?"),
    ],
)  # fmt: skip
def test_errors_of_outcome_and_index(outcome, more, what):
    found = problems(with_inputs('drug = { atc = "C03*" }', outcome=outcome, more=more))
    assert any(what in each for each in found), found


@pytest.mark.parametrize(
    ("outcome", "kind", "classes"),
    [
        ('a = { icd10 = "I50*" }', Outcome.ANY, ("no", "yes")),
        ('a = { patient = "death" }', Outcome.ANY, ("no", "yes")),
        ('a = { loinc = "8480-6", unit = "mm[Hg]", above = 140 }', Outcome.THRESHOLD, ("no", "yes")),
        ('a = { loinc = "72166-2", classes.snomed = { f = "8517006", n = "266919005" } }', Outcome.CLASSES, ("f", "n")),
    ],
)  # fmt: skip
def test_every_kind_of_outcome(outcome, kind, classes):
    study = study_from_toml(with_inputs('drug = { atc = "C03*" }', outcome=outcome))
    assert (study.features.label.kind, study.features.label.names) == (kind, classes)
    assert study_from_toml(write_toml(study)).hash == study.hash


def timed(outcome: str, **learning: str) -> str:
    """The study of the four hospitals, with a time as its outcome."""
    lines = study_text().splitlines()
    lines[2] = f"outcome.heart_failure = {outcome}"
    begin = lines.index("[learning]") + 1
    usual = [line for line in lines[begin:] if not line.startswith(("network =", "evaluation ="))]
    keys = [f"{key} = {value}" for key, value in {"task": '"time"', **learning}.items()]
    return "\n".join([*lines[:begin], *keys, *usual, ""])


def test_a_time_is_one_line_and_says_how_long_people_are_watched():
    study = study_from_toml(timed('{ icd10 = "I50*", up_to = "P5Y" }'))
    label = study.features.label
    assert (label.kind, label.window, label.days, label.names) == (Outcome.TIME, "P5Y", 1826, ())
    assert (label.follow_up.view, label.death.view, label.death.when) == ("visits", "deaths", "date")
    patient = next(need for need in study.data if need.type == "Patient" and "deceased" in need.elements)
    assert patient.function.value == "element"
    assert study.learning.metrics == ("concordance",)
    assert study.learning.rules(3).validation.measure == "likelihood"
    model = study.learning.model(features=4, classes=0)
    assert [tensor.shape for tensor in model.layout] == [(1, 4), (10,)]
    longer = study_from_toml(timed('{ icd10 = "I50*", up_to = "P5Y" }', intervals="20", network='"mlp(4)"'))
    assert [*longer.learning.model(features=4, classes=0).layout][-1].shape == (20,)
    for form in (write_toml(study), json.dumps(write_bundle(study))):
        again = study_from_toml(form) if form[0] != "{" else study_from_json(form)
        assert again.hash == study.hash
    derived = read_toml(timed('{ icd10 = "I50*", up_to = "P5Y" }'), "study.toml").derived
    told = next(line.words for line in derived if line.words.startswith("label"))
    assert told.endswith(
        "time of diagnoses up to P5Y where code is [icd10 I50*] watched by visits and no longer than deaths say"
    )
    dying = study_from_toml(
        timed('{ patient = "death", up_to = "P5Y", follow_up = { atc = "C03*" } }')
    ).features.label
    assert (dying.view, dying.death, dying.follow_up.view) == ("deaths", None, "medicines")


@pytest.mark.parametrize(
    ("learning", "what"),
    [
        ({"task": '"classes"'}, "the task 'classes' does not fit a label of kind 'time'"),
        ({"evaluation.metrics": '["auroc"]'}, "'auroc' stands twice or does not judge the task 'time'"),
        ({"network": '"SGDClassifier"'}, "SGDClassifier does not learn times"),
        ({"network": '"linear"'}, "'linear' does not fit the task 'time'"),
        ({"personalise": '["recalibrate"]'}, "a model of times cannot be made a site's own yet"),
        ({"policy": '{ name = "AsyncDVW(na)", measure = "mcc" }'}, "the measure 'mcc' does not judge the task 'time'"),
        ({"intervals": "1"}, "intervals"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_times_is_refused(learning, what):
    found = problems(timed('{ icd10 = "I50*", up_to = "P5Y" }', **learning))
    assert any(what in each for each in found), found


def test_intervals_belong_to_times():
    found = problems(study_text().replace("[learning]\n", "[learning]\nintervals = 5\n"))
    assert any("the task 'classes' has no intervals" in each for each in found), found


def test_a_short_line_beside_a_long_document_says_what_nobody_may_know():
    """The document's own view takes the place of the standard one, so what it needs is not derived."""
    more = '\n[inputs]\nheart_rate = { loinc = "8867-4", unit = "/min" }\n'
    found = problems(write_toml(study_from_toml(study_text())) + more)
    assert len(found) == 1
    assert "inputs.heart_rate" in found[0]
    assert "no [[data]] of Observation asks for it" in found[0]
    known = more.replace("heart_rate", "pressure").replace("8867-4", "8480-6").replace("/min", "mm[Hg]")
    study_from_toml(write_toml(study_from_toml(study_text())) + known)


def test_both_forms_mix_and_what_is_written_out_is_kept():
    """A long input beside short ones, a view of the study's own in the place of a standard one."""
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
function = "element"
elements = ["status"]

[[data]]
type = "MedicationRequest"
function = "element"
elements = ["medication"]
"""
    study = study_from_toml(with_inputs('drug = { atc = "C03*" }', more=more))
    assert [each.name for each in study.features.inputs] == ["drug", "visits_alone"]
    assert [view.name for view in study.views] == ["mine", "medicines", "patients", "diagnoses"]
    assert [line.type for line in study.data] == ["Encounter", "MedicationRequest", "Patient", "Condition"]
    wrong = with_inputs('drug = { atc = "C03*" }', more=more.replace('kind = "count"', 'kind = "cuont"'))
    (problem,) = problems(wrong)
    assert "features.inputs[0].kind" in problem
    assert wrong.splitlines()[int(problem.split(":")[1]) - 1] == 'kind = "cuont"'


def test_inputs_without_an_outcome_and_the_other_way_round():
    text = with_inputs('drug = { atc = "C03*" }')
    assert (
        "inputs: it is not said what is learned; add [outcome]"
        in problems(text.replace("[outcome]", "[nothing.x]"))[0]
    )
    assert "it is not said from what" in problems(text.replace("[inputs]\ndrug = ", "[inputs]\n#"))[0]


@pytest.mark.parametrize(("right", "wrong"), [("[inputs]", "[input]"), ("outcome.", "outcomes.")])
def test_a_part_whose_name_is_nearly_right_is_named(right, wrong):
    name = right.strip("[].")
    with pytest.raises(StudyError, match=rf"did you mean \[{name}\] by \[{wrong.strip('[].')}\]"):
        study_from_toml(study_text().replace(f"\n{right}", f"\n{wrong}"))


def test_names_of_systems_alone_derive_nothing():
    assert read_toml(long_starter(TODAY) + '\n[systems]\nheart = "urn:x"\n').study == study_from_toml(
        long_starter(TODAY)
    )


def test_nothing_is_derived_for_a_long_document():
    assert read_toml(long_starter(TODAY)).derived == ()


def test_every_short_name_stands_for_a_public_system_and_has_a_home():
    assert set(SYSTEMS) == set(HOMES) == set(Coded.model_fields) - {"codes"}
    assert all(is_public(system) for system in SYSTEMS.values())
    assert set(HOMES.values()) <= set(standard_views())


@pytest.mark.parametrize("entry", common(), ids=lambda each: each.name)
def test_every_common_code_has_its_terminologys_form_and_makes_an_input(entry):
    for name in SYSTEMS:
        told = entry.line.get(name, ())
        for code in [told] if isinstance(told, str) else told:
            assert is_known(SYSTEMS[name], code.removesuffix("*")), (name, code)
    assert "unit" not in entry.line or read_unit(entry.line["unit"]) is not None
    study = study_from_toml(with_inputs(f"it = {inline(entry.line)}", outcome='x = { patient = "death" }'))
    assert study.features.inputs[0].kind in Kind
    assert found_by(entry.label)[0].name == entry.name


@pytest.mark.parametrize(
    ("words", "name"),
    [("blood pressure", "systolic"), ("BMI", "bmi"), ("hemoglobin", "haemoglobin"), ("I50", "heart_failure"),
     ("sistolic", "systolic"), ("creatinin", "creatinine"), ("statins", "statin")],
)  # fmt: skip
def test_common_codes_are_found_by_name_part_of_it_code_and_with_a_letter_wrong(words, name):
    assert name in [each.name for each in found_by(words)[:4]]
    assert found_by("xyzzy") == []
