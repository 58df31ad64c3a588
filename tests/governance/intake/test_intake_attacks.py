"""Invalid requests are refused with the right status and an audit entry without content."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import socket
import threading
import time
from urllib.parse import quote, urlsplit

import httpx
import pytest
import sqlalchemy as sql
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, pseudonym
from tests.governance.intake.conftest import client_of, refusals, served

from abaton.errors import StoreError
from abaton.governance import (
    AuditLog,
    ConsentQuery,
    DeniedError,
    EnvelopeHeader,
    RefusalCode,
    SenderRole,
    make_consent,
    schema,
    seal,
    verify,
)
from abaton.governance.http_signatures import SignedRequest, signed_headers
from abaton.governance.intake.intake_service import SenderQuota
from abaton.governance.signed_statements import write_order
from abaton.site import CentreUnavailableError

pytestmark = pytest.mark.network
ANN, BOB = pseudonym("ann"), pseudonym("bob")
JSON = {"content-type": "application/json"}
SECRET = b"Chalmers, Peter"


def envelope(site, centre, *, study=STUDY, document=DOCUMENT, to=None, number=1, who=ANN, content=SECRET):
    to = to or centre.public.sealing_key
    header = EnvelopeHeader(
        study, document, site.signing_key.id, to.id, number, who, "2026-03-01T12:00:00.000Z"
    )
    return b"".join(seal([content], header, site.signing_key, to, os.urandom(32)))


def bring(client, data, folder):
    path = folder / "sealed"
    path.write_bytes(data)
    return client.upload(path, hashlib.sha256(data).hexdigest(), len(data))


def refused(work, code: RefusalCode) -> DeniedError:
    with pytest.raises(DeniedError) as error:
        work()
    assert error.value.code is code, error.value
    return error.value


def check_audit(inbox, *expected: tuple[str, int]) -> None:
    """Check that the log is intact, contains exactly these refusals and nothing that was sent."""
    assert refusals(inbox.database) == list(expected)
    assert verify(AuditLog(inbox.database).rows()) == []
    assert SECRET.decode() not in "".join(body for _, body, _ in AuditLog(inbox.database).rows())


def signed(client, method, target, body=b"", when=NOW, signer=None, nonce=None, centre=None):
    path, _, query = target.partition("?")
    request = SignedRequest.of(centre or client.key_set.signing_key.id, method, path, query, body)
    return signed_headers(signer or client.signer, request, when, nonce or os.urandom(16))


# authentication


def test_a_recorded_request_cannot_be_replayed(client, address, inbox):
    headers = signed(client, "GET", "/v1/usage")
    assert httpx.get(f"{address}/v1/usage", headers=headers).status_code == 200
    again = httpx.get(f"{address}/v1/usage", headers=headers)
    assert (again.status_code, again.json()["code"]) == (401, "replayed")
    assert again.headers["www-authenticate"] == "Signature"
    check_audit(inbox, ("replayed", 401))


def test_a_signature_is_for_one_request_at_one_centre_and_now(client, address, inbox, stranger, site):
    target, order = "/v1/usage", []
    forged = signed(client, "GET", target, signer=stranger.signing_key)
    named = forged["signature-input"].replace(stranger.signing_key.id, site.signing_key.id)
    own = signed(client, "GET", target)
    cases = [
        ({}, "unsigned"),
        ({"authorization": "Bearer x"}, "unsigned"),
        ({"signature": own["signature"]}, "unsigned"),
        ({**own, "signature-input": own["signature-input"].replace('"@query" ', "")}, "unsigned"),
        (forged, "unknown-sender"),
        ({**forged, "signature-input": named}, "forged"),
        (signed(client, "POST", target), "forged"),
        (signed(client, "GET", "/v1/studies"), "forged"),
        (signed(client, "GET", f"{target}?x=1"), "forged"),
        (signed(client, "GET", target, b"other body"), "forged"),
        (signed(client, "GET", target, centre=stranger.signing_key.id), "forged"),
        (signed(client, "GET", target, when=NOW - DAY), "expired"),
        (signed(client, "GET", target, when=NOW + DAY), "expired"),
    ]
    for headers, code in cases:
        answer = httpx.get(f"{address}{target}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, code)
        order.append((code, 401))
    check_audit(inbox, *order)


def test_a_body_changed_in_transit_is_refused(client, address, inbox):
    body = json.dumps({"digest": "ab" * 32, "size": 10}).encode()
    headers = {**signed(client, "POST", "/v1/uploads", body), **JSON}
    answer = httpx.post(f"{address}/v1/uploads", headers=headers, content=body.replace(b"10", b"11"))
    assert (answer.status_code, answer.json()["code"]) == (401, "forged")
    check_audit(inbox, ("forged", 401))


def test_an_envelope_of_another_sender_is_refused(client, address, inbox, stranger, centre, site, tmp_path):
    inbox.senders.register(stranger.public, SenderRole.SITE, NOW)
    theirs = client_of(address, stranger, centre)
    refused(lambda: bring(theirs, envelope(site, centre), tmp_path), RefusalCode.FORGED)
    bring(client, data := envelope(site, centre), tmp_path)
    refused(
        lambda: theirs.request("GET", f"/v1/uploads/{hashlib.sha256(data).hexdigest()}"),
        RefusalCode.NOT_FOUND,
    )
    check_audit(inbox, ("forged", 403), ("not-found", 404))


def test_a_site_cannot_act_for_the_subjects_of_another(client, address, inbox, stranger, centre, tmp_path):
    inbox.senders.register(stranger.public, SenderRole.SITE, NOW)
    theirs = client_of(address, stranger, centre)
    client.consent(make_consent(ConsentQuery(BOB), NOW, None))
    client.consent(make_consent(ConsentQuery(BOB, STUDY, DOCUMENT), NOW, None))
    order = write_order(stranger.signing_key, STUDY, BOB, NOW)
    refused(lambda: theirs.consent(make_consent(ConsentQuery(BOB), NOW, None)), RefusalCode.WRONG_SENDER)
    refused(lambda: theirs.delete(order), RefusalCode.WRONG_SENDER)
    refused(lambda: bring(theirs, envelope(stranger, centre, who=BOB), tmp_path), RefusalCode.WRONG_SENDER)
    refused(lambda: client.delete(order), RefusalCode.FORGED)
    assert inbox.registry.decision(ConsentQuery(BOB, STUDY, DOCUMENT), NOW).permits
    check_audit(inbox, *[("wrong-sender", 403)] * 3, ("forged", 403))


# content


def test_replayed_tampered_and_misdirected_envelopes(client, inbox, centre, site, tmp_path):
    good = envelope(site, centre)
    receipt = bring(client, good, tmp_path)
    assert bring(client, good, tmp_path) == receipt
    spoilt = envelope(site, centre, number=2)
    other_key = site.public.sealing_key
    cases = [
        (envelope(site, centre), RefusalCode.REPLAYED, 409),
        (spoilt[:-70] + bytes([spoilt[-70] ^ 1]) + spoilt[-69:], RefusalCode.FORGED, 403),
        (spoilt[:-1], RefusalCode.TRUNCATED, 409),
        (spoilt + b"x", RefusalCode.MALFORMED, 422),
        (b"not an envelope", RefusalCode.MALFORMED, 422),
        (envelope(site, centre, study="unknown", number=3), RefusalCode.WRONG_STUDY, 404),
        (envelope(site, centre, document=NEWER, number=4), RefusalCode.WRONG_DOCUMENT, 409),
        (envelope(site, centre, to=other_key, number=5), RefusalCode.UNKNOWN_KEY, 422),
        (envelope(site, centre, who=BOB, number=6), RefusalCode.NO_CONSENT, 403),
        (envelope(site, centre, who="", number=7), RefusalCode.NO_CONSENT, 403),
    ]
    for data, code, _ in cases:
        refused(lambda data=data: bring(client, data, tmp_path), code)
    assert len(inbox.received(STUDY)) == 1
    assert [path.name for path in inbox.folder.iterdir()] == [hashlib.sha256(good).hexdigest()]
    check_audit(inbox, *[(code.value, status) for _, code, status in cases])


def test_an_envelope_to_a_retired_key_is_refused(inbox, make_centre, site, centre, tmp_path):
    from tests.governance.conftest import random_source

    later = "2026-01-01T00:00:00.000Z"
    old = type(centre).new("centre", random_source("old"), "2025-01-01T00:00:00.000Z")
    inbox.key_set = old.rotate(random_source("new"), later, hybrid=True).public
    with served(make_centre()) as address:
        client = client_of(address, site, centre)
        data = envelope(site, centre, to=old.public.sealing_key)
        refused(lambda: bring(client, data, tmp_path), RefusalCode.RETIRED_KEY)
    check_audit(inbox, ("retired-key", 422))


def test_consents_that_are_not_in_force_are_refused(client, inbox):
    good = make_consent(ConsentQuery(BOB, STUDY, DOCUMENT), NOW, None)
    no_opt_in = refused(lambda: client.consent(good), RefusalCode.NO_CONSENT)
    assert no_opt_in.reason == "not-opted-in"
    client.consent(make_consent(ConsentQuery(BOB), NOW, None))

    def changed(**more):
        return {**copy.deepcopy(good), **more}

    cases = [
        (
            make_consent(ConsentQuery(BOB, STUDY, DOCUMENT), NOW - 2 * DAY, NOW - DAY),
            RefusalCode.NO_CONSENT,
            "expired",
        ),
        (
            make_consent(ConsentQuery(BOB, STUDY, DOCUMENT), NOW + DAY, None),
            RefusalCode.NO_CONSENT,
            "not-yet",
        ),
        (make_consent(ConsentQuery(BOB, STUDY, NEWER), NOW, None), RefusalCode.WRONG_DOCUMENT, ""),
        (make_consent(ConsentQuery(BOB, "unknown", DOCUMENT), NOW, None), RefusalCode.WRONG_STUDY, ""),
        (changed(status="inactive"), RefusalCode.MALFORMED, ""),
        (changed(modifierExtension=[]), RefusalCode.MALFORMED, ""),
        (changed(text={"div": SECRET.decode()}), RefusalCode.MALFORMED, ""),
        (changed(patient={**good["patient"], "display": SECRET.decode()}), RefusalCode.MALFORMED, ""),
        (changed(patient={"reference": "Patient/4711"}), RefusalCode.MALFORMED, ""),
        (changed(provision={**good["provision"], "type": "deny"}), RefusalCode.NO_CONSENT, "unclear"),
        (changed(scope={"coding": []}), RefusalCode.NO_CONSENT, "other-scope"),
    ]
    for consent, code, reason in cases:
        assert refused(lambda consent=consent: client.consent(consent), code).reason == reason
    assert inbox.registry.consent(BOB, STUDY) is None
    assert len(refusals(inbox.database)) == 1 + len(cases)
    assert verify(AuditLog(inbox.database).rows()) == []


def test_a_consent_that_expired_before_the_upload(inbox, site, centre, tmp_path):
    from abaton.governance.intake import IntakeService

    with served(IntakeService(inbox, now=lambda: NOW + 60 * DAY)) as address:
        client = client_of(address, site, centre)
        object.__setattr__(client.http_client.clock, "now", lambda: (NOW + 60 * DAY).timestamp())
        error = refused(lambda: bring(client, envelope(site, centre), tmp_path), RefusalCode.NO_CONSENT)
    assert error.reason == "expired"
    check_audit(inbox, ("no-consent", 403))


def test_a_withdrawal_races_uploads(client, address, inbox, site, centre, tmp_path):
    """Whatever the order, no envelope of a withdrawn subject remains."""
    taken, go = [], threading.Barrier(7)

    def uploading(number):
        own = client_of(address, site, centre, chunk_bytes=1 << 20)
        folder = tmp_path / str(number)
        folder.mkdir()
        data = envelope(site, centre, number=number)
        go.wait()
        try:
            taken.append(bring(own, data, folder))
        except DeniedError as error:
            taken.append(error.code)

    threads = [threading.Thread(target=uploading, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    go.wait()
    receipt = client.delete(write_order(site.signing_key, STUDY, ANN, NOW))
    for thread in threads:
        thread.join()
    accepted = [answer for answer in taken if isinstance(answer, dict)]
    refusals = {answer for answer in taken if not isinstance(answer, dict)}
    assert refusals <= {
        RefusalCode.NO_CONSENT,
        RefusalCode.NOT_FOUND,
    }  # the latter: removed during the upload
    assert len(taken) == 6
    assert receipt["body"]["records"] == len(accepted)
    assert inbox.received(STUDY) == []
    assert list(inbox.folder.iterdir()) == []


NASTY = [
    "'; DROP TABLE inbox;--", "1 OR 1=1", "../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "\0", "a\nb",
    "{{7*7}}", "<script>alert(1)</script>", "\ud800", "é" * 300, "A" * 5000, "$(id)", "C:\\x", "/", "", "🩺",
]  # fmt: skip


def test_injections_in_every_field(client, address, inbox, site):
    """Each field of each model and each path segment: a refusal without an echo and without side effects."""
    consent = make_consent(ConsentQuery(BOB, STUDY, DOCUMENT), NOW, None)
    forms = [
        ("/v1/uploads", {"digest": "ab" * 32, "size": 10}),
        ("/v1/consents", make_consent(ConsentQuery(BOB), NOW, None)),
        ("/v1/consents", consent),
        ("/v1/withdrawals", write_order(site.signing_key, STUDY, ANN, NOW)),
    ]
    before, tables = sorted(inbox.folder.parent.rglob("*")), _tables(inbox)
    with httpx.Client() as http:
        for target, form in forms:
            for path in list(_leaf_paths(form)):
                for nasty in NASTY[:: 1 if target == "/v1/uploads" else 4]:
                    body = json.dumps(_exchanged(form, path, nasty)).encode()
                    headers = {**signed(client, "POST", target, body), **JSON}
                    _check_refused(http.post(address + target, content=body, headers=headers), nasty)
        for method, shape in [
            ("GET", "/v1/studies/{}"), ("GET", "/v1/uploads/{}"), ("DELETE", "/v1/uploads/{}"),
            ("POST", "/v1/uploads/{}/finish"), ("PUT", "/v1/uploads/{}/parts/0"),
            ("PUT", "/v1/uploads/" + "ab" * 32 + "/parts/{}"), ("GET", "/v1/usage/{}"),
        ]:  # fmt: skip
            for nasty in NASTY[:-2]:
                target = shape.format(quote(nasty.encode("utf-8", "surrogatepass"), safe=""))
                headers = signed(client, method, target)
                _check_refused(http.request(method, address + target, headers=headers), nasty)
    assert sorted(inbox.folder.parent.rglob("*")) == before
    assert _tables(inbox) == tables
    assert verify(AuditLog(inbox.database).rows()) == []
    text = "".join(body for _, body, _ in AuditLog(inbox.database).rows())
    assert "DROP TABLE" not in text
    assert "etc/passwd" not in text


def _check_refused(answer: httpx.Response, nasty: str) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, nasty)
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(nasty) < 4 or nasty not in answer.text


def _tables(inbox) -> dict[str, int]:
    named = [
        schema.inbox,
        schema.uploads,
        schema.consents,
        schema.deletions,
        schema.custodians,
        schema.senders,
    ]
    return inbox.database.read(
        lambda connection: {
            t.name: connection.scalar(sql.select(sql.func.count()).select_from(t)) for t in named
        }
    )


def _leaf_paths(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaf_paths(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _leaf_paths(value, (*path, number))
    else:
        yield path


def _exchanged(form, path, value):
    changed = copy.deepcopy(form)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


# limits of size and time


def test_requests_above_the_limits_are_refused(make_centre, inbox, site, centre, tmp_path):
    quota = SenderQuota(upload_bytes=2000, open_uploads=2, total_bytes=3000)
    with served(make_centre(chunk_bytes=1000, body_bytes=4000, sender_quota=quota)) as address:
        client = client_of(address, site, centre, chunk_bytes=1000)

        def announce(size, number=0):
            body = json.dumps({"digest": f"{number:064x}", "size": size}).encode()
            return client.request("POST", "/v1/uploads", body, JSON)

        refused(lambda: announce(2001), RefusalCode.TOO_LARGE)
        announce(1500, 1)
        refused(lambda: announce(1501, 2), RefusalCode.QUOTA)
        announce(10, 2)
        refused(lambda: announce(10, 3), RefusalCode.QUOTA)
        refused(
            lambda: client.request("PUT", f"/v1/uploads/{2:064x}/parts/0", b"x" * 11), RefusalCode.TOO_LARGE
        )
        refused(
            lambda: client.request("PUT", f"/v1/uploads/{1:064x}/parts/0", b"x" * 1001), RefusalCode.TOO_LARGE
        )
        refused(lambda: client.request("POST", "/v1/consents", b" " * 4001, JSON), RefusalCode.TOO_LARGE)
        headers = signed(client, "POST", "/v1/consents", b"x" * 10_000)
        chunked = httpx.post(f"{address}/v1/consents", content=iter([b"x" * 1000] * 10), headers=headers)
        assert (chunked.status_code, chunked.json()["code"]) == (413, "too-large")
    small, large = ("quota", 403), ("too-large", 413)
    check_audit(inbox, large, small, small, large, large, large, large)


def _socket(address):
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    return connection


def _partial_request(client, size: int, start: bytes = b"{", **more) -> bytes:
    """Return the start of a signed consent request whose remainder is missing."""
    headers = {"Host": "x", "Content-Length": str(size), **signed(client, "POST", "/v1/consents"), **more}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/consents HTTP/1.1\r\n{lines}\r\n".encode() + start


def test_the_body_of_an_unknown_caller_is_not_read(make_centre, inbox, client):
    with served(make_centre(body_seconds=60)) as address:
        for stranger in ({"signature": ""}, {"signature-input": "x"}, {"content-digest": "sha-256=:AAAA:"}):
            with _socket(address) as slow:
                slow.sendall(_partial_request(client, 4000, **stranger))
                start, answer = time.monotonic(), slow.recv(4096)
                assert answer.startswith(b"HTTP/1.1 401 ")
                assert time.monotonic() - start < 20  # the body never arrives and is not waited for
                assert b"connection: close" in answer.lower()
    check_audit(inbox, ("unsigned", 401), ("unsigned", 401), ("forged", 401))


def test_a_body_that_was_not_signed_is_refused_despite_a_valid_header_signature(client, address, inbox):
    headers = signed(client, "POST", "/v1/uploads", b'{"digest":"%s","size":10}' % (b"0" * 64))
    other = httpx.post(
        f"{address}/v1/uploads", headers=headers, content=b'{"digest":"%s","size":9}' % (b"1" * 64)
    )
    assert (other.status_code, other.json()["code"]) == (401, "forged")
    (entry,) = [e for e in AuditLog(inbox.database).entries() if e["action"] == "request-refused"]
    assert entry["actor"] == ""  # not attributed to the site whose signature it has


def test_slow_requests_are_cut_off(make_centre, inbox, client):
    with served(make_centre(header_seconds=0.5, body_seconds=0.5)) as address:
        for start in (b"", b"GET /v1/health HT"):
            with _socket(address) as slow:
                slow.sendall(start)
                with contextlib.suppress(ConnectionResetError):
                    assert slow.recv(100) == b""  # closed without a response
        with _socket(address) as slow:
            slow.sendall(_partial_request(client, 100))
            answer = b""
            while piece := slow.recv(4096):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"connection: close" in answer.lower()
        assert httpx.get(f"{address}/v1/health").status_code == 200
    check_audit(inbox, ("too-slow", 408))


def test_a_slow_trickle_of_bytes_is_cut_off(make_centre):
    with served(make_centre(header_seconds=1)) as address, _socket(address) as slow:
        start = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(100):
                slow.sendall(b"G")
                time.sleep(0.1)
                if slow.recv(1, socket.MSG_DONTWAIT) == b"":
                    raise ConnectionResetError
        assert time.monotonic() - start < 8


def test_a_second_slow_request_on_an_open_connection_is_cut_off(make_centre):
    with served(make_centre(header_seconds=0.5)) as address, _socket(address) as slow:
        slow.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # header and body may arrive separately
            answer += slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET /v1/he")
        slow.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(4096) == b""


def test_requests_beyond_the_queue_are_refused(make_centre, inbox, client):
    with served(make_centre(concurrent=1, waiting=0, body_seconds=5)) as address, _socket(address) as slow:
        slow.sendall(_partial_request(client, 100))
        deadline = time.monotonic() + 10
        while (
            answer := httpx.get(f"{address}/v1/health")
        ).status_code == 200 and time.monotonic() < deadline:
            pass
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert "retry-after" in answer.headers


def test_repeated_refusals_of_unknown_callers_are_summarised_in_the_audit_log(inbox):
    """100 entries, then one entry per ten minutes with the number of refusals."""
    from abaton.governance.intake import IntakeLimits, IntakeService

    ticks = [0.0]
    centre = IntakeService(inbox, IntakeLimits(address_rate=1e6), now=lambda: NOW, monotonic=lambda: ticks[0])

    def refused_entries() -> list[dict]:
        return [e for e in AuditLog(inbox.database).entries() if e["action"] == "request-refused"]

    with served(centre) as address, httpx.Client() as http:
        for _ in range(150):
            assert http.get(f"{address}/v1/usage").status_code == 401
        assert len(refused_entries()) == 100
        for _ in range(20):  # 200 minutes with 10 requests per ten minutes
            ticks[0] += 600
            for _ in range(10):
                http.get(f"{address}/v1/usage")
    entries = refused_entries()
    assert len(entries) == 120
    assert sum(e["detail"].get("unaudited", 0) for e in entries) == 50 + 19 * 9


def test_repeated_refusals_of_a_sender_are_summarised_in_the_audit_log(inbox, client, monkeypatch):
    from abaton.governance.intake import IntakeLimits, IntakeService, middleware

    monkeypatch.setattr(middleware, "_AUDIT_RATE_SENDER", (1 / 60, 5))
    centre = IntakeService(inbox, IntakeLimits(), now=lambda: NOW, monotonic=lambda: 0.0)
    with served(centre) as address, httpx.Client() as http:
        for _ in range(12):
            answer = http.get(f"{address}/v1/nothing", headers=signed(client, "GET", "/v1/nothing"))
            assert answer.status_code == 404
        assert http.get(f"{address}/v1/usage").status_code == 401  # unknown callers are counted separately
    assert refusals(inbox.database) == [("no-such-path", 404)] * 5 + [("unsigned", 401)]


def test_a_symbolic_link_in_the_inbox_is_not_followed(client, inbox, tmp_path):
    """A folder that another user could write to must not redirect chunks."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (inbox.folder / f"{7:064x}.part").symlink_to(victim)
    body = json.dumps({"digest": f"{7:064x}", "size": 10}).encode()
    client.request("POST", "/v1/uploads", body, JSON)
    with pytest.raises((DeniedError, CentreUnavailableError)):
        client.request("PUT", f"/v1/uploads/{7:064x}/parts/0", b"0123456789")
    assert victim.read_bytes() == b""


