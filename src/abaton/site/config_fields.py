"""Field types of ``site.toml``: paths, URLs, resource types, time zones."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from abaton.documents.fields import field_error
from abaton.fhir.elements import resource_types
from abaton.fhir.partial_dates import parse_time_zone

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _check_path(text: str) -> str:
    """Validate a path field of the site configuration; refuse the content of a file, such as a key."""
    if "\n" in text or "-----BEGIN" in text or len(text) > 1000 or text != text.strip() or not text:
        raise field_error("the value is not a path", "write the path of a file; store a key in its own file")
    return text


def _check_resource_type(name: str) -> str:
    if name not in resource_types():
        raise field_error("this is not an R4 resource type", "use an R4 resource type")
    return name


def _check_url(url: str) -> str:
    """Validate a URL field of the site configuration: https, or http on this machine, without credentials."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in ("https", "http") or parts.query or parts.fragment:
        raise field_error("the value is not the URL of a server", "write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise field_error(
            "the URL contains a user name or a password", "remove it and use [records.smart] instead"
        )
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise field_error("the URL is not encrypted", "use https; http is allowed on this machine only")
    return url.rstrip("/")


def check_no_password(address: str) -> str:
    """Validate a database field of the site configuration: a path or URL; refuse one with a password."""
    if "://" in address and re.search(r"//[^/@]*:[^/@]+@", address):
        raise field_error("the URL contains a password", "remove it and use a .pgpass file instead")
    return address


def check_time_zone(name: str) -> str:
    """Validate a time zone field of the site configuration; refuse an unknown one."""
    if parse_time_zone(name) is None:
        raise field_error("this is not a time zone", "write +02:00, Z, or a name such as Europe/Athens")
    return name


PathText = Annotated[str, AfterValidator(_check_path)]


SchemaName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


Url = Annotated[str, AfterValidator(_check_url)]


ResourceType = Annotated[str, AfterValidator(_check_resource_type)]


Token = Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]


HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$")]
