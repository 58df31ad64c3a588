"""Records from a FHIR server's search: page after page, kept on disk, taken up again where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

from abaton.canonical_json import digest
from abaton.errors import Refused
from abaton.fhir.json_format import parse
from abaton.record_types import Record
from abaton.site.sources.base import Faults
from abaton.site.sources.fhir_server.download_cache import Fetched
from abaton.site.sources.fhir_server.http_client import MAX_PAGE, ServerError, Web, document, place_of
from abaton.site.sources.fhir_server.smart_auth import Tokens
from abaton.site.sources.queries import Query

MOST_PAGES = 200_000


class RestSource:
    """The records that a study needs, from a FHIR server's REST search.

    Args:
        web: The server.
        tokens: How the site shows who it is; nothing for a server that does not ask.
        queries: What is searched.
        folder: Where pages are kept until they have been read.
        page: How many records a page should have.
        step: Told of every page, with the number of pages so far.
    """

    by_subject = False

    def __init__(
        self,
        web: Web,
        tokens: Tokens | None,
        queries: tuple[Query, ...],
        folder: Path,
        *,
        page: int = 200,
        step: Callable[[int], None] = lambda pages: None,
    ) -> None:
        self._web, self._tokens, self._queries = web, tokens, queries
        self._folder, self._page, self._step = folder, page, step
        self._fetched: Fetched | None = None
        self.faults = Faults()

    def fetch(self) -> Fetched:
        """Fetch every page that is not here yet."""
        asked = [[query.type, [list(pair) for pair in query.parameters]] for query in self._queries]
        fetched = self._fetched = Fetched(self._folder, digest(["rest", self._web.base, self._page, asked]))
        start = fetched.next or {"query": 0, "url": None}
        for number in range(start["query"], len(self._queries)):
            first = self._first(self._queries[number])
            self._pages(number, start["url"] if number == start["query"] else None, first, fetched)
        return fetched

    def _first(self, query: Query) -> str:
        words = urlencode([*query.parameters, ("_count", str(self._page))], safe="|,:/")
        return f"{self._web.base}/{query.type}?{words}"

    def _pages(self, number: int, url: str | None, first: str, fetched: Fetched) -> None:
        """Follow the links of one search to its end."""
        here, seen = url or first, set[str]()
        while True:
            seen.add(here)
            answer = self._web.ask(here, self._headers, renew=self._tokens.renew if self._tokens else None)
            page = document(answer, here)
            following = self._next(page, here)
            if following in seen or len(seen) > MOST_PAGES:
                raise ServerError(
                    "the server's pages lead in a circle", where=place_of(here), remedy="tell who runs it"
                )
            place = {"query": number, "url": following} if following else {"query": number + 1, "url": None}
            fetched.add(f"{len(fetched.names):07d}.json", answer.body, place)
            self._step(len(fetched.names))
            if following is None:
                return
            here = following

    def _headers(self) -> Mapping[str, str]:
        shown = self._tokens.headers() if self._tokens else {}
        return {"accept": "application/fhir+json", "accept-encoding": "gzip", **shown}

    def _next(self, page: dict[str, Any], here: str) -> str | None:
        """The address of the next page; it must stay with the server."""
        if page.get("resourceType") != "Bundle":
            raise ServerError(
                "the server answers a search with something else than a Bundle",
                where=place_of(here),
                remedy="check records.url",
            )
        links = page.get("link")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, dict) and link.get("relation") == "next":
                url = link.get("url")
                if not isinstance(url, str) or not url:
                    raise ServerError("a page has no usable link to the next", where=place_of(here))
                return self._web.permitted(urljoin(here, url))
        return None

    def records(self) -> Iterator[Record]:
        """The pages, each a Bundle."""
        for path in self.fetch().paths():
            try:
                yield Record(parse(path.read_bytes(), where=path.name, limit=MAX_PAGE))
            except Refused as error:
                self.faults.note(error.what, path.name)

    def close(self) -> None:
        """Remove the pages."""
        if self._fetched is not None:
            self._fetched.clear()
            self._fetched = None
