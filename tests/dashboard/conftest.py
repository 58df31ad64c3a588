"""A store, people with tokens, and clients of a dashboard over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.dashboard.told import Client, Ticks

from abaton.dashboard import (
    AccessFile,
    Dashboard,
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
    """An access file with a token of every role, and users of a proxy."""
    path = tmp_path / "access.toml"
    made = {role.value: add_token(path, role.value, role) for role in ViewerRole}
    path.write_text('[users]\n"ada" = "operator"\n\n' + path.read_text())
    return load_access(path), made


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


@pytest.fixture
def closed(store, tokens, ticks) -> Iterator[Client]:
    """A client of a dashboard that asks who it is; not signed in."""
    made = Dashboard(store, None, tokens[0], sessions=Sessions(ticks))
    client = Client(make_dashboard(made), "http://runs.example")
    yield client
    client.close()


@pytest.fixture
def looking(store) -> Iterator[Client]:
    """A client on the machine itself, where everybody may look."""
    client = Client(make_dashboard(Dashboard(store)), "http://localhost:8730")
    yield client
    client.close()
