"""SMART Backend Services: a hospital's server is shown a signed assertion and gives a short-lived token.

The assertion is a JSON Web Token (RFC 7523) signed with ES384 or RS384, valid for four minutes and used once;
the server's ``.well-known/smart-configuration`` says where tokens are given.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from abaton.errors import SettingsError
from abaton.fhir.json_format import parse
from abaton.site.config import Smart
from abaton.site.sources.fhir_server.http_client import (
    FHIR_JSON,
    ServerError,
    Web,
    document,
    expect,
    origin,
    place_of,
)

_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_LIFE, _EARLY = 240, 60.0
_SHORTEST_RSA = 2048


def read_key(file: Path) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """The private key in a PEM file that nobody else can read."""
    try:
        if file.stat().st_mode & 0o077:
            raise SettingsError(
                "others can read the private key", where=str(file), remedy=f"run 'chmod 600 {file.name}'"
            )
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise SettingsError(
            "the key cannot be read", where=str(file), remedy=error.strerror or "check the path"
        ) from None
    except (ValueError, TypeError):
        raise SettingsError(
            "this is not an unencrypted PEM key", where=str(file), remedy="give the private key as PEM"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise SettingsError("the key is of another kind", where=str(file), remedy="use P-384 or RSA")
    return key


def signed(
    claims: Mapping[str, Any],
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    algorithm: str,
    key_id: str,
) -> str:
    """A JSON Web Token in its compact form (RFC 7515); PyJWT would take a weaker key with a mere warning."""
    fits = {
        "ES384": isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1",
        "RS384": isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _SHORTEST_RSA,
    }
    if not fits.get(algorithm):
        raise SettingsError(
            f"the key does not fit {algorithm}",
            remedy="use a P-384 key for ES384, RSA of 2048 bits for RS384",
        )
    return jwt.encode(dict(claims), key, algorithm, headers={"kid": key_id})


@dataclass
class Tokens:
    """The tokens of one site at one server, renewed before they expire or when the server says 401.

    Args:
        web: The server.
        smart: What the site document says of it.
        key: The private key's file.
        types: The resource types that are to be read, for the scopes.
        draw: A source of random text, for the assertion's id.
    """

    web: Web
    smart: Smart
    key: Path
    types: tuple[str, ...]
    draw: Callable[[], str] = field(default=lambda: secrets.token_urlsafe(24))
    _token: str = field(default="", repr=False)
    _until: float = field(default=0.0, repr=False)
    _place: tuple[str, str] | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        """The header that shows the token; one is asked for if there is none that lasts."""
        if not self._token or self.web.clock.now() > self._until - _EARLY:
            self.renew()
        return {"authorization": f"Bearer {self._token}"}

    def renew(self) -> None:
        """Ask for a new token."""
        url, scope = self._place = self._place or self._discover()
        server, now = self._server(url), self.web.clock.now()
        accept = {"accept": "application/json"}
        answer = server.ask(url, lambda: accept, method="POST", form=lambda: self._request(url, scope))
        expect(answer.headers, FHIR_JSON, url)
        given = parse(answer.body, where=place_of(url), limit=1 << 20)
        token, lasts = given.get("access_token"), given.get("expires_in")
        kind = str(given.get("token_type", "")).lower()
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or kind != "bearer":
            raise ServerError(
                "the server gives no usable token", where=place_of(url), remedy="check the scopes"
            )
        number = isinstance(lasts, int | float) and not isinstance(lasts, bool)
        self._token, self._until = token, now + (float(lasts or 0) if number else 300.0)

    def _request(self, url: str, scope: str) -> dict[str, str]:
        now = int(self.web.clock.now())
        claims: dict[str, Any] = {"iss": self.smart.client, "sub": self.smart.client, "aud": url}
        claims |= {"jti": self.draw(), "iat": now, "exp": now + _LIFE}
        return {
            "grant_type": "client_credentials",
            "scope": scope,
            "client_assertion_type": _ASSERTION,
            "client_assertion": signed(claims, read_key(self.key), self.smart.algorithm, self.smart.key_id),
        }

    def _server(self, url: str) -> Web:
        """The token's server: the FHIR server itself, a named host, or the address in the site document."""
        if self.smart.token_url == url:
            return Web(url, (), self.web.patience, self.web.ca, self.web.clock)
        self.web.permitted(url)
        return self.web

    def _discover(self) -> tuple[str, str]:
        if self.smart.token_url and self.smart.scopes:
            return self.smart.token_url, " ".join(self.smart.scopes)
        place = f"{self.web.base}/.well-known/smart-configuration"
        told = document(self.web.ask(place, lambda: {"accept": "application/json"}), place)
        url = self.smart.token_url or told.get("token_endpoint")
        if not isinstance(url, str) or origin(url)[0] not in ("https", origin(self.web.base)[0]):
            raise ServerError(
                "the server does not say where tokens are given",
                where=place_of(place),
                remedy="write token_url under [records.smart]",
            )
        capabilities = told.get("capabilities")
        newer = isinstance(capabilities, list) and "permission-v2" in capabilities
        verb = "rs" if newer else "read"
        return url, " ".join(self.smart.scopes or (f"system/{name}.{verb}" for name in self.types))
