"""Citizens with their own key for one study, single-use codes, and withdrawal with the recovery key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sql
from tests.governance.conftest import DOCUMENT, NOW, STUDY, WHEN, random_source
from tests.governance.intake.conftest import client_of, served

from abaton.governance import (
    AuditLog,
    ConsentRegistry,
    DeniedError,
    EnvelopeHeader,
    Inbox,
    KeySet,
    make_consent,
    schema,
    seal,
)
from abaton.governance.citizen_enrolment import ENROLLED, ENROLMENT, issue_codes, sender_name
from abaton.governance.consent import ConsentQuery
from abaton.governance.envelope_format import Compression
from abaton.governance.identifiers import base32_text
from abaton.governance.keys import KeyKind, PrivateKey
from abaton.governance.signed_statements import (
    read_deletion_receipt,
    sign_statement,
    verify_statement,
    write_order,
)
from abaton.governance.timestamps import to_timestamp

pytestmark = pytest.mark.network
OWN, OWN_DOCUMENT, PAGE = "pressure-2026", "ef" * 32, "12" * 32
CONTENT = b'{"resourceType":"Patient","id":"PSEUDONYM","birthDate":"1980"}\n'


def publish(
    registry: ConsentRegistry, *, admission: str = "code", maximum: int = 2, study: str = OWN
) -> None:
    content = {"citizens": {"admission": admission, "max_participants": maximum}}
    registry.publish(study, OWN_DOCUMENT, NOW, ends=None, keep_until=None, content=content)


class CitizenDevice:
    """A citizen's device."""

    def __init__(self, name: str, study: str = OWN) -> None:
        random_bytes = random_source(f"person {name}")
        self.study, self.subject = study, base32_text(random_bytes(32))
        self.key_set = KeySet.new(sender_name(self.subject), random_bytes, WHEN)
        self.recovery_key = PrivateKey.new(KeyKind.SIGN, random_bytes, WHEN)
        self.random_bytes = random_bytes

    def enrolment(self, code: str = "", **other) -> dict:
        body = {
            "study": self.study, "document": OWN_DOCUMENT, "subject": self.subject, "keys": self.key_set.public.row(),
            "recovery": self.recovery_key.public.row(), "code": code, "page": PAGE, "at": to_timestamp(NOW),
        }  # fmt: skip
        return sign_statement(self.key_set.signing_key, ENROLMENT, body | other)

    def envelope(self, centre: KeySet, sequence: int = 1, **other) -> bytes:
        header = EnvelopeHeader(
            self.study, OWN_DOCUMENT, self.key_set.signing_key.id, centre.public.sealing_key.id, sequence,
            self.subject, WHEN, Compression.NONE,
        )  # fmt: skip
        header = replace(header, **other)
        return b"".join(
            seal(
                [CONTENT], header, self.key_set.signing_key, centre.public.sealing_key, self.random_bytes(32)
            )
        )

    def consents(self) -> list[dict]:
        end = NOW + timedelta(days=300)
        return [
            make_consent(ConsentQuery(self.subject), NOW, end),
            make_consent(ConsentQuery(self.subject, self.study, OWN_DOCUMENT), NOW, end),
        ]


@pytest.fixture
def citizens(inbox):
    publish(inbox.registry)
    return inbox.citizens


@pytest.fixture
def codes(citizens):
    return issue_codes(citizens.database, OWN, 5, random_source("codes"), NOW)


def refused(work, *arguments) -> str:
    with pytest.raises(DeniedError) as error:
        work(*arguments)
    return error.value.code.value


