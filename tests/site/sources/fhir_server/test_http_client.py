"""HTTP client over a real socket: retries, limits and permitted hosts."""

from __future__ import annotations

import gzip
import io
import json
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.site.fhir_test_server import Reply, Server, Time, replies, serving

from abaton.errors import RefusedError, SettingsError
from abaton.site import FhirHttpClient, FhirServerError
from abaton.site.sources.fhir_server import http_client as web_module
from abaton.site.sources.fhir_server.http_client import parse_response
from abaton.site.sources.fhir_server.retry import RetryClock, RetryPolicy

pytestmark = pytest.mark.network
SECRET = "Zanzibar-4711"


@pytest.fixture
def server():
    with serving() as client:
        yield client


def http_client(
    server: Server, clock: Time | None = None, **retry_policy: float
) -> tuple[FhirHttpClient, Time]:
    clock = clock or Time()
    settings = RetryPolicy(**{"timeout": 5.0, "retries": 3, **retry_policy})
    return FhirHttpClient(server.base, (), settings, clock=RetryClock(clock.now, clock.sleep)), clock


def send_request(client: FhirHttpClient, path: str = "/Patient", **more):
    return client.request(f"{client.base}{path}", dict, **more)


def test_response_is_returned(server):
    server.routes["/fhir/Patient"] = replies(Reply.json({"resourceType": "Bundle"}))
    client, _ = http_client(server)
    assert parse_response(send_request(client), "x") == {"resourceType": "Bundle"}


def test_transient_failures_are_retried_and_retry_after_is_honoured(server):
    busy, later = Reply(429, headers={"retry-after": "7"}), Reply(503)
    server.routes["/fhir/Patient"] = replies(busy, later, Reply.json({}))
    client, clock = http_client(server)
    assert send_request(client).status == 200
    assert clock.pauses == [7.0, 2.0]


def test_retry_after_as_a_date(server):
    clock = Time()
    server.routes["/fhir/Patient"] = replies(
        Reply(503, headers={"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}), Reply.json({})
    )
    client, _ = http_client(server, clock)
    send_request(client)
    assert clock.pauses == [30.0]


def test_error_after_the_last_retry(server):
    server.routes["/fhir/Patient"] = replies(Reply(503))
    client, clock = http_client(server)
    with pytest.raises(
        FhirServerError,
        match=r"the server responds with status 503 \(4 attempts\).*run the command again later",
    ):
        send_request(client, f"/Patient?name={SECRET}")
    assert clock.pauses == [1.0, 2.0, 4.0]


def test_incomplete_response_is_retried(server):
    complete_reply = Reply.json({"resourceType": "Bundle", "id": "x" * 1000})
    server.routes["/fhir/Patient"] = replies(
        Reply(200, complete_reply.body, complete_reply.headers, "half"), complete_reply
    )
    client, clock = http_client(server)
    assert parse_response(send_request(client), "x")["resourceType"] == "Bundle"
    assert len(clock.pauses) == 1


def test_errors_contain_codes_and_no_text(server):
    issue = {"severity": "error", "code": "forbidden", "diagnostics": SECRET, "details": {"text": SECRET}}
    outcome = {"resourceType": "OperationOutcome", "issue": [issue, {"code": SECRET}, SECRET]}
    server.routes["/fhir/Patient"] = replies(Reply.json(outcome, 403))
    client, _ = http_client(server)
    with pytest.raises(FhirServerError, match=r"the server responds with status 403 \(forbidden\)") as error:
        send_request(client, f"/Patient?name={SECRET}")
    assert SECRET not in str(error.value)
    assert error.value.status == 403


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:1/fhir", "https://evil.example/", "//evil.example/x", "file:///etc"]
)
def test_a_redirect_to_another_host_is_not_followed(server, target):
    server.routes["/fhir/Patient"] = replies(Reply(302, headers={"location": target}))
    client, _ = http_client(server)
    with pytest.raises(RefusedError, match="redirects to another host"):
        send_request(client)
    assert len(server.requests) == 1


def test_redirects_on_the_same_host_are_followed_up_to_a_limit(server):
    server.routes["/fhir/Patient"] = replies(Reply(307, headers={"location": "/fhir/People"}))
    server.routes["/fhir/People"] = replies(Reply.json({}))
    client, _ = http_client(server)
    assert send_request(client).status == 200
    server.routes["/fhir/People"] = replies(Reply(307, headers={"location": "/fhir/Patient"}))
    with pytest.raises(RefusedError, match="redirects more than 5 times"):
        send_request(client)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/fhir", "http://127.0.0.1:9/", "http://localhost/", "ftp://h", "http://["]
)
def test_other_origins_are_refused(server, url):
    client, _ = http_client(server)
    with pytest.raises(RefusedError, match="points to another host"):
        client.check_permitted(url)


