"""Leaving over real HTTP: clocks that differ by a day, an opt-out after records went out, and no centre at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from tests.governance.conftest import DAY, DOCUMENT, NOW, STUDY, person
from tests.governance.service.conftest import client_of, served
from tests.governance.service.hospital import IDS, NAMES, Place

from abaton.governance import Ask, Denied, Inbox, Reason, RefusalCode, Registry, metadata
from abaton.governance.signed_statements import write_order
from abaton.site import subject_tag
from abaton.site.sources.fhir_server.retry import Clock
from abaton.store import Database

pytestmark = pytest.mark.network
ANN = person("ann")


@pytest.mark.parametrize("skew", [-DAY, DAY, timedelta(days=-1, minutes=-4), timedelta(days=1, minutes=4)])
def test_a_clock_that_is_wrong_by_a_day_keeps_nobody_in(house, inbox, site, centre, skew):
    with served(house()) as address:
        clock = Clock(now=lambda: (NOW + skew).timestamp(), sleep=lambda seconds: None)
        client = client_of(address, site, centre, clock=clock)
        order = write_order(site.signing, STUDY, ANN, NOW + skew + timedelta(minutes=1))
        if (
            skew < timedelta()
        ):  # by the site's clock its order comes before the yes that the centre wrote down
            order = write_order(site.signing, STUDY, ANN, NOW + timedelta(milliseconds=1))
        assert client.delete(order)["body"]["subject"] == ANN
        assert inbox.registry.reason(Ask(ANN, STUDY, DOCUMENT), NOW) is Reason.WITHDRAWN
        with pytest.raises(Denied) as error:  # everything else is of this moment
            client.account()
        assert error.value.code is RefusalCode.EXPIRED


def test_a_clock_that_is_wrong_by_more_is_told(house, site, centre):
    with served(house()) as address:
        clock = Clock(now=lambda: (NOW + 2 * DAY).timestamp(), sleep=lambda seconds: None)
        client = client_of(address, site, centre, clock=clock)
        with pytest.raises(Denied) as error:
            client.delete(write_order(site.signing, STUDY, ANN, NOW + 2 * DAY))
        assert error.value.code is RefusalCode.EXPIRED


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path, [f"sqlite:///{tmp_path / name}" for name in ("site.db", "centre.db", "vault.db")])
    made.build(notes=3)
    yield made
    made.close()


@pytest.mark.slow
def test_an_opt_out_after_records_went_out_on_a_permit_deletes_them_at_the_centre(place):
    today = datetime.now(UTC).date()
    permit = (
        f'number = "HDAB-1"\nauthority = "Body"\nstart = {today - timedelta(1)}\nend = {today + timedelta(9)}\n'
        f'purposes = ["{place.study.study.purpose.value}"]\ndocument = "{place.study.hash}"\nallows = ["send"]\n'
    )
    (place.research / "permit.toml").write_text(permit)
    for words in (("publish", "study.toml"), ("permit", "study.toml", "permit.toml")):
        place.run("study", *words, "--database", place.centre_url, where="research")
    place.serve()
    file = place.hospital / "site.toml"
    told = f'[consent.permit]\n{permit}[consent.opt_outs]\nfile = "out.txt"\n'
    file.write_text(file.read_text().replace("[keys]", f"{told}[keys]"))
    (place.hospital / "out.txt").write_text("")

    sent = json.loads(place.site("send", "study.toml", "--json").stdout)
    assert (sent["sent"], sent["refused"]) == (3, {})
    (place.hospital / "out.txt").write_text(f"{IDS[1]}\nnobody-here\n")
    read = json.loads(place.run("site", "consents", "study.toml", "--json").stdout)
    assert (read["new on it"], read["to be withdrawn"]) == (2, 1)
    (pending,) = json.loads(place.run("withdrawals", "--database", place.site_url, "--json").stdout)
    assert pending["step"] == "stop-collecting"
    again = json.loads(place.site("send", "study.toml", "--json").stdout)  # the nos go first
    assert (again["sent"], again["unchanged"], again["refused"]) == (0, 2, {})
    tag = subject_tag((place.hospital / "tags.key").read_bytes(), IDS[1])
    with Database(place.centre_url, metadata) as far:
        ring = place.rings["centre"]
        inbox = Inbox(place.research / "inbox", far, ring.public, ring.signing)
        left = [each.subject for each in inbox.received(place.study.study.id)]
        assert len(left) == 2
        assert tag not in left
        assert len(list((place.research / "inbox").iterdir())) == 2
    # Read again, nothing more is to be done; once the opt-out is lifted, they stay out until they say yes themselves.
    read = json.loads(place.run("site", "consents", "study.toml", "--json").stdout)
    assert read["to be withdrawn"] == 0
    (place.hospital / "out.txt").write_text("")
    place.run("site", "consents", "study.toml")
    assert json.loads(place.site("send", "study.toml", "--json").stdout)["sent"] == 0


def test_a_study_of_updates_alone_is_left_with_nothing_but_the_registry(place):
    study = place.hospital / "study.toml"
    study.write_text(study.read_text().replace('shares = ["records", "updates"] ', 'shares = ["updates"] '))
    (place.hospital / "site.toml").write_text(
        f'[site]\nid = "pisa"\nname = "Hospital"\n[records]\nkind = "ndjson"\npaths = ["records"]\n'
        f'[consent]\nregistry = "{place.site_url}"\n[keys]\ntags = "tags.key"\n'
    )
    for turn in range(2):
        place.run("site", "enrol", "study.toml", IDS[0])
        (case,) = json.loads(place.run("site", "withdraw", "study.toml", IDS[0], "--json").stdout)
        assert (case["step"], case["waits for"]) == ("done", None), turn
    assert json.loads(place.run("site", "withdraw", "--json").stdout) == []
    assert json.loads(place.run("site", "status", "--json").stdout)["withdrawals pending"] == 0
    refused = place.run("site", "send", "study.toml", code=None)
    assert refused.wait() != 0
    with Database(place.site_url, metadata) as near:
        tag = subject_tag((place.hospital / "tags.key").read_bytes(), IDS[0])
        assert Registry(near).consent(tag, place.study.study.id)["status"] == "inactive"
    assert NAMES[0] not in (place.folder / "site.db").read_text("latin-1")
