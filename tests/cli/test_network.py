"""The network commands: what they write, and what they refuse, without a network."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.engines.flower.centre import Address, read_address, write_address
from abaton.engines.flower.certificates import issue
from abaton.errors import SettingsError

RUN = CliRunner()


@pytest.fixture
def centre(tmp_path):
    folder = tmp_path / "centre"
    own = issue(folder / "certificates", ["127.0.0.1"], datetime.now(UTC))
    write_address(folder, Address("127.0.0.1", 8443), own)
    return folder


def test_an_invitation_is_one_file_with_address_authority_and_study(centre, tmp_path):
    path = tmp_path / "a.invitation"
    words = ["network", "invite", "a", "--centre", str(centre), "--study", "d1", "--output", str(path)]
    assert RUN.invoke(app, words).stdout.strip() == str(path)
    made = json.loads(path.read_text())
    assert (made["site"], made["centre"], made["study"]) == ("a", "127.0.0.1:8443", "d1")
    assert made["authority"] == (centre / "certificates" / "ca.pem").read_text()
    assert read_address(centre)[0] == Address("127.0.0.1", 8443)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["invite", "a", "--centre", "nowhere"], "there is no centre here"),
        (["revoke", "a", "--centre", "nowhere"], "there is no centre here"),
        (["admit", "a", "x.pub", "y.pub", "--centre", "nowhere"], "there is no centre here"),
        (["join", "nothing", "--learner", "m:f"], "not an invitation"),
        (["centre", "--certificate", "c.pem"], "belong together"),
    ],
)
def test_refusals_are_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = RUN.invoke(app, ["network", *words])
    assert isinstance(done.exception, SettingsError)
    assert said in str(done.exception)
    assert list(tmp_path.iterdir()) == [], "nothing was started or written"
