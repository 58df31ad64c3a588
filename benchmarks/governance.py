"""Governance: the consents of 100,000 subjects, as many rows of the mapping table, sealing, audit, the intake.

The vault seals each row to the data controller's key, so the limit is the cost of HPKE; both are measured in one
run. The intake is a process on loopback with a few concurrent senders; each envelope has a consent, chunks and a
receipt. A missing or wrong receipt counts as lost. The database is SQLite with full durability.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from abaton.benchmark import BenchmarkResult, at_least, at_most, best_seconds
from abaton.deid.mapping_table import MappingRow
from abaton.governance import (
    AuditEntry,
    AuditLog,
    ConsentAction,
    ConsentQuery,
    ConsentRegistry,
    EnvelopeHeader,
    Inbox,
    KeySet,
    SenderRegistry,
    SenderRole,
    Vault,
    inspect_envelope,
    make_consent,
    metadata,
    open_envelope,
    seal,
    take_snapshot,
    verifier,
    verify,
)
from abaton.governance.identifiers import registry_pseudonym
from abaton.governance.key_files import encrypt_key_set, write_key_set
from abaton.governance.signed_statements import read_receipt
from abaton.governance.timestamps import to_timestamp
from abaton.site import CentreClient, FhirHttpClient
from abaton.store import Database

ROWS, BATCH, LOOKUPS = 100_000, 1_000, 2_000
SUBJECTS = 100_000
SENDERS, ENVELOPES, CHUNK_BYTES = 4, 25, 1 << 16
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = bytes(range(32))


def run() -> list[BenchmarkResult]:
    """Run all measurements."""
    with tempfile.TemporaryDirectory() as folder:
        key_set = KeySet.new("controller", secrets.token_bytes, "2026-01-01T00:00:00.000Z")
        data_dir = Path(folder)
        return [
            *_consents(data_dir),
            *_vault(data_dir, key_set),
            *_seal(key_set),
            *_audit(data_dir),
            *_intake(data_dir),
        ]


def _cpu(call: Callable[[], object]) -> float:
    """Return the least CPU seconds of three calls."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def _consents(folder: Path) -> list[BenchmarkResult]:
    """Measure a registry of 100,000 subjects: enrolment, query of eligible subjects, and the snapshot of a round."""
    (folder / "consents").mkdir()
    with Database(folder / "consents" / "consents.db", metadata) as database:
        registry = ConsentRegistry(database)
        registry.publish("bench", "ab" * 32, NOW, ends=None, keep_until=None)
        subjects = {
            registry_pseudonym(KEY, "subject", str(i)): NOW + timedelta(days=30 + i % 300)
            for i in range(SUBJECTS)
        }
        start = time.perf_counter()
        registry.enrol(subjects, "bench", "ab" * 32, NOW)
        enrolled = time.perf_counter() - start
        start = time.perf_counter()
        _, eligible = registry.eligible_subjects("bench", ConsentAction.TRAIN, NOW)
        first = time.perf_counter() - start
        assert len(eligible) == SUBJECTS
        repeated = best_seconds(
            lambda: registry.eligible_subjects("bench", ConsentAction.TRAIN, NOW), repeats=20
        )
        cohort, withdrawing = tuple(sorted(subjects)), iter(subjects)
        snapshot = take_snapshot(registry, "bench", ConsentAction.TRAIN, NOW, cohort)
        unchanged_round = best_seconds(
            lambda: take_snapshot(registry, "bench", ConsentAction.TRAIN, NOW, cohort, snapshot)
        )
        query_seconds, snapshot_seconds = [], []
        for withdrawn in range(1, 8):
            registry.withdraw(next(withdrawing), "bench", NOW)
            start = time.perf_counter()
            _, eligible = registry.eligible_subjects("bench", ConsentAction.TRAIN, NOW)
            query_seconds.append(time.perf_counter() - start)
            assert len(eligible) == SUBJECTS - withdrawn
            start = time.perf_counter()
            snapshot = take_snapshot(registry, "bench", ConsentAction.TRAIN, NOW, cohort, snapshot)
            snapshot_seconds.append(time.perf_counter() - start)
        later = NOW + timedelta(days=31)
        start = time.perf_counter()
        registry.eligible_subjects("bench", ConsentAction.TRAIN, later)
        expired = time.perf_counter() - start
    return [
        at_least(
            "consents: 100,000 subjects enrolled in one transaction", SUBJECTS / enrolled, 5_000, "subjects/s"
        ),
        BenchmarkResult("consents: first query, all subjects evaluated", first * 1e3, "ms"),
        at_most("consents: eligible of 100,000 subjects, nothing changed", repeated * 1e3, 1, "ms"),
        at_most(
            "consents: eligible of 100,000 subjects, after a withdrawal", min(query_seconds) * 1e3, 20, "ms"
        ),
        BenchmarkResult(
            "consents: eligible of 100,000 subjects, a day's consents expired", expired * 1e3, "ms"
        ),
        BenchmarkResult(
            "consents: cohort of a round of 100,000, nothing changed", unchanged_round * 1e3, "ms"
        ),
        BenchmarkResult(
            "consents: cohort of a round of 100,000, after a withdrawal", min(snapshot_seconds) * 1e3, "ms"
        ),
    ]


