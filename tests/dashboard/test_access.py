"""Access control of the dashboard: all that is not allowed is refused."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest
from tests.dashboard.example_store import Client, sign_in, write_run

from abaton.dashboard import (
    AccessFile,
    AccessRight,
    DashboardState,
    ViewerRole,
    add_token,
    load_access,
    make_dashboard,
)
from abaton.errors import SettingsError
from abaton.governance import AuditEntry, AuditLog, metadata, schema
from abaton.store import Database

PAGES = ("/", "/runs/r", "/runs/r/figures", "/runs/r/live", "/runs/r/log", "/compare", "/compare/figures?run=r",
         "/governance")  # fmt: skip
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("page", PAGES)
def test_without_a_token_nothing_is_shown(protected, store, page):
    write_run(store, "r")
    assert protected.get(page).status_code == 401
    response = protected.get(page, headers={"accept": "text/html"})
    assert (response.status_code, response.headers["location"]) == (303, "/login")


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Basic eDp5", "Bearer abaton-" + "A" * 43])
def test_a_wrong_token_is_refused(protected, header):
    assert protected.get("/", headers={"authorization": header}).status_code == 401


def test_a_wrong_token_opens_no_session_and_few_are_tried(protected, tokens):
    responses = [protected.post("/login", data={"token": "wrong"}) for _ in range(12)]
    assert {response.status_code for response in responses} == {403, 429}
    assert not any("set-cookie" in response.headers for response in responses)
    assert "wrong" not in re.sub(r'id="problem"|describedby="problem"', "", responses[0].text)
    assert protected.post("/login", data={"token": tokens[1]["viewer"]}).status_code == 429


def test_a_token_opens_a_session_with_a_cookie_that_scripts_and_other_sites_do_not_get(protected, tokens):
    response = protected.post("/login", data={"token": tokens[1]["viewer"]})
    cookie = response.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
    assert tokens[1]["viewer"] not in cookie
    assert protected.get("/").status_code == 200


def test_a_session_ends_after_a_while_without_use_and_in_any_case(protected, tokens, clock):
    sign_in(protected, tokens[1]["viewer"])
    clock.now = 1700
    assert protected.get("/").status_code == 200
    clock.now = 3600
    assert protected.get("/").status_code == 401
    sign_in(protected, tokens[1]["viewer"])
    for _ in range(40):
        clock.now += 1000
        last = protected.get("/").status_code
    assert last == 401


def test_signing_out_ends_the_session(protected, tokens):
    key = sign_in(protected, tokens[1]["viewer"])
    cookie = protected.cookies["abaton-session"]
    assert protected.post("/logout", data={"key": key}).status_code == 303
    assert protected.get("/", headers={"cookie": f"abaton-session={cookie}"}).status_code == 401


ACTIONS = {"/runs/r/prune": AccessRight.OPERATE, "/governance/verify": AccessRight.CONTROL}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("role", ["viewer", "operator", "data_controller"])
def test_actions_need_the_right_of_the_role(protected, store, tokens, action, role):
    write_run(store, "r")
    key = sign_in(protected, tokens[1][role])
    response = protected.post(action, data={"key": key, "last": "2"})
    allowed = {"operator": AccessRight.OPERATE, "data_controller": AccessRight.CONTROL}.get(role) is ACTIONS[
        action
    ]
    done = 303 if action.endswith("prune") else 404  # the dashboard has no governance database
    assert response.status_code == (done if allowed else 403)
    shown = protected.get("/runs/r").text
    assert ("Prune" in shown) == (role == "operator")


def test_a_form_of_another_origin_changes_nothing(protected, store, tokens):
    write_run(store, "r")
    key = sign_in(protected, tokens[1]["operator"])
    for headers, data in (
        ({}, {}),
        ({}, {"key": "0" * 64}),
        ({}, {"key": "ä"}),
        ({"origin": "https://other.example"}, {"key": key}),
        ({"origin": "null"}, {"key": key}),
        ({"sec-fetch-site": "cross-site"}, {"key": key}),
        ({"sec-fetch-site": "same-site"}, {"key": key}),
    ):
        assert protected.post("/runs/r/prune", data=data, headers=headers).status_code == 403
    good = {"origin": "http://runs.example", "sec-fetch-site": "same-origin"}
    assert protected.post("/runs/r/prune", data={"key": key}, headers=good).status_code == 303


def test_a_csrf_token_of_another_session_is_refused(protected, store, tokens):
    write_run(store, "r")
    foreign = sign_in(protected, tokens[1]["viewer"])
    protected.cookies.clear()
    sign_in(protected, tokens[1]["operator"])
    assert protected.post("/runs/r/prune", data={"key": foreign}).status_code == 403


def test_nothing_changes_but_by_post(protected, store, tokens):
    write_run(store, "r")
    sign_in(protected, tokens[1]["operator"])
    assert protected.get("/runs/r/prune").status_code == 405
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert protected.request(method, "/runs/r/prune").status_code == 405


def test_a_program_sends_its_token_with_each_request(protected, store, tokens):
    write_run(store, "r")
    headers = {"authorization": f"Bearer {tokens[1]['operator']}"}
    assert protected.get("/runs/r/figures", headers=headers).json()["metric"] == "auroc"
    assert protected.post("/runs/r/prune", headers=headers, data={"last": "1"}).status_code == 303


def test_only_a_proxy_may_name_the_user(protected, store, tokens):
    write_run(store, "r")
    proxy = {"abaton-proxy": tokens[1]["proxy"]}
    page = protected.get("/runs/r", headers={**proxy, "remote-user": "ada"})
    assert "ada · operator" in page.text
    key = page.text.split('name="key" value="')[1].split('"')[0]
    by_ada = {**proxy, "remote-user": "ada"}
    assert protected.post("/runs/r/prune", headers=by_ada, data={"key": "no"}).status_code == 403
    assert protected.post("/runs/r/prune", headers=by_ada, data={"key": key}).status_code == 303
    for headers in (
        {"remote-user": "ada"},
        {**proxy, "remote-user": "eve"},
        proxy,
        {"abaton-proxy": tokens[1]["operator"], "remote-user": "ada"},
        {"authorization": f"Bearer {tokens[1]['proxy']}"},
    ):
        assert protected.get("/", headers=headers).status_code == 401
    assert protected.post("/login", data={"token": tokens[1]["proxy"]}).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/access.py", "/static/....//app.py",
     "/static/dashboard.js%00.css", "/static//etc/passwd", "/runs/../../etc/passwd", "/runs/..%2f..%2fabaton.db",
     "/runs/%2e%2e%2flocks", "/static/", "/runs/"],
)  # fmt: skip
def test_a_url_is_never_a_path(local, store, path):
    write_run(store, "r")
    response = local.get(path)
    assert response.status_code == 404
    assert "root:" not in response.text
    assert "import" not in response.text


@pytest.mark.parametrize(
    "path", ["/static/../../../etc/passwd", "/static/..\\app.py", "/runs/../../abaton.db", "/static//app.py"]
)
def test_an_unnormalised_url_is_never_a_path(store, path):
    """Call the application directly, since a web client would normalise the path."""
    app, messages = make_dashboard(DashboardState(store)), []
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "root_path": "",
    }  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    assert messages[0]["status"] == 404
    assert b"root:" not in messages[1]["body"]


def test_a_data_controller_sees_changed_entries_of_the_audit_log(store, tokens, tmp_path):
    with Database(tmp_path / "governance.db", metadata) as database:
        for number in range(3):
            AuditLog(database).append(AuditEntry("study-protected", study=f"s{number}"), NOW)
        client = Client(make_dashboard(DashboardState(store, database, tokens[0])), "http://runs.example")
        headers = {"authorization": f"Bearer {tokens[1]['data_controller']}"}
        client.post("/governance/verify", headers=headers, data={})
        assert "Valid: 3 entries" in client.get("/governance", headers=headers).text
        changed = schema.audit.update().where(schema.audit.c.sequence == 1).values(hash="0" * 64)
        database.write(lambda connection: connection.execute(changed))
        client.post("/governance/verify", headers=headers, data={})
        shown = client.get("/governance", headers={"authorization": f"Bearer {tokens[1]['viewer']}"}).text
        assert "Invalid:" in shown
        assert "entry 1: the entry was changed" in shown
        assert "Verify the audit log" not in shown
        client.close()


def test_a_token_expires(tmp_path):
    path = tmp_path / "access.toml"
    token = add_token(path, "ada", ViewerRole.VIEWER, NOW + timedelta(days=1))
    access = load_access(path)
    assert access.user_by_token(token, NOW).name == "ada"
    assert access.user_by_token(token, NOW + timedelta(days=2)) is None


def test_the_access_file_contains_no_token_and_is_private(tmp_path):
    path = tmp_path / "access.toml"
    first, second = add_token(path, "ada", ViewerRole.VIEWER), add_token(path, "eve", ViewerRole.OPERATOR)
    assert first not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert load_access(path).user_by_token(second, NOW).role is ViewerRole.OPERATOR
    with pytest.raises(SettingsError, match="a token of 'ada' already exists"):
        add_token(path, "ada", ViewerRole.VIEWER)
    with pytest.raises(SettingsError, match="letters, digits"):
        add_token(path, 'x"\n[users]', ViewerRole.VIEWER)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[[tokens", "not TOML"), ("", "no tokens"), ("[users]\nada = 'king'\n", "invalid keys"),
     ("x = 1\n", "invalid keys"), ("[[tokens]]\nname='a'\nrole='viewer'\nsha256='short'\n", "invalid keys")],
)  # fmt: skip
def test_an_invalid_access_file_is_refused(tmp_path, content, message):
    path = tmp_path / "access.toml"
    path.write_text(content)
    with pytest.raises(SettingsError, match=message):
        load_access(path)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_access(tmp_path / "absent.toml")


def test_without_an_access_file_only_this_machine_is_answered(local, store):
    write_run(store, "r")
    client = local
    for host, status in (
        ("localhost:1", 200), ("127.0.0.1:8730", 200), ("[::1]:8730", 200), ("other.example", 421),
        ("localhost.other.example", 421), ("127.0.0.1.other.example", 421), ("", 421),
    ):  # fmt: skip
        assert client.get("/", headers={"host": host}).status_code == status
    assert client.post("/runs/r/prune", data={"last": "1"}).status_code == 403


def test_every_response_has_security_headers(protected, local, store, tokens):
    write_run(store, "r")
    sign_in(protected, tokens[1]["viewer"])
    for client, path in ((local, "/"), (local, "/runs/r"), (local, "/static/dashboard.js"), (protected, "/login"),
                         (protected, "/absent"), (protected, "/runs/r/figures")):  # fmt: skip
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
    assert protected.get("/").headers["cache-control"] == "no-store"


def test_a_large_form_is_refused(protected, tokens):
    assert protected.post("/login", data={"token": "x" * 20_000}).status_code == 413

    async def endless():
        yield b"token=x"

    assert protected.post("/login", content=endless()).status_code == 413


def test_an_access_file_writable_by_other_users_is_refused(tmp_path):
    path = tmp_path / "access.toml"
    add_token(path, "ada", ViewerRole.VIEWER)
    assert load_access(path).tokens
    path.chmod(0o620)
    with pytest.raises(SettingsError, match="other users can write the access file"):
        load_access(path)


def test_behind_a_tls_proxy_the_cookie_is_secure(store, tokens):
    client = Client(
        make_dashboard(DashboardState(store, None, tokens[0], secure=True)), "http://runs.example"
    )
    response = client.post(
        "/login", data={"token": tokens[1]["viewer"]}, headers={"origin": "http://runs.example"}
    )
    assert response.status_code == 303
    assert "; secure" in response.headers["set-cookie"].lower()
    client.close()


def test_requests_of_an_address_are_rate_limited(store):
    from abaton.dashboard.access import Sessions
    from abaton.dashboard.middleware import DashboardMiddleware

    pages = make_dashboard(DashboardState(store))
    client = Client(
        DashboardMiddleware(pages.app, None, Sessions(lambda: 0.0), clock=lambda: 0.0),
        "http://localhost:8730",
    )
    codes = [client.get("/login").status_code for _ in range(402)]
    assert codes == [200] * 400 + [429] * 2
    client.close()


def test_an_empty_access_file_gives_no_role():
    assert AccessFile().user_by_proxy("ada") is None
