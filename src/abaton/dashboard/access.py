"""Who may see and do what: tokens and roles from one file that the operator keeps.

A token is shown once, when it is made; the file holds its fingerprint alone. Behind a proxy that knows its users, a
token of the role `proxy` lets the proxy say who asks.

Sessions of people who have shown their token: short, bounded in number, kept in memory alone.

A restart of the dashboard ends them all, which costs a person one look at their token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import tomllib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from abaton.atomic_files import replacing
from abaton.errors import SettingsError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Right(StrEnum):
    """What somebody may do."""

    VIEW = "view"
    OPERATE = "operate"
    CONTROL = "control"


class ViewerRole(StrEnum):
    """Who somebody is for the dashboard."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    CONTROLLER = "controller"
    PROXY = "proxy"


RIGHTS: Mapping[ViewerRole, frozenset[Right]] = {
    ViewerRole.VIEWER: frozenset({Right.VIEW}),
    ViewerRole.OPERATOR: frozenset({Right.VIEW, Right.OPERATE}),
    ViewerRole.CONTROLLER: frozenset({Right.VIEW, Right.CONTROL}),  # who proves things does not change them
    ViewerRole.PROXY: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who asks: a name, and a role.

    >>> Person("ada", ViewerRole.VIEWER).may(Right.OPERATE)
    False
    """

    name: str
    role: ViewerRole

    def may(self, right: Right) -> bool:
        """Whether the role has a right."""
        return right in RIGHTS[self.role]


class Token(BaseModel):
    """What the file holds of a token: whose it is, what it allows, until when, and its fingerprint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=f"^{_NAME.pattern}$")
    role: ViewerRole
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    until: datetime | None = None


class AccessFile(BaseModel):
    """Who may use the dashboard.

    Attributes:
        tokens: one for each person, program or proxy.
        header: where a proxy says who asks.
        users: the roles of those whom a proxy knows; others are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    header: str = Field(default="Remote-User", pattern="^[A-Za-z][A-Za-z0-9-]{0,63}$")
    users: dict[str, ViewerRole] = Field(default_factory=dict)
    tokens: tuple[Token, ...] = ()

    def by_token(self, token: str, now: datetime) -> Person | None:
        """Whose token it is; nobody's if it is wrong or has run out."""
        found = _fingerprint(token)  # the search is for a hash, so its time tells nothing of the token
        for known in self.tokens:
            if secrets.compare_digest(known.sha256, found):
                ended = known.until is not None and now >= _aware(known.until)
                return None if ended else Person(known.name, known.role)
        return None

    def by_proxy(self, name: str) -> Person | None:
        """Whom a proxy means by a name; nobody if the file does not list them."""
        role = self.users.get(name)
        return None if role is None or role is ViewerRole.PROXY else Person(name, role)


def load_access(path: Path) -> AccessFile:
    """Read who may use the dashboard."""
    try:
        if path.stat().st_mode & 0o022:
            raise SettingsError(
                "others can write the access file, and so make tokens of their own",
                where=str(path),
                remedy=f"run 'chmod 600 {path.name}'",
            )
        made = AccessFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(
            "the access file cannot be read", where=str(path), remedy=error.strerror or ""
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise SettingsError(
            "the access file is not TOML", where=str(path), remedy="see docs/dashboard.md"
        ) from None
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise SettingsError(
            "the access file is not of the right form",
            where=f"{path}, {place}",
            remedy="see docs/dashboard.md",
        ) from None
    if not made.tokens:
        raise SettingsError(
            "the access file has no tokens", where=str(path), remedy="make one with 'abaton dashboard token'"
        )
    return made


def add_token(path: Path, name: str, role: ViewerRole, until: datetime | None = None) -> str:
    """Make a token and write its fingerprint into the access file; the token, which is kept nowhere.

    Args:
        path: The access file; made if there is none.
        name: Whose it is.
        role: What it allows.
        until: When it runs out, if it does.
    """
    if not _NAME.fullmatch(name):
        raise SettingsError(
            "a name is letters, digits and . _ @ -", where="token", remedy="choose another name"
        )
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if before and any(token.name == name for token in load_access(path).tokens):
        raise SettingsError(
            f"there is already a token of '{name}'", where=str(path), remedy="remove it from the file first"
        )
    token = f"abaton-{secrets.token_urlsafe(32)}"
    lines = ["[[tokens]]", f'name = "{name}"', f'role = "{role}"', f'sha256 = "{_fingerprint(token)}"']
    if until is not None:
        lines.append(f"until = {_aware(until).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
    separator = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    try:
        with replacing(path, mode=0o600) as begun:
            begun.write_text(before + separator + "\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            "the access file cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None
    return token


def _fingerprint(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _aware(when: datetime) -> datetime:
    return when if when.tzinfo else when.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Session:
    """One person's session: since when, and when it was last used."""

    person: Person
    begun: float
    used: float


class Sessions:
    """The sessions of one dashboard.

    Args:
        tick: Seconds that only go forward.
        idle: After how many seconds without a request a session ends.
        longest: After how many seconds it ends in any case.
        most: How many there are at most; the longest unused is dropped.
    """

    def __init__(
        self, tick: Callable[[], float], *, idle: float = 1800, longest: float = 8 * 3600, most: int = 1000
    ) -> None:
        self._tick, self.idle, self.longest, self._most = tick, idle, longest, most
        self._open: OrderedDict[str, _Session] = OrderedDict()
        self._secret = secrets.token_bytes(32)

    def begin(self, person: Person) -> str:
        """Open a session; the name that its cookie carries."""
        name, now = secrets.token_urlsafe(32), self._tick()
        self._open[name] = _Session(person, now, now)
        while len(self._open) > self._most:
            self._open.popitem(last=False)
        return name

    def person(self, name: str, *, use: bool = True) -> Person | None:
        """Whose session it is, if it has not ended; `use` counts as being there."""
        found, now = self._open.get(name), self._tick()
        if found is None:
            return None
        if now - found.used > self.idle or now - found.begun > self.longest:
            del self._open[name]
            return None
        if use:
            found.used = now
            self._open.move_to_end(name)
        return found.person

    def end(self, name: str) -> None:
        """Close a session."""
        self._open.pop(name, None)

    def form_key(self, name: str) -> str:
        """What every form of a session carries, so that no other site can send it (CSRF)."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def is_form_key(self, name: str, key: str) -> bool:
        """Whether a form was made for a session."""
        return hmac.compare_digest(self.form_key(name).encode(), key.encode())
