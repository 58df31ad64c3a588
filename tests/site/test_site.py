"""The whole pipeline: who is counted where, what comes out, and what never does."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection
from datetime import UTC, datetime

import pytest
from cohort import condition, failing, patient, people, pressure, study, write
from tests.records.making import HELD

from abaton.errors import Refused, SettingsError
from abaton.records import Deidentified
from abaton.site import Permission, Stage, check_site

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Consents:
    """Consents by subject: until when, and for which types not."""

    def __init__(self, until: dict[str, datetime], never: str = "") -> None:
        self.until, self.never = until, never

    def __call__(
        self, subject: str, moment: datetime, action: object = None, kinds: Collection[str] = ()
    ) -> Permission:
        if subject not in self.until:
            return Permission(allowed=False, reason="no consent")
        if moment >= self.until[subject]:
            return Permission(allowed=False, reason="the consent has expired")
        return Permission(allowed=True, ground=HELD, without=frozenset({self.never} & {*kinds}))


def funnel_of(site) -> dict[str, int]:
    for _ in site.kept():
        pass
    assert site.funnel.adds_up
    return {stage.value: site.funnel.reached[stage] for stage in site.funnel.stages}


def test_people_are_counted_at_every_stage_and_where_they_stop(house, opened):
    write(
        house / "records",
        [
            *people(*range(20)),
            patient(30, "2015-01-01"),
            condition(30),
            patient(31),
            condition(31, "E11"),
            patient(32),
            condition(32, "38341003", "http://local.example/codes"),
        ],
    )
    later = datetime(2030, 1, 1, tzinfo=UTC)
    until = {f"p{i}": later for i in range(18)} | {"p18": datetime(2026, 1, 1, tzinfo=UTC)}
    site = opened(study(), gate=Consents(until))
    assert funnel_of(site) == {"read": 23, "eligible": 20, "consented": 18, "kept": 18}
    assert site.funnel.stopped[Stage.ELIGIBLE] == {
        "criterion 1 (age) is not met: the records do not show it": 1,
        "criterion 2 (condition) is not met: the records do not show it": 1,
        "criterion 2 (condition) is unknown: a record is coded in another system": 1,
    }
    assert site.funnel.stopped[Stage.CONSENTED] == {"no consent": 1, "the consent has expired": 1}


def test_what_comes_out_is_deidentified_and_belongs_together(house, opened):
    write(house / "records", people(1, 2))
    found = list(opened(study()).kept())
    text = json.dumps([record.content for subject in found for record in subject.records])
    for old in ("p1", "o1", "c1", "1960-05-01", "2026-03-04"):
        assert f'"{old}"' not in text
        assert f"/{old}" not in text
    for subject in found:
        (observation,) = (r for r in subject.records if r.type == "Observation")
        assert all(isinstance(record, Deidentified) for record in subject.records)
        assert observation.content["subject"] == {"reference": f"Patient/{subject.identity}"}
        assert [r.content["id"] for r in subject.records if r.type == "Patient"] == [subject.identity]
    assert {subject.subject for subject in found} == {"p1", "p2"}
    assert "p1" not in repr(found)


def test_the_same_people_get_the_same_identities_every_time(house, opened):
    write(house / "records", people(1, 2))
    site = opened(study())
    assert [s.identity for s in site.kept()] == [s.identity for s in site.kept()]
    assert [s.identity for s in opened(study()).kept()] == [s.identity for s in site.kept()]


def test_a_type_that_the_site_never_gives_stays(house, opened):
    write(house / "records", people(1))
    site = opened(study(), '[rules]\nnever = ["Observation"]\n')
    assert {record.type for record in site.records()} == {"Patient"}
    assert site.left_out == {"Observation: the site never gives this type": 1}


def test_a_type_that_the_consent_leaves_out_stays(house, opened):
    write(house / "records", people(1))
    later = datetime(2030, 1, 1, tzinfo=UTC)
    site = opened(study(), gate=Consents({"p1": later}, never="Observation"))
    assert {record.type for record in site.records()} == {"Patient"}
    assert site.left_out == {"Observation: not covered by the consent": 1}


RULE = """
[[rules.deidentification]]
path = "{path}"
method = "{method}"
settings = {{ {settings} }}
"""


def value_of(site, kind: str, name: str) -> object:
    return next(record.content.get(name) for record in site.records() if record.type == kind)


def test_the_sites_rules_only_take_away(house, opened):
    write(house / "records", people(1))
    plain = opened(study())
    assert value_of(plain, "Observation", "valueQuantity")["value"] == 141
    assert value_of(plain, "Patient", "gender") == "female"
    more = RULE.format(
        path="Observation.valueQuantity", method="generalise", settings='to = "bins", width = 20'
    )
    more += RULE.format(path="Patient.gender", method="redact", settings="")
    site = opened(study(), more)
    assert value_of(site, "Observation", "valueQuantity")["value"] == 140
    assert value_of(site, "Patient", "gender") is None
    assert value_of(site, "Patient", "birthDate") == "1960"


def test_a_rule_cannot_bring_back_what_the_study_takes_away(house, opened):
    """The study removes the value; the site coarsens it. Coarse is more than nothing, so nothing it stays."""
    write(house / "records", people(1))
    removing = study(preset='rules = [{ path = "Observation.valueQuantity", method = "redact" }]')
    assert value_of(opened(removing), "Observation", "valueQuantity") is None
    more = RULE.format(
        path="Observation.valueQuantity", method="generalise", settings='to = "bins", width = 20'
    )
    assert value_of(opened(removing, more), "Observation", "valueQuantity") is None


def test_coarser_dates_are_coarser_after_shifting_too(house, opened):
    write(house / "records", people(1))
    shifting = study(dates='dates = "shift"')
    assert len(value_of(opened(shifting), "Observation", "effectiveDateTime")) == 10
    assert (
        len(value_of(opened(shifting, '[rules]\ndates = "year"\n'), "Observation", "effectiveDateTime")) == 4
    )
    assert (
        value_of(opened(shifting, '[rules]\ndates = "remove"\n'), "Observation", "effectiveDateTime") is None
    )


def test_the_larger_k_counts(house, opened):
    write(house / "records", people(1))
    assert opened(study()).anonymity.k == 5
    assert opened(study(), "[rules]\nk = 12\n").anonymity.k == 12


def test_somebody_who_is_refused_is_left_out_and_the_others_go_on(house, opened):
    old = {**pressure(1), "comment": "as STU3 has it"}
    odd = {**pressure(2), "modifierExtension": [{"url": "http://x", "valueBoolean": True}]}
    write(house / "records", [*people(3), patient(1), condition(1), old, patient(2), condition(2), odd])
    site = opened(study())
    assert funnel_of(site) == {"read": 3, "eligible": 3, "consented": 3, "kept": 2}
    (reason,) = site.funnel.stopped[Stage.KEPT]
    assert reason.startswith("refused: this is a record of FHIR STU3")
    assert site.tally.left_out["Observation", "modifierExtension that may change its meaning"] == 1


def test_half_written_files_are_told_and_the_rest_goes_on(house, opened):
    folder = write(house / "records", people(*range(8)))
    whole = (folder / "Observation.ndjson").read_bytes()
    (folder / "Observation.ndjson").write_bytes(whole[:-40])
    packed = gzip.compress(json.dumps(patient(50)).encode() * 1000)
    (folder / "More.ndjson.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "Odd.ndjson").write_text(
        '{"resourceType": "Patient", \n{"resourceType": "Patient", "id": "p60"}\n'
    )
    site = opened(study())
    found = check_site(site)
    assert funnel_of(site)["read"] == 9
    assert set(found.set_aside) == {
        "the document is not valid JSON",
        "the file is not complete gzip",
        "the last line is half-written: the file was cut off",
    }
    assert any("a file was cut off" in remark for remark in found.remarks)
    assert found.usable


def test_empty_cohorts_are_told(house, opened):
    write(house / "records", [patient(i, "2015-01-01") for i in range(9)])
    found = check_site(opened(study()))
    assert not found.usable
    assert [step.reached.text for step in found.steps] == ["9", "0", "0", "0", "0"]
    assert any("nobody comes through" in remark for remark in found.remarks)
    write(house / "records", [pressure(1)])
    (house / "records" / "Patient.ndjson").unlink()
    assert any("no Patient was read" in remark for remark in check_site(opened(study())).remarks)


def test_another_code_system_is_told(house, opened):
    write(
        house / "records", [made for i in range(9) for made in (patient(i), condition(i, "I10", "urn:local"))]
    )
    found = check_site(opened(study()))
    assert any("another system" in remark for remark in found.remarks)
    assert "unknown: a record is coded in another system" in next(iter(found.steps[1].reasons))


def test_small_numbers_are_masked_in_the_check(house, opened):
    write(house / "records", [*people(*range(12)), patient(20, "2015-01-01")])
    found = check_site(opened(study()))
    assert next(iter(found.steps[1].reasons.values())).text == "<5"
    assert found.steps[0].reached.text == "≥5"
    assert found.steps[-1].reached.text == "12"
    assert found.row()["smallest_count"] == 5


def test_rows_are_the_last_stage(house, opened):
    write(house / "records", [*people(*range(12)), *failing(0, 1, 2, 3, 4, 5)])
    site = opened(study())
    made = site.table()
    assert made.table is not None
    assert len(made.table) == 12
    assert sorted(made.table.y.tolist()) == [0] * 6 + [1] * 6
    assert set(made.table.subjects) == {subject.key for subject in site.kept()}
    found = check_site(opened(study()))
    assert [step.reached.text for step in found.steps] == ["12"] * 5
    assert found.usable


def test_subjects_without_a_row_are_told(house, opened):
    dropping = study(missing='missing = "drop" #', indicator="")
    lonely = [made(number) for made in (patient, condition) for number in range(20, 28)]
    write(house / "records", [*people(*range(12)), *failing(0, 1, 2, 3, 4, 5), *lonely])
    found = check_site(opened(dropping))
    assert [step.reached.text for step in found.steps] == ["20", "20", "20", "20", "12"]
    assert {why: cell.text for why, cell in found.steps[-1].reasons.items()} == {"systolic: no value": "8"}


def test_a_view_cannot_bring_in_people_who_have_not_agreed(house, opened):
    """A record about one person names another: no row may be made of the other."""
    elements = {"elements": 'elements = ["code", "value", "component", "effective", "performer"]'}
    views = {
        "subject": '{ name = "subject", path = "performer.first().getReferenceKey(Patient)" },\n  { name = "date",'
    }
    odd = study(cohort='cohort = "pressures"', **elements, **views)
    records = people(*range(9))
    for record in records:
        if record["resourceType"] == "Observation":
            record["performer"] = [{"reference": f"Patient/{record['id']}"}]
    write(house / "records", records)
    with pytest.raises(Refused, match="people who have not agreed"):
        opened(odd).table()


def test_missing_units_and_one_class_only_are_told(house, opened):
    without = [{**pressure(i), "valueQuantity": {"value": 141}} for i in range(9)]
    write(house / "records", [*(made(i) for made in (patient, condition) for i in range(9)), *without])
    found = check_site(opened(study()))
    assert any(remark.startswith("systolic: no unit") for remark in found.remarks)
    assert any(remark.startswith("heart_failure: only one class;") for remark in found.remarks)


def test_no_content_reaches_the_outcome(house, opened):
    secret = "Zanzibar-4711"
    records = [*people(*range(6)), {**patient(7, secret), "name": [{"family": secret}]}]
    records += [{**condition(8), "code": {"coding": [{"system": secret, "code": secret}]}}, patient(8)]
    records += [{**pressure(9), "subject": {"reference": f"Patient/{secret}"}}, {"resourceType": secret}]
    folder = write(house / "records", records[:-1])
    (folder / "Other.ndjson").write_text(json.dumps(records[-1]) + "\n" + secret)
    assert secret not in json.dumps(check_site(opened(study())).row())


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda house: (house / "study.key").unlink(), "the key cannot be read"),
        (lambda house: (house / "study.key").chmod(0o644), "others can read the key"),
        (lambda house: (house / "study.key").write_bytes(b"short"), "the study key is not usable"),
    ],
)
def test_a_key_that_cannot_be_used_is_told(house, opened, make, told):
    write(house / "records", people(1))
    make(house)
    with pytest.raises(SettingsError, match=told):
        opened(study())


def test_files_of_another_form_are_refused_where_lines_are_meant(house, opened):
    write(house / "records", people(1))
    (house / "records" / "one.json").write_text(json.dumps(patient(2)))
    with pytest.raises(SettingsError, match="not NDJSON"):
        list(opened(study()).kept())


def test_bundles_in_a_directory(house, opened):
    (house / "records").mkdir()
    for i in range(6):
        who, what, how = patient(i), condition(i), pressure(i)
        url = f"urn:uuid:00000000-0000-0000-0000-00000000000{i}"
        for resource in (what, how):
            resource["subject"] = {"reference": url}
        entries = [{"resource": how}, {"resource": what}, {"fullUrl": url, "resource": who}]
        bundle = {"resourceType": "Bundle", "type": "collection", "entry": entries}
        (house / "records" / f"{i}.json").write_text(json.dumps(bundle))
    text = (house / "site.toml").read_text().replace('"ndjson"', '"directory"')
    (house / "site.toml").write_text(text)
    from abaton.site import load_site, open_site

    site = open_site(load_site(house / "site.toml"), study(), NOW)
    found = list(site.kept())
    assert len(found) == 6
    for subject in found:
        (seen,) = (r for r in subject.records if r.type == "Observation")
        assert seen.content["subject"]["reference"] == f"Patient/{subject.identity}"


@pytest.mark.shared
def test_a_real_export_goes_through_and_belongs_together(shared, house):
    """Synthetic patients of a public bulk export: nobody is lost without a reason, every record has its person."""
    from abaton.site import load_site, open_site

    text = (house / "site.toml").read_text().replace('"records"', f'"{shared / "data/fhir/bulk-ndjson"}"')
    (house / "site.toml").write_text(text)
    whole = study()
    adults = whole.eligibility.model_copy(update={"criteria": whole.eligibility.criteria[:1]})
    site = open_site(load_site(house / "site.toml"), whole.model_copy(update={"eligibility": adults}), NOW)
    found = list(site.kept())
    assert len(found) > 100
    assert site.funnel.adds_up
    for subject in found:
        named = {
            record.content["subject"]["reference"] for record in subject.records if record.type != "Patient"
        }
        assert named <= {subject.key}
