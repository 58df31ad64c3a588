"""HTTP client for FHIR servers and the research centre: permitted origins, bounded responses, retries.

Invariants:
(1) requests go only to the configured origin and to hosts that the site has named. Redirects are not followed
automatically and proxies of the environment are ignored, because a link could send the access token to any host;
(2) a response that is larger or slower than the limits is abandoned;
(3) transient failures (429, 502, 503, 504, a broken connection) are retried with growing pauses or by ``Retry-After``;
(4) errors contain the status and the codes of an OperationOutcome, not its text, which may contain data of records;
(5) certificates are always verified.
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

from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.fhir.json_format import parse
from abaton.site.sources.fhir_server.retry import (
    TRANSIENT_STATUSES,
    RetryClock,
    RetryPolicy,
    TransientError,
    retry_after,
    with_retries,
)

MAX_PAGE_BYTES = 64 * 1024 * 1024
FHIR_JSON = ("application/fhir+json", "application/json", "application/json+fhir")
NDJSON = ("application/fhir+ndjson", "application/ndjson", "application/x-ndjson", "application/octet-stream")
_SAFE_SEGMENT = re.compile(r"[A-Za-z$._-]{0,40}|[rRvV]\d{1,2}")
_ISSUE_CODES = {
    "invalid", "structure", "required", "value", "invariant", "security", "login", "unknown", "expired",
    "forbidden", "suppressed", "processing", "not-supported", "duplicate", "multiple-matches", "not-found",
    "deleted", "too-long", "code-invalid", "extension", "too-costly", "business-rule", "conflict",
    "transient", "lock-error", "no-store", "exception", "timeout", "incomplete", "throttled",
    "informational",
}  # fmt: skip


class FhirServerError(AbatonError):
    """Request to a server without a response, or with an error as the response."""

    status: int = 0
    """HTTP status of the response; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status, headers and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL, by which the HTTP client permits requests.

    >>> origin("https://fhir.example/r4") == origin("https://fhir.example:443/other")
    True
    """
    try:
        parts = urlsplit(url)
        scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
        return scheme, host, parts.port or {"https": 443, "http": 80}.get(scheme, 0)
    except ValueError:
        return "", "", 0


def redacted_url(url: str) -> str:
    """Return a URL for the HTTP client's errors, without query and segments that may be identifiers.

    >>> redacted_url("https://fhir.example/r4/Patient/4711/Observation?name=x")
    'https://fhir.example:443/r4/Patient/…/Observation'
    """
    scheme, host, port = origin(url)
    path = urlsplit(url).path if host else ""
    return f"{scheme}://{host}:{port}" + "/".join(_redact_segment(part) for part in path.split("/"))


def _redact_segment(part: str) -> str:
    return part if _SAFE_SEGMENT.fullmatch(part) else "…"


def check_content_type(headers: Mapping[str, str], types: tuple[str, ...], url: str) -> None:
    """Refuse an HTTP response of a FHIR server with another content type than `types`."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in types:
        raise FhirServerError(
            "the content type of the response is not one of FHIR JSON",
            where=redacted_url(url),
            remedy="check records.url; the URL may be that of a web page",
        )


def parse_response(response: HttpResponse, url: str) -> dict[str, Any]:
    """Return the FHIR JSON document of an HTTP response."""
    check_content_type(response.headers, FHIR_JSON, url)
    return parse(response.body, where=redacted_url(url), limit=MAX_PAGE_BYTES)


def outcome_codes(body: bytes) -> str:
    """Return the standard issue codes of an OperationOutcome; its text may contain data of records."""
    try:
        content = parse(body, limit=1 << 20)
    except RefusedError:
        return ""
    issues = content.get("issue") if content.get("resourceType") == "OperationOutcome" else None
    listed = issues if isinstance(issues, list) else []
    codes = sorted({str(issue.get("code")) for issue in listed if isinstance(issue, dict)} & _ISSUE_CODES)
    return f" ({', '.join(codes)})" if codes else ""


MAX_FILE_BYTES = 16 * 1024**3
_MAX_REDIRECTS = 5
_CHUNK_BYTES = 1 << 16


