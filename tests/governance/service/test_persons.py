"""People who take part themselves: a key of their own for one study, a code that counts once, a way out on paper."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sql
from tests.governance.conftest import DOCUMENT, NOW, STUDY, WHEN, drawing
from tests.governance.service.conftest import client_of, served

from abaton.governance import Audit, Denied, Header, Inbox, Registry, Ring, make_consent, schema, seal
from abaton.governance.consent import Ask
from abaton.governance.keys import Kind, PrivateKey
from abaton.governance.citizen_enrolment import ENROLLED, ENROLMENT, make_codes, person_name
from abaton.governance.sealed_envelope import Compression
from abaton.governance.signed_statements import check, read_deleted, state, write_order
from abaton.governance.identifiers import letters, stamp

pytestmark = pytest.mark.network
OWN, OWN_DOCUMENT, PAGE = "pressure-2026", "ef" * 32, "12" * 32
CONTENT = b'{"resourceType":"Patient","id":"PSEUDONYM","birthDate":"1980"}\n'


def publish(registry: Registry, *, admission: str = "code", most: int = 2, study: str = OWN) -> None:
    content = {"persons": {"admission": admission, "most": most}}
    registry.publish(study, OWN_DOCUMENT, NOW, ends=None, keep_until=None, content=content)


class Someone:
    """A person's device."""

    def __init__(self, name: str, study: str = OWN) -> None:
        draw = drawing(f"person {name}")
        self.study, self.tag = study, letters(draw(32))
        self.ring = Ring.new(person_name(self.tag), draw, WHEN)
        self.paper = PrivateKey.new(Kind.SIGN, draw, WHEN)
        self.draw = draw

    def enrolment(self, code: str = "", **other) -> dict:
        body = {
            "study": self.study, "document": OWN_DOCUMENT, "subject": self.tag, "keys": self.ring.public.row(),
            "recovery": self.paper.public.row(), "code": code, "page": PAGE, "at": stamp(NOW),
        }  # fmt: skip
        return state(self.ring.signing, ENROLMENT, body | other)

    def envelope(self, centre: Ring, sequence: int = 1, **other) -> bytes:
        head = Header(
            self.study, OWN_DOCUMENT, self.ring.signing.id, centre.public.sealing.id, sequence, self.tag, WHEN,
            Compression.NONE,
        )  # fmt: skip
        head = replace(head, **other)
        return b"".join(seal([CONTENT], head, self.ring.signing, centre.public.sealing, self.draw(32)))

    def consents(self) -> list[dict]:
        end = NOW + timedelta(days=300)
        return [
            make_consent(Ask(self.tag), NOW, end),
            make_consent(Ask(self.tag, self.study, OWN_DOCUMENT), NOW, end),
        ]


@pytest.fixture
def persons(inbox):
    publish(inbox.registry)
    return inbox.persons


@pytest.fixture
def codes(persons):
    return make_codes(persons.database, OWN, 5, drawing("codes"), NOW)


def refused(work, *arguments) -> str:
    with pytest.raises(Denied) as error:
        work(*arguments)
    return error.value.code.value


def test_a_person_enrols_with_a_code_that_counts_once(persons, codes, centre):
    ann, bob = Someone("ann"), Someone("bob")
    receipt = persons.enrol(ann.enrolment(codes[0]), NOW)
    body = check(receipt, ENROLLED, lambda _: centre.public.signing.verify)
    assert (body["subject"], body["sender"], body["page"]) == (ann.tag, ann.ring.signing.id, PAGE)
    assert persons.enrol(ann.enrolment(codes[0]), NOW) == receipt  # once more, after a lost answer
    assert refused(persons.enrol, bob.enrolment(codes[0]), NOW) == "not-approved"
    assert refused(persons.enrol, bob.enrolment("A" * 26), NOW) == "not-approved"
    assert refused(persons.enrol, bob.enrolment(codes[1]), NOW + timedelta(days=91)) == "expired"
    persons.enrol(bob.enrolment(codes[1]), NOW)
    assert refused(persons.enrol, Someone("cleo").enrolment(codes[2]), NOW) == "quota"


def test_codes_are_kept_as_fingerprints_and_expire(persons, codes):
    late = NOW + timedelta(days=91)
    signed = Someone("ann").enrolment(codes[0], at=stamp(late))
    assert refused(persons.enrol, signed, late) == "not-approved"
    kept = str(rows(persons.database, schema.admissions))
    assert all(code not in kept for code in codes)


def test_what_is_no_enrolment_of_ones_own_key_is_refused(persons, codes):
    ann, bob = Someone("ann"), Someone("bob")
    assert refused(persons.enrol, {"body": {}}, NOW) == "malformed"
    assert refused(persons.enrol, ann.enrolment(codes[0], subject=bob.tag), NOW) == "malformed"
    assert refused(persons.enrol, ann.enrolment(codes[0], name="Ann"), NOW) == "malformed"
    assert (
        refused(persons.enrol, ann.enrolment(codes[0], recovery=ann.ring.public.signing.row()), NOW)
        == "malformed"
    )
    assert refused(persons.enrol, ann.enrolment(codes[0], document="00" * 32), NOW) == "wrong-document"
    assert (
        refused(persons.enrol, ann.enrolment(codes[0], study=STUDY, document=DOCUMENT), NOW) == "wrong-study"
    )
    assert (
        refused(persons.enrol, ann.enrolment(codes[0]) | {"signer": bob.ring.signing.id}, NOW)
        == "unknown-sender"
    )
    stolen = state(bob.ring.signing, ENROLMENT, ann.enrolment(codes[0])["body"])
    assert refused(persons.enrol, stolen, NOW) == "unknown-sender"
    persons.enrol(ann.enrolment(codes[0]), NOW)
    thief = Someone("thief")
    thief.tag = ann.tag
    thief.ring = Ring.new(person_name(ann.tag), drawing("thief's"), WHEN)
    assert refused(persons.enrol, thief.enrolment(codes[1]), NOW) == "not-yours"


