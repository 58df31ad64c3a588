"""Invitations and a node's key: one file from the centre to a site, one file back, and nothing secret in either.

An invitation names the centre's address, the authority that its certificate is checked against, and the study, by its
document and its digest. The site makes its own key and sends its public half; both sides compare a fingerprint.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from abaton.errors import SettingsError
from abaton.files import replacing
from abaton.store import digest_of

FORMAT, KEYS_FORMAT = "abaton-invitation/1", "abaton-node-key/1"
_LARGEST = 1 << 23
_Form = TypeVar("_Form", "Invitation", "NodeKey")
_FORBIDDEN = frozenset("\"'\\=/")


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a site is given.

    Attributes:
        site: the name under which it takes part.
        centre: where the centre is reached, ``host:port``.
        authority: the certificate, as PEM, that the centre's one is signed with.
        study: the digest of the study document.
        document: the study document itself.
    """

    site: str
    centre: str
    authority: str
    study: str = ""
    document: str = ""

    def __post_init__(self) -> None:
        host, _, port = self.centre.rpartition(":")
        if not self.site or _FORBIDDEN & set(self.site + self.study) or not self.site.isprintable():
            raise SettingsError(
                f"the site's name '{self.site}' cannot be used",
                where="invitation",
                remedy="use letters, digits, spaces and dashes",
            )
        if not host or not port.isdecimal():
            raise SettingsError(
                f"'{self.centre}' is no address", where="invitation", remedy="write it as host:port"
            )
        try:
            x509.load_pem_x509_certificate(self.authority.encode())
        except ValueError:
            raise SettingsError(
                "the authority's certificate is not readable", where="invitation", remedy="give it as PEM"
            ) from None

    def write(self, path: Path) -> None:
        """Write the file that is sent to the site."""
        with replacing(path) as begun:
            begun.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class NodeKey:
    """What a site sends back: the public key of its node, in the form that OpenSSH writes.

    Attributes:
        site: whose it is.
        key: the key.
    """

    site: str
    key: str

    def __post_init__(self) -> None:
        try:
            load_ssh_public_key(self.key.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise SettingsError(
                "the key is not readable", where="node key", remedy="ask the site for the file again"
            ) from None

    @property
    def fingerprint(self) -> str:
        """What both sides compare, by a way that both trust."""
        made = digest_of(" ".join(self.key.split()[:2]).encode())
        return "-".join(made[i : i + 4] for i in range(0, 24, 4))

    def write(self, path: Path) -> None:
        """Write the file that is sent to the centre."""
        with replacing(path) as begun:
            begun.write_text(json.dumps({"format": KEYS_FORMAT, **asdict(self)}, indent=2) + "\n")


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file."""
    made = _read(path, FORMAT, Invitation)
    if made is None:
        raise SettingsError(
            "this is not an invitation", where=str(path), remedy="ask the centre for 'abaton keys invite'"
        )
    return made


def read_node_key(path: Path) -> NodeKey:
    """The node's key in a file."""
    made = _read(path, KEYS_FORMAT, NodeKey)
    if made is None:
        raise SettingsError(
            "this is no node's key", where=str(path), remedy="ask the site for what 'abaton site join' wrote"
        )
    return made


def _read(path: Path, form: str, kind: type[_Form]) -> _Form | None:
    try:
        with path.open("rb") as file:
            row = json.loads(file.read(_LARGEST))
        if row.pop("format") != form:
            return None
        return kind(**{name: str(value) for name, value in row.items()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
