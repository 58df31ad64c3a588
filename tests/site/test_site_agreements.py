"""Consents on other people's forms, data permits and opt-out lists, from site.toml to who is used."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.governance.test_forms import PLACE
from tests.site.conftest import NOW
from tests.site.test_site import people, study, write
from tests.site.test_site_consent import KEY

from abaton.errors import AbatonError, Refused, SettingsError
from abaton.study_run.consent_roster import Roll
from abaton.governance import Action, Audit, CascadeStep, metadata, verify
from abaton.site import SiteError, Stage, check_site, deal, load_site, open_site, read_agreements
from abaton.store import Database

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
    """Writes the site's document with a part on consent, and gives it back read."""
    (house / "tags.key").write_bytes(KEY)
    (house / "tags.key").chmod(0o600)
    text = (house / "site.toml").read_text() + 'tags = "tags.key"\n'

    def make(consent: str, ground: str = ""):
        made = text.replace('ground = "vote 7/2026"', ground) + consent
        (house / "site.toml").write_text(made)
        return load_site(house / "site.toml")

    return make


def consented(file, when: datetime = NOW) -> int:
    site = open_site(file, study(), when)
    check_site(site)
    return site.funnel.reached[Stage.CONSENTED]


def forms_of(house: Path, *names: str) -> None:
    (house / "consents").mkdir(exist_ok=True)
    for name in names:
        (house / "consents" / f"{name}.ndjson").write_bytes((PLACE / f"{name}.ndjson").read_bytes())


def named(*names: str) -> list[dict]:
    made = json.dumps(people(*range(len(names))))
    for number, name in enumerate(names):
        made = made.replace(f'"p{number}"', f'"{name}"').replace(f'"Patient/p{number}"', f'"Patient/{name}"')
    return json.loads(made)


def test_forms_of_elsewhere_let_those_in_who_signed(house, site):
    file = site(FORMS, 'registry = "governance.db"')
    write(house / "records", named("allowed", "expired", "again", "withdrawn", "stranger"))
    forms_of(house, "mii", "pcf", "us")
    done = read_agreements(file, study(), NOW)
    assert done.doubts["a Consent is of no form that the site's document names"] == 13
    assert done.resources == 36
    assert consented(file) == 2  # 'allowed' and 'again'; 'stranger' signed nothing
    before = Audit(Database(house / "governance.db", metadata))
    assert verify(before.rows()) == []
    assert "consent-read" in {entry["action"] for entry in before.entries()}
    assert read_agreements(file, study(), NOW).taken.written == 0
    for each in (house / "consents").iterdir():
        each.write_text('{"resourceType": "Patient", "id": "1"}\n')
    with pytest.raises(Refused, match="nothing was changed"):
        read_agreements(file, study(), NOW)
    assert consented(file) == 2


def test_whose_newest_form_cannot_be_understood_is_out_until_it_is_clear_and_not_withdrawn(house, site):
    file = site(FORMS, 'registry = "governance.db"')
    write(house / "records", named("allowed", "again"))
    forms_of(house, "mii")
    read_agreements(file, study(), NOW)
    assert consented(file) == 2
    signed = house / "consents" / "mii.ndjson"
    clear = signed.read_text()
    mine = next(line for line in clear.splitlines() if "Patient/allowed" in line)
    broken = {
        **json.loads(mine),
        "dateTime": "2026-02-01",
        "provision": {"type": "deny", "period": {"start": "?"}},
    }
    signed.write_text(clear + json.dumps(broken) + "\n")
    done = read_agreements(file, study(), NOW + timedelta(days=1))
    assert done.leaving == 0
    assert consented(file, NOW + timedelta(days=1)) == 1
    signed.write_text(clear)
    read_agreements(file, study(), NOW + timedelta(days=2))
    assert consented(file, NOW + timedelta(days=2)) == 2


def roll(file, when: datetime = NOW) -> Roll:
    return Roll(
        file, study(), "run", {f"Patient/{n}": f"p{n}" for n in range(4)}, lambda at: when + timedelta(0, at)
    )


def test_a_permit_holds_for_everybody_but_those_who_opted_out(house, site):
    write(house / "records", people(0, 1, 2, 3))
    (house / "out.txt").write_text("p1  # asked on the phone\n\np9\n")
    file = site(permit() + '\n[consent.opt_outs]\nfile = "out.txt"\n')
    assert consented(file) == 4  # nobody has read the list yet
    done = read_agreements(file, study(), NOW)
    assert (done.listed, done.new_opt_outs) == (2, 2)
    checked = check_site(open_site(file, study(), NOW))
    assert consented(file) == 3
    words = next(remark for remark in checked.remarks if "HDAB-2026-17" in remark)
    assert study().hash in words
    assert "opt-out list" in words
    entries = list(Audit(Database(house / "governance.db", metadata)).entries())
    (read,) = [entry for entry in entries if entry["action"] == "opt-outs-read"]
    assert read["detail"]["document"] == study().hash
    assert read["detail"]["ground"] in words
    keys, members = [f"Patient/{n}" for n in range(4)], roll(file)
    assert members.inside(keys, 0.0) == {"Patient/0", "Patient/2", "Patient/3"}
    (house / "out.txt").write_text("p1\np2\n")
    read_agreements(file, study(), NOW)
    assert members.taken(keys, 60.0)[0] == {"Patient/0", "Patient/3"}  # an opt-out after the run began
    (house / "out.txt").write_text("")
    assert read_agreements(file, study(), NOW).lifted == 2
    assert members.inside(keys, 120.0) == set(keys)
    actions = [entry["action"] for entry in Audit(Database(house / "governance.db", metadata)).entries()]
    assert actions.count("permit-noted") == 1
    assert actions.count("opt-outs-read") == 3


