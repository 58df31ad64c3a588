"""Whoever does not keep to the rules is refused, with the right status and an audit entry without content."""

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
from tests.governance.conftest import DAY, DOCUMENT, NEWER, NOW, STUDY, person
from tests.governance.service.conftest import client_of, refusals, served

from abaton.errors import StoreError
from abaton.governance import (
    Ask,
    Audit,
    Denied,
    Header,
    RefusalCode,
    SenderRole,
    make_consent,
    schema,
    seal,
    verify,
)
from abaton.governance.senders import Asked, signed_headers
from abaton.governance.intake.intake_service import Room
from abaton.governance.signed_statements import write_order
from abaton.site import CentreAway

pytestmark = pytest.mark.network
ANN, BOB = person("ann"), person("bob")
JSON = {"content-type": "application/json"}
SECRET = b"Chalmers, Peter"


def envelope(site, centre, *, study=STUDY, document=DOCUMENT, to=None, number=1, who=ANN, content=SECRET):
    to = to or centre.public.sealing
    header = Header(study, document, site.signing.id, to.id, number, who, "2026-03-01T12:00:00.000Z")
    return b"".join(seal([content], header, site.signing, to, os.urandom(32)))


def bring(client, data, folder):
    path = folder / "sealed"
    path.write_bytes(data)
    return client.upload(path, hashlib.sha256(data).hexdigest(), len(data))


def refused(work, code: RefusalCode) -> Denied:
    with pytest.raises(Denied) as error:
        work()
    assert error.value.code is code, error.value
    return error.value


def check_audit(inbox, *expected: tuple[str, int]) -> None:
    """The chain is whole, tells exactly these refusals, and holds nothing that was sent."""
    assert refusals(inbox.database) == list(expected)
    assert verify(Audit(inbox.database).rows()) == []
    assert SECRET.decode() not in "".join(body for _, body, _ in Audit(inbox.database).rows())


def signed(client, method, target, body=b"", when=NOW, signer=None, nonce=None, centre=None):
    path, _, query = target.partition("?")
    asked = Asked.of(centre or client.ring.signing.id, method, path, query, body)
    return signed_headers(signer or client.signer, asked, when, nonce or os.urandom(16))


# who asks


def test_a_request_that_was_recorded_cannot_be_made_again(client, address, inbox):
    headers = signed(client, "GET", "/v1/account")
    assert httpx.get(f"{address}/v1/account", headers=headers).status_code == 200
    again = httpx.get(f"{address}/v1/account", headers=headers)
    assert (again.status_code, again.json()["code"]) == (401, "replayed")
    assert again.headers["www-authenticate"] == "Signature"
    check_audit(inbox, ("replayed", 401))


