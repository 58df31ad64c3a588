"""The line to a SuperLink, and the centre's post over it: parcels to nodes, their answers, and admissions.

The centre conducts a run in a process of its own, which asks the SuperLink directly; no process of Flower's is started
for it. What Flower calls a run is no more than an address here: when the SuperLink has given it up, as it does a minute
after it last heard from us, another is begun; what was under way counts as lost, and whoever sent it sends it again.

A SuperLink gives each message out once, so one whose bytes are lost on the way to a node would never be answered. The
post therefore asks a node, now and then and whenever it was started anew, which messages it holds.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from abaton.atomic_files import replacing
from abaton.engines.base import UNKNOWN
from abaton.engines.flower.flower_messages import NODE_GONE, REPLY_GONE, Lost, Parcel
from abaton.errors import PayloadError, SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.flower_protocol import Runtime

SILENT = 5.0  # seconds that are worth a word in the journal
HOLDS = "holds"
"""Asks a node which messages it has; the node itself answers."""

BROKEN = 500
_LATER = frozenset(
    {BROKEN, 502, 503, 504}
)  # the SuperLink or its gate is starting, or busy, or its database is
_GIVEN_UP = frozenset({401, 403, 404, 409, 412})  # of a run whose token is not known any more
_SECONDS, _BEATS = 30.0, 10.0
_FIRST, _LONGEST = 0.1, 5.0  # seconds between two tries
_ANSWER = 16 << 20  # bytes of one answer of the SuperLink: several objects would fit
_CHECKS = 15.0  # seconds after which a node is asked whether it has what was sent
_CLAIMS = 60.0
_BROKEN_FOR = 300.0  # seconds after which a SuperLink that answers every time that it is broken is

T = TypeVar("T")


class Away(Exception):
    """Nobody answers, or not yet: to be asked again; the HTTP status, if there was one."""

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


class Turned(Exception):
    """The SuperLink does not do it; its number for why is the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Line:
    """Asks a SuperLink, or the gate before it, over TLS; an answer that is too long is not read.

    Args:
        address: ``host:port``.
        authority: what its certificate is signed with.
        headers: makes the headers of each request.
        most: bytes of an answer.
    """

    def __init__(
        self, address: str, authority: Path, headers: Callable[[], Mapping[str, str]], most: int = _ANSWER
    ) -> None:
        import httpx

        self._headers, self._most, self._problem = headers, most, httpx.HTTPError
        self._client = httpx.Client(
            base_url=f"https://{address}",
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=_SECONDS,
            trust_env=False,
            limits=httpx.Limits(max_connections=8, keepalive_expiry=4.0),
        )

    def __call__(self, path: str, body: bytes) -> bytes:
        """Ask once.

        Raises:
            Away: Nobody answered.
            Turned: The answer is no.
        """
        kind = "application/protobuf"
        headers = {**self._headers(), "content-type": kind, "accept": kind, "accept-encoding": "identity"}
        got = bytearray()
        try:
            with self._client.stream("POST", path, content=body, headers=headers) as answer:
                for piece in answer.iter_raw():
                    got += piece
                    if len(got) > self._most:
                        raise PayloadError("an answer of the SuperLink is too long", where="network")
        except self._problem as error:
            raise Away(str(error) or "no answer") from None
        if answer.status_code in _LATER:
            raise Away(f"status {answer.status_code}", answer.status_code)
        if answer.status_code != 200:
            raise Turned(answer.status_code)
        return bytes(got)

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()


@dataclass(slots=True)
class _Open:
    """A message that has not been answered."""

    node: int
    since: float
    answer: Parcel | Lost | None = None


@dataclass(slots=True)
class _Node:
    """What is known of a node.

    Attributes:
        since: when it was started, as the SuperLink says.
        anew: whether it was started anew and has not been asked since.
        asked: the question which messages it has, while it is not answered.
        at: when that was asked last.
        about: the messages that were asked about.
    """

    since: str = ""
    anew: bool = False
    asked: str = ""
    at: float = float("-inf")
    about: tuple[str, ...] = ()


