"""Records from a FHIR server's Bulk Data export: asked for, waited for, fetched file by file, and tidied up.

The steps of the guide (HL7 Bulk Data Access 2.0): kick-off with ``Prefer: respond-async``, polling of the
address in ``Content-Location``, the manifest, the files, and DELETE at the end. Each step is noted, so that an
interrupted fetch goes on with the same export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode, urljoin

from abaton.canonical_json import digest
from abaton.errors import Refused
from abaton.fhir.json_format import parse
from abaton.record_types import Record
from abaton.site.sources.base import Faults, FileSource
from abaton.site.sources.fhir_server.download_cache import Fetched
from abaton.site.sources.fhir_server.http_client import Answer, ServerError, Web, document, place_of
from abaton.site.sources.fhir_server.retry import asked_pause
from abaton.site.sources.fhir_server.smart_auth import Tokens

_POLL, _LONGEST_POLL = 2.0, 600.0
_MOST_FILES = 100_000
_TAIL = 1 << 20


class Wanted(NamedTuple):
    """What is exported: which patients, which types, since when."""

    level: str
    group: str | None
    types: tuple[str, ...]
    since: datetime | None = None

    def address(self, base: str) -> str:
        """Where the export is asked for.

        >>> Wanted("group", "7", ("Patient",)).address("https://h/r4")
        'https://h/r4/Group/7/$export?_type=Patient&_outputFormat=application%2Ffhir%2Bndjson'
        """
        scope = {"system": "", "patient": "/Patient", "group": f"/Group/{self.group}"}[self.level]
        words = {"_type": ",".join(self.types), "_outputFormat": "application/fhir+ndjson"}
        if self.since is not None:
            words["_since"] = self.since.isoformat()
        return f"{base}{scope}/$export?{urlencode(words, safe=',')}"


class _File(NamedTuple):
    name: str
    url: str
    lines: int | None


class BulkSource:
    """The records that a study needs, from a FHIR server's Bulk Data export.

    Args:
        web: The server.
        tokens: How the site shows who it is; nothing for a server that does not ask.
        wanted: What is exported.
        folder: Where files are kept until they have been read.
        wait: For how many seconds the server may prepare the export.
        step: Told of every poll and file, in words without content.
    """

    by_subject = False

    def __init__(
        self,
        web: Web,
        tokens: Tokens | None,
        wanted: Wanted,
        folder: Path,
        *,
        wait: float = 86_400.0,
        step: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._web, self._tokens, self._wanted = web, tokens, wanted
        self._folder, self._wait, self._step = folder, wait, step
        self._fetched: Fetched | None = None
        self.faults = Faults()

    def fetch(self) -> Fetched:
        """Fetch every file that is not here yet."""
        address = self._wanted.address(self._web.base)
        fetched = self._fetched = Fetched(self._folder, digest(["bulk", address]))
        place = fetched.next or {}
        if not place:
            place = {"status": self._kick_off(address)}
            fetched.note(place)
        if "files" not in place:
            place = self._manifest(self._poll(place["status"], fetched), place["status"])
            fetched.note(place)
        for each in place["files"]:
            file = _File(*each)
            if file.name not in fetched.names:
                self._file(file, place, fetched)
        self._tidy(place["status"])
        return fetched

    # The steps

    def _headers(self, accept: str, *, shown: bool = True) -> Callable[[], Mapping[str, str]]:
        def made() -> Mapping[str, str]:
            return {"accept": accept, **(self._tokens.headers() if self._tokens and shown else {})}

        return made

    def _ask(self, url: str, accept: str, **more: Any) -> Answer:
        return self._web.ask(
            url, self._headers(accept), renew=self._tokens.renew if self._tokens else None, **more
        )

    def _kick_off(self, address: str) -> str:
        def headers() -> Mapping[str, str]:
            return {**self._headers("application/fhir+json")(), "prefer": "respond-async"}

        renew = self._tokens.renew if self._tokens else None
        answer = self._web.ask(address, headers, fine=frozenset({202}), renew=renew)
        status = answer.headers.get("content-location", "")
        if not status:
            raise ServerError(
                "the server does not say where the export can be watched",
                where=place_of(address),
                remedy="it may not support Bulk Data; use kind = 'fhir'",
            )
        self._step("export asked for")
        return self._web.permitted(urljoin(address, status))

    def _poll(self, status: str, fetched: Fetched) -> dict[str, Any]:
        """Wait until the export is ready; the server says how long to pause."""
        begun, pause = self._web.clock.now(), _POLL
        while True:
            try:
                answer = self._ask(status, "application/json", fine=frozenset({200, 202}))
            except ServerError as error:
                if error.status in (404, 410):
                    fetched.restart()
                    raise ServerError(
                        "the server has forgotten the export", where=error.where, remedy="start again"
                    ) from None
                raise
            if answer.status == 200:
                return document(answer, status)
            waited = self._web.clock.now() - begun
            if waited > self._wait:
                raise ServerError(
                    "the export is not ready in time",
                    where=place_of(status),
                    remedy="start again later: the same export is taken up; or raise records.wait",
                )
            self._step(f"the server prepares the export, {waited:,.0f} s so far")
            asked = asked_pause(answer.headers, self._web.clock.now())
            self._web.clock.sleep(min(_LONGEST_POLL, pause if asked is None else max(asked, 0.1)))
            pause = min(_LONGEST_POLL, pause * 1.5)

    def _manifest(self, told: dict[str, Any], status: str) -> dict[str, Any]:
        """The files of an export, numbered; their addresses must be permitted."""
        output, errors = told.get("output"), told.get("error")
        if not isinstance(output, list) or len(output) > _MOST_FILES:
            raise ServerError("the export has no usable list of files", where=place_of(status))
        files = [self._listed(f"{i:06d}.ndjson", each, status) for i, each in enumerate(output)]
        problems = errors if isinstance(errors, list) else []
        files += [self._listed(f"error-{i:06d}.ndjson", each, status) for i, each in enumerate(problems)]
        return {"status": status, "files": files, "token": told.get("requiresAccessToken") is not False}

    def _listed(self, name: str, each: Any, status: str) -> _File:
        url = each.get("url") if isinstance(each, dict) else None
        if not isinstance(url, str):
            raise ServerError("the export lists a file without an address", where=place_of(status))
        count = each.get("count")
        whole = isinstance(count, int) and not isinstance(count, bool)
        return _File(name, self._web.permitted(urljoin(status, url)), count if whole else None)

    def _file(self, file: _File, place: dict[str, Any], fetched: Fetched) -> None:
        shown = bool(place["token"])
        renew = self._tokens.renew if self._tokens and shown else None
        with fetched.open(file.name) as target:
            self._web.save(
                file.url,
                self._headers("application/fhir+ndjson", shown=shown),
                target,
                renew=renew,
                sound=lambda: _unsound(target, file.lines),
            )
        fetched.enter(file.name, place)
        self._step(f"file {len(fetched.names)} of {len(place['files'])}")

    def _tidy(self, status: str) -> None:
        """Tell the server that its copies can go; it does not matter here if it has none any more."""
        try:
            self._ask(status, "application/json", method="DELETE", fine=frozenset({200, 202, 204, 404, 410}))
        except ServerError as error:
            self.faults.note("the server keeps its copy of the export: it refused to delete it", error.where)

    # Reading

    def records(self) -> Iterator[Record]:
        """The records of all files; what the server could not export is counted as set aside."""
        paths = list(self.fetch().paths())
        errors = [path for path in paths if path.name.startswith("error-")]
        for path in errors:
            with path.open("rb") as stream:
                for line in stream:
                    if line.strip():
                        self.faults.note("the server could not export something")
        files = [path for path in paths if path not in errors and path.stat().st_size]
        if files:
            source = FileSource(files)
            source.faults = self.faults
            yield from source.records()

    def close(self) -> None:
        """Remove the files."""
        if self._fetched is not None:
            self._fetched.clear()
            self._fetched = None


def _unsound(stream: IO[bytes], count: int | None) -> str:
    """What is wrong with a fetched file of lines: it ends in the middle, or has fewer lines than was said."""
    size = stream.seek(0, 2)
    if size:
        stream.seek(max(0, size - _TAIL))
        tail = stream.read()
        last = tail.rstrip().rpartition(b"\n")[2]
        if not tail.endswith(b"\n") and len(last) < _TAIL and not _is_whole(last):
            return "a file of the export ends in the middle of a line"
    if count is not None:
        stream.seek(0)
        lines = sum(1 for line in stream if line.strip())
        if lines != count:
            return "a file of the export has another number of lines than was said"
    stream.seek(0, 2)
    return ""


def _is_whole(line: bytes) -> bool:
    try:
        parse(line)
    except Refused:
        return False
    return True