# failures


def test_a_failure_reveals_nothing(client, inbox, address, monkeypatch, site, caplog):
    def fail(*_):
        raise RuntimeError(SECRET.decode())

    monkeypatch.setattr(inbox.registry, "studies", fail)
    answer = httpx.get(f"{address}/v1/studies")
    assert (answer.status_code, answer.json()["code"]) == (500, "failed")
    assert SECRET.decode() not in answer.text + caplog.text
    assert "Traceback" not in answer.text
    assert "RuntimeError" in caplog.text

    def busy(*_):
        raise StoreError("the database is too busy", where=SECRET.decode())

    monkeypatch.setattr(inbox.registry, "studies", busy)
    answer = httpx.get(f"{address}/v1/studies")
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert SECRET.decode() not in answer.text
    with pytest.raises(CentreUnavailableError):
        client.request("GET", "/v1/studies")


def test_entries_edited_in_the_database_are_found(client, inbox, centre, site, tmp_path):
    audit = AuditLog(inbox.database)
    bring(client, envelope(site, centre), tmp_path)
    refused(lambda: bring(client, envelope(site, centre), tmp_path), RefusalCode.REPLAYED)
    rows = list(audit.rows())
    assert verify(rows) == []
    last = rows[-1][0]
    body = rows[-1][1].replace("replayed", "received")
    table = schema.audit
    inbox.database.write(
        lambda connection: connection.execute(
            table.update().where(table.c.sequence == last).values(body=body)
        )
    )
    assert [fault.sequence for fault in verify(audit.rows())] == [last]
    inbox.database.write(lambda connection: connection.execute(table.delete().where(table.c.sequence == 2)))
    assert [fault.sequence for fault in verify(audit.rows())] == [2, last]


def test_unknown_paths_and_methods(client, address, inbox):
    for method, target, status, code in [
        ("GET", "/nothing", 404, "no-such-path"),
        ("PATCH", "/v1/usage", 405, "no-such-method"),
    ]:
        answer = httpx.request(method, address + target, headers=signed(client, method, target))
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert httpx.get(f"{address}/docs").status_code == 401
    for body in (b"", b"{", b"[" * 100_000, b"NaN", b"\xff", b'{"digest":1e999,"size":{}}'):
        headers = {**signed(client, "POST", "/v1/uploads", body), **JSON}
        answer = httpx.post(f"{address}/v1/uploads", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "malformed")
