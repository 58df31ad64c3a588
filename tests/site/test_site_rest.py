"""Records from a FHIR search over a real socket: pages, circles, foreign links, and taking up again."""

from __future__ import annotations

import json

import pytest
from cohort import condition, patient, people, pressure, study
from server import Asked, Reply, Server, Time, replies, serving

from abaton.errors import Refused, SettingsError
from abaton.site import Query, RestSource, ServerError, Web, check_site, load_site, open_site
from abaton.site.sources.fhir_server.retry import Clock, Patience

pytestmark = pytest.mark.network


@pytest.fixture
def server():
    with serving() as made:
        yield made


def searched(server: Server, resources: list[dict], page: int = 3) -> None:
    """Answer searches in pages with opaque links."""
    for kind in ("Patient", "Condition", "Observation", "Procedure"):
        found = [resource for resource in resources if resource["resourceType"] == kind]

        def answer(asked: Asked, found=found, kind=kind) -> Reply:
            start = int(asked.query.get("cursor", ["0"])[0])
            links = [{"relation": "self", "url": "x"}]
            if start + page < len(found):
                links.append({"relation": "next", "url": f"{server.base}/{kind}?cursor={start + page}"})
            entries = [
                {"fullUrl": f"{server.base}/{kind}/{r['id']}", "resource": r, "search": {"mode": "match"}}
                for r in found[start : start + page]
            ]
            return Reply.json(
                {"resourceType": "Bundle", "type": "searchset", "link": links, "entry": entries}
            )

        server.routes[f"/fhir/{kind}"] = answer


def source(server: Server, folder, *queries: Query, retries: int = 2) -> RestSource:
    clock = Time()
    web = Web(server.base, (), Patience(5.0, retries), clock=Clock(clock.now, clock.sleep))
    return RestSource(web, None, queries or (Query("Patient"),), folder / "work", page=3)


def ids(made: RestSource) -> list[str]:
    return [entry["resource"]["id"] for record in made.records() for entry in record.content["entry"]]


def test_all_pages_are_read_and_then_removed(server, tmp_path):
    searched(server, [patient(i) for i in range(8)])
    made = source(server, tmp_path)
    assert ids(made) == [f"p{i}" for i in range(8)]
    assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "work").iterdir())
    assert server.asked[0].query["_count"] == ["3"]
    made.close()
    assert not (tmp_path / "work").exists()


def test_parameters_arrive_as_they_are_meant(server, tmp_path):
    searched(server, [])
    ids(
        source(
            server,
            tmp_path,
            Query("Observation", (("code", "http://loinc.org|1,x\\|y"), ("date", "ge2024-01-01"))),
        )
    )
    assert server.asked[0].query["code"] == ["http://loinc.org|1,x\\|y"]
    assert server.asked[0].query["date"] == ["ge2024-01-01"]


def test_an_interrupted_fetch_goes_on_where_it_stopped(server, tmp_path):
    searched(server, [patient(i) for i in range(12)])
    good, count = server.routes["/fhir/Patient"], []
    server.routes["/fhir/Patient"] = lambda asked: (
        count.append(1) or (good(asked) if len(count) < 3 else Reply(503))
    )
    with pytest.raises(ServerError, match="503"):
        ids(source(server, tmp_path))
    before = len(server.asked)
    server.routes["/fhir/Patient"] = good
    assert ids(source(server, tmp_path)) == [f"p{i}" for i in range(12)]
    assert len(server.asked) == before + 2


def test_a_page_that_was_changed_on_disk_is_fetched_again(server, tmp_path):
    searched(server, [patient(i) for i in range(6)])
    ids(source(server, tmp_path))
    page = tmp_path / "work" / "0000000.json"
    page.write_bytes(page.read_bytes().replace(b"p1", b"p9"))
    before = len(server.asked)
    assert ids(source(server, tmp_path)) == [f"p{i}" for i in range(6)]
    assert len(server.asked) > before


