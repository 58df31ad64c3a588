"""Asking a server, carefully: one origin, bounded answers, patience with an end. The one client for all that is asked.

Invariants:
(1) nothing is asked of a host that the site has not named, whatever an answer says (links, redirects);
(2) an answer larger or slower than the limits is given up, and none is held in memory beyond them;
(3) what may pass (429, 502, 503, 504, a broken connection) is tried again with growing pauses, and
``Retry-After`` is honoured; then it is given up with a clear word;
(4) an error tells the status and the codes of an OperationOutcome, never its text: that may hold content;
(5) certificates are always checked.

Answers of a FHIR server: what they may be, and what may be said of one that is an error.
"""

from __future__ import annotations

import re
import ssl
import threading
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

import httpx

from abaton.errors import AbatonError, Refused, SettingsError
from abaton.fhir.json_format import parse
from abaton.site.sources.fhir_server.retry import PASSING, Clock, Passing, Patience, asked_pause, persist

MAX_PAGE = 64 * 1024 * 1024
FHIR_JSON = ("application/fhir+json", "application/json", "application/json+fhir")
NDJSON = ("application/fhir+ndjson", "application/ndjson", "application/x-ndjson", "application/octet-stream")
_WORD = re.compile(r"[A-Za-z$._-]{0,40}|[rRvV]\d{1,2}")
_CODES = {
    "invalid", "structure", "required", "value", "invariant", "security", "login", "unknown", "expired",
    "forbidden", "suppressed", "processing", "not-supported", "duplicate", "multiple-matches", "not-found",
    "deleted", "too-long", "code-invalid", "extension", "too-costly", "business-rule", "conflict",
    "transient", "lock-error", "no-store", "exception", "timeout", "incomplete", "throttled",
    "informational",
}  # fmt: skip


class ServerError(AbatonError):
    """A FHIR server does not give what it was asked for."""

    status: int = 0
    """The HTTP status that was answered, if one was."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered: status, headers and a body within the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address.

    >>> origin("https://fhir.example/r4") == origin("https://fhir.example:443/other")
    True
    """
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
        return scheme, host, parts.port or {"https": 443, "http": 80}.get(scheme, 0)
    except ValueError:
        return "", "", 0


def place_of(url: str) -> str:
    """An address as an error may show it: without its query and without what may be somebody's number.

    >>> place_of("https://fhir.example/r4/Patient/4711/Observation?name=x")
    'https://fhir.example:443/r4/Patient/…/Observation'
    """
    scheme, host, port = origin(url)
    path = urlsplit(url).path if host else ""
    return f"{scheme}://{host}:{port}" + "/".join(_harmless(part) for part in path.split("/"))


def _harmless(part: str) -> str:
    return part if _WORD.fullmatch(part) else "…"


def expect(headers: Mapping[str, str], types: tuple[str, ...], url: str) -> None:
    """Refuse an answer of another kind of content than was asked for."""
    found = headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in types:
        raise ServerError(
            "the server answers with another kind of content than FHIR JSON",
            where=place_of(url),
            remedy="check records.url: this may be a web page",
        )


def document(answer: Answer, url: str) -> dict[str, Any]:
    """The FHIR document in an answer, or a refusal."""
    expect(answer.headers, FHIR_JSON, url)
    return parse(answer.body, where=place_of(url), limit=MAX_PAGE)


def outcome_codes(body: bytes) -> str:
    """The codes of an OperationOutcome, which are from a fixed list; its text may hold content and stays."""
    try:
        content = parse(body, limit=1 << 20)
    except Refused:
        return ""
    issues = content.get("issue") if content.get("resourceType") == "OperationOutcome" else None
    listed = issues if isinstance(issues, list) else []
    known = sorted({str(each.get("code")) for each in listed if isinstance(each, dict)} & _CODES)
    return f" ({', '.join(known)})" if known else ""


