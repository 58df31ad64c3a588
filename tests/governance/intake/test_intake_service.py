"""The service with a site that follows the protocol."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.governance.conftest import DOCUMENT, NOW, STUDY, pseudonym, query_for, store_consent
from tests.governance.intake.conftest import CONTENT, client_of, refusals, served

from abaton.canonical_json import canonical_digest
from abaton.governance import (
    AuditLog,
    ConsentQuery,
    DeniedError,
    RefusalCode,
    SenderRole,
    make_consent,
    verifier,
    verify,
)
from abaton.governance.external_consent import read_consent_receipt
from abaton.governance.intake import ListenSettings
from abaton.governance.intake.routes import make_api
from abaton.governance.signed_statements import read_deletion_receipt, write_order
from abaton.site import CentreUnavailableError
from abaton.site.sources.fhir_server.retry import RetryClock

pytestmark = pytest.mark.network
BOB = pseudonym("bob")


def opt_in(client, who=BOB, when=NOW):
    return client.consent(make_consent(ConsentQuery(who), when, None))


def enrol(client, who=BOB, when=NOW, document=DOCUMENT, **more):
    return client.consent(
        make_consent(ConsentQuery(who, STUDY, document), when, more.pop("end", None), **more)
    )


def test_studies_are_published(client, inbox, address):
    content = {"format": "abaton-study/1", "question": "why?"}
    inbox.registry.publish(
        "other", canonical_digest(content), NOW, ends=None, keep_until=None, content=content
    )
    listed = {study["study"]: study for study in httpx.get(f"{address}/v1/studies").json()["studies"]}
    assert set(listed) == {STUDY, "other"}
    assert listed[STUDY]["document"] == DOCUMENT
    assert listed[STUDY]["open"] is True
    assert httpx.get(f"{address}/v1/studies/{canonical_digest(content)}").json() == content
    assert httpx.get(f"{address}/v1/studies/{'00' * 32}").json()["code"] == "not-found"
    keys = httpx.get(f"{address}/v1/centre").json()
    assert keys["keys"] == inbox.key_set.row()
    assert httpx.get(f"{address}/v1/health").json() == {"status": "ok"}


def test_a_subject_is_enrolled_with_a_receipt(client, inbox, centre, outbox):
    find = verifier([centre.public.signing_key])
    first = opt_in(client)
    assert opt_in(client) == first  # repeated, the same receipt
    confirmed = read_consent_receipt(enrol(client), find)
    assert (confirmed.subject, confirmed.study, confirmed.document) == (BOB, STUDY, DOCUMENT)
    assert inbox.registry.decision(ConsentQuery(BOB, STUDY, DOCUMENT), NOW).permits
    actions = [entry["action"] for entry in AuditLog(inbox.database).entries() if entry["about"] == BOB]
    assert actions == ["subject-opted-in", "subject-enrolled"]


def test_an_envelope_is_uploaded_in_chunks_and_receipted_once(client, inbox, outbox, queued, centre):
    steps: list[int] = []
    receipt = client.upload(outbox.path(queued), queued.digest, queued.size, steps.append)
    assert len(steps) == -(-queued.size // 100)
    assert client.upload(outbox.path(queued), queued.digest, queued.size) == receipt
    assert client.request("GET", f"/v1/uploads/{queued.digest}")["receipt"] == receipt
    outbox.store_receipt(queued, receipt, verifier([centre.public.signing_key]), NOW)
    (received,) = inbox.received(STUDY)
    assert b"".join(inbox.open_content(received, centre)) == CONTENT
    assert client.usage() == {
        "sender": "site-a", "envelopes": 1, "bytes": queued.size, "pending": 0, "pending_bytes": 0
    }  # fmt: skip
    assert verify(AuditLog(inbox.database).rows()) == []
    assert refusals(inbox.database) == []


def test_an_upload_resumes_at_the_received_bytes(client, inbox, outbox, queued):
    data = outbox.path(queued).read_bytes()
    client.request("POST", "/v1/uploads", b'{"digest":"%s","size":%d}' % (queued.digest.encode(), queued.size),
                {"content-type": "application/json"})  # fmt: skip
    client.request("PUT", f"/v1/uploads/{queued.digest}/parts/0", data[:150])
    with pytest.raises(DeniedError) as error:
        client.request("PUT", f"/v1/uploads/{queued.digest}/parts/0", data[:150])
    assert (error.value.code, error.value.received) == (RefusalCode.OFFSET_MISMATCH, 150)
    assert client.request("GET", f"/v1/uploads/{queued.digest}")["received_bytes"] == 150
    with pytest.raises(DeniedError) as error:
        client.request("POST", f"/v1/uploads/{queued.digest}/finish")
    assert error.value.code is RefusalCode.TRUNCATED
    steps: list[int] = []
    client.upload(outbox.path(queued), queued.digest, queued.size, steps.append)
    assert steps[0] == 250
    assert refusals(inbox.database) == [("offset-mismatch", 409), ("truncated", 409)]


def test_an_upload_can_be_abandoned(client, inbox, outbox, queued):
    body = b'{"digest":"%s","size":%d}' % (queued.digest.encode(), queued.size)
    client.request("POST", "/v1/uploads", body, {"content-type": "application/json"})
    client.request("PUT", f"/v1/uploads/{queued.digest}/parts/0", b"x" * 10)
    assert client.request("DELETE", f"/v1/uploads/{queued.digest}") == {}
    assert list(inbox.folder.iterdir()) == []
    with pytest.raises(DeniedError) as error:
        client.request("GET", f"/v1/uploads/{queued.digest}")
    assert error.value.code is RefusalCode.NOT_FOUND


def test_a_withdrawal_is_executed_once(client, inbox, outbox, queued, site, centre):
    client.upload(outbox.path(queued), queued.digest, queued.size)
    order = write_order(site.signing_key, STUDY, pseudonym("ann"), NOW)
    receipt = client.delete(order)
    assert read_deletion_receipt(receipt, verifier([centre.public.signing_key])).records == 1
    assert client.delete(order) == receipt
    assert inbox.received(STUDY) == []
    with pytest.raises(DeniedError) as error:  # an old consent is refused, a new one is accepted
        client.consent(make_consent(ConsentQuery(pseudonym("ann"), STUDY, DOCUMENT), NOW, None))
    assert error.value.code is RefusalCode.REPLAYED


@pytest.mark.parametrize("skew", [-20, 20])
def test_a_withdrawal_is_accepted_from_a_site_whose_clock_is_wrong(address, inbox, site, centre, skew):
    theirs = NOW + timedelta(hours=skew)
    clock = RetryClock(now=theirs.timestamp, sleep=lambda seconds: None)
    client = client_of(address, site, centre, clock=clock)
    with pytest.raises(DeniedError) as error:
        client.usage()  # all other requests need a correct clock
    assert error.value.code is RefusalCode.EXPIRED
    consent = make_consent(query_for(), theirs - timedelta(hours=1), None)
    store_consent(inbox.registry, query_for(), consent, NOW)
    receipt = client.delete(write_order(site.signing_key, STUDY, pseudonym("ann"), theirs))
    assert read_deletion_receipt(receipt, verifier([centre.public.signing_key])).subject == pseudonym("ann")
    assert inbox.registry.decision(query_for(), NOW).value == "withdrawn"


def test_an_unreachable_centre_is_retried_and_reported(site, centre):
    waits: list[float] = []
    client = client_of("http://127.0.0.1:9", site, centre)
    object.__setattr__(client.http_client.clock, "sleep", waits.append)
    with pytest.raises(CentreUnavailableError):
        client.usage()
    assert waits == [1.0, 2.0]


def test_every_answer_has_its_headers_and_the_document_is_complete(client, make_centre, address):
    answer = httpx.get(f"{address}/v1/health")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    document = httpx.get(f"{address}/openapi.json").json()
    assert document == make_api(make_centre()).openapi()
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


def test_an_unregistered_sender_and_another_role_are_refused(client, inbox, stranger, centre, address):
    inbox.senders.register(stranger.public, SenderRole.APPROVER, NOW)
    for approver in (client_of(address, stranger, centre),):
        with pytest.raises(DeniedError) as error:
            approver.usage()
        assert error.value.code is RefusalCode.UNKNOWN_SENDER
    inbox.senders.unregister("site-a", NOW)
    with pytest.raises(DeniedError) as error:
        client.usage()
    assert error.value.code is RefusalCode.UNKNOWN_SENDER
    assert refusals(inbox.database) == [("unknown-sender", 401)] * 2


def test_rate_limits_state_when_to_retry(make_centre, site, centre, inbox):
    with served(
        make_centre(sender_rate=0.01, burst_seconds=100)
    ) as address:  # one request, the next in 100 seconds
        client = client_of(address, site, centre)
        client.usage()
        with pytest.raises(CentreUnavailableError):
            client.usage()
    assert refusals(inbox.database) == [("too-many-requests", 429)] * 3


def test_the_connection_is_encrypted_and_the_certificate_is_verified(
    make_centre, site, centre, tmp_path, inbox
):
    certificate, key = self_signed(tmp_path)
    listen = ListenSettings(port=0, certificate=certificate, key=key)
    with served(make_centre(), listen) as address:
        assert address.startswith("https://127.0.0.1:")
        trusting = client_of(address, site, centre, ca_file=str(certificate))
        assert trusting.usage()["sender"] == "site-a"
        trusting.http_client.close()  # otherwise the server waits for the end of the TLS connection
        with pytest.raises(CentreUnavailableError):
            client_of(address, site, centre).usage()  # the certificate is not trusted


def self_signed(folder):
    """Return a self-signed certificate for this machine."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "centre")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    self_signed_certificate = (
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
    certificate.write_bytes(self_signed_certificate.public_bytes(serialization.Encoding.PEM))
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, form, encryption))
    return certificate, key