@pytest.mark.parametrize("basis", ["permit", "ground"])
def test_who_has_left_a_study_is_out_whatever_a_permit_or_a_ground_says(house, site, basis):
    write(house / "records", people(0, 1, 2, 3))
    file = site(permit()) if basis == "permit" else site("", 'ground = "vote 7/2026"')
    keys, members = [f"Patient/{n}" for n in range(4)], roll(file)
    assert members.inside(keys, 0.0) == set(keys)
    with deal(file, lambda: pytest.fail("no keys are needed"), lambda: NOW) as dealings:
        for _ in range(2):
            assert dealings.withdraw(study(), "p1").step is CascadeStep.DONE
    assert members.inside(keys, 1.0) == {"Patient/0", "Patient/2", "Patient/3"}
    assert consented(file) == 3
    assert "opt-out list" not in " ".join(check_site(open_site(file, study(), NOW)).remarks)


@pytest.mark.parametrize(
    ("changed", "when", "reason"),
    [
        ({"end": "2026-10-31"}, NOW, "the data permit has expired"),
        ({"start": "2027-01-01"}, NOW, "the data permit does not hold yet"),
        ({"document": "cd" * 32}, NOW, "the data permit was given for another version of the study document"),
        (
            {"purposes": ["screening"]},
            NOW,
            "the data permit does not name the study's purpose, or does not allow this",
        ),
        ({}, datetime(2029, 1, 1, tzinfo=UTC), "the data permit has expired"),
    ],
)
def test_a_permit_is_for_one_document_purpose_and_time(house, site, changed, when, reason):
    write(house / "records", people(0, 1))
    opened = open_site(site(permit(**changed)), study(), when)
    check_site(opened)
    assert opened.funnel.stopped[Stage.CONSENTED] == {reason: 2}
    assert roll(site(permit(**changed)), when).inside(["Patient/0"], 0.0) == frozenset()


@pytest.mark.parametrize(
    ("allows", "trained", "sent"), [(["train"], True, False), (["send"], False, True), (["train", "send"], True, True)],
    ids=["train", "send", "both"],
)  # fmt: skip
def test_a_permit_allows_what_it_says_and_no_more(house, site, allows, trained, sent):
    write(house / "records", people(0, 1))
    (house / "out.txt").write_text("p1\n")
    file = site(permit(allows=allows) + '\n[consent.opt_outs]\nfile = "out.txt"\n')
    read_agreements(file, study(), NOW)
    gate = open_site(file, study(), NOW).gate
    asked = {action: [gate(f"p{n}", NOW, action).allowed for n in (0, 1)] for action in Action}
    assert asked[Action.COLLECT] == [True, False]
    assert asked[Action.TRAIN] == [trained, False]
    assert asked[Action.SEND] == [sent, False]
    assert roll(file).inside(["Patient/0", "Patient/1"], 0.0) == ({"Patient/0"} if trained else set())
    assert file.document.consent.sends is sent


def test_what_a_permit_allows_is_one_of_two_words(site):
    with pytest.raises(SiteError, match=r"consent.permit.allows"):
        site(permit(allows=["sell"]))


def test_an_opt_out_wins_over_a_stated_ground(house, site):
    write(house / "records", people(0, 1))
    (house / "out.txt").write_text("p0\n")
    text = (house / "site.toml").read_text()
    (house / "site.toml").write_text(f'{text}tags = "tags.key"\n[consent.opt_outs]\nfile = "out.txt"\n')
    file = load_site(house / "site.toml")
    read_agreements(file, study(), NOW)
    assert consented(file) == 1
    assert roll(file).inside(["Patient/0", "Patient/1"], 0.0) == {"Patient/1"}
    actions = [entry["action"] for entry in Audit(Database(house / "governance.db", metadata)).entries()]
    assert actions.count("ground-stated") == 1


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"p1\nHans Meier\n", "line 2"), (b"\xff\xfe", "not text"), (None, "cannot be read")],
)
def test_a_list_that_cannot_be_understood_changes_nothing(house, site, content, told):
    write(house / "records", people(0, 1))
    file = site(permit() + '\n[consent.opt_outs]\nfile = "out.txt"\n')
    (house / "out.txt").write_text("p1\n")
    read_agreements(file, study(), NOW)
    (house / "out.txt").unlink()
    if content is not None:
        (house / "out.txt").write_bytes(content)
    with pytest.raises(SettingsError, match=told) as caught:
        read_agreements(file, study(), NOW)
    assert "Meier" not in str(caught.value)
    assert consented(file) == 1


def test_lists_on_servers(house, site, serve_pages):
    consents = [
        {"resourceType": "Consent", "status": "active", "patient": {"reference": "Patient/p0"},
         "provision": {"type": "deny", "period": {"start": "2026-01-01"}}},
        {"resourceType": "Consent", "status": "active", "patient": {"reference": "Patient/p1"},
         "provision": {"type": "permit"}},
        {"resourceType": "Consent", "status": "inactive", "patient": {"reference": "Patient/p2"},
         "provision": {"type": "deny"}},
    ]  # fmt: skip
    write(house / "records", people(0, 1, 2, 3))
    page = {"resourceType": "Bundle", "type": "searchset", "entry": [{"resource": each} for each in consents]}
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
    assert read_agreements(file, study(), NOW).listed == 1
    file = site(permit() + f'\n[consent.opt_outs]\nfhir = "{base}/fhir"\n')
    done = read_agreements(file, study(), NOW)
    assert (done.listed, done.new_opt_outs, done.lifted) == (2, 1, 0)
    assert consented(file) == 2
    file = site(permit() + f'\n[consent.opt_outs]\nurl = "{base}/gone"\n')
    with pytest.raises(AbatonError):
        read_agreements(file, study(), NOW)
    assert consented(file) == 2
