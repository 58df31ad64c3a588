"""FHIR search over a real socket: pages, circular and foreign links, resumed downloads."""

from __future__ import annotations

import json

import pytest
from tests.site.fhir_test_server import ReceivedRequest, Reply, Server, Time, replies, serving
from tests.site.site_cohort import cohort_resources, condition, patient, pressure, study

from abaton.errors import RefusedError, SettingsError
from abaton.site import (
    FhirHttpClient,
    FhirQuery,
    FhirServerError,
    SearchSource,
    build_site,
    check_site,
    load_site,
)
from abaton.site.sources.fhir_server.retry import RetryClock, RetryPolicy

pytestmark = pytest.mark.network


@pytest.fixture
def server():
    with serving() as record_source:
        yield record_source


def searched(server: Server, resources: list[dict], page: int = 3) -> None:
    """Answer searches in pages with opaque links."""
    for kind in ("Patient", "Condition", "Observation", "Procedure"):
        preflight = [resource for resource in resources if resource["resourceType"] == kind]

        def answer(request: ReceivedRequest, preflight=preflight, kind=kind) -> Reply:
            start = int(request.query.get("cursor", ["0"])[0])
            links = [{"relation": "self", "url": "x"}]
            if start + page < len(preflight):
                links.append({"relation": "next", "url": f"{server.base}/{kind}?cursor={start + page}"})
            entries = [
                {"fullUrl": f"{server.base}/{kind}/{r['id']}", "resource": r, "search": {"mode": "match"}}
                for r in preflight[start : start + page]
            ]
            return Reply.json(
                {"resourceType": "Bundle", "type": "searchset", "link": links, "entry": entries}
            )

        server.routes[f"/fhir/{kind}"] = answer


def source(server: Server, folder, *queries: FhirQuery, retries: int = 2) -> SearchSource:
    clock = Time()
    http_client = FhirHttpClient(
        server.base, (), RetryPolicy(5.0, retries), clock=RetryClock(clock.now, clock.sleep)
    )
    return SearchSource(http_client, None, queries or (FhirQuery("Patient"),), folder / "work", page_size=3)


def ids(record_source: SearchSource) -> list[str]:
    return [
        entry["resource"]["id"] for record in record_source.records() for entry in record.content["entry"]
    ]


def test_all_pages_are_read_and_then_removed(server, tmp_path):
    searched(server, [patient(i) for i in range(8)])
    record_source = source(server, tmp_path)
    assert ids(record_source) == [f"p{i}" for i in range(8)]
    assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "work").iterdir())
    assert server.requests[0].query["_count"] == ["3"]
    record_source.close()
    assert not (tmp_path / "work").exists()


def test_search_parameters_are_encoded(server, tmp_path):
    searched(server, [])
    ids(
        source(
            server,
            tmp_path,
            FhirQuery("Observation", (("code", "http://loinc.org|1,x\\|y"), ("date", "ge2024-01-01"))),
        )
    )
    assert server.requests[0].query["code"] == ["http://loinc.org|1,x\\|y"]
    assert server.requests[0].query["date"] == ["ge2024-01-01"]


def test_interrupted_download_resumes(server, tmp_path):
    searched(server, [patient(i) for i in range(12)])
    good, count = server.routes["/fhir/Patient"], []
    server.routes["/fhir/Patient"] = lambda request: (
        count.append(1) or (good(request) if len(count) < 3 else Reply(503))
    )
    with pytest.raises(FhirServerError, match="503"):
        ids(source(server, tmp_path))
    before = len(server.requests)
    server.routes["/fhir/Patient"] = good
    assert ids(source(server, tmp_path)) == [f"p{i}" for i in range(12)]
    assert len(server.requests) == before + 2


def test_changed_page_is_downloaded_again(server, tmp_path):
    searched(server, [patient(i) for i in range(6)])
    ids(source(server, tmp_path))
    page = tmp_path / "work" / "0000000.json"
    page.write_bytes(page.read_bytes().replace(b"p1", b"p9"))
    before = len(server.requests)
    assert ids(source(server, tmp_path)) == [f"p{i}" for i in range(6)]
    assert len(server.requests) > before


