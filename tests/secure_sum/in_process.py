"""Secure sums in one process: sites and centre over their logs, with crashes at any message."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from math import fsum

import numpy as np

from abaton.governance.keys import KeyKind, PrivateKey
from abaton.secure_sum import (
    Contributor,
    EventLog,
    LogTransaction,
    MaskedInput,
    MaskRequest,
    MemoryLog,
    Request,
    RevealedShares,
    RevealRequest,
    SumCentre,
    SumContext,
    SumSegment,
    SumSettings,
    SumSite,
    Values,
)

STUDY, RUN = "ab" * 32, "run-1"
SEGMENTS = (
    SumSegment(name="update", size=11, bits=13),
    SumSegment(name="counts", size=3, bits=64),
    SumSegment(name="moments", size=2, bits=256),
)
DIGEST = "cd" * 32


def site_names(count: int) -> list[str]:
    return [f"site-{index:02d}" for index in range(count)]


def signing_key(site: str) -> PrivateKey:
    return PrivateKey.of(KeyKind.SIGN, hashlib.sha256(site.encode()).digest(), "")


SIGNING_KEYS = {site: signing_key(site) for site in site_names(50)}


def make_settings(count: int, colluding: int = 1, **changes: object) -> SumSettings:
    sites = {site: SIGNING_KEYS[site].id for site in site_names(count)}
    return SumSettings(STUDY, RUN, sites, colluding, **changes)


def version_digest(version: int) -> str:
    return hashlib.sha256(f"version {version}".encode()).hexdigest()


def contributor(site: str, version: int = 1, task: str = "") -> Contributor:
    return Contributor(
        site=site, task=task or f"train-{version}", version=version, version_digest=version_digest(version)
    )


def random_values(rng: np.random.Generator, segments: tuple[SumSegment, ...] = SEGMENTS) -> Values:
    def vector(segment: SumSegment):
        if segment.bits == 256:
            return rng.normal(size=segment.size) * 10.0 ** rng.integers(-18, 30, segment.size)
        limit = ((1 << (segment.bits - 1)) - 1) // 50
        return rng.integers(-limit, limit + 1, segment.size)

    return {segment.name: vector(segment) for segment in segments}


class CrashError(Exception):
    """The process died; what was committed stays."""


class CrashLog:
    """Log whose next transaction may die before or after its commit."""

    def __init__(self, inner: EventLog) -> None:
        self.inner, self.crash = inner, ""

    @contextmanager
    def transaction(self) -> Iterator[LogTransaction]:
        crash, self.crash = self.crash, ""
        with self.inner.transaction() as transaction:
            yield transaction
            if crash == "before":
                raise CrashError
        if crash == "after":
            raise CrashError

    def erase(self) -> None:
        self.inner.erase()


class InProcess:
    """All parties of a run. `kill` removes a site; `crash` restarts a party in its next transaction."""

    def __init__(
        self,
        settings: SumSettings,
        *,
        seed: int = 0,
        subjects: Mapping[str, int] | None = None,
        make_log: Callable[[str], EventLog] = lambda name: MemoryLog(),
    ) -> None:
        self.settings, self.seed, self.subjects = settings, seed, subjects or {}
        self.logs = {name: CrashLog(make_log(name)) for name in ("centre", *settings.sites)}
        self.alive = set(settings.sites)
        self.sites = {site: self.make_site(site) for site in settings.sites}
        self.centre = SumCentre(settings, self.logs["centre"])
        self.values: dict[tuple[str, str], Values] = {}
        self.restarts = 0

    def make_site(self, site: str, log: EventLog | None = None) -> SumSite:
        def random_bytes(count: int) -> bytes:
            return hashlib.shake_256(f"{self.seed} {site}".encode()).digest(count)

        return SumSite(
            self.settings, site, SIGNING_KEYS[site], self.settings.sites, log or self.logs[site], random_bytes
        )

    def copy_of(self, site: str) -> SumSite:
        """A second instance with a copy of the state: a site that answers everything twice."""
        return self.make_site(site, deepcopy(self.logs[site].inner))

    def crash(self, party: str, when: str) -> None:
        self.logs[party].crash = when

    def at_site(self, site: str, call: Callable[[SumSite], object]):
        """Call a site; if it dies, restart it and ask again: the same question gets the same answer."""
        try:
            return call(self.sites[site])
        except CrashError:
            self.restarts += 1
            self.sites[site] = self.make_site(site)
            return call(self.sites[site])

    def at_centre(self, call: Callable[[SumCentre], object]):
        try:
            return call(self.centre)
        except CrashError:
            self.restarts += 1
            self.centre = SumCentre(self.settings, self.logs["centre"])
            return call(self.centre)

    def enrol(self) -> InProcess:
        for site in sorted(self.alive):
            advertisement = self.at_site(site, lambda s: s.advertise(self.subjects.get(site, 100)))  # noqa: B023
            self.at_centre(lambda c: c.accept_key(advertisement))  # noqa: B023
        directory = self.at_centre(lambda c: c.fix_directory())
        for site in sorted(self.alive):
            self.at_site(site, lambda s: s.accept_directory(directory))
        return self

    def record(
        self, site: str, values: Values, version: int = 1, purpose: str = "train", task: str = ""
    ) -> None:
        line = contributor(site, version, task)
        self.at_site(site, lambda s: s.record(line, purpose, SEGMENTS, values))
        self.values[line.key] = values

    def record_all(self, rng: np.random.Generator, version: int = 1) -> None:
        for site in sorted(self.alive):
            self.record(site, random_values(rng), version)

    def begin(self, sites: list[str] | None = None, version: int = 1, **settings: str) -> SumContext:
        lines = [contributor(site, version) for site in (sites or sorted(self.settings.sites))]
        return self.at_centre(lambda c: c.begin("train", lines, SEGMENTS, settings))

    def answer(self, request: Request) -> MaskedInput | RevealedShares | None:
        """Answer of a site, through its byte form; None if the site is dead."""
        if request.site not in self.alive:
            return None
        if isinstance(request, MaskRequest):
            context = SumContext.from_bytes(request.context.to_bytes())
            return MaskedInput.from_bytes(self.at_site(request.site, lambda s: s.mask(context)).to_bytes())
        copied = RevealRequest.from_bytes(request.to_bytes())
        return RevealedShares.from_bytes(self.at_site(request.site, lambda s: s.reveal(copied)).to_bytes())

    def deliver(self, message: MaskedInput | RevealedShares) -> None:
        if isinstance(message, MaskedInput):
            self.at_centre(lambda c: c.receive_input(message))
        else:
            self.at_centre(lambda c: c.receive_shares(message))

    def step(self, request: Request) -> bool:
        message = self.answer(request)
        if message is not None:
            self.deliver(message)
        return message is not None

    def run(self, context: SumContext) -> SumContext:
        """Ask until no request of the sum is answered any more."""
        progress = True
        while progress and (requests := self.at_centre(lambda c: c.requests(context))):
            progress = any([self.step(request) for request in requests])
        return context

    def clear_sum(self, context: SumContext) -> dict[str, list[int] | list[float]]:
        """Sum of the recorded values, by Python's exact integers and `fsum`."""
        return clear_sum([self.values[line.key] for line in context.contributors])


def clear_sum(values: list[Values]) -> dict[str, list[int] | list[float]]:
    return {
        name: [
            fsum(numbers) if vectors[0].dtype.kind == "f" else sum(map(int, numbers))
            for numbers in zip(*(vector.tolist() for vector in vectors), strict=True)
        ]
        for name in values[0]
        for vectors in [[site_values[name] for site_values in values]]
    }


def opened_values(parties: InProcess, context: SumContext) -> dict[str, list[int] | list[float]]:
    values = parties.at_centre(lambda c: c.result(context)).values
    return {name: vector.tolist() for name, vector in values.items()}
