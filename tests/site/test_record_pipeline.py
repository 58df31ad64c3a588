"""Record pipeline: attrition, de-identified records, and content that must not leave."""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection
from datetime import UTC, datetime

import pytest
from tests.deid.record_examples import LEGAL_BASIS
from tests.site.site_cohort import cohort_resources, condition, failing, patient, pressure, study, write

from abaton.errors import RefusedError, SettingsError
from abaton.record_types import DeidentifiedRecord
from abaton.site import AttritionStage, PermissionDecision, check_site

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Consents:
    """Consent gate by subject, with an expiry and an uncovered type."""

    def __init__(self, until: dict[str, datetime], uncovered_type: str = "") -> None:
        self.until, self.uncovered_type = until, uncovered_type

    def __call__(
        self, subject: str, timestamp: datetime, action: object = None, resource_types: Collection[str] = ()
    ) -> PermissionDecision:
        if subject not in self.until:
            return PermissionDecision(allowed=False, reason="no consent")
        if timestamp >= self.until[subject]:
            return PermissionDecision(allowed=False, reason="the consent has expired")
        return PermissionDecision(
            allowed=True,
            legal_basis=LEGAL_BASIS,
            uncovered_types=frozenset({self.uncovered_type} & {*resource_types}),
        )


def attrition_counts(site) -> dict[str, int]:
    for _ in site.accepted_subjects():
        pass
    assert site.attrition.adds_up
    return {stage.value: site.attrition.reached[stage] for stage in site.attrition.stages}