MAX_FILE = 16 * 1024**3
_MOST_REDIRECTS = 5
_CHUNK = 1 << 16


@dataclass
class Web:
    """One server, and the hosts beside it that the site has named.

    Args:
        base: The server's address.
        hosts: Further hosts that may be asked over https, such as one that keeps the files of an export.
        patience: How long to wait, how often to try.
        ca: A file of certificates to trust instead of the usual ones.
        clock: Time.
        keeps_line: Whether the connection stays open for the next question, until :meth:`close`.
    """

    base: str
    hosts: tuple[str, ...] = ()
    patience: Patience = field(default_factory=Patience)
    ca: str | None = None
    clock: Clock = field(default_factory=Clock)
    keeps_line: bool = False
    _line: httpx.Client | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self._tls = ssl.create_default_context(cafile=self.ca) if self.ca else httpx.create_ssl_context()
        except (OSError, ssl.SSLError):
            raise SettingsError(
                "the certificates to trust cannot be read", where=str(self.ca), remedy="give a PEM file"
            ) from None

    def close(self) -> None:
        """Let go of the line."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def permitted(self, url: str) -> str:
        """The address itself if it may be asked; anything else is refused (no request goes astray)."""
        found = origin(url)
        if found == origin(self.base):
            return url
        scheme, host, port = found
        if scheme == "https" and any(
            name in (host, f"{host}:{port}") and _usual(name, port) for name in self.hosts
        ):
            return url
        raise Refused(
            "the server points to another host",
            where=place_of(self.base),
            remedy="if that is meant, name the host under records.hosts",
        )

    def ask(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        *,
        method: str = "GET",
        form: Callable[[], Mapping[str, str]] | None = None,
        content: bytes | None = None,
        fine: Container[int] = frozenset({200}),
        renew: Callable[[], None] | None = None,
        limit: int | None = None,
    ) -> Answer:
        """Ask and take a whole answer of bounded size.

        Args:
            url: The address; it must be permitted.
            headers: Makes the headers, anew for every attempt: a token may have been renewed, a signature counts once.
            method: GET, POST, PUT or DELETE.
            form: Makes the form that a POST carries, anew for every attempt.
            content: The bytes that are carried, if it is no form.
            fine: The statuses that are an answer.
            renew: Called once when the server says 401, to get a new token.
            limit: The most bytes of an answer, if not those of a page.
        """

        def once() -> Answer:
            carried = {"data": form()} if form else {"content": content}
            with self._open(url, headers(), method, carried, self.patience.page_time) as response:
                body = b"".join(self._within(response, limit or MAX_PAGE))
                return Answer(response.status_code, response.headers, body)

        return self._again(once, url, fine, renew)

    def save(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        target: IO[bytes],
        *,
        renew: Callable[[], None] | None = None,
        sound: Callable[[], str] = str,
    ) -> Answer:
        """Ask for a file and write it down as it arrives; a broken attempt is begun again.

        Args:
            url: The address; it must be permitted.
            headers: Makes the headers.
            target: Where the bytes go; emptied at every attempt.
            renew: Called once when the server says 401.
            sound: Looks at what was written and says what is wrong with it, or nothing.
        """

        def once() -> Answer:
            target.seek(0)
            target.truncate()
            with self._open(url, headers(), "GET", {}, self.patience.file_time) as response:
                if response.status_code != 200:
                    body = b"".join(self._within(response, MAX_PAGE))
                    return Answer(response.status_code, response.headers, body)
                expect(response.headers, NDJSON, url)
                for chunk in self._within(response, MAX_FILE):
                    target.write(chunk)
            target.flush()
            if wrong := sound():
                raise Passing(wrong)
            return Answer(200, response.headers)

        return self._again(once, url, frozenset({200}), renew)

    # One attempt

    @contextmanager
    def _open(
        self,
        url: str,
        headers: Mapping[str, str],
        method: str,
        carried: Mapping[str, Any],
        longest: float,
    ) -> Iterator[httpx.Response]:
        """Open an answer. A watchdog closes the connection of a server that only drips."""
        timeout, late, whole = httpx.Timeout(self.patience.timeout), threading.Event(), False
        client = self._line or httpx.Client(
            verify=self._tls, timeout=timeout, follow_redirects=False, trust_env=False
        )

        def close() -> None:
            late.set()
            client.close()

        watchdog = threading.Timer(longest, close)
        watchdog.daemon = True
        watchdog.start()
        try:
            for _ in range(_MOST_REDIRECTS + 1):
                request = client.build_request(method, self.permitted(url), headers=dict(headers), **carried)
                response = client.send(request, stream=True)
                try:
                    if response.status_code not in (301, 302, 303, 307, 308) or method != "GET":
                        yield response
                        whole = True
                        return
                    url = self._redirected(url, response.headers.get("location", ""))
                finally:
                    response.close()
            raise Refused("the server redirects in a circle", where=place_of(url), remedy="check its address")
        except (httpx.TransportError, httpx.StreamError, OSError, RuntimeError) as error:
            raise Passing("the answer takes too long" if late.is_set() else _told(error)) from None
        finally:
            watchdog.cancel()
            self._line = client if self.keeps_line and whole and not late.is_set() else None
            if self._line is None:
                client.close()

    def _redirected(self, url: str, location: str) -> str:
        target = urljoin(url, location)
        if origin(target) != origin(url):
            # The token must not follow to wherever an answer points.
            raise Refused(
                "the server redirects to another host",
                where=place_of(url),
                remedy="write that address into site.toml if it is the right one",
            )
        return target

    def _within(self, response: httpx.Response, limit: int) -> Iterator[bytes]:
        """The body, unpacked, up to a limit: a small packed answer may be a very large one."""
        size = 0
        for chunk in response.iter_bytes(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise Refused(
                    f"an answer is larger than {limit:,} bytes",
                    where=place_of(str(response.url)),
                    remedy="ask whoever runs the server; of records, ask for smaller pages with records.page",
                )
            yield chunk

    # All attempts

    def _again(
        self, once: Callable[[], Answer], url: str, fine: Container[int], renew: Callable[[], None] | None
    ) -> Answer:
        may_renew = [] if renew is None else [renew]

        def attempt() -> Answer:
            answer = once()
            if answer.status == 401 and may_renew:
                may_renew.pop()()
                answer = once()
            if answer.status in fine:
                return answer
            if answer.status not in PASSING:
                raise self._refusal(answer, url)
            told = f"the server answers {answer.status}{outcome_codes(answer.body)}"
            raise Passing(told, asked_pause(answer.headers, self.clock.now()))

        try:
            return persist(attempt, self.patience, self.clock)
        except Passing as passing:
            times = self.patience.retries + 1
            raise ServerError(
                f"{passing.what}, {times} times" if times > 1 else passing.what,
                where=place_of(url),
                remedy="try again later; what was fetched is kept",
            ) from None

    def _refusal(self, answer: Answer, url: str) -> ServerError:
        error = ServerError(
            f"the server answers {answer.status}{outcome_codes(answer.body)}",
            where=place_of(url),
            remedy=_REMEDIES.get(answer.status, "ask whoever runs the server"),
        )
        error.status = answer.status
        return error


_REMEDIES = {
    400: "the server does not understand the request: check records.url",
    401: "the server does not know the site: check [records.smart]",
    403: "the server knows the site but gives it nothing: ask for the scopes",
    404: "there is nothing at that address: check records.url",
}


def _usual(name: str, port: int) -> bool:
    return ":" in name or port == 443


def _told(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError):
        text = str(error).lower()
        return (
            "the server's certificate is not trusted"
            if "certificate" in text
            else "the server is not reached"
        )
    if isinstance(error, httpx.TimeoutException):
        return "the server does not answer in time"
    return "the connection broke off"
