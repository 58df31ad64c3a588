"""Questions to all sites at once, outside of training: what is asked before a run and after it.

Each site is asked by one message to its node. A message that gets lost is sent again when the node is back; a site that
is away for too long, or whose processes keep ending, has not answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from abaton.engines.flower.parcels import NODE_GONE, Lost, Parcel, Post
from abaton.engines.ledger import MOST_DEATHS
from abaton.engines.reasons import DIED, LATE

_SLOWER, _SLOWEST = (
    1.3,
    5.0,
)  # looks are further apart while nothing happens, up to so many times the first pause

Admitted = Callable[[], Mapping[int, str]]


@dataclass(slots=True)
class _Asked:
    """A question that has not been answered."""

    parcel: Parcel
    since: float
    letter: str = ""
    deaths: int = 0


class Survey:
    """Asks and waits.

    Args:
        post: what carries the messages.
        admitted: whose each registered node is now.
        patience: seconds after which a message without an answer is given up.
        absence: seconds after which a node that is away is given up.
        clock: the time in seconds.
        sleep: waits so many seconds.
        poll: seconds between looks, the first of them.
    """

    def __init__(
        self,
        post: Post,
        admitted: Admitted,
        *,
        patience: float = 3600.0,
        absence: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        poll: float = 0.1,
    ) -> None:
        self._post, self._admitted = post, admitted
        self._patience, self._absence = patience, absence
        self._clock, self._sleep, self._poll = clock, sleep, poll

    def there(self) -> tuple[str, ...]:
        """The sites whose node is connected, by name."""
        return tuple(sorted(self._nodes()))

    def wait(self, fewest: int) -> tuple[str, ...]:
        """Wait, as long as it takes, until so many sites are there; all that are there then."""
        while len(found := self.there()) < fewest:
            self._sleep(_SLOWEST * self._poll)
        return found

    def ask(self, questions: Mapping[str, Parcel]) -> dict[str, Parcel]:
        """The answers of all sites that are asked, by name; one that does not answer has a reason in its place."""
        asked = {site: _Asked(parcel, self._clock()) for site, parcel in questions.items()}
        answers: dict[str, Parcel] = {}
        pause = self._poll
        while asked:
            self._send(asked)
            self._collect(asked, answers)
            for site in [site for site, each in asked.items() if self._is_over(each)]:
                del asked[site]
                answers[site] = Parcel("answer", {"reason": LATE})
            if asked:
                self._sleep(pause)
                pause = min(_SLOWER * pause, _SLOWEST * self._poll)
        return dict(sorted(answers.items()))

    def _nodes(self) -> dict[str, int]:
        admitted = self._admitted()
        return {admitted[node]: node for node in self._post.nodes() if node in admitted}

    def _send(self, asked: Mapping[str, _Asked]) -> None:
        waiting = [(site, each) for site, each in asked.items() if not each.letter]
        nodes = self._nodes() if waiting else {}
        for site, each in waiting:
            node = nodes.get(site)
            if node is not None:
                each.letter, each.since = self._post.send(node, each.parcel, self._patience), self._clock()

    def _collect(self, asked: dict[str, _Asked], answers: dict[str, Parcel]) -> None:
        letters = {each.letter: site for site, each in asked.items() if each.letter}
        found = self._post.collect(list(letters)) if letters else {}
        for letter, answer in found.items():
            site = letters[letter]
            if isinstance(answer, Lost) or answer.reason == DIED:
                asked[site].letter, asked[site].since = "", self._clock()
                asked[site].deaths += not isinstance(answer, Lost) or answer.code != NODE_GONE
            else:
                del asked[site]
                answers[site] = answer

    def _is_over(self, each: _Asked) -> bool:
        limit = self._patience if each.letter else self._absence
        return each.deaths > MOST_DEATHS or self._clock() > each.since + limit
