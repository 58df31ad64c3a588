"""Keys and certificates of a federation: its authority, the keys of its nodes, and the list of admitted keys.

The centre's certificate is signed by an authority of this federation; sites get the authority's certificate with their
invitation and trust no other. Nodes authenticate with a key: they sign the current time in the headers of every
request. The SuperLink checks this after it has read the body; the proxy checks it first, with a list of keys in a
folder of the centre that has one file per node.

Invariants:
(1) a key that is not on the list admits no request, and a removed key admits none from the next request on;
(2) signatures are accepted for the same time as Flower accepts them.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from abaton.atomic_files import atomic_write
from abaton.errors import SettingsError

_AUTHORITY_DAYS, _DAYS = 3650, 397
_CLOCK_SKEW = timedelta(minutes=5)  # clocks of sites may be behind


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """Paths of a centre's certificates: given ones, or those from `issue_certificate`."""

    authority: Path
    certificate: Path
    key: Path


def issue_certificate(
    folder: Path, hosts: Sequence[str], now: datetime, days: int = _DAYS
) -> CertificateAuthority:
    """Issue a TLS certificate for the centre's names and addresses; the authority is created if there is none.

    A second call renews the certificate; the authority stays, so that sites need no change.
    """
    if not hosts:
        raise SettingsError(
            "the certificate has no host name", where="network", remedy="give the centre's address"
        )
    folder.mkdir(parents=True, exist_ok=True)
    paths = CertificateAuthority(folder / "ca.pem", folder / "centre.pem", folder / "centre.key")
    authority, signer = _authority(folder, now)
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _certificate_builder(hosts[0], authority.subject, key.public_key(), now, days)
    builder = builder.add_extension(names, critical=False).add_extension(usage, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    _write(paths.key, _private(key), 0o600)
    _write(paths.certificate, _pem(builder.sign(signer, hashes.SHA384())), 0o644)
    return paths


def create_node_key(path: Path) -> tuple[Path, Path]:
    """Create a node's key for its TLS requests: the private file, readable by its owner only, and the public file."""
    if path.exists():
        raise SettingsError("a key file exists already", where=str(path), remedy="choose another path")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public_path = path.with_name(f"{path.name}.pub")
    _write(path, text, 0o600)
    _write(public_path, public + b"\n", 0o644)
    return path, public_path


def _authority(folder: Path, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = folder / "ca.pem", folder / "ca.key"
    if certificate.exists() and key.exists():
        signer = serialization.load_pem_private_key(key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(certificate.read_bytes()), signer
    signer = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Abaton federation")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _certificate_builder("Abaton federation", name, signer.public_key(), now, _AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    signed = builder.sign(signer, hashes.SHA384())
    _write(key, _private(signer), 0o600)
    _write(certificate, _pem(signed), 0o644)
    return signed, signer


def _certificate_builder(
    subject: str, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, content: bytes, mode: int) -> None:
    with atomic_write(path, mode=mode) as temporary_path:
        temporary_path.write_bytes(content)


Headers = list[tuple[bytes, bytes]]

_MAX_AGE, _MAX_AHEAD = 305.0, 5.0
"""Largest age and clock difference of a signature in seconds, as in Flower's SuperLink."""
_MAX_HEADER_LENGTH = 4096


def admit_key(folder: Path, node: int, public_key: bytes) -> None:
    """Add a node's public key, in OpenSSH format, to the list of keys admitted for requests over TLS."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(folder / f"{node}.pem", mode=0o600) as temporary_path:
        temporary_path.write_bytes(_public_pem(serialization.load_ssh_public_key(public_key)))


def revoke_key(folder: Path, node: int) -> None:
    """Remove a node's key from the list of keys admitted for requests over TLS."""
    (folder / f"{node}.pem").unlink(missing_ok=True)


class AdmittedKeys:
    """Check of requests against the list of admitted keys.

    Args:
        folder: the list of keys.
        now: the current time.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder, self._now = folder, now
        self._seen: tuple[int, ...] = ()
        self._known: dict[bytes, ec.EllipticCurvePublicKey] = {}

    def admit(self, headers: Headers) -> bool:
        """Return whether the headers of a request over TLS prove possession of an admitted key."""
        values = dict(headers)
        try:
            public_key, signature = (
                base64.b64decode(values[name][:_MAX_HEADER_LENGTH], validate=True)
                for name in (b"flwr-public-key", b"flwr-signature")
            )
            timestamp = values[b"flwr-timestamp"].decode("ascii")
            age = (self._now() - datetime.fromisoformat(timestamp)).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            return False
        key = self._keys().get(public_key)
        if key is None or not -_MAX_AHEAD < age < _MAX_AGE:
            return False
        try:
            key.verify(signature, timestamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def _keys(self) -> dict[bytes, ec.EllipticCurvePublicKey]:
        """Return the keys admitted for requests over TLS, read again after a change."""
        try:
            files = sorted(self._folder.glob("*.pem"))
            seen = tuple(value for file in files for value in (file.stat().st_ino, file.stat().st_mtime_ns))
            if seen != self._seen:
                keys = [file.read_bytes() for file in files]
                self._known = {pem: _parse_key(pem) for pem in keys}
                self._seen = seen
        except FileNotFoundError:  # removed meanwhile: the next request reads the list again
            return {}
        return self._known


def _public_pem(key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _parse_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    key = serialization.load_pem_public_key(pem)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key
