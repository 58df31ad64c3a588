"""Bulk Data export with SMART Backend Services over a real socket, with faults of the server."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from tests.site.fhir_test_server import ReceivedRequest, Reply, Server, Time, replies, serving
from tests.site.site_cohort import cohort_resources, lines, patient, study

from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.site import (
    AttritionStage,
    BulkExportRequest,
    BulkExportSource,
    FhirHttpClient,
    FhirServerError,
    SmartTokens,
    build_site,
    check_site,
    load_site,
)
from abaton.site.config import SmartSection
from abaton.site.sources.fhir_server.retry import RetryClock, RetryPolicy

pytestmark = pytest.mark.network


@pytest.fixture
def server():
    with serving() as record_source:
        yield record_source


@pytest.fixture(scope="module")
def keys():
    return {"ES384": ec.generate_private_key(ec.SECP384R1()), "RS384": rsa.generate_private_key(65537, 2048)}


def pem(key, path: Path) -> Path:
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
    return path


class Exporting:
    """Server with tokens and exports, which records the requests."""

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
        for path in ("/Patient/$export", "/$export", "/Group/g7/$export"):
            routes[base + path] = self.kick_off
        routes["/status/1"] = self.status
        for kind, body in self.files.items():
            routes[f"/files/{kind}.ndjson"] = lambda request, body=body: self.guarded(
                request, Reply.ndjson(body)
            )

    def guarded(self, request: ReceivedRequest, reply: Reply) -> Reply:
        if self.key is not None and request.headers.get("authorization") != f"Bearer token-{self.tokens}":
            return Reply(401)
        return reply

    def token(self, request: ReceivedRequest) -> Reply:
        head, body, signature = request.form["client_assertion"][0].split(".")
        claims, heads = _part(body), _part(head)
        self.verify(f"{head}.{body}".encode(), base64.urlsafe_b64decode(signature + "=="), heads["alg"])
        assert claims["iss"] == claims["sub"] == "client"
        assert claims["aud"] == f"{self.server.url}/token"
        assert 0 < claims["exp"] - claims["iat"] <= 300
        assert claims["jti"] not in self.jtis
        assert heads["kid"] == "k1"
        assert request.form["grant_type"] == ["client_credentials"]
        self.jtis.add(claims["jti"])
        self.scope = request.form["scope"][0]
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

    def kick_off(self, request: ReceivedRequest) -> Reply:
        self.kicked = request
        return self.guarded(request, Reply(202, headers={"content-location": f"{self.server.url}/status/1"}))

    def status(self, request: ReceivedRequest) -> Reply:
        if request.method == "DELETE":
            return Reply(202)
        self.polls -= 1
        if self.polls >= 0:
            return self.guarded(request, Reply(202, headers={"retry-after": "30", "x-progress": "10 %"}))
        manifest = {
            "transactionTime": "2026-11-16T00:00:00Z",
            "requiresAccessToken": self.key is not None,
            "output": [{"type": k, "url": f"{self.server.url}/files/{k}.ndjson"} for k in self.files],
            "error": [],
            **self.manifest_extra,
        }
        return self.guarded(
            request, Reply(200, json.dumps(manifest).encode(), {"content-type": "application/json"})
        )


def _part(text: str) -> dict:
    return json.loads(base64.urlsafe_b64decode(text + "=="))


def source(
    exporting: Exporting,
    folder: Path,
    wanted: BulkExportRequest | None = None,
    clock: Time | None = None,
    algorithm: str = "ES384",
    **more,
):
    clock = clock or Time()
    http_client = FhirHttpClient(
        exporting.server.base, (), RetryPolicy(5.0, 2), clock=RetryClock(clock.now, clock.sleep)
    )
    tokens = None
    if exporting.key is not None:
        smart = SmartSection(client="client", key="k", key_id="k1", algorithm=algorithm)
        tokens = SmartTokens(
            http_client, smart, pem(exporting.key, folder / "smart.pem"), ("Patient", "Observation")
        )
    return BulkExportSource(
        http_client,
        tokens,
        wanted or BulkExportRequest("patient", None, ("Patient",)),
        folder / "work",
        **more,
    )


def ids(record_source) -> list[str]:
    return [record.content["id"] for record in record_source.records()]


@pytest.mark.parametrize("algorithm", ["ES384", "RS384"])
def test_complete_export(server, tmp_path, keys, algorithm):
    exporting, clock, progress_texts = Exporting(server, keys[algorithm]), Time(), []
    record_source = source(
        exporting, tmp_path, clock=clock, algorithm=algorithm, on_progress=progress_texts.append
    )
    assert ids(record_source) == ["p0", "p1", "p2", "p3"]
    assert exporting.kicked.headers["prefer"] == "respond-async"
    assert exporting.kicked.headers["accept"] == "application/fhir+json"
    assert exporting.kicked.query == {"_type": ["Patient"], "_outputFormat": ["application/fhir+ndjson"]}
    assert exporting.scope == "system/Patient.rs system/Observation.rs"
    assert clock.pauses == [30.0, 30.0]
    assert server.paths("DELETE") == ["/status/1"]
    assert any("preparing" in text for text in progress_texts)
    record_source.close()
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        (BulkExportRequest("system", None, ("Patient",)), "/fhir/$export"),
        (BulkExportRequest("group", "g7", ("Patient",)), "/fhir/Group/g7/$export"),
    ],
)
def test_other_levels(server, tmp_path, wanted, path):
    ids(source(Exporting(server), tmp_path, wanted))
    assert server.requests[0].path == path


def test_since_is_sent(server, tmp_path):
    from datetime import UTC, datetime

    exporting = Exporting(server)
    ids(
        source(
            exporting,
            tmp_path,
            BulkExportRequest("patient", None, ("Patient",), datetime(2026, 1, 2, tzinfo=UTC)),
        )
    )
    assert exporting.kicked.query["_since"] == ["2026-01-02T00:00:00+00:00"]


def test_expired_token_is_renewed(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    exporting.polls = 30
    ids(source(exporting, tmp_path))
    assert exporting.tokens > 3


def test_rejected_token_is_renewed(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    kick_off = exporting.kick_off

    def forgetful(request: ReceivedRequest) -> Reply:
        reply = kick_off(request)
        exporting.tokens += reply.status == 202
        return reply

    server.routes["/fhir/Patient/$export"] = forgetful
    assert len(ids(source(exporting, tmp_path))) == 4


def test_token_is_not_sent_where_none_is_required(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    exporting.manifest_extra = {"requiresAccessToken": False}
    server.routes["/files/Patient.ndjson"] = lambda request: Reply.ndjson(exporting.files["Patient"])
    ids(source(exporting, tmp_path))
    (request,) = (received for received in server.requests if received.path.startswith("/files"))
    assert "authorization" not in request.headers


def test_interrupted_download_resumes_the_same_export(server, tmp_path):
    exporting = Exporting(
        server, files={k: lines([{"resourceType": k, "id": k}]) for k in ("Patient", "Condition")}
    )
    good = server.routes["/files/Condition.ndjson"]
    server.routes["/files/Condition.ndjson"] = replies(Reply(503))
    with pytest.raises(FhirServerError, match="503"):
        ids(source(exporting, tmp_path))
    server.routes["/files/Condition.ndjson"] = good
    server.requests.clear()
    assert ids(source(exporting, tmp_path)) == ["Patient", "Condition"]
    assert server.paths() == ["/files/Condition.ndjson"]
    assert server.paths("DELETE") == ["/status/1"]


def test_polling_resumes_and_times_out(server, tmp_path):
    exporting = Exporting(server)
    exporting.polls = 50
    with pytest.raises(FhirServerError, match="not ready after"):
        ids(source(exporting, tmp_path, max_wait_seconds=100.0))
    kicked = server.paths().count("/fhir/Patient/$export")
    exporting.polls = 1
    assert len(ids(source(exporting, tmp_path, max_wait_seconds=100.0))) == 4
    assert server.paths().count("/fhir/Patient/$export") == kicked == 1


def test_deleted_export_is_requested_again(server, tmp_path):
    exporting = Exporting(server)
    good = server.routes["/status/1"]
    server.routes["/status/1"] = replies(Reply(404))
    with pytest.raises(FhirServerError, match="no longer exists"):
        ids(source(exporting, tmp_path))
    server.routes["/status/1"] = good
    assert len(ids(source(exporting, tmp_path))) == 4


@pytest.mark.parametrize("how", ["half", "cut"])
def test_truncated_file_is_downloaded_again(server, tmp_path, how):
    exporting = Exporting(server)
    body = exporting.files["Patient"]
    bad = Reply.ndjson(body, "half") if how == "half" else Reply.ndjson(body[:-30])
    server.routes["/files/Patient.ndjson"] = replies(bad, Reply.ndjson(body))
    assert len(ids(source(exporting, tmp_path))) == 4


def test_repeatedly_truncated_file_is_refused(server, tmp_path):
    exporting = Exporting(server)
    server.routes["/files/Patient.ndjson"] = replies(Reply.ndjson(exporting.files["Patient"][:-30]))
    with pytest.raises(FhirServerError, match=r"ends with an incomplete line \(3 attempts\)"):
        ids(source(exporting, tmp_path))


def test_other_line_count_than_the_manifest_is_refused(server, tmp_path):
    exporting = Exporting(server)
    exporting.manifest_extra = {
        "output": [{"type": "Patient", "url": f"{server.url}/files/Patient.ndjson", "count": 9}]
    }
    with pytest.raises(FhirServerError, match="number of lines"):
        ids(source(exporting, tmp_path))


def test_export_errors_of_the_server_are_counted(server, tmp_path):
    exporting = Exporting(server)
    exporting.manifest_extra = {
        "error": [{"type": "OperationOutcome", "url": f"{server.url}/files/error.ndjson"}]
    }
    outcome = {"resourceType": "OperationOutcome", "issue": [{"diagnostics": "Zanzibar"}]}
    server.routes["/files/error.ndjson"] = replies(Reply.ndjson(lines([outcome, outcome])))
    record_source = source(exporting, tmp_path)
    assert len(ids(record_source)) == 4
    assert record_source.errors.reasons == {"the server could not export a record": 2}


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"output": [{"type": "Patient", "url": "https://evil.example/x"}]}, "points to another host"),
        ({"output": [{"type": "Patient"}]}, "file without a URL"),
        ({"output": "all"}, "no list 'output'"),
    ],
)
def test_manifest_with_other_hosts_is_refused(server, tmp_path, extra, problem):
    exporting = Exporting(server)
    exporting.manifest_extra = extra
    with pytest.raises(AbatonError, match=problem):
        ids(source(exporting, tmp_path))


def test_status_url_on_another_host_is_refused(server, tmp_path):
    server.routes["/fhir/Patient/$export"] = replies(
        Reply(202, headers={"content-location": "https://evil.example/1"})
    )
    with pytest.raises(RefusedError, match="points to another host"):
        ids(_bare(server, tmp_path))


def _bare(server: Server, folder: Path) -> BulkExportSource:
    return BulkExportSource(
        FhirHttpClient(server.base), None, BulkExportRequest("patient", None, ("Patient",)), folder / "work"
    )


def test_server_without_bulk_export_is_reported(server, tmp_path):
    server.routes["/fhir/Patient/$export"] = replies(Reply(202))
    with pytest.raises(FhirServerError, match="does not support Bulk Data"):
        ids(_bare(server, tmp_path))


def test_a_web_page_instead_of_a_file(server, tmp_path):
    exporting = Exporting(server)
    server.routes["/files/Patient.ndjson"] = replies(Reply(200, b"<html>", {"content-type": "text/html"}))
    with pytest.raises(FhirServerError, match="content type"):
        ids(source(exporting, tmp_path))


def test_token_endpoint_on_another_host_is_refused(server, tmp_path, keys):
    exporting = Exporting(server, keys["ES384"])
    manifest = {"token_endpoint": "https://evil.example/token"}
    server.routes["/fhir/.well-known/smart-configuration"] = replies(
        Reply(200, json.dumps(manifest).encode(), {"content-type": "application/json"})
    )
    with pytest.raises(RefusedError, match="points to another host"):
        ids(source(exporting, tmp_path))


@pytest.mark.parametrize(
    "given",
    [{}, {"access_token": "a\nb", "token_type": "bearer"}, {"access_token": "x", "token_type": "mac"}],
)
def test_invalid_token_is_refused(server, tmp_path, keys, given):
    exporting = Exporting(server, keys["ES384"])
    server.routes["/token"] = replies(
        Reply(200, json.dumps(given).encode(), {"content-type": "application/json"})
    )
    with pytest.raises(FhirServerError, match="no bearer token"):
        ids(source(exporting, tmp_path))


def test_wrong_or_readable_key_is_refused(server, tmp_path, keys):
    with pytest.raises(SettingsError, match="does not match algorithm = 'RS384'"):
        ids(source(Exporting(server, keys["ES384"]), tmp_path, algorithm="RS384"))
    record_source = source(Exporting(server, keys["ES384"]), tmp_path)
    (tmp_path / "smart.pem").chmod(0o644)
    with pytest.raises(SettingsError, match="other users can read"):
        ids(record_source)
    (tmp_path / "smart.pem").chmod(0o600)
    (tmp_path / "smart.pem").write_text("no key")
    with pytest.raises(SettingsError, match="not an unencrypted PEM private key"):
        ids(record_source)


def test_site_with_a_bulk_export(server, house, keys):
    from datetime import UTC, datetime

    records = cohort_resources(*range(7))
    kinds = ("Patient", "Condition", "Observation")
    files = {k: lines([r for r in records if r["resourceType"] == k]) for k in kinds}
    exporting = Exporting(server, keys["ES384"], files)
    exporting.polls = 0
    pem(keys["ES384"], house / "smart.pem")
    part = f'source = "bulk"\nurl = "{server.base}"\n'
    part += '[records.smart]\nclient = "client"\nkey = "smart.pem"\nkey_id = "k1"\n'
    text = (house / "site.toml").read_text().replace('source = "ndjson"\npaths = ["records"]\n', part)
    (house / "site.toml").write_text(text)
    site = build_site(load_site(house / "site.toml"), study(), datetime.now(UTC))
    assert check_site(site).attrition.reached[AttritionStage.ROWS] == 7
    assert exporting.kicked.query["_type"] == ["Condition,Observation,Patient,Procedure"]
    assert not (house / "work").exists()
