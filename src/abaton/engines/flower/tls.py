"""Keys and certificates of a federation: its own authority, the keys of its nodes, and by which of them the gate opens.

The centre's certificate is signed by an authority that exists for this federation alone; sites are given its
certificate with their invitation and trust nothing else. Nodes prove who they are with a key of their own: they sign
the time in the head of every request. The SuperLink looks at that when it has read the body; the gate looks first, by
a list of keys that the centre keeps in a folder, a file for each node.

Invariants:
(1) a key that is not on the list admits nobody, and one that is taken off it admits nobody from the next request on;
(2) what is signed is no older than Flower itself takes it.
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

from abaton.errors import SettingsError
from abaton.atomic_files import replacing

_AUTHORITY_DAYS, _DAYS = 3650, 397
_EARLIER = timedelta(minutes=5)  # clocks of sites may be a little behind


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where a centre's certificates are: given ones, or those that `issue` makes."""

    authority: Path
    certificate: Path
    key: Path


def issue(folder: Path, hosts: Sequence[str], now: datetime, days: int = _DAYS) -> Certificates:
    """A certificate for the centre under these names and addresses; the authority is made if there is none.

    Called again it renews: the authority stays, so that sites need nothing new.
    """
    if not hosts:
        raise SettingsError("a certificate needs a host", where="network", remedy="name the centre's address")
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "ca.pem", folder / "centre.pem", folder / "centre.key")
    authority, signer = _authority(folder, now)
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    begun = _begun(hosts[0], authority.subject, key.public_key(), now, days)
    begun = begun.add_extension(names, critical=False).add_extension(usage, critical=False)
    begun = begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    _write(made.key, _private(key), 0o600)
    _write(made.certificate, _pem(begun.sign(signer, hashes.SHA384())), 0o644)
    return made


def node_key(path: Path) -> tuple[Path, Path]:
    """A new key for a node: the private file, readable by its owner alone, and the public one beside it."""
    if path.exists():
        raise SettingsError("there is a key already", where=str(path), remedy="choose another place")
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    beside = path.with_name(f"{path.name}.pub")
    _write(path, text, 0o600)
    _write(beside, public + b"\n", 0o644)
    return path, beside


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
    begun = _begun("Abaton federation", name, signer.public_key(), now, _AUTHORITY_DAYS)
    begun = begun.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    begun = begun.add_extension(usage, critical=True)
    made = begun.sign(signer, hashes.SHA384())
    _write(key, _private(signer), 0o600)
    _write(certificate, _pem(made), 0o644)
    return made, signer


def _begun(
    subject: str, issuer: x509.Name, public: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    begun = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
    begun = begun.serial_number(x509.random_serial_number())
    begun = begun.not_valid_before(now - _EARLIER).not_valid_after(now + timedelta(days=days))
    return begun.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


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
    with replacing(path, mode=mode) as begun:
        begun.write_bytes(content)


Headers = list[tuple[bytes, bytes]]

_OLDEST, _AHEAD = 305.0, 5.0
"""Seconds: what Flower's SuperLink takes."""
_LONGEST = 4096


def enter_key(folder: Path, node: int, public: bytes) -> None:
    """Put the public key of a node, as OpenSSH writes it, on a centre's list."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(folder / f"{node}.pem", mode=0o600) as begun:
        begun.write_bytes(_public_pem(serialization.load_ssh_public_key(public)))


def drop_key(folder: Path, node: int) -> None:
    """Take the key of a node off the list."""
    (folder / f"{node}.pem").unlink(missing_ok=True)


class Callers:
    """Those who may ask.

    Args:
        folder: The list of keys.
        now: The time.
    """

    def __init__(self, folder: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder, self._now = folder, now
        self._seen: tuple[int, ...] = ()
        self._known: dict[bytes, ec.EllipticCurvePublicKey] = {}

    def admit(self, headers: Headers) -> bool:
        """Whether the headers of a request show the key of a node on the list."""
        told = dict(headers)
        try:
            named, signature = (
                base64.b64decode(told[name][:_LONGEST], validate=True)
                for name in (b"flwr-public-key", b"flwr-signature")
            )
            stamp = told[b"flwr-timestamp"].decode("ascii")
            age = (self._now() - datetime.fromisoformat(stamp)).total_seconds()
        except (KeyError, ValueError, TypeError, binascii.Error):
            return False
        key = self._keys().get(named)
        if key is None or not -_AHEAD < age < _OLDEST:
            return False
        try:
            key.verify(signature, stamp.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    def _keys(self) -> dict[bytes, ec.EllipticCurvePublicKey]:
        """The keys on the list, read anew when it has changed."""
        try:
            files = sorted(self._folder.glob("*.pem"))
            seen = tuple(part for file in files for part in (file.stat().st_ino, file.stat().st_mtime_ns))
            if seen != self._seen:
                found = [file.read_bytes() for file in files]
                self._known = {text: _key(text) for text in found}
                self._seen = seen
        except FileNotFoundError:  # taken off the list just now: the next request sees it
            return {}
        return self._known


def _public_pem(key: object) -> bytes:
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _key(text: bytes) -> ec.EllipticCurvePublicKey:
    key = serialization.load_pem_public_key(text)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key
