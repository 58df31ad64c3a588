"""Asking a server over a real socket: patience, limits, and no request that goes astray."""

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
from server import Reply, Server, Time, replies, serving

from abaton.errors import Refused, SettingsError
from abaton.site import ServerError, Web
from abaton.site.sources.fhir_server import http_client as web_module
from abaton.site.sources.fhir_server.http_client import document
from abaton.site.sources.fhir_server.retry import Clock, Patience

pytestmark = pytest.mark.network
SECRET = "Zanzibar-4711"


@pytest.fixture
def server():
    with serving() as made:
        yield made


def web(server: Server, clock: Time | None = None, **patience: float) -> tuple[Web, Time]:
    clock = clock or Time()
    settings = Patience(**{"timeout": 5.0, "retries": 3, **patience})
    return Web(server.base, (), settings, clock=Clock(clock.now, clock.sleep)), clock


def ask(made: Web, path: str = "/Patient", **more):
    return made.ask(f"{made.base}{path}", dict, **more)


def test_an_answer_is_taken(server):
    server.routes["/fhir/Patient"] = replies(Reply.json({"resourceType": "Bundle"}))
    made, _ = web(server)
    assert document(ask(made), "x") == {"resourceType": "Bundle"}


def test_what_passes_is_tried_again_and_retry_after_is_honoured(server):
    busy, later = Reply(429, headers={"retry-after": "7"}), Reply(503)
    server.routes["/fhir/Patient"] = replies(busy, later, Reply.json({}))
    made, clock = web(server)
    assert ask(made).status == 200
    assert clock.pauses == [7.0, 2.0]


def test_retry_after_as_a_date(server):
    clock = Time()
    server.routes["/fhir/Patient"] = replies(
        Reply(503, headers={"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}), Reply.json({})
    )
    made, _ = web(server, clock)
    ask(made)
    assert clock.pauses == [30.0]


def test_it_is_given_up_clearly(server):
    server.routes["/fhir/Patient"] = replies(Reply(503))
    made, clock = web(server)
    with pytest.raises(ServerError, match="the server answers 503, 4 times .*try again later"):
        ask(made, f"/Patient?name={SECRET}")
    assert clock.pauses == [1.0, 2.0, 4.0]


def test_a_half_written_answer_is_asked_for_again(server):
    whole = Reply.json({"resourceType": "Bundle", "id": "x" * 1000})
    server.routes["/fhir/Patient"] = replies(Reply(200, whole.body, whole.headers, "half"), whole)
    made, clock = web(server)
    assert document(ask(made), "x")["resourceType"] == "Bundle"
    assert len(clock.pauses) == 1


def test_an_error_tells_codes_and_no_text(server):
    issue = {"severity": "error", "code": "forbidden", "diagnostics": SECRET, "details": {"text": SECRET}}
    outcome = {"resourceType": "OperationOutcome", "issue": [issue, {"code": SECRET}, SECRET]}
    server.routes["/fhir/Patient"] = replies(Reply.json(outcome, 403))
    made, _ = web(server)
    with pytest.raises(ServerError, match=r"the server answers 403 \(forbidden\)") as error:
        ask(made, f"/Patient?name={SECRET}")
    assert SECRET not in str(error.value)
    assert error.value.status == 403


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:1/fhir", "https://evil.example/", "//evil.example/x", "file:///etc"]
)
def test_a_redirect_to_another_host_is_not_followed(server, target):
    server.routes["/fhir/Patient"] = replies(Reply(302, headers={"location": target}))
    made, _ = web(server)
    with pytest.raises(Refused, match="redirects to another host"):
        ask(made)
    assert len(server.asked) == 1


def test_a_redirect_on_the_same_host_is_followed_but_not_in_a_circle(server):
    server.routes["/fhir/Patient"] = replies(Reply(307, headers={"location": "/fhir/People"}))
    server.routes["/fhir/People"] = replies(Reply.json({}))
    made, _ = web(server)
    assert ask(made).status == 200
    server.routes["/fhir/People"] = replies(Reply(307, headers={"location": "/fhir/Patient"}))
    with pytest.raises(Refused, match="redirects in a circle"):
        ask(made)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1/fhir", "http://127.0.0.1:9/", "http://localhost/", "ftp://h", "http://["]
)
def test_another_origin_is_never_asked(server, url):
    made, _ = web(server)
    with pytest.raises(Refused, match="points to another host"):
        made.permitted(url)