def test_a_citizen_enrols_with_a_single_use_code(citizens, codes, centre):
    ann, bob = CitizenDevice("ann"), CitizenDevice("bob")
    receipt = citizens.enrol(ann.enrolment(codes[0]), NOW)
    body = verify_statement(receipt, ENROLLED, lambda _: centre.public.signing_key.verify)
    assert (body["subject"], body["sender"], body["page"]) == (ann.subject, ann.key_set.signing_key.id, PAGE)
    assert citizens.enrol(ann.enrolment(codes[0]), NOW) == receipt  # repeated after a lost response
    assert refused(citizens.enrol, bob.enrolment(codes[0]), NOW) == "not-approved"
    assert refused(citizens.enrol, bob.enrolment("A" * 26), NOW) == "not-approved"
    assert refused(citizens.enrol, bob.enrolment(codes[1]), NOW + timedelta(days=91)) == "expired"
    citizens.enrol(bob.enrolment(codes[1]), NOW)
    assert refused(citizens.enrol, CitizenDevice("cleo").enrolment(codes[2]), NOW) == "quota"


def test_codes_are_stored_as_digests_and_expire(citizens, codes):
    late = NOW + timedelta(days=91)
    signed = CitizenDevice("ann").enrolment(codes[0], at=to_timestamp(late))
    assert refused(citizens.enrol, signed, late) == "not-approved"
    stored = str(rows(citizens.database, schema.admissions))
    assert all(code not in stored for code in codes)


def test_an_enrolment_of_another_key_is_refused(citizens, codes):
    ann, bob = CitizenDevice("ann"), CitizenDevice("bob")
    assert refused(citizens.enrol, {"body": {}}, NOW) == "malformed"
    assert refused(citizens.enrol, ann.enrolment(codes[0], subject=bob.subject), NOW) == "malformed"
    assert refused(citizens.enrol, ann.enrolment(codes[0], name="Ann"), NOW) == "malformed"
    assert (
        refused(citizens.enrol, ann.enrolment(codes[0], recovery=ann.key_set.public.signing_key.row()), NOW)
        == "malformed"
    )
    assert refused(citizens.enrol, ann.enrolment(codes[0], document="00" * 32), NOW) == "wrong-document"
    assert (
        refused(citizens.enrol, ann.enrolment(codes[0], study=STUDY, document=DOCUMENT), NOW) == "wrong-study"
    )
    assert (
        refused(citizens.enrol, ann.enrolment(codes[0]) | {"signer": bob.key_set.signing_key.id}, NOW)
        == "unknown-sender"
    )
    stolen = sign_statement(bob.key_set.signing_key, ENROLMENT, ann.enrolment(codes[0])["body"])
    assert refused(citizens.enrol, stolen, NOW) == "unknown-sender"
    citizens.enrol(ann.enrolment(codes[0]), NOW)
    thief = CitizenDevice("thief")
    thief.subject = ann.subject
    thief.key_set = KeySet.new(sender_name(ann.subject), random_source("thief's"), WHEN)
    assert refused(citizens.enrol, thief.enrolment(codes[1]), NOW) == "wrong-sender"


def test_an_open_study_needs_no_code_and_has_a_maximum(inbox):
    publish(inbox.registry, admission="open", maximum=1)
    inbox.citizens.enrol(CitizenDevice("ann").enrolment(), NOW)
    assert refused(inbox.citizens.enrol, CitizenDevice("bob").enrolment(), NOW) == "quota"


def test_a_citizen_acts_only_for_their_own_pseudonym(inbox, citizens, codes, centre):
    ann, bob = CitizenDevice("ann"), CitizenDevice("bob")
    for someone, code in ((ann, codes[0]), (bob, codes[1])):
        citizens.enrol(someone.enrolment(code), NOW)
    with served_centre(inbox) as address:
        client = client_of(address, ann.key_set, centre)
        for consent in bob.consents():
            assert refused(client.consent, consent) == "wrong-sender"
        for consent in ann.consents():
            client.consent(consent)
        raw = ann.envelope(centre, subject=base32_text(b"unknown" * 9))
        assert refused(upload, client, raw) == "wrong-sender"
        raw = ann.envelope(centre, study=STUDY, document=DOCUMENT)
        assert refused(upload, client, raw) == "wrong-sender"
        order = write_order(ann.key_set.signing_key, OWN, bob.subject, NOW)
        assert refused(client.delete, order) == "wrong-sender"