@dataclass
class FhirHttpClient:
    """HTTP client of one server and of the further hosts that the site has named.

    Args:
        base: URL of the server.
        hosts: Further permitted hosts over https, such as the file host of an export.
        retry_policy: Timeouts and retries.
        ca_file: File of certificates to trust instead of the system's.
        clock: Clock of the retries.
        keep_alive: Whether the connection stays open for further requests until :meth:`close`.
    """

    base: str
    hosts: tuple[str, ...] = ()
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    ca_file: str | None = None
    clock: RetryClock = field(default_factory=RetryClock)
    keep_alive: bool = False
    _connection: httpx.Client | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            self._tls = (
                ssl.create_default_context(cafile=self.ca_file)
                if self.ca_file
                else httpx.create_ssl_context()
            )
        except (OSError, ssl.SSLError):
            raise SettingsError(
                "the trusted certificates cannot be read",
                where=str(self.ca_file),
                remedy="set ca_file to a PEM file",
            ) from None

    def close(self) -> None:
        """Close the HTTP client's connection to the FHIR server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check_permitted(self, url: str) -> str:
        """Return the URL if the HTTP client may request its origin; refuse it otherwise."""
        scheme, host, port = origin(url)
        if (scheme, host, port) == origin(self.base):
            return url
        if scheme == "https" and any(
            name in (host, f"{host}:{port}") and _is_port_allowed(name, port) for name in self.hosts
        ):
            return url
        raise RefusedError(
            "a link of the server points to another host",
            where=redacted_url(self.base),
            remedy="add the host to records.hosts if it is trusted",
        )

    def request(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        *,
        method: str = "GET",
        form: Callable[[], Mapping[str, str]] | None = None,
        content: bytes | None = None,
        accepted_statuses: Container[int] = frozenset({200}),
        renew_token: Callable[[], None] | None = None,
        limit: int | None = None,
    ) -> HttpResponse:
        """Send an HTTP request to a FHIR server, with retries, and return the response.

        Args:
            url: A permitted URL.
            headers: Returns the headers of each attempt, since tokens expire and signatures are valid once.
            method: GET, POST, PUT or DELETE.
            form: Returns the form of a POST, for each attempt.
            content: Body of the request if there is no form.
            accepted_statuses: Status codes that are returned and not raised.
            renew_token: Called once after status 401.
            limit: Maximum size of the response in bytes; `MAX_PAGE_BYTES` by default.
        """

        def send_once() -> HttpResponse:
            payload = {"data": form()} if form else {"content": content}
            with self._open(url, headers(), method, payload, self.retry_policy.max_page_seconds) as response:
                body = b"".join(self._read_bounded(response, limit or MAX_PAGE_BYTES))
                return HttpResponse(response.status_code, response.headers, body)

        return self._send_with_retries(send_once, url, accepted_statuses, renew_token)

    def save(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        target: IO[bytes],
        *,
        renew_token: Callable[[], None] | None = None,
        find_problem: Callable[[], str] = str,
    ) -> HttpResponse:
        """Download a file over HTTP to a stream; a failed attempt starts from the beginning.

        Args:
            url: A permitted URL.
            headers: Returns the headers of each attempt.
            target: Stream to write to; truncated at every attempt.
            renew_token: Called once after status 401.
            find_problem: Checks the file; returns what is wrong, or an empty text.
        """

        def send_once() -> HttpResponse:
            target.seek(0)
            target.truncate()
            with self._open(url, headers(), "GET", {}, self.retry_policy.max_file_seconds) as response:
                if response.status_code != 200:
                    body = b"".join(self._read_bounded(response, MAX_PAGE_BYTES))
                    return HttpResponse(response.status_code, response.headers, body)
                check_content_type(response.headers, NDJSON, url)
                for chunk in self._read_bounded(response, MAX_FILE_BYTES):
                    target.write(chunk)
            target.flush()
            if problem := find_problem():
                raise TransientError(problem)
            return HttpResponse(200, response.headers)

        return self._send_with_retries(send_once, url, frozenset({200}), renew_token)

    # One attempt

    @contextmanager
    def _open(
        self,
        url: str,
        headers: Mapping[str, str],
        method: str,
        payload: Mapping[str, Any],
        max_seconds: float,
    ) -> Iterator[httpx.Response]:
        """Open an HTTP response; a watchdog closes the connection after `max_seconds`."""
        timeout, timed_out, is_complete = httpx.Timeout(self.retry_policy.timeout), threading.Event(), False
        client = self._connection or httpx.Client(
            verify=self._tls, timeout=timeout, follow_redirects=False, trust_env=False
        )

        def close() -> None:
            timed_out.set()
            client.close()

        watchdog = threading.Timer(max_seconds, close)
        watchdog.daemon = True
        watchdog.start()
        try:
            for _ in range(_MAX_REDIRECTS + 1):
                request = client.build_request(
                    method, self.check_permitted(url), headers=dict(headers), **payload
                )
                response = client.send(request, stream=True)
                try:
                    if response.status_code not in (301, 302, 303, 307, 308) or method != "GET":
                        yield response
                        is_complete = True
                        return
                    url = self._redirect_target(url, response.headers.get("location", ""))
                finally:
                    response.close()
            raise RefusedError(
                f"the server redirects more than {_MAX_REDIRECTS} times",
                where=redacted_url(url),
                remedy="check records.url",
            )
        except (httpx.TransportError, httpx.StreamError, OSError, RuntimeError) as error:
            raise TransientError(
                f"the response takes longer than {max_seconds:g} s"
                if timed_out.is_set()
                else _describe_error(error)
            ) from None
        finally:
            watchdog.cancel()
            self._connection = client if self.keep_alive and is_complete and not timed_out.is_set() else None
            if self._connection is None:
                client.close()

    def _redirect_target(self, url: str, location: str) -> str:
        target = urljoin(url, location)
        if origin(target) != origin(url):
            # The access token must not be sent to the host of a redirect.
            raise RefusedError(
                "the server redirects to another host",
                where=redacted_url(url),
                remedy="set records.url to the new address if it is trusted",
            )
        return target

    def _read_bounded(self, response: httpx.Response, limit: int) -> Iterator[bytes]:
        """Yield the decompressed body of an HTTP response; refuse one larger than `limit` bytes."""
        size = 0
        for chunk in response.iter_bytes(_CHUNK_BYTES):
            size += len(chunk)
            if size > limit:
                raise RefusedError(
                    f"the response is larger than {limit:,} bytes",
                    where=redacted_url(str(response.url)),
                    remedy="lower records.page_size, or contact the operator of the server",
                )
            yield chunk

    # All attempts

    def _send_with_retries(
        self,
        send_once: Callable[[], HttpResponse],
        url: str,
        accepted_statuses: Container[int],
        renew_token: Callable[[], None] | None,
    ) -> HttpResponse:
        may_renew = [] if renew_token is None else [renew_token]

        def attempt() -> HttpResponse:
            response = send_once()
            if response.status == 401 and may_renew:
                may_renew.pop()()
                response = send_once()
            if response.status in accepted_statuses:
                return response
            if response.status not in TRANSIENT_STATUSES:
                raise self._refusal(response, url)
            what = f"the server responds with status {response.status}{outcome_codes(response.body)}"
            raise TransientError(what, retry_after(response.headers, self.clock.now()))

        try:
            return with_retries(attempt, self.retry_policy, self.clock)
        except TransientError as error:
            times = self.retry_policy.retries + 1
            raise FhirServerError(
                f"{error.what} ({times} attempts)" if times > 1 else error.what,
                where=redacted_url(url),
                remedy="run the command again later; it resumes the download",
            ) from None

    def _refusal(self, response: HttpResponse, url: str) -> FhirServerError:
        error = FhirServerError(
            f"the server responds with status {response.status}{outcome_codes(response.body)}",
            where=redacted_url(url),
            remedy=_REMEDIES.get(response.status, "contact the operator of the server"),
        )
        error.status = response.status
        return error


_REMEDIES = {
    400: "check records.url; the server rejects the request as invalid",
    401: "check [records.smart]; the server rejects the credentials",
    403: "request the scopes from the operator; the site has no access",
    404: "check records.url; the resource does not exist",
}


def _is_port_allowed(name: str, port: int) -> bool:
    return ":" in name or port == 443


def _describe_error(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError):
        text = str(error).lower()
        return (
            "the server's certificate is not trusted"
            if "certificate" in text
            else "the server cannot be reached"
        )
    if isinstance(error, httpx.TimeoutException):
        return "the server does not respond in time"
    return "the connection was interrupted"
