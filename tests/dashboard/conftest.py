"""Store, access tokens and clients of a dashboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.dashboard.example_store import Client, ManualClock

from abaton.dashboard import (
    AccessFile,
    DashboardState,
    Sessions,
    ViewerRole,
    add_token,
    load_access,
    make_dashboard,
)
from abaton.store import Store


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with Store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def tokens(tmp_path) -> tuple[AccessFile, dict[str, str]]:
    """Return an access file with a token of every role and users of a proxy, and the tokens."""
    path = tmp_path / "access.toml"
    tokens_by_role = {role.value: add_token(path, role.value, role) for role in ViewerRole}
    path.write_text('[users]\n"ada" = "operator"\n\n' + path.read_text())
    return load_access(path), tokens_by_role


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def protected(store, tokens, clock) -> Iterator[Client]:
    """Yield a client of a dashboard with authentication; not signed in."""
    dashboard = DashboardState(store, None, tokens[0], sessions=Sessions(clock))
    client = Client(make_dashboard(dashboard), "http://runs.example")
    yield client
    client.close()


@pytest.fixture
def local(store) -> Iterator[Client]:
    """Yield a client on the machine itself, where all users may view."""
    client = Client(make_dashboard(DashboardState(store)), "http://localhost:8730")
    yield client
    client.close()