def test_subjects_are_counted_at_every_stage_and_with_their_exclusion(house, opened):
    write(
        house / "records",
        [
            *cohort_resources(*range(20)),
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
    assert attrition_counts(site) == {"read": 23, "eligible": 20, "consented": 18, "retained": 18}
    assert site.attrition.excluded[AttritionStage.ELIGIBLE] == {
        "criterion 1 (age) is not met: the records do not meet it": 1,
        "criterion 2 (condition) is not met: the records do not meet it": 1,
        "criterion 2 (condition) is unknown: a record is coded in another system": 1,
    }
    assert site.attrition.excluded[AttritionStage.CONSENTED] == {
        "no consent": 1,
        "the consent has expired": 1,
    }


def test_accepted_records_are_deidentified_and_linked(house, opened):
    write(house / "records", cohort_resources(1, 2))
    result = list(opened(study()).accepted_subjects())
    text = json.dumps([record.content for subject in result for record in subject.records])
    for old in ("p1", "o1", "c1", "1960-05-01", "2026-03-04"):
        assert f'"{old}"' not in text
        assert f"/{old}" not in text
    for subject in result:
        (observation,) = (r for r in subject.records if r.type == "Observation")
        assert all(isinstance(record, DeidentifiedRecord) for record in subject.records)
        assert observation.content["subject"] == {"reference": f"Patient/{subject.identity}"}
        assert [r.content["id"] for r in subject.records if r.type == "Patient"] == [subject.identity]
    assert {subject.subject for subject in result} == {"p1", "p2"}
    assert "p1" not in repr(result)


def test_pseudonyms_are_stable_over_runs(house, opened):
    write(house / "records", cohort_resources(1, 2))
    site = opened(study())
    assert [s.identity for s in site.accepted_subjects()] == [s.identity for s in site.accepted_subjects()]
    assert [s.identity for s in opened(study()).accepted_subjects()] == [
        s.identity for s in site.accepted_subjects()
    ]


def test_excluded_types_are_withheld(house, opened):
    write(house / "records", cohort_resources(1))
    site = opened(study(), '[rules]\nexcluded_types = ["Observation"]\n')
    assert {record.type for record in site.records()} == {"Patient"}
    assert site.withheld == {"Observation: excluded by the site": 1}


def test_types_outside_the_consent_are_withheld(house, opened):
    write(house / "records", cohort_resources(1))
    later = datetime(2030, 1, 1, tzinfo=UTC)
    site = opened(study(), gate=Consents({"p1": later}, uncovered_type="Observation"))
    assert {record.type for record in site.records()} == {"Patient"}
    assert site.withheld == {"Observation: not covered by the consent": 1}


RULE = """
[[rules.deidentification]]
path = "{path}"
method = "{method}"
settings = {{ {settings} }}
"""


def value_of(site, kind: str, name: str) -> object:
    return next(record.content.get(name) for record in site.records() if record.type == kind)


def test_site_rules_only_restrict(house, opened):
    write(house / "records", cohort_resources(1))
    without_rules = opened(study())
    assert value_of(without_rules, "Observation", "valueQuantity")["value"] == 141
    assert value_of(without_rules, "Patient", "gender") == "female"
    more = RULE.format(
        path="Observation.valueQuantity", method="generalise", settings='to = "bins", width = 20'
    )
    more += RULE.format(path="Patient.gender", method="redact", settings="")
    site = opened(study(), more)
    assert value_of(site, "Observation", "valueQuantity")["value"] == 140
    assert value_of(site, "Patient", "gender") is None
    assert value_of(site, "Patient", "birthDate") == "1960"


def test_site_rule_cannot_restore_redacted_elements(house, opened):
    """A value that the study removes is not restored by a generalising rule of the site."""
    write(house / "records", cohort_resources(1))
    removing = study(preset='rules = [{ path = "Observation.valueQuantity", method = "redact" }]')
    assert value_of(opened(removing), "Observation", "valueQuantity") is None
    more = RULE.format(
        path="Observation.valueQuantity", method="generalise", settings='to = "bins", width = 20'
    )
    assert value_of(opened(removing, more), "Observation", "valueQuantity") is None


def test_coarser_dates_are_coarser_after_shifting_too(house, opened):
    write(house / "records", cohort_resources(1))
    shifting = study(dates='dates = "shift"')
    assert len(value_of(opened(shifting), "Observation", "effectiveDateTime")) == 10
    assert (
        len(value_of(opened(shifting, '[rules]\ndates = "year"\n'), "Observation", "effectiveDateTime")) == 4
    )
    assert (
        value_of(opened(shifting, '[rules]\ndates = "remove"\n'), "Observation", "effectiveDateTime") is None
    )


def test_the_larger_k_counts(house, opened):
    write(house / "records", cohort_resources(1))
    assert opened(study()).anonymity.k == 5
    assert opened(study(), "[rules]\nk = 12\n").anonymity.k == 12


def test_refused_subject_is_excluded_and_others_continue(house, opened):
    old = {**pressure(1), "comment": "as STU3 has it"}
    odd = {**pressure(2), "modifierExtension": [{"url": "http://x", "valueBoolean": True}]}
    write(
        house / "records",
        [*cohort_resources(3), patient(1), condition(1), old, patient(2), condition(2), odd],
    )
    site = opened(study())
    assert attrition_counts(site) == {"read": 3, "eligible": 3, "consented": 3, "retained": 2}
    (reason,) = site.attrition.excluded[AttritionStage.RETAINED]
    assert reason.startswith("refused: the record is FHIR STU3")
    assert (
        site.transform_counts.dropped_resources[
            "Observation", "modifierExtension that may change its meaning"
        ]
        == 1
    )


def test_truncated_files_are_reported_and_other_records_are_read(house, opened):
    folder = write(house / "records", cohort_resources(*range(8)))
    complete = (folder / "Observation.ndjson").read_bytes()
    (folder / "Observation.ndjson").write_bytes(complete[:-40])
    packed = gzip.compress(json.dumps(patient(50)).encode() * 1000)
    (folder / "More.ndjson.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "Odd.ndjson").write_text(
        '{"resourceType": "Patient", \n{"resourceType": "Patient", "id": "p60"}\n'
    )
    site = opened(study())
    result = check_site(site)
    assert attrition_counts(site)["read"] == 9
    assert set(result.skipped) == {
        "the document is not valid JSON",
        "the gzip file is truncated or damaged",
        "the last line is incomplete: the file was truncated",
    }
    assert any("a file is incomplete" in remark for remark in result.remarks)
    assert result.may_participate


def test_empty_cohorts_are_reported(house, opened):
    write(house / "records", [patient(i, "2015-01-01") for i in range(9)])
    result = check_site(opened(study()))
    assert not result.may_participate
    assert reached(result) == [9, 0, 0, 0, 0]
    assert any("no subject reaches the last stage" in remark for remark in result.remarks)
    write(house / "records", [pressure(1)])
    (house / "records" / "Patient.ndjson").unlink()
    assert any("no Patient was read" in remark for remark in check_site(opened(study())).remarks)


def test_other_code_system_is_reported(house, opened):
    write(
        house / "records",
        [build for i in range(9) for build in (patient(i), condition(i, "I10", "urn:local"))],
    )
    result = check_site(opened(study()))
    assert any("another code system" in remark for remark in result.remarks)
    assert "unknown: a record is coded in another system" in next(
        iter(result.attrition.excluded[AttritionStage.ELIGIBLE])
    )


def reached(result) -> list[int]:
    """Return the exact number of subjects at each stage."""
    return [result.attrition.reached[stage] for stage in result.attrition.stages]


def test_the_preflight_is_exact_for_the_site_itself(house, opened):
    write(house / "records", [*cohort_resources(*range(12)), patient(20, "2015-01-01")])
    result = check_site(opened(study()))
    assert list(result.attrition.excluded[AttritionStage.ELIGIBLE].values()) == [1]
    assert reached(result) == [13, 12, 12, 12, 12]
    assert result.to_row()["attrition"][0] == {"stage": "read", "subjects": 13, "excluded": []}


def test_released_cells_have_subjects_with_a_legal_basis_only(house, opened):
    """Subjects who are not eligible, or have not consented, are in no cell; the cells do not depend on the records."""
    write(house / "records", [*cohort_resources(*range(12)), *failing(0, 1), patient(20, "2015-01-01")])
    site = opened(study())
    site.table()
    cells = site.attrition_cells()
    assert len(cells["rows"]) == 12
    assert "20" not in " ".join(subject for subjects in cells.values() for subject in subjects)
    assert all(not subjects for name, subjects in cells.items() if name != "rows")
    write(house / "records", cohort_resources(1, 2))
    other = opened(study())
    other.table()
    assert other.attrition_cells().keys() == cells.keys()


def test_rows_are_the_last_stage(house, opened):
    write(house / "records", [*cohort_resources(*range(12)), *failing(0, 1, 2, 3, 4, 5)])
    site = opened(study())
    features = site.table()
    assert features.table is not None
    assert len(features.table) == 12
    assert sorted(features.table.y.tolist()) == [0] * 6 + [1] * 6
    assert set(features.table.subjects) == {subject.key for subject in site.accepted_subjects()}
    result = check_site(opened(study()))
    assert reached(result) == [12] * 5
    assert result.may_participate


def test_subjects_without_a_row_are_reported(house, opened):
    dropping = study(missing='imputation = "drop" #', indicator="")
    lonely = [build(number) for build in (patient, condition) for number in range(20, 28)]
    write(house / "records", [*cohort_resources(*range(12)), *failing(0, 1, 2, 3, 4, 5), *lonely])
    result = check_site(opened(dropping))
    assert reached(result) == [20, 20, 20, 20, 12]
    assert result.attrition.excluded[AttritionStage.ROWS] == {"systolic: no value": 8}


def test_view_with_rows_of_other_persons_is_refused(house, opened):
    """A record of one person refers to another person, who must not get a row."""
    elements = {"elements": 'elements = ["code", "value", "component", "effective", "performer"]'}
    views = {
        "subject": '{ name = "subject", path = "performer.first().getReferenceKey(Patient)" },\n  { name = "date",'
    }
    odd = study(cohort='cohort = "pressures"', **elements, **views)
    records = cohort_resources(*range(9))
    for record in records:
        if record["resourceType"] == "Observation":
            record["performer"] = [{"reference": f"Patient/{record['id']}"}]
    write(house / "records", records)
    with pytest.raises(RefusedError, match="persons who have not consented"):
        opened(odd).table()


def test_missing_units_and_single_class_are_reported(house, opened):
    without = [{**pressure(i), "valueQuantity": {"value": 141}} for i in range(9)]
    write(house / "records", [*(build(i) for build in (patient, condition) for i in range(9)), *without])
    result = check_site(opened(study()))
    assert any(remark.startswith("systolic: no unit") for remark in result.remarks)
    assert any(remark.startswith("heart_failure: only one class;") for remark in result.remarks)


def test_preflight_contains_no_content(house, opened):
    secret = "Zanzibar-4711"
    records = [*cohort_resources(*range(6)), {**patient(7, secret), "name": [{"family": secret}]}]
    records += [{**condition(8), "code": {"coding": [{"system": secret, "code": secret}]}}, patient(8)]
    records += [{**pressure(9), "subject": {"reference": f"Patient/{secret}"}}, {"resourceType": secret}]
    folder = write(house / "records", records[:-1])
    (folder / "Other.ndjson").write_text(json.dumps(records[-1]) + "\n" + secret)
    assert secret not in json.dumps(check_site(opened(study())).to_row())


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda house: (house / "study.key").unlink(), "the key cannot be read"),
        (lambda house: (house / "study.key").chmod(0o644), "other users can read the key"),
        (lambda house: (house / "study.key").write_bytes(b"short"), "the study key is not usable"),
    ],
)
def test_invalid_keys_are_reported(house, opened, make, problem):
    write(house / "records", cohort_resources(1))
    make(house)
    with pytest.raises(SettingsError, match=problem):
        opened(study())


