"""Authority of a federation: what its certificates are valid for."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from abaton.engines.flower.tls import CertificateAuthority, create_node_key, issue_certificate
from abaton.errors import SettingsError

NOW = datetime.now(UTC)


def handshake(centre: CertificateAuthority, authority: Path, host: str) -> None:
    """A TLS handshake without a network."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(centre.certificate, centre.key)
    client = ssl.create_default_context(cafile=str(authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (client_side, server_side, client_side, server_side):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue


def test_a_site_that_trusts_the_authority_reaches_the_centre_under_each_of_its_names(tmp_path):
    certificates = issue_certificate(tmp_path, ["127.0.0.1", "centre.example.org"], NOW)
    handshake(certificates, certificates.authority, "127.0.0.1")
    handshake(certificates, certificates.authority, "centre.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(certificates, certificates.authority, "other.example.org")


def test_renewal_keeps_the_authority(tmp_path):
    old = issue_certificate(tmp_path, ["127.0.0.1"], NOW)
    trusted, before = old.authority.read_bytes(), old.certificate.read_bytes()
    new = issue_certificate(tmp_path, ["127.0.0.1"], NOW)
    assert new.authority.read_bytes() == trusted
    assert new.certificate.read_bytes() != before
    handshake(new, new.authority, "127.0.0.1")


def test_an_expired_certificate_and_another_authority_are_refused(tmp_path):
    expired = issue_certificate(tmp_path / "a", ["127.0.0.1"], NOW - timedelta(days=10), days=3)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        handshake(expired, expired.authority, "127.0.0.1")
    other = issue_certificate(tmp_path / "b", ["127.0.0.1"], NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(other, expired.authority, "127.0.0.1")


def test_private_files_are_readable_by_their_owner_only(tmp_path):
    certificates = issue_certificate(tmp_path, ["127.0.0.1"], NOW)
    private, public = create_node_key(tmp_path / "keys" / "train")
    for path in (certificates.key, tmp_path / "ca.key", private):
        assert path.stat().st_mode & 0o077 == 0
    key = load_ssh_private_key(private.read_bytes(), None)
    assert key.public_key() == load_ssh_public_key(public.read_bytes())
    with pytest.raises(SettingsError, match="already"):
        create_node_key(private)


def test_a_certificate_needs_a_host(tmp_path):
    with pytest.raises(SettingsError, match="host"):
        issue_certificate(tmp_path, [], NOW)
