"""Secure sums: CPU of a site and of the centre, and bytes per number, for 4, 10 and 50 sites.

Each sum is opened and compared with the sum of the clear vectors. CPU times are process times of one core, the state is
in memory. The ratio compares a site's masking with the key streams alone, as AES-256-CTR produces them in the same run:
masks cannot cost less.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from abaton.benchmark import BenchmarkResult, at_most
from abaton.governance.keys import KeyKind, PrivateKey
from abaton.secure_sum import (
    Contributor,
    MaskedInput,
    MemoryLog,
    RevealedShares,
    RevealRequest,
    SumCentre,
    SumContext,
    SumSegment,
    SumSettings,
    SumSite,
    max_magnitude,
)

# Sites, colluding sites, and the bits of additive quantisation with this number of sites.
SIZES = ((4, 1, 5), (10, 3, 6), (50, 16, 9))
REPEATS = 5


def run() -> list[BenchmarkResult]:
    """Run all measurements."""
    results = []
    for n, c, bits in SIZES:
        parties = _Parties(n, c)
        results.append(BenchmarkResult(f"n = {n}: accept the directory, once", parties.enrol() * 1e3, "ms"))
        for size, width in ((1_000, 64), (1_000, 256), (1_000_000, bits), (1_000_000, 32)):
            results += parties.measure(size, width)
    return results


def _cpu(call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least CPU seconds of several calls."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


class _Parties:
    """All parties of a run."""

    def __init__(self, n: int, c: int) -> None:
        names = [f"site-{index:02d}" for index in range(n)]
        keys = {
            name: PrivateKey.of(KeyKind.SIGN, hashlib.sha256(name.encode()).digest(), "") for name in names
        }
        self.settings = SumSettings("ab" * 32, "bench", {name: key.id for name, key in keys.items()}, c)
        self.sites = {
            name: SumSite(self.settings, name, keys[name], self.settings.sites, MemoryLog(), _random(name))
            for name in names
        }
        self.centre = SumCentre(self.settings, MemoryLog())
        self.version = 0

    def enrol(self) -> float:
        """Fix the directory; return the least CPU seconds of a site."""
        for site in self.sites.values():
            self.centre.accept_key(site.advertise(100))
        directory = self.centre.fix_directory()
        return min(_cpu(lambda: site.accept_directory(directory), 1) for site in self.sites.values())  # noqa: B023

    def measure(self, size: int, bits: int) -> list[BenchmarkResult]:
        """Measure one sum of vectors of a size."""
        self.version += 1
        rng, n = np.random.default_rng(self.version), len(self.sites)
        segment = SumSegment(name="update", size=size, bits=bits)
        digest = hashlib.sha256(str(self.version).encode()).hexdigest()
        lines = [
            Contributor(site=name, task=str(self.version), version=self.version, version_digest=digest)
            for name in self.sites
        ]
        limit = max_magnitude(min(bits, 62), n)
        total = np.zeros(size, np.int64)
        for line in lines:
            # Integers also in the exact segment, so that the clear sum needs no arithmetic of its own.
            vector = rng.integers(-min(limit, 1 << 40), min(limit, 1 << 40), size, endpoint=True)
            total += vector
            values = {"update": vector.astype(np.float64) if bits == 256 else vector}
            self.sites[line.site].record(line, "train", [segment], values)
        context = self.centre.begin("train", lines, [segment])
        first, *others = [request.site for request in self.centre.requests(context)]
        mask_seconds = _cpu(lambda: self.sites[first].mask(context))
        inputs = [self.sites[name].mask(context) for name in (first, *others)]
        input_seconds = sum(_cpu(lambda: self.centre.receive_input(masked), 1) for masked in inputs)  # noqa: B023
        requests = [r for r in self.centre.requests(context) if isinstance(r, RevealRequest)]
        reveal_seconds = _cpu(lambda: self.sites[first].reveal(requests[0]))
        answers = [self.sites[request.site].reveal(request) for request in requests]
        open_seconds = sum(_cpu(lambda: self.centre.receive_shares(answer), 1) for answer in answers)  # noqa: B023
        opened = self.centre.result(context).values["update"]
        name = f"n = {n}, {size:,} numbers of {bits} bits"
        results = [
            at_most(
                f"{name}: values unlike the clear sum", int(np.count_nonzero(opened != total)), 0, "values"
            ),
            BenchmarkResult(f"{name}: mask at a site", mask_seconds * 1e3, "ms"),
            BenchmarkResult(f"{name}: reveal at a site", reveal_seconds * 1e3, "ms"),
            BenchmarkResult(f"{name}: centre in all", (input_seconds + open_seconds) * 1e3, "ms"),
            _traffic(name, size, bits, inputs[0], requests[0], answers[0], context),
        ]
        if size >= 1_000_000:
            streams = _cpu(lambda: _streams(context, n))
            results.append(
                at_most(f"{name}: mask at a site / key streams", mask_seconds / streams, 6, "times")
            )
        for site in self.sites.values():
            site.drop(str(self.version))
        return results


def _traffic(
    name: str,
    size: int,
    bits: int,
    masked: MaskedInput,
    request: RevealRequest,
    answer: RevealedShares,
    context: SumContext,
) -> BenchmarkResult:
    """Return the bytes that a site sends and receives per number; a large vector costs its bits and 1 % more."""
    sent = len(masked.to_bytes()) + len(answer.to_bytes())
    received = len(context.to_bytes()) + len(request.to_bytes())
    title = f"{name}: bytes per number, both ways"
    value = (sent + received) / size
    if size >= 1_000_000:
        return at_most(title, value, 1.02 * bits / 8, "bytes")
    return BenchmarkResult(title, value, "bytes")


def _streams(context: SumContext, n: int) -> None:
    """Make the key streams of one site: its own and n - 1 of pairs."""
    (segment,) = context.segments
    container = next(size for size in (1, 2, 4, 8, 32) if segment.bits <= 8 * size)
    count, chunk = segment.size * container, bytes(1 << 18)
    for index in range(n):
        encryptor = Cipher(AES(index.to_bytes(32, "big")), CTR(bytes(16))).encryptor()
        for start in range(0, count, len(chunk)):
            encryptor.update(chunk[: count - start])


def _random(name: str) -> Callable[[int], bytes]:
    return lambda count: hashlib.shake_256(name.encode()).digest(count)