def test_an_open_study_needs_no_code_and_has_a_number(inbox):
    publish(inbox.registry, admission="open", most=1)
    inbox.persons.enrol(Someone("ann").enrolment(), NOW)
    assert refused(inbox.persons.enrol, Someone("bob").enrolment(), NOW) == "quota"


def test_a_person_speaks_for_themselves_alone(inbox, persons, codes, centre):
    ann, bob = Someone("ann"), Someone("bob")
    for someone, code in ((ann, codes[0]), (bob, codes[1])):
        persons.enrol(someone.enrolment(code), NOW)
    with served_centre(inbox) as address:
        client = client_of(address, ann.ring, centre)
        for consent in bob.consents():
            assert refused(client.consent, consent) == "not-yours"
        for consent in ann.consents():
            client.consent(consent)
        raw = ann.envelope(centre, subject=letters(b"nobody" * 9))
        assert refused(upload, client, raw) == "not-yours"
        raw = ann.envelope(centre, study=STUDY, document=DOCUMENT)
        assert refused(upload, client, raw) == "not-yours"
        order = write_order(ann.ring.signing, OWN, bob.tag, NOW)
        assert refused(client.delete, order) == "not-yours"


def test_from_enrolment_to_a_deletion_by_the_key_on_paper(inbox, persons, codes, centre, tmp_path):
    ann = Someone("ann")
    with served_centre(inbox) as address:
        answer = httpx.post(f"{address}/v1/persons", json=ann.enrolment(codes[0]))
        assert answer.status_code == 200
        client = client_of(address, ann.ring, centre)
        for consent in ann.consents():
            client.consent(consent)
        raw = ann.envelope(centre)
        receipt = upload(client, raw)
        assert receipt["body"]["digest"] == hashlib.sha256(raw).hexdigest()
        (received,) = inbox.received(OWN)
        assert b"".join(inbox.content(received, centre)) == CONTENT
        order = write_order(ann.paper, OWN, ann.tag, NOW)
        answer = httpx.post(f"{address}/v1/persons/withdrawals", json=order)
        deleted = read_deleted(answer.json(), lambda _: centre.public.signing.verify)
        assert (deleted.records, deleted.subject) == (1, ann.tag)
        assert httpx.post(f"{address}/v1/persons/withdrawals", json=order).json() == answer.json()
        forged = write_order(Someone("bob").paper, OWN, ann.tag, NOW)
        assert httpx.post(f"{address}/v1/persons/withdrawals", json=forged).status_code == 403
        assert refused(upload, client, ann.envelope(centre, sequence=2)) == "no-consent"
    assert not inbox.received(OWN)
    assert all(raw[:200] not in path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file())
    told = json.dumps([dict(entry) for entry in Audit(inbox.database).entries()])
    assert "person-enrolled" in told
    assert "127.0.0.1" not in told


def test_a_flood_of_enrolments_from_one_address_is_slowed_down(inbox, persons):
    with served_centre(inbox, enrolments=3) as address:
        statuses = [httpx.post(f"{address}/v1/persons", json={}).status_code for _ in range(6)]
    assert statuses == [422, 422, 422, 429, 429, 429]


def test_a_person_has_less_room_than_a_site(inbox, persons, codes, centre):
    from abaton.governance.intake.intake_service import Room

    ann = Someone("ann")
    persons.enrol(ann.enrolment(codes[0]), NOW)
    with served_centre(inbox, person_room=Room(100, 1, 100)) as address:
        assert refused(upload, client_of(address, ann.ring, centre), ann.envelope(centre)) == "too-large"


def test_one_person_in_two_studies_has_nothing_in_common(inbox, persons, codes):
    publish(inbox.registry, admission="open", study="other")
    for someone, code in ((Someone("ann here"), codes[0]), (Someone("ann there", "other"), "")):
        persons.enrol(someone.enrolment(code), NOW)
    first, second = (
        set(json.dumps(list(row)).replace("\\", "").split('"'))
        for row in rows(persons.database, schema.persons)
    )
    assert not {word for word in first & second if len(word) > 20 and OWN_DOCUMENT not in word and PAGE not in word
                and not word.startswith(("2026-", "abaton-", "ed25519:"))}  # fmt: skip


def rows(database, table) -> list:
    return list(database.read(lambda connection: connection.execute(sql.select(table)).all()))


def served_centre(inbox: Inbox, **limits):
    from abaton.governance.intake import Centre, Limits

    return served(Centre(inbox, Limits(**limits), now=lambda: NOW))


def upload(client, raw: bytes):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(raw)
        return client.upload(Path(file.name), hashlib.sha256(raw).hexdigest(), len(raw))