def test_named_hosts_require_https():
    client = FhirHttpClient("https://fhir.example", ("files.example", "files.example:8443"))
    assert client.check_permitted("https://files.example/1")
    assert client.check_permitted("https://files.example:8443/1")
    for url in ("http://files.example/1", "https://files.example:99/1", "https://x.files.example/1"):
        with pytest.raises(RefusedError):
            client.check_permitted(url)


def test_other_content_type_is_refused(server):
    server.routes["/fhir/Patient"] = replies(Reply(200, b"<html>", {"content-type": "text/html"}))
    client, _ = http_client(server)
    with pytest.raises(FhirServerError, match="content type"):
        parse_response(send_request(client), client.base)


def test_oversized_response_is_refused_also_if_compressed(server, monkeypatch):
    monkeypatch.setattr(web_module, "MAX_PAGE_BYTES", 1 << 20)
    bomb = gzip.compress(b" " * (8 << 20))
    heads = {"content-type": "application/json", "content-encoding": "gzip"}
    server.routes["/fhir/Patient"] = replies(Reply(200, bomb, heads))
    client, _ = http_client(server)
    with pytest.raises(RefusedError, match="larger than 1,048,576 bytes"):
        send_request(client)


def test_slow_response_is_abandoned(server):
    server.routes["/fhir/Patient"] = replies(Reply(how="drip"))
    client, clock = http_client(server, retries=1, max_page_seconds=0.3)
    with pytest.raises(FhirServerError, match=r"the response takes longer than .* s \(2 attempts\)"):
        send_request(client)
    assert clock.pauses == [1.0]


def test_silent_server_times_out(server):
    import time

    server.routes["/fhir/Patient"] = lambda _: time.sleep(0.5) or Reply.json({})
    client, _ = http_client(server, retries=0, timeout=0.1)
    with pytest.raises(FhirServerError, match="does not respond in time"):
        send_request(client)


def test_unreachable_server_is_an_error(server):
    client = FhirHttpClient("http://127.0.0.1:9", (), RetryPolicy(1.0, 0))
    with pytest.raises(FhirServerError, match="the server cannot be reached"):
        send_request(client)


def test_status_401_renews_the_token_once(server):
    server.routes["/fhir/Patient"] = replies(Reply(401), Reply.json({}))
    renewed = []
    client, _ = http_client(server)
    assert send_request(client, renew_token=lambda: renewed.append(1)).status == 200
    server.routes["/fhir/Patient"] = replies(Reply(401))
    with pytest.raises(FhirServerError, match="status 401"):
        send_request(client, renew_token=lambda: renewed.append(1))
    assert len(renewed) == 2


def test_interrupted_file_is_downloaded_again(server):
    body = json.dumps({"resourceType": "Patient"}).encode() * 100
    server.routes["/fhir/file"] = replies(Reply.ndjson(body, "half"), Reply.ndjson(body))
    client, _ = http_client(server)
    target = io.BytesIO()
    client.save(f"{client.base}/file", dict, target)
    assert target.getvalue() == body


def test_unreadable_ca_file_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="the trusted certificates"):
        FhirHttpClient("https://h", ca_file=str(tmp_path / "none.pem"))


def certificate(folder: Path) -> Path:
    """Return a self-signed certificate for this machine."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    here = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    client = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, *form)
    (folder / "both.pem").write_bytes(secret + client.public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes(client.public_bytes(serialization.Encoding.PEM))
    return folder


def test_certificates_are_always_verified(tmp_path):
    certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    with serving(tls) as server:
        server.routes["/fhir/Patient"] = replies(Reply.json({}))
        with pytest.raises(FhirServerError, match="certificate is not trusted"):
            send_request(FhirHttpClient(server.base, (), RetryPolicy(5.0, 0)))
        assert (
            send_request(
                FhirHttpClient(server.base, (), RetryPolicy(5.0, 0), ca_file=str(tmp_path / "ca.pem"))
            ).status
            == 200
        )