def test_another_request_begins_anew(server, tmp_path):
    searched(server, [*(patient(i) for i in range(2)), condition(7)])
    ids(source(server, tmp_path))
    assert ids(source(server, tmp_path, Query("Condition"))) == ["c7"]


def test_a_half_written_state_is_taken_up(server, tmp_path):
    searched(server, [patient(i) for i in range(9)])
    ids(source(server, tmp_path))
    state = tmp_path / "work" / "state.ndjson"
    state.write_bytes(state.read_bytes()[:-20])
    assert ids(source(server, tmp_path)) == [f"p{i}" for i in range(9)]


def test_somebody_elses_folder_is_never_emptied(server, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("years of work")
    with pytest.raises(SettingsError, match="holds other files"):
        ids(source(server, tmp_path))
    assert (tmp_path / "work" / "thesis.txt").exists()


@pytest.mark.parametrize(
    "link", ["https://evil.example/next", "http://127.0.0.1:9/fhir", "//evil.example", "file:///etc/passwd"]
)
def test_a_next_link_to_another_host_is_refused(server, tmp_path, link):
    page = {"resourceType": "Bundle", "link": [{"relation": "next", "url": link}]}
    server.routes["/fhir/Patient"] = replies(Reply.json(page))
    with pytest.raises(Refused, match="points to another host"):
        ids(source(server, tmp_path))
    assert len(server.asked) == 1


def test_pages_that_lead_in_a_circle_are_noticed(server, tmp_path):
    page = {"resourceType": "Bundle", "link": [{"relation": "next", "url": "Patient?page=2"}], "entry": []}
    server.routes["/fhir/Patient"] = replies(Reply.json(page))
    with pytest.raises(ServerError, match="lead in a circle"):
        ids(source(server, tmp_path))
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply.json({"resourceType": "OperationOutcome"}), "something else than a Bundle"),
        (Reply.json({"resourceType": "Bundle", "link": [{"relation": "next"}]}), "no usable link"),
        (Reply(200, b"<html>", {"content-type": "text/html"}), "another kind of content"),
        (Reply(200, b'{"a":1,"a":2}', {"content-type": "application/fhir+json"}), "a key occurs twice"),
        (Reply(200, b'{"resourceType":"Bun', {"content-type": "application/fhir+json"}), "not valid JSON"),
        (Reply(200, b"[" * 1000, {"content-type": "application/fhir+json"}), "not valid JSON|nested"),
        (Reply(404), "answers 404"),
    ],
)
def test_answers_that_are_no_page_are_refused(server, tmp_path, reply, told):
    from abaton.errors import AbatonError

    server.routes["/fhir/Patient"] = replies(reply)
    with pytest.raises(AbatonError, match=told):
        ids(source(server, tmp_path))


def test_a_server_without_an_end_does_not_fill_the_disk(server, tmp_path, monkeypatch):
    searched(server, [patient(i) for i in range(9)])
    monkeypatch.setattr("abaton.site.sources.fhir_server.download_cache.LEAST_FREE", 1 << 62)
    with pytest.raises(Refused, match="the disk is nearly full"):
        ids(source(server, tmp_path))


def test_a_whole_site_from_a_server(server, house):
    searched(server, [*people(*range(9)), pressure(3, 150, name="second")])
    text = (
        (house / "site.toml")
        .read_text()
        .replace('kind = "ndjson"\npaths = ["records"]', f'kind = "fhir"\nurl = "{server.base}"\npage = 3')
    )
    (house / "site.toml").write_text(text)
    from datetime import UTC, datetime

    site = open_site(load_site(house / "site.toml"), study(), datetime(2026, 11, 16, tzinfo=UTC))
    found = check_site(site)
    assert [step.reached.text for step in found.steps] == ["9"] * 5
    assert found.read["Observation"] == "10"
    assert not (house / "work").exists()
    assert json.dumps(found.row())