def test_other_request_restarts_the_download(server, tmp_path):
    searched(server, [*(patient(i) for i in range(2)), condition(7)])
    ids(source(server, tmp_path))
    assert ids(source(server, tmp_path, FhirQuery("Condition"))) == ["c7"]


def test_incomplete_state_file_resumes(server, tmp_path):
    searched(server, [patient(i) for i in range(9)])
    ids(source(server, tmp_path))
    state = tmp_path / "work" / "state.ndjson"
    state.write_bytes(state.read_bytes()[:-20])
    assert ids(source(server, tmp_path)) == [f"p{i}" for i in range(9)]


def test_folder_with_other_files_is_refused(server, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingsError, match="contains other files"):
        ids(source(server, tmp_path))
    assert (tmp_path / "work" / "thesis.txt").exists()


@pytest.mark.parametrize(
    "link", ["https://evil.example/next", "http://127.0.0.1:9/fhir", "//evil.example", "file:///etc/passwd"]
)
def test_a_next_link_to_another_host_is_refused(server, tmp_path, link):
    page = {"resourceType": "Bundle", "link": [{"relation": "next", "url": link}]}
    server.routes["/fhir/Patient"] = replies(Reply.json(page))
    with pytest.raises(RefusedError, match="points to another host"):
        ids(source(server, tmp_path))
    assert len(server.requests) == 1


def test_circular_pages_are_refused(server, tmp_path):
    page = {
        "resourceType": "Bundle",
        "link": [{"relation": "next", "url": "Patient?page_size=2"}],
        "entry": [],
    }
    server.routes["/fhir/Patient"] = replies(Reply.json(page))
    with pytest.raises(FhirServerError, match="form a circle"):
        ids(source(server, tmp_path))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply.json({"resourceType": "OperationOutcome"}), "not a Bundle"),
        (Reply.json({"resourceType": "Bundle", "link": [{"relation": "next"}]}), "has no URL"),
        (Reply(200, b"<html>", {"content-type": "text/html"}), "content type"),
        (Reply(200, b'{"a":1,"a":2}', {"content-type": "application/fhir+json"}), "duplicate key"),
        (Reply(200, b'{"resourceType":"Bun', {"content-type": "application/fhir+json"}), "not valid JSON"),
        (Reply(200, b"[" * 1000, {"content-type": "application/fhir+json"}), "not valid JSON|nested"),
        (Reply(404), "status 404"),
    ],
)
def test_invalid_pages_are_refused(server, tmp_path, reply, problem):
    from abaton.errors import AbatonError

    server.routes["/fhir/Patient"] = replies(reply)
    with pytest.raises(AbatonError, match=problem):
        ids(source(server, tmp_path))


def test_endless_pages_do_not_fill_the_disk(server, tmp_path, monkeypatch):
    searched(server, [patient(i) for i in range(9)])
    monkeypatch.setattr("abaton.site.sources.fhir_server.download_cache.MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(RefusedError, match="are free on the disk"):
        ids(source(server, tmp_path))


def test_site_with_a_fhir_server(server, house):
    searched(server, [*cohort_resources(*range(9)), pressure(3, 150, name="second")])
    text = (
        (house / "site.toml")
        .read_text()
        .replace(
            'source = "ndjson"\npaths = ["records"]', f'source = "fhir"\nurl = "{server.base}"\npage_size = 3'
        )
    )
    (house / "site.toml").write_text(text)
    from datetime import UTC, datetime

    site = build_site(load_site(house / "site.toml"), study(), datetime(2026, 11, 16, tzinfo=UTC))
    preflight = check_site(site)
    assert set(preflight.attrition.reached.values()) == {9}
    assert preflight.records_read["Observation"] == 10
    assert not (house / "work").exists()
    assert json.dumps(preflight.to_row())
