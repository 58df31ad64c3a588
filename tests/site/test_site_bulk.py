"""Bulk Data export with SMART Backend Services over a real socket: every step, and what goes wrong with it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cohort import lines, patient, people, study
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from server import Asked, Reply, Server, Time, replies, serving

from abaton.errors import AbatonError, Refused, SettingsError
from abaton.site import BulkSource, ServerError, Tokens, Wanted, Web, check_site, load_site, open_site
from abaton.site.config import Smart
from abaton.site.sources.fhir_server.retry import Clock, Patience

pytestmark = pytest.mark.network


@pytest.fixture
def server():
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def keys():
    return {"ES384": ec.generate_private_key(ec.SECP384R1()), "RS384": rsa.generate_private_key(65537, 2048)}


def pem(key, path: Path) -> Path:
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
    return path


class Exporting:
    """A server that gives tokens and exports, and remembers what it saw."""

    def __init__(self, server: Server, key=None, files: dict[str, bytes] | None = None) -> None:
        self.server, self.key, self.tokens, self.jtis = server, key, 0, set[str]()
        self.files = files if files is not None else {"Patient": lines([patient(i) for i in range(4)])}
        self.polls, self.manifest_extra = 2, dict[str, object]()
        routes, base = server.routes, "/fhir"
        routes[f"{base}/.well-known/smart-configuration"] = lambda _: Reply(
            200,
            json.dumps({"token_endpoint": f"{server.url}/token", "capabilities": ["permission-v2"]}).encode(),
            {"content-type": "application/json"},
        )
        routes["/token"] = self.token
        for place in ("/Patient/$export", "/$export", "/Group/g7/$export"):
            routes[base + place] = self.kick_off
        routes["/status/1"] = self.status
        for kind, body in self.files.items():
            routes[f"/files/{kind}.ndjson"] = lambda asked, body=body: self.guarded(asked, Reply.ndjson(body))

    def guarded(self, asked: Asked, reply: Reply) -> Reply:
        if self.key is not None and asked.headers.get("authorization") != f"Bearer token-{self.tokens}":
            return Reply(401)
        return reply

    def token(self, asked: Asked) -> Reply:
        head, body, signature = asked.form["client_assertion"][0].split(".")
        claims, heads = _part(body), _part(head)
        self.verify(f"{head}.{body}".encode(), base64.urlsafe_b64decode(signature + "=="), heads["alg"])
        assert claims["iss"] == claims["sub"] == "client"
        assert claims["aud"] == f"{self.server.url}/token"
        assert 0 < claims["exp"] - claims["iat"] <= 300
        assert claims["jti"] not in self.jtis
        assert heads["kid"] == "k1"
        assert asked.form["grant_type"] == ["client_credentials"]
        self.jtis.add(claims["jti"])
        self.scope = asked.form["scope"][0]
        self.tokens += 1
        given = {"access_token": f"token-{self.tokens}", "token_type": "bearer", "expires_in": 300}
        return Reply(200, json.dumps(given).encode(), {"content-type": "application/json"})

    def verify(self, data: bytes, signature: bytes, algorithm: str) -> None:
        public = self.key.public_key()
        if algorithm == "RS384":
            return public.verify(signature, data, padding.PKCS1v15(), hashes.SHA384())
        numbers = (int.from_bytes(signature[:48], "big"), int.from_bytes(signature[48:], "big"))
        assert len(signature) == 96
        return public.verify(encode_dss_signature(*numbers), data, ec.ECDSA(hashes.SHA384()))

    def kick_off(self, asked: Asked) -> Reply:
        self.kicked = asked
        return self.guarded(asked, Reply(202, headers={"content-location": f"{self.server.url}/status/1"}))

    def status(self, asked: Asked) -> Reply:
        if asked.method == "DELETE":
            return Reply(202)
        self.polls -= 1
        if self.polls >= 0:
            return self.guarded(asked, Reply(202, headers={"retry-after": "30", "x-progress": "10 %"}))
        manifest = {
            "transactionTime": "2026-11-16T00:00:00Z",
            "requiresAccessToken": self.key is not None,
            "output": [{"type": k, "url": f"{self.server.url}/files/{k}.ndjson"} for k in self.files],
            "error": [],
            **self.manifest_extra,
        }
        return self.guarded(
            asked, Reply(200, json.dumps(manifest).encode(), {"content-type": "application/json"})
        )


def _part(text: str) -> dict:
    return json.loads(base64.urlsafe_b64decode(text + "=="))


def source(
    exporting: Exporting,
    folder: Path,
    wanted: Wanted | None = None,
    clock: Time | None = None,
    algorithm: str = "ES384",
    **more,
):
    clock = clock or Time()
    web = Web(exporting.server.base, (), Patience(5.0, 2), clock=Clock(clock.now, clock.sleep))
    tokens = None
    if exporting.key is not None:
        smart = Smart(client="client", key="k", key_id="k1", algorithm=algorithm)
        tokens = Tokens(web, smart, pem(exporting.key, folder / "smart.pem"), ("Patient", "Observation"))
    return BulkSource(web, tokens, wanted or Wanted("patient", None, ("Patient",)), folder / "work", **more)


def ids(made) -> list[str]:
    return [record.content["id"] for record in made.records()]


@pytest.mark.parametrize("algorithm", ["ES384", "RS384"])
def test_the_whole_of_an_export(server, tmp_path, keys, algorithm):
    exporting, clock, words = Exporting(server, keys[algorithm]), Time(), []
    made = source(exporting, tmp_path, clock=clock, algorithm=algorithm, step=words.append)
    assert ids(made) == ["p0", "p1", "p2", "p3"]
    assert exporting.kicked.headers["prefer"] == "respond-async"
    assert exporting.kicked.headers["accept"] == "application/fhir+json"
    assert exporting.kicked.query == {"_type": ["Patient"], "_outputFormat": ["application/fhir+ndjson"]}
    assert exporting.scope == "system/Patient.rs system/Observation.rs"
    assert clock.pauses == [30.0, 30.0]
    assert server.paths("DELETE") == ["/status/1"]
    assert any("prepares" in word for word in words)
    made.close()
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        (Wanted("system", None, ("Patient",)), "/fhir/$export"),
        (Wanted("group", "g7", ("Patient",)), "/fhir/Group/g7/$export"),
    ],
)
def test_other_levels(server, tmp_path, wanted, path):
    ids(source(Exporting(server), tmp_path, wanted))
    assert server.asked[0].path == path


def test_since_is_sent(server, tmp_path):
    from datetime import UTC, datetime

    exporting = Exporting(server)
    ids(source(exporting, tmp_path, Wanted("patient", None, ("Patient",), datetime(2026, 1, 2, tzinfo=UTC))))
    assert exporting.kicked.query["_since"] == ["2026-01-02T00:00:00+00:00"]


def test_a_token_that_runs_out_is_renewed(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    exporting.polls = 30
    ids(source(exporting, tmp_path))
    assert exporting.tokens > 3


def test_a_token_that_the_server_forgets_is_renewed(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    kick_off = exporting.kick_off

    def forgetful(asked: Asked) -> Reply:
        reply = kick_off(asked)
        exporting.tokens += reply.status == 202
        return reply

    server.routes["/fhir/Patient/$export"] = forgetful
    assert len(ids(source(exporting, tmp_path))) == 4


def test_no_token_is_shown_where_none_is_asked_for(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    exporting.manifest_extra = {"requiresAccessToken": False}
    server.routes["/files/Patient.ndjson"] = lambda asked: Reply.ndjson(exporting.files["Patient"])
    ids(source(exporting, tmp_path))
    (asked,) = (each for each in server.asked if each.path.startswith("/files"))
    assert "authorization" not in asked.headers


def test_an_interrupted_fetch_goes_on_with_the_same_export(server, tmp_path):
    exporting = Exporting(
        server, files={k: lines([{"resourceType": k, "id": k}]) for k in ("Patient", "Condition")}
    )
    good = server.routes["/files/Condition.ndjson"]
    server.routes["/files/Condition.ndjson"] = replies(Reply(503))
    with pytest.raises(ServerError, match="503"):
        ids(source(exporting, tmp_path))
    server.routes["/files/Condition.ndjson"] = good
    server.asked.clear()
    assert ids(source(exporting, tmp_path)) == ["Patient", "Condition"]
    assert server.paths() == ["/files/Condition.ndjson"]
    assert server.paths("DELETE") == ["/status/1"]


def test_waiting_can_be_taken_up_again_and_has_an_end(server, tmp_path):
    exporting = Exporting(server)
    exporting.polls = 50
    with pytest.raises(ServerError, match="not ready in time"):
        ids(source(exporting, tmp_path, wait=100.0))
    kicked = server.paths().count("/fhir/Patient/$export")
    exporting.polls = 1
    assert len(ids(source(exporting, tmp_path, wait=100.0))) == 4
    assert server.paths().count("/fhir/Patient/$export") == kicked == 1


def test_an_export_that_the_server_has_forgotten_is_asked_for_anew(server, tmp_path):
    exporting = Exporting(server)
    good = server.routes["/status/1"]
    server.routes["/status/1"] = replies(Reply(404))
    with pytest.raises(ServerError, match="forgotten"):
        ids(source(exporting, tmp_path))
    server.routes["/status/1"] = good
    assert len(ids(source(exporting, tmp_path))) == 4


@pytest.mark.parametrize("how", ["half", "cut"])
def test_a_truncated_file_is_fetched_again(server, tmp_path, how):
    exporting = Exporting(server)
    body = exporting.files["Patient"]
    bad = Reply.ndjson(body, "half") if how == "half" else Reply.ndjson(body[:-30])
    server.routes["/files/Patient.ndjson"] = replies(bad, Reply.ndjson(body))
    assert len(ids(source(exporting, tmp_path))) == 4


def test_a_file_that_stays_truncated_is_told(server, tmp_path):
    exporting = Exporting(server)
    server.routes["/files/Patient.ndjson"] = replies(Reply.ndjson(exporting.files["Patient"][:-30]))
    with pytest.raises(ServerError, match="ends in the middle of a line, 3 times"):
        ids(source(exporting, tmp_path))


def test_a_file_with_another_number_of_lines_is_told(server, tmp_path):
    exporting = Exporting(server)
    exporting.manifest_extra = {
        "output": [{"type": "Patient", "url": f"{server.url}/files/Patient.ndjson", "count": 9}]
    }
    with pytest.raises(ServerError, match="another number of lines"):
        ids(source(exporting, tmp_path))


def test_what_the_server_could_not_export_is_counted(server, tmp_path):
    exporting = Exporting(server)
    exporting.manifest_extra = {
        "error": [{"type": "OperationOutcome", "url": f"{server.url}/files/error.ndjson"}]
    }
    outcome = {"resourceType": "OperationOutcome", "issue": [{"diagnostics": "Zanzibar"}]}
    server.routes["/files/error.ndjson"] = replies(Reply.ndjson(lines([outcome, outcome])))
    made = source(exporting, tmp_path)
    assert len(ids(made)) == 4
    assert made.faults.reasons == {"the server could not export something": 2}


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"output": [{"type": "Patient", "url": "https://evil.example/x"}]}, "points to another host"),
        ({"output": [{"type": "Patient"}]}, "file without an address"),
        ({"output": "all"}, "no usable list of files"),
    ],
)
def test_a_manifest_that_leads_astray_is_refused(server, tmp_path, extra, told):
    exporting = Exporting(server)
    exporting.manifest_extra = extra
    with pytest.raises(AbatonError, match=told):
        ids(source(exporting, tmp_path))


def test_a_status_at_another_host_is_refused(server, tmp_path):
    server.routes["/fhir/Patient/$export"] = replies(
        Reply(202, headers={"content-location": "https://evil.example/1"})
    )
    with pytest.raises(Refused, match="points to another host"):
        ids(_bare(server, tmp_path))


def _bare(server: Server, folder: Path) -> BulkSource:
    return BulkSource(Web(server.base), None, Wanted("patient", None, ("Patient",)), folder / "work")


def test_a_server_without_exports(server, tmp_path):
    server.routes["/fhir/Patient/$export"] = replies(Reply(202))
    with pytest.raises(ServerError, match="may not support Bulk Data"):
        ids(_bare(server, tmp_path))


def test_a_web_page_instead_of_a_file(server, tmp_path):
    exporting = Exporting(server)
    server.routes["/files/Patient.ndjson"] = replies(Reply(200, b"<html>", {"content-type": "text/html"}))
    with pytest.raises(ServerError, match="another kind of content"):
        ids(source(exporting, tmp_path))


def test_a_token_endpoint_at_another_host_is_not_given_the_assertion(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    told = {"token_endpoint": "https://evil.example/token"}
    server.routes["/fhir/.well-known/smart-configuration"] = replies(
        Reply(200, json.dumps(told).encode(), {"content-type": "application/json"})
    )
    with pytest.raises(Refused, match="points to another host"):
        ids(source(exporting, tmp_path))


@pytest.mark.parametrize(
    "given",
    [{}, {"access_token": "a\nb", "token_type": "bearer"}, {"access_token": "x", "token_type": "mac"}],
)
def test_a_token_that_is_none(server, tmp_path, keys, given):
    exporting = Exporting(server, keys["ES384"])
    server.routes["/token"] = replies(
        Reply(200, json.dumps(given).encode(), {"content-type": "application/json"})
    )
    with pytest.raises(ServerError, match="no usable token"):
        ids(source(exporting, tmp_path))


def test_a_key_that_does_not_fit_or_is_open_to_others(server, tmp_path, keys):
    with pytest.raises(SettingsError, match="does not fit RS384"):
        ids(source(Exporting(server, keys["ES384"]), tmp_path, algorithm="RS384"))
    made = source(Exporting(server, keys["ES384"]), tmp_path)
    (tmp_path / "smart.pem").chmod(0o644)
    with pytest.raises(SettingsError, match="others can read"):
        ids(made)
    (tmp_path / "smart.pem").chmod(0o600)
    (tmp_path / "smart.pem").write_text("no key")
    with pytest.raises(SettingsError, match="not an unencrypted PEM key"):
        ids(made)


def test_a_whole_site_from_an_export(server, house, keys):
    from datetime import UTC, datetime

    records = people(*range(7))
    kinds = ("Patient", "Condition", "Observation")
    files = {k: lines([r for r in records if r["resourceType"] == k]) for k in kinds}
    exporting = Exporting(server, keys["ES384"], files)
    exporting.polls = 0
    pem(keys["ES384"], house / "smart.pem")
    part = f'kind = "bulk"\nurl = "{server.base}"\n'
    part += '[records.smart]\nclient = "client"\nkey = "smart.pem"\nkey_id = "k1"\n'
    text = (house / "site.toml").read_text().replace('kind = "ndjson"\npaths = ["records"]\n', part)
    (house / "site.toml").write_text(text)
    site = open_site(load_site(house / "site.toml"), study(), datetime.now(UTC))
    assert check_site(site).steps[-1].reached.text == "7"
    assert exporting.kicked.query["_type"] == ["Condition,Observation,Patient,Procedure"]
    assert not (house / "work").exists()
