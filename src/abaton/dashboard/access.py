"""Roles, access tokens and sessions of the dashboard.

The access file stores the digest of a token; the token is shown once. A token of the role `proxy` allows an
authenticating proxy to name the user. Sessions are limited in time and number and kept in memory only.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from abaton.atomic_files import atomic_write
from abaton.errors import SettingsError
from abaton.strict_toml import StrictTomlError, parse_toml_table

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class AccessRight(StrEnum):
    """Rights of a user."""

    VIEW = "view"
    OPERATE = "operate"
    CONTROL = "control"


class ViewerRole(StrEnum):
    """Roles of users."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    DATA_CONTROLLER = "data_controller"
    PROXY = "proxy"


RIGHTS: Mapping[ViewerRole, frozenset[AccessRight]] = {
    ViewerRole.VIEWER: frozenset({AccessRight.VIEW}),
    ViewerRole.OPERATOR: frozenset({AccessRight.VIEW, AccessRight.OPERATE}),
    ViewerRole.DATA_CONTROLLER: frozenset(
        {AccessRight.VIEW, AccessRight.CONTROL}
    ),  # the data controller does not operate runs
    ViewerRole.PROXY: frozenset(),
}


@dataclass(frozen=True, slots=True)
class DashboardUser:
    """User of the dashboard: name and role.

    >>> DashboardUser("ada", ViewerRole.VIEWER).may(AccessRight.OPERATE)
    False
    """

    name: str
    role: ViewerRole

    def may(self, right: AccessRight) -> bool:
        """Return whether the role of a dashboard user has an access right."""
        return right in RIGHTS[self.role]


class AccessToken(BaseModel):
    """Entry of a token: name, role, expiry and digest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=f"^{_NAME.pattern}$")
    role: ViewerRole
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    until: datetime | None = None


class AccessFile(BaseModel):
    """Access file: tokens, and users of a proxy.

    Attributes:
        tokens: One for each user, program or proxy.
        header: HTTP header in which a proxy names the user.
        users: Roles of the proxy's users; others are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    header: str = Field(default="Remote-User", pattern="^[A-Za-z][A-Za-z0-9-]{0,63}$")
    users: dict[str, ViewerRole] = Field(default_factory=dict)
    tokens: tuple[AccessToken, ...] = ()

    def user_by_token(self, token: str, now: datetime) -> DashboardUser | None:
        """Return the user of an access token; `None` if it is unknown or expired."""
        digest = _token_digest(token)  # comparing digests leaks no timing of the token
        for entry in self.tokens:
            if secrets.compare_digest(entry.sha256, digest):
                is_expired = entry.until is not None and now >= _aware(entry.until)
                return None if is_expired else DashboardUser(entry.name, entry.role)
        return None

    def user_by_proxy(self, name: str) -> DashboardUser | None:
        """Return the dashboard user that a proxy names; `None` if the access file does not list the name."""
        role = self.users.get(name)
        return None if role is None or role is ViewerRole.PROXY else DashboardUser(name, role)


def load_access(path: Path) -> AccessFile:
    """Read the access file of the dashboard: users, roles and token digests."""
    try:
        if path.stat().st_mode & 0o022:
            raise SettingsError(
                "other users can write the access file",
                where=str(path),
                remedy=f"run 'chmod 600 {path.name}'",
            )
        access = AccessFile.model_validate(parse_toml_table(path.read_text(encoding="utf-8"), str(path)))
    except OSError as error:
        raise SettingsError(
            "the access file cannot be read", where=str(path), remedy=error.strerror or ""
        ) from None
    except (StrictTomlError, UnicodeDecodeError):
        raise SettingsError(
            "the access file is not TOML", where=str(path), remedy="see docs/dashboard.md"
        ) from None
    except ValidationError as error:
        location = ".".join(map(str, error.errors()[0]["loc"]))
        raise SettingsError(
            "the access file has missing, unknown or invalid keys",
            where=f"{path}, {location}",
            remedy="see docs/dashboard.md",
        ) from None
    if not access.tokens:
        raise SettingsError(
            "the access file has no tokens",
            where=str(path),
            remedy="create one with 'abaton dashboard token'",
        )
    return access


def add_token(path: Path, name: str, role: ViewerRole, until: datetime | None = None) -> str:
    """Create an access token, write its digest to the access file and return the token, which is not stored.

    Args:
        path: The access file; created if missing.
        name: Name of the user.
        role: Role of the user.
        until: Time of expiry, if any.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"'{name}' is not a valid name", where="token", remedy="use letters, digits and . _ @ -"
        )
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    if content and any(token.name == name for token in load_access(path).tokens):
        raise SettingsError(
            f"a token of '{name}' already exists", where=str(path), remedy="remove it from the file first"
        )
    token = f"abaton-{secrets.token_urlsafe(32)}"
    lines = ["[[tokens]]", f'name = "{name}"', f'role = "{role}"', f'sha256 = "{_token_digest(token)}"']
    if until is not None:
        lines.append(f"until = {_aware(until).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    separator = "" if not content else "\n" if content.endswith("\n") else "\n\n"
    try:
        with atomic_write(path, mode=0o600) as temporary_path:
            temporary_path.write_text(content + separator + "\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            "the access file cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None
    return token


def _token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _aware(timestamp: datetime) -> datetime:
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Session:
    """Session of a user: times of start and last use."""

    user: DashboardUser
    started_at: float
    used_at: float


class Sessions:
    """Sessions of a dashboard.

    Args:
        clock: Monotonic time in seconds.
        idle_seconds: Seconds without a request after which a session ends.
        max_seconds: Maximum duration of a session.
        limit: Maximum number of sessions; the least recently used is dropped.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        idle_seconds: float = 1800,
        max_seconds: float = 8 * 3600,
        limit: int = 1000,
    ) -> None:
        self._clock, self.idle_seconds, self.max_seconds, self._limit = (
            clock,
            idle_seconds,
            max_seconds,
            limit,
        )
        self._open: OrderedDict[str, _Session] = OrderedDict()
        self._secret = secrets.token_bytes(32)

    def start(self, user: DashboardUser) -> str:
        """Open a dashboard access session and return its id for the cookie."""
        name, now = secrets.token_urlsafe(32), self._clock()
        self._open[name] = _Session(user, now, now)
        while len(self._open) > self._limit:
            self._open.popitem(last=False)
        return name

    def user(self, name: str, *, touch: bool = True) -> DashboardUser | None:
        """Return the dashboard user of an open access session; `touch` extends it."""
        session, now = self._open.get(name), self._clock()
        if session is None:
            return None
        if now - session.used_at > self.idle_seconds or now - session.started_at > self.max_seconds:
            del self._open[name]
            return None
        if touch:
            session.used_at = now
            self._open.move_to_end(name)
        return session.user

    def end(self, name: str) -> None:
        """Close a dashboard access session."""
        self._open.pop(name, None)

    def form_key(self, name: str) -> str:
        """Return the CSRF token of the forms of a dashboard access session."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, name: str, key: str) -> bool:
        """Return whether a CSRF token belongs to a dashboard access session."""
        return hmac.compare_digest(self.form_key(name).encode(), key.encode())
