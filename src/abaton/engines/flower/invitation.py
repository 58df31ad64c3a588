"""Invitations: one file with what a site needs to join, and nothing secret.

It names the centre's address, the authority that its certificate is checked against, and the study by its digest. The
site makes its own keys; the centre admits them by their public halves.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509

from abaton.errors import SettingsError
from abaton.files import replacing

FORMAT = "abaton-invitation/1"
_LARGEST = 1 << 16
_FORBIDDEN = frozenset("\"'\\=")  # Flower's own way of writing settings knows no escapes


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a site is given.

    Attributes:
        site: the name under which it takes part.
        centre: where the centre is reached, ``host:port``.
        authority: the certificate, as PEM, that the centre's one is signed with.
        study: the digest of the study document.
    """

    site: str
    centre: str
    authority: str
    study: str = ""

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


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file."""
    try:
        with path.open("rb") as file:
            row = json.loads(file.read(_LARGEST))
        if row.pop("format") != FORMAT:
            raise ValueError
        return Invitation(**{name: str(value) for name, value in row.items()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise SettingsError(
            "this is not an invitation", where=str(path), remedy="ask the centre for 'abaton network invite'"
        ) from None