def test_named_hosts_are_asked_over_https_only():
    made = Web("https://fhir.example", ("files.example", "files.example:8443"))
    assert made.permitted("https://files.example/1")
    assert made.permitted("https://files.example:8443/1")
    for url in ("http://files.example/1", "https://files.example:99/1", "https://x.files.example/1"):
        with pytest.raises(Refused):
            made.permitted(url)


def test_another_kind_of_content_is_refused(server):
    server.routes["/fhir/Patient"] = replies(Reply(200, b"<html>", {"content-type": "text/html"}))
    made, _ = web(server)
    with pytest.raises(ServerError, match="another kind of content"):
        document(ask(made), made.base)


def test_an_answer_that_is_too_large_is_given_up_even_if_it_is_packed(server, monkeypatch):
    monkeypatch.setattr(web_module, "MAX_PAGE", 1 << 20)
    bomb = gzip.compress(b" " * (8 << 20))
    heads = {"content-type": "application/json", "content-encoding": "gzip"}
    server.routes["/fhir/Patient"] = replies(Reply(200, bomb, heads))
    made, _ = web(server)
    with pytest.raises(Refused, match="larger than 1,048,576 bytes"):
        ask(made)


def test_a_server_that_only_drips_is_given_up(server):
    server.routes["/fhir/Patient"] = replies(Reply(how="drip"))
    made, clock = web(server, retries=1, page_time=0.3)
    with pytest.raises(ServerError, match="the answer takes too long, 2 times"):
        ask(made)
    assert clock.pauses == [1.0]


def test_a_server_that_is_silent_is_given_up(server):
    import time

    server.routes["/fhir/Patient"] = lambda _: time.sleep(0.5) or Reply.json({})
    made, _ = web(server, retries=0, timeout=0.1)
    with pytest.raises(ServerError, match="does not answer in time"):
        ask(made)


def test_a_server_that_is_not_there(server):
    made = Web("http://127.0.0.1:9", (), Patience(1.0, 0))
    with pytest.raises(ServerError, match="the server is not reached"):
        ask(made)


def test_a_401_is_answered_by_one_renewal(server):
    server.routes["/fhir/Patient"] = replies(Reply(401), Reply.json({}))
    renewed = []
    made, _ = web(server)
    assert ask(made, renew=lambda: renewed.append(1)).status == 200
    server.routes["/fhir/Patient"] = replies(Reply(401))
    with pytest.raises(ServerError, match="answers 401"):
        ask(made, renew=lambda: renewed.append(1))
    assert len(renewed) == 2


def test_a_file_is_begun_again_when_it_breaks_off(server):
    body = json.dumps({"resourceType": "Patient"}).encode() * 100
    server.routes["/fhir/file"] = replies(Reply.ndjson(body, "half"), Reply.ndjson(body))
    made, _ = web(server)
    target = io.BytesIO()
    made.save(f"{made.base}/file", dict, target)
    assert target.getvalue() == body


def test_certificates_to_trust_must_be_readable(tmp_path):
    with pytest.raises(SettingsError, match="certificates to trust"):
        Web("https://h", ca=str(tmp_path / "none.pem"))


def certificate(folder: Path) -> Path:
    """A certificate for this machine that only those trust who are told to."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    here = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, *form)
    (folder / "both.pem").write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder


def test_certificates_are_always_checked(tmp_path):
    certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    with serving(tls) as server:
        server.routes["/fhir/Patient"] = replies(Reply.json({}))
        with pytest.raises(ServerError, match="certificate is not trusted"):
            ask(Web(server.base, (), Patience(5.0, 0)))
        assert ask(Web(server.base, (), Patience(5.0, 0), ca=str(tmp_path / "ca.pem"))).status == 200
