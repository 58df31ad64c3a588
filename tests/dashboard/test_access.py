"""Who may see and do what: everything that is not allowed is refused."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from tests.dashboard.told import Client, sign_in, tell

from abaton.dashboard import AccessFile, Dashboard, Right, ViewerRole, add_token, load_access, make_dashboard
from abaton.errors import SettingsError
from abaton.governance import Audit, Entry, metadata, schema
from abaton.store import Database

PAGES = ("/", "/runs/r", "/runs/r/figures", "/runs/r/live", "/runs/r/log", "/compare", "/compare/figures?run=r",
         "/governance")  # fmt: skip
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("page", PAGES)
def test_without_a_token_nothing_is_shown(closed, store, page):
    tell(store, "r")
    assert closed.get(page).status_code == 401
    asked = closed.get(page, headers={"accept": "text/html"})
    assert (asked.status_code, asked.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic eDp5", "Bearer abaton-" + "A" * 43])
def test_a_wrong_token_is_refused(closed, header):
    assert closed.get("/", headers={"authorization": header}).status_code == 401


def test_a_wrong_token_opens_no_session_and_few_are_tried(closed, tokens):
    answers = [closed.post("/login", data={"token": "wrong"}) for _ in range(12)]
    assert {answer.status_code for answer in answers} == {403, 429}
    assert not any("set-cookie" in answer.headers for answer in answers)
    assert "wrong" not in re.sub(r'id="wrong"|describedby="wrong"', "", answers[0].text)
    assert closed.post("/login", data={"token": tokens[1]["viewer"]}).status_code == 429


def test_a_token_opens_a_session_with_a_cookie_that_scripts_and_other_sites_do_not_get(closed, tokens):
    answer = closed.post("/login", data={"token": tokens[1]["viewer"]})
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert tokens[1]["viewer"] not in cookie
    assert closed.get("/").status_code == 200


def test_a_session_ends_after_a_while_without_use_and_in_any_case(closed, tokens, ticks):
    sign_in(closed, tokens[1]["viewer"])
    ticks.now = 1700
    assert closed.get("/").status_code == 200
    ticks.now = 3600
    assert closed.get("/").status_code == 401
    sign_in(closed, tokens[1]["viewer"])
    for _ in range(40):
        ticks.now += 1000
        last = closed.get("/").status_code
    assert last == 401


def test_who_signs_out_is_out(closed, tokens):
    key = sign_in(closed, tokens[1]["viewer"])
    cookie = closed.cookies["abaton-session"]
    assert closed.post("/logout", data={"key": key}).status_code == 303
    assert closed.get("/", headers={"cookie": f"abaton-session={cookie}"}).status_code == 401


ACTIONS = {"/runs/r/prune": Right.OPERATE, "/governance/verify": Right.CONTROL}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ["viewer", "operator", "controller"])
def test_only_those_who_may_act_do(closed, store, tokens, action, role):
    tell(store, "r")
    key = sign_in(closed, tokens[1][role])
    answer = closed.post(action, data={"key": key, "last": "2"})
    allowed = {"operator": Right.OPERATE, "controller": Right.CONTROL}.get(role) is ACTIONS[action]
    done = 303 if action.endswith("prune") else 404  # there is no governance database here
    assert answer.status_code == (done if allowed else 403)
    shown = closed.get("/runs/r").text
    assert ("Prune" in shown) == (role == "operator")


def test_a_form_from_elsewhere_changes_nothing(closed, store, tokens):
    tell(store, "r")
    key = sign_in(closed, tokens[1]["operator"])
    for headers, data in (
        ({}, {}),
        ({}, {"key": "0" * 64}),
        ({}, {"key": "ä"}),
        ({"origin": "https://elsewhere.example"}, {"key": key}),
        ({"origin": "null"}, {"key": key}),
        ({"sec-fetch-site": "cross-site"}, {"key": key}),
        ({"sec-fetch-site": "same-site"}, {"key": key}),
    ):
        assert closed.post("/runs/r/prune", data=data, headers=headers).status_code == 403
    good = {"origin": "http://runs.example", "sec-fetch-site": "same-origin"}
    assert closed.post("/runs/r/prune", data={"key": key}, headers=good).status_code == 303


def test_a_form_key_of_another_session_does_not_fit(closed, store, tokens):
    tell(store, "r")
    foreign = sign_in(closed, tokens[1]["viewer"])
    closed.cookies.clear()
    sign_in(closed, tokens[1]["operator"])
    assert closed.post("/runs/r/prune", data={"key": foreign}).status_code == 403


def test_nothing_changes_but_by_post(closed, store, tokens):
    tell(store, "r")
    sign_in(closed, tokens[1]["operator"])
    assert closed.get("/runs/r/prune").status_code == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert closed.request(method, "/runs/r/prune").status_code == 405


def test_a_program_shows_its_token_with_each_request(closed, store, tokens):
    tell(store, "r")
    asked = {"authorization": f"Bearer {tokens[1]['operator']}"}
    assert closed.get("/runs/r/figures", headers=asked).json()["metric"] == "auroc"
    assert closed.post("/runs/r/prune", headers=asked, data={"last": "1"}).status_code == 303


def test_a_proxy_says_who_asks_and_nobody_else_can(closed, store, tokens):
    tell(store, "r")
    proxy = {"abaton-proxy": tokens[1]["proxy"]}
    page = closed.get("/runs/r", headers={**proxy, "remote-user": "ada"})
    assert "ada · operator" in page.text
    key = page.text.split('name="key" value="')[1].split('"')[0]
    by_ada = {**proxy, "remote-user": "ada"}
    assert closed.post("/runs/r/prune", headers=by_ada, data={"key": "no"}).status_code == 403
    assert closed.post("/runs/r/prune", headers=by_ada, data={"key": key}).status_code == 303
    for headers in (
        {"remote-user": "ada"},
        {**proxy, "remote-user": "eve"},
        proxy,
        {"abaton-proxy": tokens[1]["operator"], "remote-user": "ada"},
        {"authorization": f"Bearer {tokens[1]['proxy']}"},
    ):
        assert closed.get("/", headers=headers).status_code == 401
    assert closed.post("/login", data={"token": tokens[1]["proxy"]}).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/access.py", "/static/....//app.py",
     "/static/dashboard.js%00.css", "/static//etc/passwd", "/runs/../../etc/passwd", "/runs/..%2f..%2fabaton.db",
     "/runs/%2e%2e%2flocks", "/static/", "/runs/"],
)  # fmt: skip
def test_an_address_is_never_a_path(looking, store, path):
    tell(store, "r")
    answer = looking.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text
    assert "import" not in answer.text


@pytest.mark.parametrize(
    "path", ["/static/../../../etc/passwd", "/static/..\\app.py", "/runs/../../abaton.db", "/static//app.py"]
)
def test_an_address_that_no_client_has_tidied_up_is_never_a_path(store, path):
    """Straight to the application: a web client would have removed the dots."""
    app, heard = make_dashboard(Dashboard(store)), []
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        heard.append(message)

    asyncio.run(app(scope, receive, send))
    assert heard[0]["status"] == 404
    assert b"root:" not in heard[1]["body"]


def test_a_data_controller_sees_where_the_chain_was_changed(store, tokens, tmp_path):
    with Database(tmp_path / "governance.db", metadata) as ledger:
        for number in range(3):
            Audit(ledger).append(Entry("study-closed", study=f"s{number}"), NOW)
        client = Client(make_dashboard(Dashboard(store, ledger, tokens[0])), "http://runs.example")
        by = {"authorization": f"Bearer {tokens[1]['controller']}"}
        client.post("/governance/verify", headers=by, data={})
        assert "Sound: all 3 entries" in client.get("/governance", headers=by).text
        changed = schema.audit.update().where(schema.audit.c.sequence == 1).values(hash="0" * 64)
        ledger.write(lambda connection: connection.execute(changed))
        client.post("/governance/verify", headers=by, data={})
        shown = client.get("/governance", headers={"authorization": f"Bearer {tokens[1]['viewer']}"}).text
        assert "Broken in" in shown
        assert "entry 1: the entry was changed" in shown
        assert "Check the whole chain" not in shown
        client.close()


def test_a_token_may_run_out(tmp_path):
    path = tmp_path / "access.toml"
    token = add_token(path, "ada", ViewerRole.VIEWER, NOW + timedelta(days=1))
    access = load_access(path)
    assert access.by_token(token, NOW).name == "ada"
    assert access.by_token(token, NOW + timedelta(days=2)) is None


def test_the_file_holds_no_token_and_is_private(tmp_path):
    path = tmp_path / "access.toml"
    first, second = add_token(path, "ada", ViewerRole.VIEWER), add_token(path, "eve", ViewerRole.OPERATOR)
    assert first not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert load_access(path).by_token(second, NOW).role is ViewerRole.OPERATOR
    with pytest.raises(SettingsError, match="already a token of 'ada'"):
        add_token(path, "ada", ViewerRole.VIEWER)
    with pytest.raises(SettingsError, match="letters, digits"):
        add_token(path, 'x"\n[users]', ViewerRole.VIEWER)


@pytest.mark.parametrize(
    ("content", "words"),
    [("[[tokens", "not TOML"), ("", "no tokens"), ("[users]\nada = 'king'\n", "right form"), ("x = 1\n", "right form"),
     ("[[tokens]]\nname='a'\nrole='viewer'\nsha256='short'\n", "right form")],
)  # fmt: skip
def test_an_access_file_that_is_not_understood_is_refused(tmp_path, content, words):
    path = tmp_path / "access.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=words):
        load_access(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_access(tmp_path / "absent.toml")


def test_without_an_access_file_only_this_machine_is_answered(looking, store):
    tell(store, "r")
    client = looking
    for host, status in (
        ("localhost:1", 200), ("127.0.0.1:8730", 200), ("[::1]:8730", 200), ("elsewhere.example", 421),
        ("localhost.elsewhere.example", 421), ("127.0.0.1.elsewhere.example", 421), ("", 421),
    ):  # fmt: skip
        assert client.get("/", headers={"host": host}).status_code == status
    assert client.post("/runs/r/prune", data={"last": "1"}).status_code == 403


def test_every_answer_forbids_what_is_not_ours(closed, looking, store, tokens):
    tell(store, "r")
    sign_in(closed, tokens[1]["viewer"])
    for client, path in ((looking, "/"), (looking, "/runs/r"), (looking, "/static/dashboard.js"), (closed, "/login"),
                         (closed, "/absent"), (closed, "/runs/r/figures")):  # fmt: skip
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers
    assert closed.get("/").headers["cache-control"] == "no-store"


def test_a_form_is_small(closed, tokens):
    assert closed.post("/login", data={"token": "x" * 20_000}).status_code == 413

    async def endless():
        yield b"token=x"

    assert closed.post("/login", content=endless()).status_code == 413


def test_a_file_that_others_can_write_is_refused(tmp_path):
    path = tmp_path / "access.toml"
    add_token(path, "ada", ViewerRole.VIEWER)
    assert load_access(path).tokens
    path.chmod(0o620)
    with pytest.raises(SettingsError, match="others can write the access file"):
        load_access(path)


def test_behind_a_proxy_that_ends_tls_the_cookie_travels_over_tls_alone(store, tokens):
    client = Client(make_dashboard(Dashboard(store, None, tokens[0], secure=True)), "http://runs.example")
    answer = client.post(
        "/login", data={"token": tokens[1]["viewer"]}, headers={"origin": "http://runs.example"}
    )
    assert answer.status_code == 303
    assert "; secure" in answer.headers["set-cookie"].lower()
    client.close()


def test_an_address_asks_so_often_and_no_more(store):
    from abaton.dashboard.access import Sessions
    from abaton.dashboard.middleware import Gate

    pages = make_dashboard(Dashboard(store))
    client = Client(Gate(pages.app, None, Sessions(lambda: 0.0), tick=lambda: 0.0), "http://localhost:8730")
    codes = [client.get("/login").status_code for _ in range(402)]
    assert codes == [200] * 400 + [429] * 2
    client.close()


def test_an_empty_file_of_users_gives_nobody_a_role():
    assert AccessFile().by_proxy("ada") is None
