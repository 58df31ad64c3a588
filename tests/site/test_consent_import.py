"""Imported consent forms, data permits and opt-out lists, from site.toml to accepted subjects."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.governance.test_consent_forms import FORMS_FOLDER
from tests.site.conftest import NOW
from tests.site.test_consent_gate import KEY
from tests.site.test_record_pipeline import cohort_resources, study, write

from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.governance import AuditLog, CascadeStep, ConsentAction, metadata, verify
from abaton.site import (
    AttritionStage,
    SiteConfigError,
    build_site,
    check_site,
    import_site_consents,
    load_site,
    open_centre_session,
)
from abaton.store import Database
from abaton.study_run.consent_roster import ConsentRoster

OID = "urn:oid:2.16.840.1.113883.3.1937.777.24.5.3"
FORMS = f"""
[[consent.forms]]
name = "Broad Consent"
resources = ["consents"]
policies = ["urn:oid:2.16.840.1.113883.3.1937.777.24.2.1790"]
[consent.forms.actions]
collect = ["{OID}|2.16.840.1.113883.3.1937.777.24.5.3.7"]
train = ["{OID}|2.16.840.1.113883.3.1937.777.24.5.3.8"]
[[consent.forms]]
name = "Research policy"
resources = ["consents"]
policies = ["https://hospital.example/policies/research/3"]
scopes = ["patient-privacy"]
actions = {{ collect = ["*"], train = ["*"] }}
"""


def permit(**changed: object) -> str:
    values = {
        "number": "HDAB-2026-17", "authority": "Health Data Access Body", "start": "2026-01-01",
        "end": "2028-12-31", "purposes": [study().study.purpose.value], "document": study().hash, **changed,
    }  # fmt: skip
    rows = [
        f"{key} = {value if key in ('start', 'end') else json.dumps(value)}" for key, value in values.items()
    ]
    return "\n".join(["[consent.permit]", *rows])


@pytest.fixture
def site(house: Path):
    """Return a function that writes the site configuration with a consent section and loads it."""
    (house / "registry.key").write_bytes(KEY)
    (house / "registry.key").chmod(0o600)
    text = (house / "site.toml").read_text() + 'registry = "registry.key"\n'

    def make(consent: str, legal_basis: str = ""):
        content = text.replace('legal_basis = "vote 7/2026"', legal_basis) + consent
        (house / "site.toml").write_text(content)
        return load_site(house / "site.toml")

    return make


def consented(file, when: datetime = NOW) -> int:
    site = build_site(file, study(), when)
    check_site(site)
    return site.attrition.reached[AttritionStage.CONSENTED]


def forms_of(house: Path, *names: str) -> None:
    (house / "consents").mkdir(exist_ok=True)
    for name in names:
        (house / "consents" / f"{name}.ndjson").write_bytes((FORMS_FOLDER / f"{name}.ndjson").read_bytes())


def named(*names: str) -> list[dict]:
    content = json.dumps(cohort_resources(*range(len(names))))
    for number, name in enumerate(names):
        content = content.replace(f'"p{number}"', f'"{name}"').replace(
            f'"Patient/p{number}"', f'"Patient/{name}"'
        )
    return json.loads(content)


def test_imported_forms_admit_subjects_who_signed(house, site):
    file = site(FORMS, 'registry = "governance.db"')
    write(house / "records", named("allowed", "expired", "again", "withdrawn", "stranger"))
    forms_of(house, "mii", "pcf", "us")
    imported = import_site_consents(file, study(), NOW)
    assert imported.issues["a Consent belongs to no form configured in site.toml"] == 13
    assert imported.resources == 36
    assert consented(file) == 2  # 'allowed' and 'again'; 'stranger' signed nothing
    before = AuditLog(Database(house / "governance.db", metadata))
    assert verify(before.rows()) == []
    assert "consent-imported" in {entry["action"] for entry in before.entries()}
    assert import_site_consents(file, study(), NOW).changes.written == 0
    for form_file in (house / "consents").iterdir():
        form_file.write_text('{"resourceType": "Patient", "id": "1"}\n')
    with pytest.raises(RefusedError, match="nothing was changed"):
        import_site_consents(file, study(), NOW)
    assert consented(file) == 2


def test_ambiguous_newest_form_excludes_without_withdrawal(house, site):
    file = site(FORMS, 'registry = "governance.db"')
    write(house / "records", named("allowed", "again"))
    forms_of(house, "mii")
    import_site_consents(file, study(), NOW)
    assert consented(file) == 2
    signed = house / "consents" / "mii.ndjson"
    clear = signed.read_text()
    line_of_patient = next(line for line in clear.splitlines() if "Patient/allowed" in line)
    broken = {
        **json.loads(line_of_patient),
        "dateTime": "2026-02-01",
        "provision": {"type": "deny", "period": {"start": "?"}},
    }
    signed.write_text(clear + json.dumps(broken) + "\n")
    imported = import_site_consents(file, study(), NOW + timedelta(days=1))
    assert imported.withdrawals == 0
    assert consented(file, NOW + timedelta(days=1)) == 1
    signed.write_text(clear)
    import_site_consents(file, study(), NOW + timedelta(days=2))
    assert consented(file, NOW + timedelta(days=2)) == 2


def roll(file, when: datetime = NOW) -> ConsentRoster:
    return ConsentRoster(
        file, study(), "run", {f"Patient/{n}": f"p{n}" for n in range(4)}, lambda at: when + timedelta(0, at)
    )


def test_permit_covers_all_subjects_except_opt_outs(house, site):
    write(house / "records", cohort_resources(0, 1, 2, 3))
    (house / "out.txt").write_text("p1  # by telephone\n\np9\n")
    file = site(permit() + '\n[consent.opt_outs]\nfile = "out.txt"\n')
    assert consented(file) == 4  # the list is not imported yet
    imported = import_site_consents(file, study(), NOW)
    assert (imported.opted_out, imported.new_opt_outs) == (2, 2)
    preflight = check_site(build_site(file, study(), NOW))
    assert consented(file) == 3
    remark_text = next(remark for remark in preflight.remarks if "HDAB-2026-17" in remark)
    assert study().hash in remark_text
    assert "opt-out list" in remark_text
    entries = list(AuditLog(Database(house / "governance.db", metadata)).entries())
    (read,) = [entry for entry in entries if entry["action"] == "opt-outs-read"]
    assert read["detail"]["document"] == study().hash
    assert read["detail"]["legal-basis"] in remark_text
    keys, members = [f"Patient/{n}" for n in range(4)], roll(file)
    assert members.eligible_at(keys, 0.0) == {"Patient/0", "Patient/2", "Patient/3"}
    (house / "out.txt").write_text("p1\np2\n")
    import_site_consents(file, study(), NOW)
    assert members.take_snapshot_for_round(keys, 60.0)[0] == {
        "Patient/0",
        "Patient/3",
    }  # an opt-out after the run began
    (house / "out.txt").write_text("")
    assert import_site_consents(file, study(), NOW).removed_opt_outs == 2
    assert members.eligible_at(keys, 120.0) == set(keys)
    actions = [entry["action"] for entry in AuditLog(Database(house / "governance.db", metadata)).entries()]
    assert actions.count("permit-recorded") == 1
    assert actions.count("opt-outs-read") == 3


@pytest.mark.parametrize("basis", ["permit", "ground"])
def test_withdrawal_overrides_permit_and_legal_basis(house, site, basis):
    write(house / "records", cohort_resources(0, 1, 2, 3))
    file = site(permit()) if basis == "permit" else site("", 'legal_basis = "vote 7/2026"')
    keys, members = [f"Patient/{n}" for n in range(4)], roll(file)
    assert members.eligible_at(keys, 0.0) == set(keys)
    with open_centre_session(file, lambda: pytest.fail("no keys are needed"), lambda: NOW) as session:
        for _ in range(2):
            assert session.withdraw(study(), "p1").step is CascadeStep.DONE
    assert members.eligible_at(keys, 1.0) == {"Patient/0", "Patient/2", "Patient/3"}
    assert consented(file) == 3
    assert "opt-out list" not in " ".join(check_site(build_site(file, study(), NOW)).remarks)


@pytest.mark.parametrize(
    ("changed", "when", "reason"),
    [
        ({"end": "2026-10-31"}, NOW, "the data permit has expired"),
        ({"start": "2027-01-01"}, NOW, "the data permit is not in force yet"),
        ({"document": "cd" * 32}, NOW, "the data permit was given for another version of the study document"),
        (
            {"purposes": ["screening"]},
            NOW,
            "the data permit does not cover the study's purpose or this action",
        ),
        ({}, datetime(2029, 1, 1, tzinfo=UTC), "the data permit has expired"),
    ],
)
def test_a_permit_is_for_one_document_purpose_and_time(house, site, changed, when, reason):
    write(house / "records", cohort_resources(0, 1))
    opened = build_site(site(permit(**changed)), study(), when)
    check_site(opened)
    assert opened.attrition.excluded[AttritionStage.CONSENTED] == {reason: 2}
    assert roll(site(permit(**changed)), when).eligible_at(["Patient/0"], 0.0) == frozenset()


@pytest.mark.parametrize(
    ("actions", "trained", "sent"),
    [(["train"], True, False), (["send"], False, True), (["train", "send"], True, True)],
    ids=["train", "send", "both"],
)  # fmt: skip
def test_permit_covers_only_its_actions(house, site, actions, trained, sent):
    write(house / "records", cohort_resources(0, 1))
    (house / "out.txt").write_text("p1\n")
    file = site(permit(actions=actions) + '\n[consent.opt_outs]\nfile = "out.txt"\n')
    import_site_consents(file, study(), NOW)
    gate = build_site(file, study(), NOW).gate
    decisions = {action: [gate(f"p{n}", NOW, action).allowed for n in (0, 1)] for action in ConsentAction}
    assert decisions[ConsentAction.COLLECT] == [True, False]
    assert decisions[ConsentAction.TRAIN] == [trained, False]
    assert decisions[ConsentAction.SEND] == [sent, False]
    assert roll(file).eligible_at(["Patient/0", "Patient/1"], 0.0) == ({"Patient/0"} if trained else set())
    assert file.config.consent.may_send is sent


def test_actions_of_a_permit_are_validated(site):
    with pytest.raises(SiteConfigError, match=r"consent.permit.actions"):
        site(permit(actions=["sell"]))


def test_opt_out_overrides_a_legal_basis(house, site):
    write(house / "records", cohort_resources(0, 1))
    (house / "out.txt").write_text("p0\n")
    text = (house / "site.toml").read_text()
    (house / "site.toml").write_text(
        f'{text}registry = "registry.key"\n[consent.opt_outs]\nfile = "out.txt"\n'
    )
    file = load_site(house / "site.toml")
    import_site_consents(file, study(), NOW)
    assert consented(file) == 1
    assert roll(file).eligible_at(["Patient/0", "Patient/1"], 0.0) == {"Patient/1"}
    actions = [entry["action"] for entry in AuditLog(Database(house / "governance.db", metadata)).entries()]
    assert actions.count("legal-basis-stated") == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"p1\nHans Meier\n", "line 2"), (b"\xff\xfe", "not UTF-8"), (None, "cannot be read")],
)
def test_invalid_opt_out_list_changes_nothing(house, site, content, problem):
    write(house / "records", cohort_resources(0, 1))
    file = site(permit() + '\n[consent.opt_outs]\nfile = "out.txt"\n')
    (house / "out.txt").write_text("p1\n")
    import_site_consents(file, study(), NOW)
    (house / "out.txt").unlink()
    if content is not None:
        (house / "out.txt").write_bytes(content)
    with pytest.raises(SettingsError, match=problem) as caught:
        import_site_consents(file, study(), NOW)
    assert "Meier" not in str(caught.value)
    assert consented(file) == 1


def test_opt_out_lists_on_servers(house, site, serve_pages):
    consents = [
        {"resourceType": "Consent", "status": "active", "patient": {"reference": "Patient/p0"},
         "provision": {"type": "deny", "period": {"start": "2026-01-01"}}},
        {"resourceType": "Consent", "status": "active", "patient": {"reference": "Patient/p1"},
         "provision": {"type": "permit"}},
        {"resourceType": "Consent", "status": "inactive", "patient": {"reference": "Patient/p2"},
         "provision": {"type": "deny"}},
    ]  # fmt: skip
    write(house / "records", cohort_resources(0, 1, 2, 3))
    page = {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": file} for file in consents]}
    base = serve_pages(
        {
            "/list": ("text/plain", b"p3\n"),
            "/fhir/Consent?scope=research&_count=200": (
                "application/fhir+json",
                json.dumps({**page, "link": [{"relation": "next", "url": "/fhir/page2"}]}).encode(),
            ),
            "/fhir/page2": (
                "application/fhir+json",
                json.dumps(
                    {**page, "entry": [{"resource": {**consents[0], "patient": {"reference": "Patient/p3"}}}]}
                ).encode(),
            ),
        }
    )
    file = site(permit() + f'\n[consent.opt_outs]\nurl = "{base}/list"\n')
    assert import_site_consents(file, study(), NOW).opted_out == 1
    file = site(permit() + f'\n[consent.opt_outs]\nfhir = "{base}/fhir"\n')
    imported = import_site_consents(file, study(), NOW)
    assert (imported.opted_out, imported.new_opt_outs, imported.removed_opt_outs) == (2, 1, 0)
    assert consented(file) == 2
    file = site(permit() + f'\n[consent.opt_outs]\nurl = "{base}/gone"\n')
    with pytest.raises(AbatonError):
        import_site_consents(file, study(), NOW)
    assert consented(file) == 2