def test_other_files_than_ndjson_are_refused(house, opened):
    write(house / "records", cohort_resources(1))
    (house / "records" / "one.json").write_text(json.dumps(patient(2)))
    with pytest.raises(SettingsError, match="not NDJSON"):
        list(opened(study()).accepted_subjects())


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
    from abaton.site import build_site, load_site

    site = build_site(load_site(house / "site.toml"), study(), NOW)
    result = list(site.accepted_subjects())
    assert len(result) == 6
    for subject in result:
        (seen,) = (r for r in subject.records if r.type == "Observation")
        assert seen.content["subject"]["reference"] == f"Patient/{subject.identity}"


@pytest.mark.shared
def test_real_export_is_processed_and_linked(shared, house):
    """Synthetic patients of a public bulk export: every exclusion has a reason, every record has its subject."""
    from abaton.site import build_site, load_site

    text = (house / "site.toml").read_text().replace('"records"', f'"{shared / "data/fhir/bulk-ndjson"}"')
    (house / "site.toml").write_text(text)
    complete = study()
    adults = complete.eligibility.model_copy(update={"criteria": complete.eligibility.criteria[:1]})
    site = build_site(
        load_site(house / "site.toml"), complete.model_copy(update={"eligibility": adults}), NOW
    )
    result = list(site.accepted_subjects())
    assert len(result) > 100
    assert site.attrition.adds_up
    for subject in result:
        named = {
            record.content["subject"]["reference"] for record in subject.records if record.type != "Patient"
        }
        assert named <= {subject.key}
