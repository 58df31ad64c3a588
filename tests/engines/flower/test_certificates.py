"""A federation's own authority: what its certificates open, and what they do not."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from abaton.engines.flower.tls import Certificates, issue, node_key
from abaton.errors import SettingsError

NOW = datetime.now(UTC)


def shake(centre: Certificates, authority: Path, host: str) -> None:
    """A TLS handshake without a network."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(centre.certificate, centre.key)
    client = ssl.create_default_context(cafile=str(authority))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_hostname=host)
    answering = server.wrap_bio(there, back, server_side=True)
    for side in (asking, answering, asking, answering):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_a_site_that_trusts_the_authority_reaches_the_centre_under_each_of_its_names(tmp_path):
    made = issue(tmp_path, ["127.0.0.1", "centre.example.org"], NOW)
    shake(made, made.authority, "127.0.0.1")
    shake(made, made.authority, "centre.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shake(made, made.authority, "other.example.org")


def test_renewal_keeps_the_authority_so_that_sites_need_nothing_new(tmp_path):
    old = issue(tmp_path, ["127.0.0.1"], NOW)
    trusted, before = old.authority.read_bytes(), old.certificate.read_bytes()
    new = issue(tmp_path, ["127.0.0.1"], NOW)
    assert new.authority.read_bytes() == trusted
    assert new.certificate.read_bytes() != before
    shake(new, new.authority, "127.0.0.1")


def test_an_expired_certificate_and_another_authority_are_refused(tmp_path):
    expired = issue(tmp_path / "a", ["127.0.0.1"], NOW - timedelta(days=10), days=3)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(expired, expired.authority, "127.0.0.1")
    other = issue(tmp_path / "b", ["127.0.0.1"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(other, expired.authority, "127.0.0.1")


def test_private_files_are_their_owners_alone(tmp_path):
    made = issue(tmp_path, ["127.0.0.1"], NOW)
    private, public = node_key(tmp_path / "keys" / "train")
    for path in (made.key, tmp_path / "ca.key", private):
        assert path.stat().st_mode & 0o077 == 0
    key = load_ssh_private_key(private.read_bytes(), None)
    assert key.public_key() == load_ssh_public_key(public.read_bytes())
    with pytest.raises(SettingsError, match="already"):
        node_key(private)


def test_a_certificate_needs_a_host(tmp_path):
    with pytest.raises(SettingsError, match="host"):
        issue(tmp_path, [], NOW)
