"""Withdrawal over HTTP: clocks that differ by a day, an opt-out after sending, and no centre."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from tests.governance.conftest import DAY, DOCUMENT, NOW, STUDY, pseudonym
from tests.governance.intake.conftest import client_of, served
from tests.governance.intake.intake_hospital import IDS, NAMES, Deployment

from abaton.governance import (
    ConsentQuery,
    ConsentRegistry,
    DenialReason,
    DeniedError,
    Inbox,
    RefusalCode,
    metadata,
)
from abaton.governance.signed_statements import write_order
from abaton.site import subject_pseudonym
from abaton.site.sources.fhir_server.retry import RetryClock
from abaton.store import Database

pytestmark = pytest.mark.network
ANN = pseudonym("ann")


@pytest.mark.parametrize("skew", [-DAY, DAY, timedelta(days=-1, minutes=-4), timedelta(days=1, minutes=4)])
def test_a_clock_that_is_wrong_by_a_day_does_not_prevent_a_withdrawal(make_centre, inbox, site, centre, skew):
    with served(make_centre()) as address:
        clock = RetryClock(now=lambda: (NOW + skew).timestamp(), sleep=lambda seconds: None)
        client = client_of(address, site, centre, clock=clock)
        order = write_order(site.signing_key, STUDY, ANN, NOW + skew + timedelta(minutes=1))
        if skew < timedelta():  # by the site's clock its order precedes the consent that the centre stored
            order = write_order(site.signing_key, STUDY, ANN, NOW + timedelta(milliseconds=1))
        assert client.delete(order)["body"]["subject"] == ANN
        assert inbox.registry.decision(ConsentQuery(ANN, STUDY, DOCUMENT), NOW) is DenialReason.WITHDRAWN
        with pytest.raises(DeniedError) as error:  # all other requests need the current time
            client.usage()
        assert error.value.code is RefusalCode.EXPIRED


def test_a_clock_that_is_wrong_by_two_days_is_reported(make_centre, site, centre):
    with served(make_centre()) as address:
        clock = RetryClock(now=lambda: (NOW + 2 * DAY).timestamp(), sleep=lambda seconds: None)
        client = client_of(address, site, centre, clock=clock)
        with pytest.raises(DeniedError) as error:
            client.delete(write_order(site.signing_key, STUDY, ANN, NOW + 2 * DAY))
        assert error.value.code is RefusalCode.EXPIRED


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(
        tmp_path, [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")]
    )
    deployment.build(notes=3)
    yield deployment
    deployment.close()


@pytest.mark.slow
def test_an_opt_out_after_sending_on_a_permit_deletes_the_records_at_the_centre(deployment):
    today = datetime.now(UTC).date()
    permit = (
        f'number = "HDAB-1"\nauthority = "Body"\nstart = {today - timedelta(1)}\nend = {today + timedelta(9)}\n'
        f'purposes = ["{deployment.study.study.purpose.value}"]\ndocument = "{deployment.study.hash}"\n'
        'actions = ["send"]\n'
    )
    (deployment.research / "permit.toml").write_text(permit)
    for arguments in (("publish", "study.toml"), ("permit", "study.toml", "permit.toml")):
        deployment.run("study", *arguments, "--database", deployment.centre_url, where="research")
    deployment.serve()
    file = deployment.hospital / "site.toml"
    sections = f'[consent.permit]\n{permit}[consent.opt_outs]\nfile = "out.txt"\n'
    file.write_text(file.read_text().replace("[keys]", f"{sections}[keys]"))
    (deployment.hospital / "out.txt").write_text("")

    sent = json.loads(deployment.site("send", "study.toml", "--json").stdout)
    assert (sent["sent"], sent["refused"]) == (3, {})
    (deployment.hospital / "out.txt").write_text(f"{IDS[1]}\nunknown-patient\n")
    read = json.loads(deployment.run("site", "import-consents", "study.toml", "--json").stdout)
    assert (read["new_opt_outs"], read["withdrawals"]) == (2, 1)
    (pending,) = json.loads(deployment.run("withdrawals", "--database", deployment.site_url, "--json").stdout)
    assert pending["step"] == "stop-collecting"
    again = json.loads(deployment.site("send", "study.toml", "--json").stdout)  # withdrawals are sent first
    assert (again["sent"], again["unchanged"], again["refused"]) == (0, 2, {})
    subject = subject_pseudonym((deployment.hospital / "registry.key").read_bytes(), IDS[1])
    with Database(deployment.centre_url, metadata) as centre_database:
        key_set = deployment.key_sets["centre"]
        inbox = Inbox(deployment.research / "inbox", centre_database, key_set.public, key_set.signing_key)
        left = [envelope.subject for envelope in inbox.received(deployment.study.study.id)]
        assert len(left) == 2
        assert subject not in left
        assert len(list((deployment.research / "inbox").iterdir())) == 2
    # A second import changes nothing; after the opt-out is lifted, the subject stays excluded until a new consent.
    read = json.loads(deployment.run("site", "import-consents", "study.toml", "--json").stdout)
    assert read["withdrawals"] == 0
    (deployment.hospital / "out.txt").write_text("")
    deployment.run("site", "import-consents", "study.toml")
    assert json.loads(deployment.site("send", "study.toml", "--json").stdout)["sent"] == 0


def test_withdrawal_from_a_study_of_updates_needs_only_the_registry(deployment):
    study = deployment.hospital / "study.toml"
    study.write_text(
        study.read_text().replace('shared_data = ["records", "updates"] ', 'shared_data = ["updates"] ')
    )
    (deployment.hospital / "site.toml").write_text(
        f'[site]\nid = "pisa"\nname = "Hospital"\n[records]\nsource = "ndjson"\npaths = ["records"]\n'
        f'[consent]\nregistry = "{deployment.site_url}"\n[keys]\nregistry = "registry.key"\n'
    )
    for turn in range(2):
        deployment.run("site", "enrol", "study.toml", IDS[0])
        (case,) = json.loads(deployment.run("site", "withdraw", "study.toml", IDS[0], "--json").stdout)
        assert (case["step"], case["pending_on"]) == ("done", None), turn
    assert json.loads(deployment.run("site", "withdraw", "--json").stdout) == []
    assert json.loads(deployment.run("site", "status", "--json").stdout)["pending_withdrawals"] == 0
    refused = deployment.run("site", "send", "study.toml", code=None)
    assert refused.wait() != 0
    with Database(deployment.site_url, metadata) as site_database:
        subject = subject_pseudonym((deployment.hospital / "registry.key").read_bytes(), IDS[0])
        assert (
            ConsentRegistry(site_database).consent(subject, deployment.study.study.id)["status"] == "inactive"
        )
    assert NAMES[0] not in (deployment.folder / "site.db").read_text("latin-1")
