"""SMART Backend Services: short-lived access tokens in exchange for a signed assertion.

The assertion is a JSON Web Token (RFC 7523) signed with ES384 or RS384, valid for four minutes and used once. The token
endpoint is configured or read from ``.well-known/smart-configuration``.
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
from abaton.site.config import SmartSection
from abaton.site.sources.fhir_server.http_client import (
    FHIR_JSON,
    FhirHttpClient,
    FhirServerError,
    check_content_type,
    origin,
    parse_response,
    redacted_url,
)

_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS, _RENEW_EARLY_SECONDS = 240, 60.0
_MIN_RSA_BITS = 2048


def read_key(file: Path) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """Read the private key for SMART authorization from a PEM file; refuse one that other users can read."""
    try:
        if file.stat().st_mode & 0o077:
            raise SettingsError(
                "other users can read the private key", where=str(file), remedy=f"run 'chmod 600 {file.name}'"
            )
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        raise SettingsError(
            f"the key cannot be read: {error.strerror or type(error).__name__}",
            where=str(file),
            remedy="correct records.smart.key",
        ) from None
    except (ValueError, TypeError):
        raise SettingsError(
            "the file is not an unencrypted PEM private key",
            where=str(file),
            remedy="store the private key as PEM",
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise SettingsError(
            "the key is neither elliptic-curve nor RSA", where=str(file), remedy="use P-384 or RSA"
        )
    return key


def sign_token(
    claims: Mapping[str, Any],
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    algorithm: str,
    key_id: str,
) -> str:
    """Sign a JSON Web Token for SMART authorization (RFC 7515); refuse weak keys, for which PyJWT only warns."""
    fits = {
        "ES384": isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp384r1",
        "RS384": isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _MIN_RSA_BITS,
    }
    if not fits.get(algorithm):
        raise SettingsError(
            f"the key does not match algorithm = '{algorithm}'",
            where="records.smart.key",
            remedy="use a P-384 key for ES384, or RSA of at least 2048 bits for RS384",
        )
    return jwt.encode(dict(claims), key, algorithm, headers={"kid": key_id})


@dataclass
class SmartTokens:
    """Access tokens of one site at one server, renewed before they expire or after status 401.

    Args:
        http_client: Client of the FHIR server.
        smart: ``[records.smart]`` of the site configuration.
        key: File of the private key.
        types: Resource types to read, for the scopes.
        make_token_id: Returns a random id for each assertion.
    """

    http_client: FhirHttpClient
    smart: SmartSection
    key: Path
    types: tuple[str, ...]
    make_token_id: Callable[[], str] = field(default=lambda: secrets.token_urlsafe(24))
    _token: str = field(default="", repr=False)
    _expires_at: float = field(default=0.0, repr=False)
    _endpoint: tuple[str, str] | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        """Return the SMART authorization header, with a new token if the current one is about to expire."""
        if not self._token or self.http_client.clock.now() > self._expires_at - _RENEW_EARLY_SECONDS:
            self.renew()
        return {"authorization": f"Bearer {self._token}"}

    def renew(self) -> None:
        """Request a new SMART access token."""
        url, scope = self._endpoint = self._endpoint or self._discover()
        server, now = self._token_client(url), self.http_client.clock.now()
        accept = {"accept": "application/json"}
        response = server.request(
            url, lambda: accept, method="POST", form=lambda: self._token_request(url, scope)
        )
        check_content_type(response.headers, FHIR_JSON, url)
        reply = parse(response.body, where=redacted_url(url), limit=1 << 20)
        token, lifetime = reply.get("access_token"), reply.get("expires_in")
        scheme = str(reply.get("token_type", "")).lower()
        if not isinstance(token, str) or not token.isascii() or not token.isprintable() or scheme != "bearer":
            raise FhirServerError(
                "the reply of the token endpoint contains no bearer token",
                where=redacted_url(url),
                remedy="check records.smart.scopes",
            )
        is_number = isinstance(lifetime, int | float) and not isinstance(lifetime, bool)
        self._token, self._expires_at = token, now + (float(lifetime or 0) if is_number else 300.0)

    def _token_request(self, url: str, scope: str) -> dict[str, str]:
        now = int(self.http_client.clock.now())
        claims: dict[str, Any] = {"iss": self.smart.client, "sub": self.smart.client, "aud": url}
        claims |= {"jti": self.make_token_id(), "iat": now, "exp": now + _ASSERTION_SECONDS}
        return {
            "grant_type": "client_credentials",
            "scope": scope,
            "client_assertion_type": _ASSERTION,
            "client_assertion": sign_token(
                claims, read_key(self.key), self.smart.algorithm, self.smart.key_id
            ),
        }

    def _token_client(self, url: str) -> FhirHttpClient:
        """Return the client for the SMART token endpoint: the FHIR server, a named host or ``token_url``."""
        if self.smart.token_url == url:
            return FhirHttpClient(
                url, (), self.http_client.retry_policy, self.http_client.ca_file, self.http_client.clock
            )
        self.http_client.check_permitted(url)
        return self.http_client

    def _discover(self) -> tuple[str, str]:
        if self.smart.token_url and self.smart.scopes:
            return self.smart.token_url, " ".join(self.smart.scopes)
        config_url = f"{self.http_client.base}/.well-known/smart-configuration"
        configuration = parse_response(
            self.http_client.request(config_url, lambda: {"accept": "application/json"}), config_url
        )
        url = self.smart.token_url or configuration.get("token_endpoint")
        if not isinstance(url, str) or origin(url)[0] not in ("https", origin(self.http_client.base)[0]):
            raise FhirServerError(
                "the SMART configuration has no valid token_endpoint",
                where=redacted_url(config_url),
                remedy="set token_url under [records.smart]",
            )
        capabilities = configuration.get("capabilities")
        has_v2_scopes = isinstance(capabilities, list) and "permission-v2" in capabilities
        permission = "rs" if has_v2_scopes else "read"
        return url, " ".join(self.smart.scopes or (f"system/{name}.{permission}" for name in self.types))