def _rows(start: int, count: int) -> list[MappingRow]:
    return [
        MappingRow(
            "bench",
            registry_pseudonym(KEY, "row", str(i)),
            f"P{i:025d}",
            f"https://hospital.example/fhir/{i}",
        )
        for i in range(start, start + count)
    ]


def _vault(folder: Path, key_set: KeySet) -> list[BenchmarkResult]:
    vault = Vault(folder / "vault.db", folder / "keys.db", key_set.public.sealing_key, secrets.token_bytes)
    batches = [_rows(start, BATCH) for start in range(0, ROWS, BATCH)]
    wrap = _cpu(lambda: [key_set.public.sealing_key.wrap(KEY, b"context") for _ in range(500)]) / 500
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        vault.add_many(batch)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    tags = [registry_pseudonym(KEY, "row", str(i * (ROWS // LOOKUPS))) for i in range(LOOKUPS)]
    look_up = _cpu(lambda: [vault.find("bench", t) for t in tags]) / LOOKUPS
    row = vault.row("bench", tags[1])
    assert row is not None
    opening = best_seconds(lambda: vault.open(row, key_set), repeats=3, inner=100)
    single_insert = best_seconds(lambda: vault.add(_rows(ROWS + secrets.randbelow(10**9), 1)[0]), repeats=20)
    start = time.perf_counter()
    vault.destroy_key("bench", tags[1])
    vault.destroy_row("bench", tags[1])
    deletion_seconds = time.perf_counter() - start
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / ROWS
    vault.close()
    return [
        BenchmarkResult("vault: insert, 100,000 rows in batches of 1,000, wall", ROWS / wall, "rows/s"),
        at_least("vault: insert, 100,000 rows in batches of 1,000, CPU", ROWS / cpu, 2_000, "rows/s"),
        at_most("vault: insert over HPKE only, CPU", cpu / ROWS / wrap, 4, "x"),
        at_least("vault: look-up among 100,000 rows, CPU", 1 / look_up, 2_000, "rows/s"),
        BenchmarkResult("vault: insert of one row, durable", single_insert * 1e3, "ms"),
        BenchmarkResult("vault: read one row with the private key", opening * 1e6, "us"),
        BenchmarkResult("vault: destroy key and row among 100,000, scrubbed", deletion_seconds, "s"),
        BenchmarkResult("vault: size on disk", size, "bytes/row"),
    ]


def _seal(key_set: KeySet) -> list[BenchmarkResult]:
    line = b'{"id":"%s","resourceType":"Observation","status":"final","valueQuantity":{"value":%d}}\n'
    names = [registry_pseudonym(KEY, "id", str(i)).encode() for i in range(80_000)]
    content = b"".join(line % (name, i * i % 997) for i, name in enumerate(names))
    sender = KeySet.new("site", secrets.token_bytes, "2026-01-01T00:00:00.000Z")
    to = key_set.public.sealing_key
    header = EnvelopeHeader(
        "bench", "ab" * 32, sender.signing_key.id, to.id, 1, "", "2026-01-01T00:00:00.000Z"
    )
    data = b"".join(seal([content], header, sender.signing_key, to, KEY))
    sealing = _cpu(lambda: sum(map(len, seal([content], header, sender.signing_key, to, KEY))))
    opening = _cpu(lambda: sum(1 for _ in open_envelope([data], key_set, sender.public.key)))
    inspecting = _cpu(lambda: inspect_envelope([data], sender.public.key))
    megabytes = len(content) / 1e6
    return [
        at_least("seal: throughput of content", megabytes / sealing, 50, "MB/s"),
        at_least("seal: opening, throughput of content", megabytes / opening, 50, "MB/s"),
        BenchmarkResult(
            "seal: checking an envelope without opening it", len(data) / 1e6 / inspecting, "MB/s"
        ),
        at_most("seal: sealed size over content", len(data) / len(content), 0.5, "x"),
    ]


def _audit(folder: Path) -> list[BenchmarkResult]:
    with Database(folder / "audit.db", metadata) as database:
        audit, count = AuditLog(database), 1_000
        start = time.perf_counter()
        for i in range(count):
            audit.append(AuditEntry("data-retrieved", detail={"number": i}), NOW)
        wall = time.perf_counter() - start
        checking = _cpu(lambda: verify(audit.rows()))
    return [
        BenchmarkResult("audit: entries written one by one, durable", count / wall, "entries/s"),
        at_least("audit: entries verified", count / checking, 10_000, "entries/s"),
    ]


def _intake(folder: Path) -> list[BenchmarkResult]:
    """Measure concurrent senders with their own subjects: consents, envelopes in two chunks, receipts."""
    now = to_timestamp(datetime.now(UTC))
    centre = KeySet.new("centre", secrets.token_bytes, now)
    write_key_set(folder / "centre.keys", encrypt_key_set(centre, b"benchmark", secrets.token_bytes, n=16))
    sites = [KeySet.new(f"site-{i}", secrets.token_bytes, now) for i in range(SENDERS)]
    with Database(folder / "centre.db", metadata) as database:
        for site in sites:
            SenderRegistry(database).register(site.public, SenderRole.SITE, datetime.now(UTC))
        ConsentRegistry(database).publish("bench", "ab" * 32, datetime.now(UTC), ends=None, keep_until=None)
    arguments = [sys.executable, str(Path(__file__).with_name("_intake_server.py")), str(folder)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            threads = [_SenderThread(address, centre, site, folder) for site in sites]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wall = time.perf_counter() - start
        finally:
            server.terminate()
    seconds = sorted(second for thread in threads for second in thread.seconds)
    receipts = sum(thread.receipts for thread in threads)
    with Database(folder / "centre.db", metadata) as database:
        inbox = Inbox(folder / "inbox", database, centre.public, centre.signing_key)
        stored = len(inbox.received("bench"))
    lost = SENDERS * ENVELOPES - min(receipts, stored)
    return [
        BenchmarkResult("intake: requests p50, 4 concurrent senders", seconds[len(seconds) // 2] * 1e3, "ms"),
        at_most(
            "intake: requests p99, 4 concurrent senders", seconds[len(seconds) * 99 // 100] * 1e3, 2_000, "ms"
        ),
        BenchmarkResult("intake: requests", len(seconds) / wall, "requests/s"),
        BenchmarkResult(
            "intake: envelopes of 100 kB with consent and receipt", receipts / wall, "envelopes/s"
        ),
        at_most("intake: receipts lost", lost, 0, "receipts"),
    ]


class _SenderThread(threading.Thread):
    """Sender with its subjects."""

    def __init__(self, address: str, centre: KeySet, site: KeySet, folder: Path) -> None:
        super().__init__()
        self.site, self.centre, self.folder = site, centre, folder
        self.web = FhirHttpClient(address, keep_alive=True)
        self.client = CentreClient(self.web, centre.public, site.signing_key, chunk_bytes=CHUNK_BYTES)
        self.seconds: list[float] = []
        self.receipts = 0
        request = self.client.request

        def timed(
            method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
        ) -> dict[str, Any]:
            start = time.perf_counter()
            response = request(method, target, body, headers)
            self.seconds.append(time.perf_counter() - start)
            return response

        self.client.request = timed  # type: ignore[method-assign]

    def run(self) -> None:
        find_key, to = verifier([self.centre.public.signing_key]), self.centre.public.sealing_key
        for number in range(ENVELOPES):
            subject, now = registry_pseudonym(KEY, self.site.public.name, str(number)), datetime.now(UTC)
            for query in (ConsentQuery(subject), ConsentQuery(subject, "bench", "ab" * 32)):
                self.client.consent(make_consent(query, now, None))
            header = EnvelopeHeader(
                "bench", "ab" * 32, self.site.signing_key.id, to.id, number, subject, to_timestamp(now)
            )
            content = [secrets.token_bytes(100_000)]
            data = b"".join(seal(content, header, self.site.signing_key, to, secrets.token_bytes(32)))
            path = self.folder / f"{subject}.sealed"
            path.write_bytes(data)
            inspected = inspect_envelope([data], self.site.public.key)
            receipt = read_receipt(self.client.upload(path, inspected.digest, inspected.size), find_key)
            self.receipts += (receipt.digest, receipt.sequence) == (inspected.digest, number)
        self.web.close()
