"""Records from the Bulk Data export of a FHIR server (HL7 Bulk Data Access 2.0).

The export is started with ``Prefer: respond-async``; the URL in ``Content-Location`` is polled; then the manifest and
the files are downloaded, and the export is deleted. The position is saved after each of these, so an interrupted
download resumes with the same export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode, urljoin

from abaton.canonical_json import canonical_digest
from abaton.errors import RefusedError
from abaton.fhir.json_format import parse
from abaton.record_types import Record
from abaton.site.sources.base import FileSource, SourceErrors
from abaton.site.sources.fhir_server.download_cache import DownloadCache
from abaton.site.sources.fhir_server.http_client import (
    FhirHttpClient,
    FhirServerError,
    HttpResponse,
    parse_response,
    redacted_url,
)
from abaton.site.sources.fhir_server.retry import retry_after
from abaton.site.sources.fhir_server.smart_auth import SmartTokens

_POLL_SECONDS, _MAX_POLL_SECONDS = 2.0, 600.0
_MAX_FILES = 100_000
_TAIL_BYTES = 1 << 20


class BulkExportRequest(NamedTuple):
    """Level, types and start of an export."""

    level: str
    group: str | None
    types: tuple[str, ...]
    since: datetime | None = None

    def export_url(self, base: str) -> str:
        """Return the kick-off URL of a FHIR bulk export.

        >>> BulkExportRequest("group", "7", ("Patient",)).export_url("https://h/r4")
        'https://h/r4/Group/7/$export?_type=Patient&_outputFormat=application%2Ffhir%2Bndjson'
        """
        scope = {"system": "", "patient": "/Patient", "group": f"/Group/{self.group}"}[self.level]
        parameters = {"_type": ",".join(self.types), "_outputFormat": "application/fhir+ndjson"}
        if self.since is not None:
            parameters["_since"] = self.since.isoformat()
        return f"{base}{scope}/$export?{urlencode(parameters, safe=',')}"


class _ExportFile(NamedTuple):
    name: str
    url: str
    lines: int | None


class BulkExportSource:
    """Records that a study needs, from the Bulk Data export of a FHIR server.

    Args:
        http_client: Client of the server.
        tokens: Access tokens; None for a server without authentication.
        export_request: What to export.
        folder: Folder of the files until they have been read.
        max_wait_seconds: How long the server may prepare the export.
        on_progress: Called after every poll and file with a text that contains no data of records.
    """

    is_grouped = False

    def __init__(
        self,
        http_client: FhirHttpClient,
        tokens: SmartTokens | None,
        export_request: BulkExportRequest,
        folder: Path,
        *,
        max_wait_seconds: float = 86_400.0,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._http_client, self._tokens, self._export_request = http_client, tokens, export_request
        self._folder, self._max_wait_seconds, self._on_progress = folder, max_wait_seconds, on_progress
        self._cache: DownloadCache | None = None
        self.errors = SourceErrors()

    def fetch(self) -> DownloadCache:
        """Run the bulk export and download every file that is not in the cache."""
        export_url = self._export_request.export_url(self._http_client.base)
        cache = self._cache = DownloadCache(self._folder, canonical_digest(["bulk", export_url]))
        position = cache.position or {}
        if not position:
            position = {"status": self._kick_off(export_url)}
            cache.save_position(position)
        if "files" not in position:
            position = self._manifest(self._poll(position["status"], cache), position["status"])
            cache.save_position(position)
        for fields in position["files"]:
            file = _ExportFile(*fields)
            if file.name not in cache.file_names:
                self._download(file, position, cache)
        self._delete_export(position["status"])
        return cache

    # Export

    def _headers(self, accept: str, *, with_token: bool = True) -> Callable[[], Mapping[str, str]]:
        def headers() -> Mapping[str, str]:
            return {"accept": accept, **(self._tokens.headers() if self._tokens and with_token else {})}

        return headers

    def _request(self, url: str, accept: str, **options: Any) -> HttpResponse:
        return self._http_client.request(
            url, self._headers(accept), renew_token=self._tokens.renew if self._tokens else None, **options
        )

    def _kick_off(self, export_url: str) -> str:
        def headers() -> Mapping[str, str]:
            return {**self._headers("application/fhir+json")(), "prefer": "respond-async"}

        renew_token = self._tokens.renew if self._tokens else None
        response = self._http_client.request(
            export_url, headers, accepted_statuses=frozenset({202}), renew_token=renew_token
        )
        status = response.headers.get("content-location", "")
        if not status:
            raise FhirServerError(
                "the response to the export request has no Content-Location",
                where=redacted_url(export_url),
                remedy="set records.source = 'fhir' if the server does not support Bulk Data",
            )
        self._on_progress("export requested")
        return self._http_client.check_permitted(urljoin(export_url, status))

    def _poll(self, status: str, cache: DownloadCache) -> dict[str, Any]:
        """Poll a bulk export; return its manifest when it is ready, pausing as the server requests."""
        started_at, pause = self._http_client.clock.now(), _POLL_SECONDS
        while True:
            try:
                response = self._request(status, "application/json", accepted_statuses=frozenset({200, 202}))
            except FhirServerError as error:
                if error.status in (404, 410):
                    cache.restart()
                    raise FhirServerError(
                        f"the export no longer exists (status {error.status})",
                        where=error.where,
                        remedy="run the command again to start a new export",
                    ) from None
                raise
            if response.status == 200:
                return parse_response(response, status)
            waited = self._http_client.clock.now() - started_at
            if waited > self._max_wait_seconds:
                raise FhirServerError(
                    f"the export is not ready after {self._max_wait_seconds / 3600:g} hours",
                    where=redacted_url(status),
                    remedy="run the command again to resume this export, or raise records.max_wait_hours",
                )
            self._on_progress(f"the server is preparing the export, {waited:,.0f} s so far")
            requested = retry_after(response.headers, self._http_client.clock.now())
            self._http_client.clock.sleep(
                min(_MAX_POLL_SECONDS, pause if requested is None else max(requested, 0.1))
            )
            pause = min(_MAX_POLL_SECONDS, pause * 1.5)

    def _manifest(self, manifest: dict[str, Any], status: str) -> dict[str, Any]:
        """Return the position with all files of a bulk export; their URLs must be permitted."""
        output, errors = manifest.get("output"), manifest.get("error")
        if not isinstance(output, list) or len(output) > _MAX_FILES:
            raise FhirServerError(
                f"the manifest has no list 'output' of at most {_MAX_FILES:,} files",
                where=redacted_url(status),
            )
        files = [self._export_file(f"{i:06d}.ndjson", item, status) for i, item in enumerate(output)]
        problems = errors if isinstance(errors, list) else []
        files += [self._export_file(f"error-{i:06d}.ndjson", item, status) for i, item in enumerate(problems)]
        return {"status": status, "files": files, "token": manifest.get("requiresAccessToken") is not False}

    def _export_file(self, name: str, item: Any, status: str) -> _ExportFile:
        url = item.get("url") if isinstance(item, dict) else None
        if not isinstance(url, str):
            raise FhirServerError("the manifest lists a file without a URL", where=redacted_url(status))
        count = item.get("count")
        is_integer = isinstance(count, int) and not isinstance(count, bool)
        return _ExportFile(
            name, self._http_client.check_permitted(urljoin(status, url)), count if is_integer else None
        )

    def _download(self, file: _ExportFile, position: dict[str, Any], cache: DownloadCache) -> None:
        with_token = bool(position["token"])
        renew_token = self._tokens.renew if self._tokens and with_token else None
        with cache.open(file.name) as target:
            self._http_client.save(
                file.url,
                self._headers("application/fhir+ndjson", with_token=with_token),
                target,
                renew_token=renew_token,
                find_problem=lambda: _find_file_problem(target, file.lines),
            )
        cache.commit_file(file.name, position)
        self._on_progress(f"file {len(cache.file_names)} of {len(position['files'])}")

    def _delete_export(self, status: str) -> None:
        """Ask the server to delete its copy of the bulk export; count a refusal."""
        try:
            self._request(
                status,
                "application/json",
                method="DELETE",
                accepted_statuses=frozenset({200, 202, 204, 404, 410}),
            )
        except FhirServerError as error:
            self.errors.add("the server refused to delete its copy of the export", error.where)

    # Reading

    def records(self) -> Iterator[Record]:
        """Yield the records of all bulk export files; those the server could not export are counted as skipped."""
        paths = list(self.fetch().paths())
        errors = [path for path in paths if path.name.startswith("error-")]
        for path in errors:
            with path.open("rb") as stream:
                for line in stream:
                    if line.strip():
                        self.errors.add("the server could not export a record")
        files = [path for path in paths if path not in errors and path.stat().st_size]
        if files:
            source = FileSource(files)
            source.errors = self.errors
            yield from source.records()

    def close(self) -> None:
        """Remove the downloaded files of the bulk export."""
        if self._cache is not None:
            self._cache.clear()
            self._cache = None


def _find_file_problem(stream: IO[bytes], count: int | None) -> str:
    """Return what is wrong with a downloaded NDJSON file of a bulk export, or an empty text."""
    size = stream.seek(0, 2)
    if size:
        stream.seek(max(0, size - _TAIL_BYTES))
        tail = stream.read()
        last_line = tail.rstrip().rpartition(b"\n")[2]
        if not tail.endswith(b"\n") and len(last_line) < _TAIL_BYTES and not _is_complete_json(last_line):
            return "a file of the export ends with an incomplete line"
    if count is not None:
        stream.seek(0)
        lines = sum(1 for line in stream if line.strip())
        if lines != count:
            return "the number of lines in a file of the export differs from the manifest"
    stream.seek(0, 2)
    return ""


def _is_complete_json(line: bytes) -> bool:
    try:
        parse(line)
    except RefusedError:
        return False
    return True
