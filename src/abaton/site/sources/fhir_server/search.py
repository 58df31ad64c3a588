"""Records from the REST search of a FHIR server, page by page; an interrupted download resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

from abaton.canonical_json import canonical_digest
from abaton.errors import RefusedError
from abaton.fhir.json_format import parse
from abaton.record_types import Record
from abaton.site.sources.base import SourceErrors
from abaton.site.sources.fhir_server.download_cache import DownloadCache
from abaton.site.sources.fhir_server.http_client import (
    MAX_PAGE_BYTES,
    FhirHttpClient,
    FhirServerError,
    parse_response,
    redacted_url,
)
from abaton.site.sources.fhir_server.smart_auth import SmartTokens
from abaton.site.sources.queries import FhirQuery

MAX_PAGES = 200_000


class SearchSource:
    """Records that a study needs, from the REST search of a FHIR server.

    Args:
        http_client: Client of the server.
        tokens: Access tokens; None for a server without authentication.
        queries: The searches.
        folder: Folder of the pages until they have been read.
        page_size: Requested number of records per page.
        on_progress: Called after every page with the number of pages so far.
    """

    is_grouped = False

    def __init__(
        self,
        http_client: FhirHttpClient,
        tokens: SmartTokens | None,
        queries: tuple[FhirQuery, ...],
        folder: Path,
        *,
        page_size: int = 200,
        on_progress: Callable[[int], None] = lambda pages: None,
    ) -> None:
        self._http_client, self._tokens, self._queries = http_client, tokens, queries
        self._folder, self._page_size, self._on_progress = folder, page_size, on_progress
        self._cache: DownloadCache | None = None
        self.errors = SourceErrors()

    def fetch(self) -> DownloadCache:
        """Download every search result page of a FHIR server that is not in the cache."""
        searches = [[query.type, [list(pair) for pair in query.parameters]] for query in self._queries]
        cache = self._cache = DownloadCache(
            self._folder, canonical_digest(["rest", self._http_client.base, self._page_size, searches])
        )
        start = cache.position or {"query": 0, "url": None}
        for number in range(start["query"], len(self._queries)):
            first_url = self._first_url(self._queries[number])
            self._fetch_pages(number, start["url"] if number == start["query"] else None, first_url, cache)
        return cache

    def _first_url(self, query: FhirQuery) -> str:
        parameters = urlencode([*query.parameters, ("_count", str(self._page_size))], safe="|,:/")
        return f"{self._http_client.base}/{query.type}?{parameters}"

    def _fetch_pages(self, number: int, url: str | None, first_url: str, cache: DownloadCache) -> None:
        """Download the result pages of one FHIR search by following their links."""
        page_url, seen = url or first_url, set[str]()
        while True:
            seen.add(page_url)
            response = self._http_client.request(
                page_url, self._headers, renew_token=self._tokens.renew if self._tokens else None
            )
            page = parse_response(response, page_url)
            next_url = self._next_url(page, page_url)
            if next_url in seen or len(seen) > MAX_PAGES:
                raise FhirServerError(
                    "the links of the search pages form a circle",
                    where=redacted_url(page_url),
                    remedy="report it to the operator of the server",
                )
            position = {"query": number, "url": next_url} if next_url else {"query": number + 1, "url": None}
            cache.add_file(f"{len(cache.file_names):07d}.json", response.body, position)
            self._on_progress(len(cache.file_names))
            if next_url is None:
                return
            page_url = next_url

    def _headers(self) -> Mapping[str, str]:
        authorisation = self._tokens.headers() if self._tokens else {}
        return {"accept": "application/fhir+json", "accept-encoding": "gzip", **authorisation}

    def _next_url(self, page: dict[str, Any], page_url: str) -> str | None:
        """Return the permitted URL of the next search result page, or None after the last one."""
        if page.get("resourceType") != "Bundle":
            raise FhirServerError(
                "the response to a search is not a Bundle",
                where=redacted_url(page_url),
                remedy="check records.url",
            )
        links = page.get("link")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, dict) and link.get("relation") == "next":
                url = link.get("url")
                if not isinstance(url, str) or not url:
                    raise FhirServerError(
                        "the link to the next page has no URL", where=redacted_url(page_url)
                    )
                return self._http_client.check_permitted(urljoin(page_url, url))
        return None

    def records(self) -> Iterator[Record]:
        """Yield the pages of the FHIR search, each a Bundle."""
        for path in self.fetch().paths():
            try:
                yield Record(parse(path.read_bytes(), where=path.name, limit=MAX_PAGE_BYTES))
            except RefusedError as error:
                self.errors.add(error.what, path.name)

    def close(self) -> None:
        """Remove the downloaded pages of the FHIR search."""
        if self._cache is not None:
            self._cache.clear()
            self._cache = None