def test_from_enrolment_to_deletion_with_the_recovery_key(inbox, citizens, codes, centre, tmp_path):
    ann = CitizenDevice("ann")
    with served_centre(inbox) as address:
        answer = httpx.post(f"{address}/v1/citizens", json=ann.enrolment(codes[0]))
        assert answer.status_code == 200
        client = client_of(address, ann.key_set, centre)
        for consent in ann.consents():
            client.consent(consent)
        raw = ann.envelope(centre)
        receipt = upload(client, raw)
        assert receipt["body"]["digest"] == hashlib.sha256(raw).hexdigest()
        (received,) = inbox.received(OWN)
        assert b"".join(inbox.open_content(received, centre)) == CONTENT
        order = write_order(ann.recovery_key, OWN, ann.subject, NOW)
        answer = httpx.post(f"{address}/v1/citizens/withdrawals", json=order)
        deleted = read_deletion_receipt(answer.json(), lambda _: centre.public.signing_key.verify)
        assert (deleted.records, deleted.subject) == (1, ann.subject)
        assert httpx.post(f"{address}/v1/citizens/withdrawals", json=order).json() == answer.json()
        forged = write_order(CitizenDevice("bob").recovery_key, OWN, ann.subject, NOW)
        assert httpx.post(f"{address}/v1/citizens/withdrawals", json=forged).status_code == 403
        assert refused(upload, client, ann.envelope(centre, sequence=2)) == "no-consent"
    assert not inbox.received(OWN)
    assert all(raw[:200] not in path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file())
    entries = json.dumps([dict(entry) for entry in AuditLog(inbox.database).entries()])
    assert "citizen-enrolled" in entries
    assert "127.0.0.1" not in entries


def test_enrolments_from_one_address_are_rate_limited(inbox, citizens):
    with served_centre(inbox, enrolments_per_minute=3) as address:
        statuses = [httpx.post(f"{address}/v1/citizens", json={}).status_code for _ in range(6)]
    assert statuses == [422, 422, 422, 429, 429, 429]


def test_a_citizen_has_a_smaller_quota_than_a_site(inbox, citizens, codes, centre):
    from abaton.governance.intake.intake_service import SenderQuota

    ann = CitizenDevice("ann")
    citizens.enrol(ann.enrolment(codes[0]), NOW)
    with served_centre(inbox, citizen_quota=SenderQuota(100, 1, 100)) as address:
        assert refused(upload, client_of(address, ann.key_set, centre), ann.envelope(centre)) == "too-large"


def test_a_citizen_in_two_studies_cannot_be_linked(inbox, citizens, codes):
    publish(inbox.registry, admission="open", study="other")
    for someone, code in ((CitizenDevice("ann here"), codes[0]), (CitizenDevice("ann there", "other"), "")):
        citizens.enrol(someone.enrolment(code), NOW)
    first, second = (
        set(json.dumps(list(row)).replace("\\", "").split('"'))
        for row in rows(citizens.database, schema.citizens)
    )
    assert not {word for word in first & second if len(word) > 20 and OWN_DOCUMENT not in word and PAGE not in word
                and not word.startswith(("2026-", "abaton-", "ed25519:"))}  # fmt: skip


def rows(database, table) -> list:
    return list(database.read(lambda connection: connection.execute(sql.select(table)).all()))


def served_centre(inbox: Inbox, **limits):
    from abaton.governance.intake import IntakeLimits, IntakeService

    return served(IntakeService(inbox, IntakeLimits(**limits), now=lambda: NOW))


def upload(client, raw: bytes):
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(raw)
        return client.upload(Path(file.name), hashlib.sha256(raw).hexdigest(), len(raw))
