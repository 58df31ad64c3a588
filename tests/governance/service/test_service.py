"""What the service does for a site that keeps to the rules."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.governance.conftest import DOCUMENT, NOW, STUDY, asking, person, say
from tests.governance.service.conftest import CONTENT, client_of, refusals, served

from abaton.canonical_json import digest
from abaton.governance import Ask, Audit, Denied, RefusalCode, SenderRole, make_consent, verifier, verify
from abaton.governance.external_consent import read_confirmed
from abaton.governance.intake import Listen
from abaton.governance.intake.routes import make_api
from abaton.governance.signed_statements import read_deleted, write_order
from abaton.site import CentreAway
from abaton.site.sources.fhir_server.retry import Clock

pytestmark = pytest.mark.network
BOB = person("bob")


def opt_in(client, who=BOB, when=NOW):
    return client.consent(make_consent(Ask(who), when, None))


def enrol(client, who=BOB, when=NOW, document=DOCUMENT, **more):
    return client.consent(make_consent(Ask(who, STUDY, document), when, more.pop("end", None), **more))


def test_studies_are_published(client, inbox, address):
    content = {"format": "abaton-study/1", "question": "why?"}
    inbox.registry.publish("other", digest(content), NOW, ends=None, keep_until=None, content=content)
    listed = {study["study"]: study for study in httpx.get(f"{address}/v1/studies").json()["studies"]}
    assert set(listed) == {STUDY, "other"}
    assert listed[STUDY]["document"] == DOCUMENT
    assert listed[STUDY]["open"] is True
    assert httpx.get(f"{address}/v1/studies/{digest(content)}").json() == content
    assert httpx.get(f"{address}/v1/studies/{'00' * 32}").json()["code"] == "not-found"
    keys = httpx.get(f"{address}/v1/centre").json()
    assert keys["keys"] == inbox.ring.row()
    assert httpx.get(f"{address}/v1/health").json() == {"status": "ok"}


def test_a_person_is_enrolled_and_it_is_confirmed(client, inbox, centre, outbox):
    find = verifier([centre.public.signing])
    first = opt_in(client)
    assert opt_in(client) == first  # asked again, the same answer
    confirmed = read_confirmed(enrol(client), find)
    assert (confirmed.subject, confirmed.study, confirmed.document) == (BOB, STUDY, DOCUMENT)
    assert inbox.registry.reason(Ask(BOB, STUDY, DOCUMENT), NOW).allows
    told = [entry["action"] for entry in Audit(inbox.database).entries() if entry["about"] == BOB]
    assert told == ["subject-opted-in", "subject-enrolled"]


def test_an_envelope_travels_in_parts_and_is_receipted_once(client, inbox, outbox, queued, centre):
    steps: list[int] = []
    receipt = client.upload(outbox.path(queued), queued.digest, queued.size, steps.append)
    assert len(steps) == -(-queued.size // 100)
    assert client.upload(outbox.path(queued), queued.digest, queued.size) == receipt
    assert client.ask("GET", f"/v1/uploads/{queued.digest}")["receipt"] == receipt
    outbox.settle(queued, receipt, verifier([centre.public.signing]), NOW)
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.content(received, centre)) == CONTENT
    assert client.account() == {
        "sender": "site-a", "envelopes": 1, "bytes": queued.size, "open": 0, "open_bytes": 0
    }  # fmt: skip
    assert verify(Audit(inbox.database).rows()) == []
    assert refusals(inbox.database) == []


def test_an_upload_goes_on_where_it_stood(client, inbox, outbox, queued):
    data = outbox.path(queued).read_bytes()
    client.ask("POST", "/v1/uploads", b'{"digest":"%s","size":%d}' % (queued.digest.encode(), queued.size),
                {"content-type": "application/json"})  # fmt: skip
    client.ask("PUT", f"/v1/uploads/{queued.digest}/parts/0", data[:150])
    with pytest.raises(Denied) as error:
        client.ask("PUT", f"/v1/uploads/{queued.digest}/parts/0", data[:150])
    assert (error.value.code, error.value.received) == (RefusalCode.OUT_OF_STEP, 150)
    assert client.ask("GET", f"/v1/uploads/{queued.digest}")["received"] == 150
    with pytest.raises(Denied) as error:
        client.ask("POST", f"/v1/uploads/{queued.digest}/finish")
    assert error.value.code is RefusalCode.TRUNCATED
    steps: list[int] = []
    client.upload(outbox.path(queued), queued.digest, queued.size, steps.append)
    assert steps[0] == 250
    assert refusals(inbox.database) == [("out-of-step", 409), ("truncated", 409)]


def test_an_upload_can_be_given_up(client, inbox, outbox, queued):
    told = b'{"digest":"%s","size":%d}' % (queued.digest.encode(), queued.size)
    client.ask("POST", "/v1/uploads", told, {"content-type": "application/json"})
    client.ask("PUT", f"/v1/uploads/{queued.digest}/parts/0", b"x" * 10)
    assert client.ask("DELETE", f"/v1/uploads/{queued.digest}") == {}
    assert list(inbox.folder.iterdir()) == []
    with pytest.raises(Denied) as error:
        client.ask("GET", f"/v1/uploads/{queued.digest}")
    assert error.value.code is RefusalCode.NOT_FOUND


def test_a_withdrawal_is_carried_out_once(client, inbox, outbox, queued, site, centre):
    client.upload(outbox.path(queued), queued.digest, queued.size)
    order = write_order(site.signing, STUDY, person("ann"), NOW)
    receipt = client.delete(order)
    assert read_deleted(receipt, verifier([centre.public.signing])).records == 1
    assert client.delete(order) == receipt
    assert inbox.received(STUDY) == []
    with pytest.raises(Denied) as error:  # an old yes does not come back, a new one does
        client.consent(make_consent(Ask(person("ann"), STUDY, DOCUMENT), NOW, None))
    assert error.value.code is RefusalCode.REPLAYED


@pytest.mark.parametrize("skew", [-20, 20])
def test_a_withdrawal_is_taken_from_a_site_whose_clock_is_wrong(address, inbox, site, centre, skew):
    theirs = NOW + timedelta(hours=skew)
    clock = Clock(now=theirs.timestamp, sleep=lambda seconds: None)
    client = client_of(address, site, centre, clock=clock)
    with pytest.raises(Denied) as error:
        client.account()  # everything else needs a clock that is right
    assert error.value.code is RefusalCode.EXPIRED
    consent = make_consent(asking(), theirs - timedelta(hours=1), None)
    say(inbox.registry, asking(), consent, NOW)
    receipt = client.delete(write_order(site.signing, STUDY, person("ann"), theirs))
    assert read_deleted(receipt, verifier([centre.public.signing])).subject == person("ann")
    assert inbox.registry.reason(asking(), NOW).value == "withdrawn"


def test_a_centre_that_is_away_is_tried_again_and_told(site, centre):
    waits: list[float] = []
    made = client_of("http://127.0.0.1:9", site, centre)
    object.__setattr__(made.web.clock, "sleep", waits.append)
    with pytest.raises(CentreAway):
        made.account()
    assert waits == [1.0, 2.0]


def test_every_answer_has_its_headers_and_the_document_is_complete(client, house, address):
    answer = httpx.get(f"{address}/v1/health")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    document = httpx.get(f"{address}/openapi.json").json()
    assert document == make_api(house()).openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert {"408", "413", "429", "500", "503"} <= set(operation["responses"]), (path, method)
            assert operation["summary"]
            assert (
                ("401" in operation["responses"])
                == ("security" in operation)
                == ("signed" in operation["tags"])
            )
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_a_dismissed_sender_and_a_role_that_is_not_a_sites(client, inbox, stranger, centre, address):
    inbox.senders.enter(stranger.public, SenderRole.APPROVER, NOW)
    for made in (client_of(address, stranger, centre),):
        with pytest.raises(Denied) as error:
            made.account()
        assert error.value.code is RefusalCode.UNKNOWN_SENDER
    inbox.senders.dismiss("site-a", NOW)
    with pytest.raises(Denied) as error:
        client.account()
    assert error.value.code is RefusalCode.UNKNOWN_SENDER
    assert refusals(inbox.database) == [("unknown-sender", 401)] * 2


def test_rates_are_kept_with_a_word_when_to_come_back(house, site, centre, inbox):
    with served(house(sender_rate=0.01, burst=100)) as address:  # one, and the next in 100 seconds
        made = client_of(address, site, centre)
        made.account()
        with pytest.raises(CentreAway):
            made.account()
    assert refusals(inbox.database) == [("too-many-requests", 429)] * 3


def test_the_line_is_encrypted_and_the_certificate_is_checked(house, site, centre, tmp_path, inbox):
    certificate, key = self_signed(tmp_path)
    listen = Listen(port=0, certificate=certificate, key=key)
    with served(house(), listen) as address:
        assert address.startswith("https://127.0.0.1:")
        trusting = client_of(address, site, centre, ca=str(certificate))
        assert trusting.account()["sender"] == "site-a"
        trusting.web.close()  # or the server waits for the end of the encrypted line
        with pytest.raises(CentreAway):
            client_of(address, site, centre).account()  # nobody vouches for this certificate


def self_signed(folder):
    """A certificate for this machine that vouches for itself."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "centre")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    certificate, key = folder / "chain.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, plain))
    return certificate, key