class LinkPost:
    """The post of a centre's controller.

    Args:
        address: where the SuperLink is reached, ``host:port``.
        authority: what its certificate is signed with.
        remembers: a file that names the run which is under way, so that the next controller can end it.
        clock: the time in seconds.
    """

    def __init__(
        self,
        address: str,
        authority: Path,
        remembers: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from abaton.engines.flower.flower_protocol import Control, who

        self._where, self._who, self._clock = address, who("flwr-serverapp"), clock
        self._token: dict[str, str] = {}
        self._line = Line(address, authority, lambda: {**self._who, **self._token})
        self._control, self._remembers = Control(self._line), remembers
        self._open: dict[str, _Open] = {}
        self._nodes: dict[int, _Node] = {}
        self._runtime: Runtime | None = None
        self._quiet = 0.0
        self._ended = threading.Event()
        self._lock = threading.RLock()

    def __enter__(self) -> LinkPost:
        self._tried(self._forget_old)
        self._begin()
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with self._lock, suppress(Away, Turned):
            if self._runtime is not None:
                self._runtime.end()
                self._control.stop(self._runtime.run)
        if self._remembers is not None:
            self._remembers.unlink(missing_ok=True)
        self._line.close()

    # ---- the post -----------------------------------------------------------------------------------------------

    def nodes(self) -> Collection[int]:
        """Which nodes Flower lists; one that died stays listed for some seconds."""
        said = self._with_run(lambda runtime: runtime.nodes())
        for node, since in said.items():
            known = self._nodes.setdefault(node, _Node(since))
            if known.since != since:  # it was started anew: what it had fetched and not written down is lost
                known.since, known.anew = since, True
        return list(said)

    def send(self, node: int, parcel: Parcel, ttl: float) -> str:
        """Push a message; empty if Flower does not know the node."""
        name = self._push(node, parcel, ttl)
        if name:
            self._open[name] = _Open(node, self._clock())
        return name

    def collect(self, letters: Collection[str]) -> Mapping[str, Parcel | Lost]:
        """Pull the answers that are there; whatever a node says it does not have is lost."""
        wanted = [letter for letter in letters if letter in self._open]
        made: dict[str, Parcel | Lost] = {
            letter: Lost(REPLY_GONE) for letter in letters if letter not in self._open
        }
        if wanted:
            self._pull(wanted)
            self._ask_holders(wanted)
        for letter in wanted:
            answer = self._open[letter].answer
            if answer is not None:
                del self._open[letter]
                made[letter] = answer
        return made

    def silence(self) -> float:
        """How long the network did not answer since this was last asked; 0 if it was not for long."""
        quiet, self._quiet = self._quiet, 0.0
        return quiet if quiet > SILENT else 0.0

    # ---- messages -----------------------------------------------------------------------------------------------

    def _push(self, node: int, parcel: Parcel, ttl: float) -> str:
        from abaton.engines.flower.flower_protocol import CENTRE, Head

        def push(runtime: Runtime) -> str:
            return runtime.push(Head(runtime.run, CENTRE, node, time.time(), ttl), parcel)

        return self._with_run(push)

    def _pull(self, letters: Collection[str]) -> None:
        checks = {known.asked: node for node, known in self._nodes.items() if known.asked}
        said = self._with_run(lambda runtime: runtime.pull([*letters, *checks]))
        held: dict[int, Parcel | Lost] = {}
        for head, code, tree in said:
            answer = Lost(code) if code is not None else self._fetched(head, tree)
            if head.reply_to in checks:
                held[checks[head.reply_to]] = answer
            elif head.reply_to in self._open:
                self._open[head.reply_to].answer = answer
        for node, answer in held.items():  # after the answers themselves, which may have come just before
            self._compare(node, answer)

    def _fetched(self, head: Any, tree: Any) -> Parcel | Lost:
        from abaton.engines.flower.flower_protocol import leaves_of, opened

        def fetch(name: str) -> bytes:
            pause, end = _FIRST, self._clock() + 6 * _SECONDS
            while True:
                data = self._with_run(lambda runtime: runtime.object(name))
                if data:
                    return data
                if data is None or self._clock() > end:
                    raise _Gone
                self._ended.wait(pause)
                pause = min(2 * pause, 1.0)

        try:
            answer: Parcel | Lost = opened(leaves_of(tree, head.name), fetch)
        except _Gone:
            answer = Lost(REPLY_GONE)
        except PayloadError:
            answer = Parcel("answer", {"reason": UNKNOWN})
        self._with_run(lambda runtime: runtime.confirm(head))
        return answer

    def _ask_holders(self, letters: Collection[str]) -> None:
        """Ask nodes that have had a message for a while whether they have it."""
        now = self._clock()
        waiting: dict[int, list[str]] = {}
        for letter in letters:
            each = self._open[letter]
            if each.answer is None:
                waiting.setdefault(each.node, []).append(letter)
        for node, theirs in waiting.items():
            known = self._nodes.setdefault(node, _Node())
            last = max(known.at, min(self._open[letter].since for letter in theirs))
            if known.anew or now > last + _CHECKS:
                known.asked, known.at = self._push(node, Parcel(HOLDS, {}), 4 * _CHECKS), now
                known.about, known.anew = tuple(theirs), False

    def _compare(self, node: int, answer: Parcel | Lost) -> None:
        known = self._nodes[node]
        known.asked = ""
        if isinstance(answer, Lost):
            return
        has = answer.about.get(HOLDS)
        for letter in known.about:
            each = self._open.get(letter)
            if isinstance(has, list) and each is not None and each.answer is None and letter not in has:
                each.answer = Lost(REPLY_GONE)

    # ---- the run ------------------------------------------------------------------------------------------------

    def _with_run(self, ask: Callable[[Runtime], T]) -> T:
        """Ask, again while nobody answers; if the SuperLink has given up the run, another is begun."""
        while True:
            with self._lock:
                assert self._runtime is not None
                runtime = self._runtime
            try:
                return self._tried(partial(ask, runtime))
            except Turned as no:
                if no.status not in _GIVEN_UP:
                    raise self._useless(no) from None
                self._renew(runtime, no)

    def _useless(self, no: Turned) -> SettingsError:
        return SettingsError(
            f"the SuperLink does not do what it is asked ({no})",
            where=self._where,
            remedy="see its log; Abaton and the SuperLink must have the same release of Flower",
        )

    def _renew(self, old: Runtime, no: Turned) -> None:
        with self._lock:
            if self._runtime is not old:
                return
            if self._tried(self._is_alive):
                raise self._useless(no)
            self._begin()
            for each in self._open.values():
                each.answer = each.answer or Lost(NODE_GONE)
            self._nodes.clear()

    def _is_alive(self) -> bool:
        assert self._runtime is not None
        try:
            return self._runtime.beat()
        except Turned:
            return False

    def _begin(self) -> None:
        """Begin a run of Flower's that this process conducts."""
        from abaton.engines.flower.flower_protocol import Runtime

        with self._lock:
            self._token = {}
            self._tried(self._control.start)
            end, claimed = self._clock() + _CLAIMS, None
            while claimed is None:
                claimed = self._tried(self._control.claim)
                if claimed is None and self._clock() > end:
                    raise SettingsError(
                        "somebody else takes the SuperLink's runs",
                        where=self._where,
                        remedy="let no flower-superexec serve it",
                    )
            run, token = claimed
            self._token = {"flwr-task-token": token}
            self._runtime = Runtime(self._line, run)
            self._tried(self._runtime.begin)
            if self._remembers is not None:
                with replacing(self._remembers) as begun:
                    begun.write_text(json.dumps(run))

    def _forget_old(self) -> None:
        """End the run of a controller that was killed, so that nobody works for it any more."""
        if self._remembers is None or not self._remembers.exists():
            return
        with suppress(Turned, ValueError):
            self._control.stop(int(json.loads(self._remembers.read_text())))

    def _beat(self) -> None:
        while not self._ended.wait(_BEATS):
            with self._lock:
                runtime = self._runtime
            with suppress(Away, Turned):
                assert runtime is not None
                runtime.beat()

    def _tried(self, ask: Callable[[], T]) -> T:
        """Ask until somebody answers, and remember how long that took."""
        began, pause = self._clock(), _FIRST
        while True:
            try:
                made = ask()
            except Away as away:
                if away.status == BROKEN and self._clock() > began + _BROKEN_FOR:
                    raise self._useless(Turned(away.status)) from None
                self._ended.wait(pause)
                pause = min(2 * pause, _LONGEST)
            else:
                self._quiet = max(self._quiet, self._clock() - began)
                return made


class _Gone(Exception):
    """An object that will not come."""