def test_a_signature_is_for_one_request_at_one_centre_and_now(client, address, inbox, stranger, site):
    target, order = "/v1/account", []
    forged = signed(client, "GET", target, signer=stranger.signing)
    named = forged["signature-input"].replace(stranger.signing.id, site.signing.id)
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
        (signed(client, "GET", target, centre=stranger.signing.id), "forged"),
        (signed(client, "GET", target, when=NOW - DAY), "expired"),
        (signed(client, "GET", target, when=NOW + DAY), "expired"),
    ]
    for headers, code in cases:
        answer = httpx.get(f"{address}{target}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, code)
        order.append((code, 401))
    check_audit(inbox, *order)


def test_a_body_that_was_changed_on_its_way(client, address, inbox):
    body = json.dumps({"digest": "ab" * 32, "size": 10}).encode()
    headers = {**signed(client, "POST", "/v1/uploads", body), **JSON}
    answer = httpx.post(f"{address}/v1/uploads", headers=headers, content=body.replace(b"10", b"11"))
    assert (answer.status_code, answer.json()["code"]) == (401, "forged")
    check_audit(inbox, ("forged", 401))


def test_an_envelope_of_somebody_else(client, address, inbox, stranger, centre, site, tmp_path):
    inbox.senders.enter(stranger.public, SenderRole.SITE, NOW)
    theirs = client_of(address, stranger, centre)
    refused(lambda: bring(theirs, envelope(site, centre), tmp_path), RefusalCode.FORGED)
    bring(client, data := envelope(site, centre), tmp_path)
    refused(
        lambda: theirs.ask("GET", f"/v1/uploads/{hashlib.sha256(data).hexdigest()}"), RefusalCode.NOT_FOUND
    )
    check_audit(inbox, ("forged", 403), ("not-found", 404))


def test_one_site_cannot_speak_for_the_people_of_another(client, address, inbox, stranger, centre, tmp_path):
    inbox.senders.enter(stranger.public, SenderRole.SITE, NOW)
    theirs = client_of(address, stranger, centre)
    client.consent(make_consent(Ask(BOB), NOW, None))
    client.consent(make_consent(Ask(BOB, STUDY, DOCUMENT), NOW, None))
    order = write_order(stranger.signing, STUDY, BOB, NOW)
    refused(lambda: theirs.consent(make_consent(Ask(BOB), NOW, None)), RefusalCode.NOT_YOURS)
    refused(lambda: theirs.delete(order), RefusalCode.NOT_YOURS)
    refused(lambda: bring(theirs, envelope(stranger, centre, who=BOB), tmp_path), RefusalCode.NOT_YOURS)
    refused(lambda: client.delete(order), RefusalCode.FORGED)
    assert inbox.registry.reason(Ask(BOB, STUDY, DOCUMENT), NOW).allows
    check_audit(inbox, *[("not-yours", 403)] * 3, ("forged", 403))


# what is sent


def test_replayed_tampered_and_misdirected_envelopes(client, inbox, centre, site, tmp_path):
    good = envelope(site, centre)
    receipt = bring(client, good, tmp_path)
    assert bring(client, good, tmp_path) == receipt
    spoilt = envelope(site, centre, number=2)
    other_key = site.public.sealing
    cases = [
        (envelope(site, centre), RefusalCode.REPLAYED, 409),
        (spoilt[:-70] + bytes([spoilt[-70] ^ 1]) + spoilt[-69:], RefusalCode.FORGED, 403),
        (spoilt[:-1], RefusalCode.TRUNCATED, 409),
        (spoilt + b"x", RefusalCode.MALFORMED, 422),
        (b"not an envelope", RefusalCode.MALFORMED, 422),
        (envelope(site, centre, study="elsewhere", number=3), RefusalCode.WRONG_STUDY, 404),
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


def test_a_key_that_was_retired_is_not_taken(inbox, house, site, centre, tmp_path):
    from tests.governance.conftest import drawing

    later = "2026-01-01T00:00:00.000Z"
    old = type(centre).new("centre", drawing("old"), "2025-01-01T00:00:00.000Z")
    inbox.ring = old.rotated(drawing("new"), later, hybrid=True).public
    with served(house()) as address:
        client = client_of(address, site, centre)
        data = envelope(site, centre, to=old.public.sealing)
        refused(lambda: bring(client, data, tmp_path), RefusalCode.RETIRED_KEY)
    check_audit(inbox, ("retired-key", 422))


def test_consents_that_are_no_yes(client, inbox):
    good = make_consent(Ask(BOB, STUDY, DOCUMENT), NOW, None)
    no_opt_in = refused(lambda: client.consent(good), RefusalCode.NO_CONSENT)
    assert no_opt_in.reason == "not-opted-in"
    client.consent(make_consent(Ask(BOB), NOW, None))

    def changed(**more):
        return {**copy.deepcopy(good), **more}

    cases = [
        (
            make_consent(Ask(BOB, STUDY, DOCUMENT), NOW - 2 * DAY, NOW - DAY),
            RefusalCode.NO_CONSENT,
            "expired",
        ),
        (make_consent(Ask(BOB, STUDY, DOCUMENT), NOW + DAY, None), RefusalCode.NO_CONSENT, "not-yet"),
        (make_consent(Ask(BOB, STUDY, NEWER), NOW, None), RefusalCode.WRONG_DOCUMENT, ""),
        (make_consent(Ask(BOB, "elsewhere", DOCUMENT), NOW, None), RefusalCode.WRONG_STUDY, ""),
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
    assert verify(Audit(inbox.database).rows()) == []


def test_a_consent_that_expired_before_the_upload(inbox, site, centre, tmp_path):
    from abaton.governance.intake import Centre

    with served(Centre(inbox, now=lambda: NOW + 60 * DAY)) as address:
        client = client_of(address, site, centre)
        object.__setattr__(client.web.clock, "now", lambda: (NOW + 60 * DAY).timestamp())
        error = refused(lambda: bring(client, envelope(site, centre), tmp_path), RefusalCode.NO_CONSENT)
    assert error.reason == "expired"
    check_audit(inbox, ("no-consent", 403))


def test_a_withdrawal_races_uploads(client, address, inbox, site, centre, tmp_path):
    """However they race: afterwards there is no envelope of a person who has withdrawn."""
    taken, go = [], threading.Barrier(7)

    def uploading(number):
        own = client_of(address, site, centre, part=1 << 20)
        folder = tmp_path / str(number)
        folder.mkdir()
        data = envelope(site, centre, number=number)
        go.wait()
        try:
            taken.append(bring(own, data, folder))
        except Denied as error:
            taken.append(error.code)

    threads = [threading.Thread(target=uploading, args=(number,)) for number in range(1, 7)]
    for thread in threads:
        thread.start()
    go.wait()
    receipt = client.delete(write_order(site.signing, STUDY, ANN, NOW))
    for thread in threads:
        thread.join()
    accepted = [answer for answer in taken if isinstance(answer, dict)]
    refusals = {answer for answer in taken if not isinstance(answer, dict)}
    assert refusals <= {RefusalCode.NO_CONSENT, RefusalCode.NOT_FOUND}  # the latter: given up under way
    assert len(taken) == 6
    assert receipt["body"]["records"] == len(accepted)
    assert inbox.received(STUDY) == []
    assert list(inbox.folder.iterdir()) == []


NASTY = [
    "'; DROP TABLE inbox;--", "1 OR 1=1", "../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "\0", "a\nb",
    "{{7*7}}", "<script>alert(1)</script>", "\ud800", "é" * 300, "A" * 5000, "$(id)", "C:\\x", "/", "", "🩺",
]  # fmt: skip


def test_injections_in_every_field(client, address, inbox, site):
    """Every word of every form and every place in a path: a refusal without an echo, and nothing is harmed."""
    consent = make_consent(Ask(BOB, STUDY, DOCUMENT), NOW, None)
    forms = [
        ("/v1/uploads", {"digest": "ab" * 32, "size": 10}),
        ("/v1/consents", make_consent(Ask(BOB), NOW, None)),
        ("/v1/consents", consent),
        ("/v1/withdrawals", write_order(site.signing, STUDY, ANN, NOW)),
    ]
    before, tables = sorted(inbox.folder.parent.rglob("*")), _tables(inbox)
    with httpx.Client() as line:
        for target, form in forms:
            for place in list(_places(form)):
                for nasty in NASTY[:: 1 if target == "/v1/uploads" else 4]:
                    body = json.dumps(_exchanged(form, place, nasty)).encode()
                    headers = {**signed(client, "POST", target, body), **JSON}
                    _check_refused(line.post(address + target, content=body, headers=headers), nasty)
        for method, shape in [
            ("GET", "/v1/studies/{}"), ("GET", "/v1/uploads/{}"), ("DELETE", "/v1/uploads/{}"),
            ("POST", "/v1/uploads/{}/finish"), ("PUT", "/v1/uploads/{}/parts/0"),
            ("PUT", "/v1/uploads/" + "ab" * 32 + "/parts/{}"), ("GET", "/v1/account/{}"),
        ]:  # fmt: skip
            for nasty in NASTY[:-2]:
                target = shape.format(quote(nasty.encode("utf-8", "surrogatepass"), safe=""))
                headers = signed(client, method, target)
                _check_refused(line.request(method, address + target, headers=headers), nasty)
    assert sorted(inbox.folder.parent.rglob("*")) == before
    assert _tables(inbox) == tables
    assert verify(Audit(inbox.database).rows()) == []
    text = "".join(body for _, body, _ in Audit(inbox.database).rows())
    assert "DROP TABLE" not in text
    assert "etc/passwd" not in text


def _check_refused(answer: httpx.Response, nasty: str) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, nasty)
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(nasty) < 4 or nasty not in answer.text


def _tables(inbox) -> dict[str, int]:
    named = [schema.inbox, schema.uploads, schema.consents, schema.deletions, schema.keepers, schema.senders]
    return inbox.database.read(
        lambda connection: {
            t.name: connection.scalar(sql.select(sql.func.count()).select_from(t)) for t in named
        }
    )


def _places(node, path=()):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _places(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _places(value, (*path, number))
    else:
        yield path


def _exchanged(form, place, value):
    made = copy.deepcopy(form)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return made


# how much, and how slowly


def test_whatever_is_too_large(house, inbox, site, centre, tmp_path):
    room = Room(upload=2000, open=2, total=3000)
    with served(house(part=1000, body=4000, room=room)) as address:
        client = client_of(address, site, centre, part=1000)

        def announce(size, number=0):
            told = json.dumps({"digest": f"{number:064x}", "size": size}).encode()
            return client.ask("POST", "/v1/uploads", told, JSON)

        refused(lambda: announce(2001), RefusalCode.TOO_LARGE)
        announce(1500, 1)
        refused(lambda: announce(1501, 2), RefusalCode.QUOTA)
        announce(10, 2)
        refused(lambda: announce(10, 3), RefusalCode.QUOTA)
        refused(lambda: client.ask("PUT", f"/v1/uploads/{2:064x}/parts/0", b"x" * 11), RefusalCode.TOO_LARGE)
        refused(
            lambda: client.ask("PUT", f"/v1/uploads/{1:064x}/parts/0", b"x" * 1001), RefusalCode.TOO_LARGE
        )
        refused(lambda: client.ask("POST", "/v1/consents", b" " * 4001, JSON), RefusalCode.TOO_LARGE)
        headers = signed(client, "POST", "/v1/consents", b"x" * 10_000)
        chunked = httpx.post(f"{address}/v1/consents", content=iter([b"x" * 1000] * 10), headers=headers)
        assert (chunked.status_code, chunked.json()["code"]) == (413, "too-large")
    small, large = ("quota", 403), ("too-large", 413)
    check_audit(inbox, large, small, small, large, large, large, large)


def _socket(address):
    parts = urlsplit(address)
    made = socket.create_connection((parts.hostname, parts.port), timeout=20)
    return made


def _begun(client, size: int, start: bytes = b"{", **more) -> bytes:
    """The beginning of a consent that is signed, and of which the rest is missing."""
    headers = {"Host": "x", "Content-Length": str(size), **signed(client, "POST", "/v1/consents"), **more}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /v1/consents HTTP/1.1\r\n{lines}\r\n".encode() + start


def test_nothing_of_a_strangers_body_is_waited_for(house, inbox, client):
    with served(house(body_seconds=60)) as address:
        for stranger in ({"signature": ""}, {"signature-input": "x"}, {"content-digest": "sha-256=:AAAA:"}):
            with _socket(address) as slow:
                slow.sendall(_begun(client, 4000, **stranger))
                start, answer = time.monotonic(), slow.recv(4096)
                assert answer.startswith(b"HTTP/1.1 401 ")
                assert time.monotonic() - start < 20  # the body never comes, and nobody waits for it
                assert b"connection: close" in answer.lower()
    check_audit(inbox, ("unsigned", 401), ("unsigned", 401), ("forged", 401))


def test_a_body_that_was_not_signed_is_refused_whoever_signed_the_head(client, address, inbox):
    headers = signed(client, "POST", "/v1/uploads", b'{"digest":"%s","size":10}' % (b"0" * 64))
    other = httpx.post(
        f"{address}/v1/uploads", headers=headers, content=b'{"digest":"%s","size":9}' % (b"1" * 64)
    )
    assert (other.status_code, other.json()["code"]) == (401, "forged")
    (entry,) = [e for e in Audit(inbox.database).entries() if e["action"] == "request-refused"]
    assert entry["actor"] == ""  # not said of the site whose signature it bears


def test_slow_requests_are_cut_off(house, inbox, client):
    with served(house(head_seconds=0.5, body_seconds=0.5)) as address:
        for start in (b"", b"GET /v1/health HT"):
            with _socket(address) as slow:
                slow.sendall(start)
                with contextlib.suppress(ConnectionResetError):
                    assert slow.recv(100) == b""  # closed, and never answered
        with _socket(address) as slow:
            slow.sendall(_begun(client, 100))
            answer = b""
            while piece := slow.recv(4096):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"connection: close" in answer.lower()
        assert httpx.get(f"{address}/v1/health").status_code == 200
    check_audit(inbox, ("too-slow", 408))


def test_a_drip_of_bytes_does_not_help(house):
    with served(house(head_seconds=1)) as address, _socket(address) as slow:
        start = time.monotonic()
        with pytest.raises(OSError):  # noqa: PT012
            for _ in range(100):
                slow.sendall(b"G")
                time.sleep(0.1)
                if slow.recv(1, socket.MSG_DONTWAIT) == b"":
                    raise ConnectionResetError
        assert time.monotonic() - start < 8


def test_a_second_slow_request_on_an_open_line(house):
    with served(house(head_seconds=0.5)) as address, _socket(address) as slow:
        slow.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # head and body may come one after the other
            answer += slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET /v1/he")
        slow.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(4096) == b""


def test_more_than_can_wait_is_sent_away(house, inbox, client):
    with served(house(concurrent=1, waiting=0, body_seconds=5)) as address, _socket(address) as slow:
        slow.sendall(_begun(client, 100))
        deadline = time.monotonic() + 10
        while (
            answer := httpx.get(f"{address}/v1/health")
        ).status_code == 200 and time.monotonic() < deadline:
            pass
        assert (answer.status_code, answer.json()["code"]) == (503, "busy")
        assert "retry-after" in answer.headers


def test_a_flood_of_strangers_does_not_fill_the_chain(inbox):
    """A hundred are told one by one; then one entry in ten minutes says how many there were, for ever."""
    from abaton.governance.intake import Centre, Limits

    ticks = [0.0]
    centre = Centre(inbox, Limits(address_rate=1e6), now=lambda: NOW, tick=lambda: ticks[0])

    def told() -> list[dict]:
        return [e for e in Audit(inbox.database).entries() if e["action"] == "request-refused"]

    with served(centre) as address, httpx.Client() as line:
        for _ in range(150):
            assert line.get(f"{address}/v1/account").status_code == 401
        assert len(told()) == 100
        for _ in range(20):  # three hours and twenty minutes, 10 requests in each ten minutes
            ticks[0] += 600
            for _ in range(10):
                line.get(f"{address}/v1/account")
    entries = told()
    assert len(entries) == 120
    assert sum(e["detail"].get("untold", 0) for e in entries) == 50 + 19 * 9


def test_a_flood_of_a_known_sender_does_not_fill_the_chain_either(inbox, client, monkeypatch):
    from abaton.governance.intake import Centre, Limits, middleware

    monkeypatch.setattr(middleware, "_TOLD_OF_SENDERS", (1 / 60, 5))
    centre = Centre(inbox, Limits(), now=lambda: NOW, tick=lambda: 0.0)
    with served(centre) as address, httpx.Client() as line:
        for _ in range(12):
            answer = line.get(f"{address}/v1/nothing", headers=signed(client, "GET", "/v1/nothing"))
            assert answer.status_code == 404
        assert line.get(f"{address}/v1/account").status_code == 401  # strangers are counted by themselves
    assert refusals(inbox.database) == [("no-such-path", 404)] * 5 + [("unsigned", 401)]


def test_a_link_in_the_inbox_leads_nowhere(client, inbox, tmp_path):
    """A folder that somebody else could write to before must not let parts be written elsewhere."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (inbox.folder / f"{7:064x}.part").symlink_to(victim)
    told = json.dumps({"digest": f"{7:064x}", "size": 10}).encode()
    client.ask("POST", "/v1/uploads", told, JSON)
    with pytest.raises((Denied, CentreAway)):
        client.ask("PUT", f"/v1/uploads/{7:064x}/parts/0", b"0123456789")
    assert victim.read_bytes() == b""


# failures


def test_a_failure_shows_nothing(client, inbox, address, monkeypatch, site, caplog):
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
    with pytest.raises(CentreAway):
        client.ask("GET", "/v1/studies")


def test_entries_edited_in_the_database_are_found(client, inbox, centre, site, tmp_path):
    audit = Audit(inbox.database)
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
        ("PATCH", "/v1/account", 405, "no-such-method"),
    ]:
        answer = httpx.request(method, address + target, headers=signed(client, method, target))
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert httpx.get(f"{address}/docs").status_code == 401
    for body in (b"", b"{", b"[" * 100_000, b"NaN", b"\xff", b'{"digest":1e999,"size":{}}'):
        headers = {**signed(client, "POST", "/v1/uploads", body), **JSON}
        answer = httpx.post(f"{address}/v1/uploads", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "malformed")
