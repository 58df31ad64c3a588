"""A private certificate authority for a federation, and the keys of its nodes.

The centre's certificate is signed by an authority that exists for this federation alone; sites are given its
certificate with their invitation and trust nothing else. Nodes prove who they are with a key of their own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from abaton.errors import SettingsError
from abaton.files import replacing

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
