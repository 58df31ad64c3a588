"""Check sums under kills and restarts: bit-equal to the clear sum, or closed exactly when they must be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from tests.secure_sum.in_process import (
    CrashError,
    CrashLog,
    InProcess,
    contributor,
    make_settings,
    opened_values,
    random_values,
    site_names,
)

from abaton.errors import RefusedError
from abaton.secure_sum import FileLog, MaskedInput, MemoryLog, RevealRequest, SumCentre, SumContext, SumPhase


class Scenario:
    """Several sums of one run. Sites are killed at random messages; every party may restart at every message."""

    def __init__(self, n: int, c: int, seed: int, *, fixed_groups: bool, make_log=None) -> None:
        self.rng = np.random.default_rng(seed)
        options = {"make_log": make_log} if make_log else {}
        self.parties = InProcess(make_settings(n, c, fixed_groups=fixed_groups), seed=seed, **options)
        self.settings = self.parties.settings
        self.to_kill: list[str] = []
        self.kill_fraction = 0.0

    def disturb(self, *parties: str) -> None:
        """Between two messages: kill the next site, or let a party die in its next transaction."""
        if self.to_kill and self.rng.random() < self.kill_fraction:
            self.parties.alive.discard(self.to_kill.pop())
        for party in parties:
            if self.rng.random() < 0.3:
                self.parties.crash(party, str(self.rng.choice(["before", "after"])))

    def enrol(self) -> None:
        for party in ("centre", *self.settings.sites):
            self.disturb(party)
        self.parties.enrol()

    def sum_once(self, version: int) -> tuple[SumPhase | None, SumContext | None]:
        """One sum until nothing moves any more; the centre excludes sites that are dead."""
        parties = self.parties
        parties.alive = set(self.settings.sites)
        self.to_kill = list(self.rng.permutation(site_names(len(self.settings.sites))))
        self.to_kill = self.to_kill[: self.rng.integers(0, len(self.to_kill) + 1)]
        self.kill_fraction = float(self.rng.choice([0.02, 0.1, 0.3]))
        for site in self.settings.sites:
            self.disturb(site)
            if site in parties.alive:
                parties.record(site, random_values(self.rng), version)
        recorded = {site for site in self.settings.sites if (site, f"train-{version}") in parties.values}
        while True:
            candidates = self.allowed(recorded & parties.alive)
            if len(candidates) < self.settings.min_sites:
                return None, None
            context = parties.begin(sorted(candidates), version)
            phase = self.ask(context)
            if phase is not SumPhase.COLLECTING:
                return phase, context
            parties.at_centre(lambda c: c.abandon(context))  # noqa: B023

    def allowed(self, sites: set[str]) -> set[str]:
        if not self.settings.fixed_groups:
            return sites
        return set().union(*(group for group in self.settings.groups if group <= sites))

    def ask(self, context: SumContext) -> SumPhase:
        parties = self.parties
        while True:
            answered = False
            self.disturb("centre")
            requests = parties.at_centre(lambda c: c.requests(context))
            for index in self.rng.permutation(len(requests)):
                request = requests[index]
                self.disturb("centre", request.site)
                message = parties.answer(request)
                if message is None or self.rng.random() < 0.1:  # dead, or the answer is lost
                    answered |= message is not None
                    continue
                parties.deliver(message)
                if self.rng.random() < 0.1:
                    parties.deliver(message)
                answered = True
            if not answered:
                return parties.at_centre(lambda c: c.phase(context))


def run_scenario(scenario: Scenario, sums: int) -> tuple[int, int]:
    """Return how many sums were opened and how many stayed closed; check each."""
    scenario.enrol()
    parties, opened, closed = scenario.parties, 0, 0
    for version in range(1, sums + 1):
        phase, context = scenario.sum_once(version)
        if phase is SumPhase.OPENED:
            assert opened_values(parties, context) == parties.clear_sum(context)
            opened += 1
        elif phase is None:  # too few contributors were left before anything was opened
            task = f"train-{version}"
            left = {site for site in parties.alive if (site, task) in parties.values}
            assert len(scenario.allowed(left)) < scenario.settings.min_sites
            closed += 1
        else:  # too few holders were left while it was being opened
            assert phase is SumPhase.OPENING
            assert len(parties.alive) < scenario.settings.threshold
            closed += 1
            # When they are back, the same sum opens.
            if scenario.rng.random() < 0.5:
                parties.alive = set(scenario.settings.sites)
                assert scenario.ask(context) is SumPhase.OPENED
                assert opened_values(parties, context) == parties.clear_sum(context)
    return opened, closed


CASES = [(4, 1), (7, 1), (10, 1), (10, 3)]


def run_scenarios(n: int, c: int, *, repeats: int, sums: int, seed: int) -> tuple[int, int, int]:
    opened = closed = restarts = 0
    for repeat in range(repeats):
        scenario = Scenario(n, c, seed + 1000 * n + 10 * c + repeat, fixed_groups=bool(repeat % 2))
        one, none = run_scenario(scenario, sums)
        opened, closed, restarts = opened + one, closed + none, restarts + scenario.parties.restarts
    return opened, closed, restarts


@pytest.mark.parametrize(("n", "c"), CASES)
def test_kills_and_restarts_at_any_message(n, c):
    opened, closed, restarts = run_scenarios(n, c, repeats=8, sums=7, seed=1)
    assert opened + closed == 56
    assert opened >= 20
    assert closed >= 8
    assert restarts > 200


@pytest.mark.slow
def test_kills_and_restarts_at_any_message_of_thousands_of_sums():
    totals = [run_scenarios(n, c, repeats=60, sums=8, seed=10_000) for n, c in CASES]
    opened, closed, restarts = (sum(column) for column in zip(*totals, strict=True))
    assert opened + closed == 4 * 60 * 8
    assert opened >= 1000
    assert closed >= 500
    assert restarts >= 10_000


def test_kills_and_restarts_over_files(tmp_path):
    opened = closed = 0
    for number, (n, c) in enumerate([(4, 1), (7, 1)]):
        folder = tmp_path / str(number)
        scenario = Scenario(
            n,
            c,
            77 + n,
            fixed_groups=False,
            make_log=lambda name, folder=folder: FileLog(folder / name / "sums.db"),
        )
        one, none = run_scenario(scenario, 4)
        opened, closed = opened + one, closed + none
    assert opened >= 3
    assert opened + closed == 8


class CountingLog(CrashLog):
    """Crashes in the transaction with a given number."""

    number, count, when = -1, 0, "before"

    def transaction(self):
        self.crash = self.when if self.count == self.number else ""
        self.count += 1
        return super().transaction()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("party", ["centre", "site-00", "site-02"])
def test_a_crash_in_every_single_transaction(party, when):
    number, reached = 0, True
    while reached:
        parties = InProcess(make_settings(4))
        log = CountingLog(parties.logs[party].inner)
        log.when, log.number = when, number
        parties.logs[party] = log
        if party == "centre":
            parties.centre = _restarted(lambda: SumCentre(parties.settings, log))  # noqa: B023
        else:
            parties.sites[party] = _restarted(lambda: parties.make_site(party))  # noqa: B023
        parties.enrol()
        parties.record_all(np.random.default_rng(0))
        context = parties.run(parties.begin())
        assert opened_values(parties, context) == parties.clear_sum(context)
        reached = log.count > number
        number += 1
    assert number >= (20 if party == "centre" else 5)


def _restarted(make):
    try:
        return make()
    except CrashError:
        return make()


class SnapshotLog(MemoryLog):
    """Keeps a copy after every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[MemoryLog] = []

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "attachments" and hasattr(self, "snapshots"):
            copy = MemoryLog()
            copy.events, copy.attachments = list(self.events), dict(self.attachments)
            self.snapshots.append(copy)


def test_the_centre_resumes_from_every_prefix_of_its_log():
    log = SnapshotLog()
    parties = InProcess(
        make_settings(4, fixed_groups=False),
        make_log=lambda name: log if name == "centre" else MemoryLog(),
    ).enrol()
    parties.record_all(np.random.default_rng(0))
    first = parties.begin()
    parties.step(parties.centre.requests(first)[0])
    parties.centre.abandon(first)
    context = parties.run(parties.begin())
    expected = opened_values(parties, context)
    assert expected == parties.clear_sum(context)
    prefixes = {len(copy.events): copy for copy in log.snapshots}
    assert len(prefixes) > 15
    for copy in prefixes.values():
        parties.logs["centre"] = CrashLog(deepcopy(copy))
        parties.centre = SumCentre(parties.settings, parties.logs["centre"])
        if parties.centre.state.directory is None:
            parties.enrol()
        # Sites are ahead of the centre, so every answer is a repetition.
        again = parties.run(parties.begin())
        assert again.digest == context.digest
        assert opened_values(parties, again) == expected


def test_two_processes_of_a_site_share_what_was_opened(tmp_path):
    parties = InProcess(
        make_settings(4, fixed_groups=False), make_log=lambda name: FileLog(tmp_path / f"{name}.db")
    ).enrol()
    parties.record_all(np.random.default_rng(0))
    other = parties.make_site("site-00")
    four = parties.begin()
    masked = other.mask(four)
    assert parties.sites["site-00"].mask(four) == masked
    parties.run(four)
    centre = SumCentre(parties.settings, MemoryLog())
    for advertisement in parties.centre.state.directory.advertisements:
        centre.accept_key(advertisement)
    centre.fix_directory()
    three = centre.begin("train", [contributor(site) for site in site_names(3)], four.segments)
    with pytest.raises(RefusedError, match="opened in another context"):
        other.mask(three)
    with pytest.raises(RefusedError, match="has not masked"):
        other.reveal(RevealRequest("site-00", three, (bytes(32),) * 3))


WORKER = """
import hashlib, os, signal, sys
import numpy as np
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.secure_sum.in_process import InProcess, make_settings, opened_values
from abaton.secure_sum import FileLog, LogTransaction

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(seed)
import sqlite3
real = sqlite3.connect

class Killed(sqlite3.Connection):
    def execute(self, *arguments):
        if rng.random() < float(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*arguments)

sqlite3.connect = lambda *a, **k: real(*a, factory=Killed, **k)
parties = InProcess(make_settings(4), make_log=lambda name: FileLog(folder / f"{{name}}.db")).enrol()
parties.record_all(np.random.default_rng(0))
context = parties.run(parties.begin())
assert opened_values(parties, context) == parties.clear_sum(context)
print(hashlib.sha256(repr(opened_values(parties, context)).encode()).hexdigest())
"""


@pytest.mark.slow
def test_killed_processes_resume_from_their_files(tmp_path):
    """All parties in one process that is killed by SIGKILL at random statements, until the sum is open."""
    root = str(Path(__file__).resolve().parents[2])
    kills, results = 0, set()
    for repeat in range(4):
        folder = tmp_path / str(repeat)
        for attempt in range(60):
            fraction = "0.004" if attempt < 59 else "0"
            command = [
                sys.executable,
                "-c",
                WORKER.format(root=root),
                str(folder),
                str(100 * repeat + attempt),
                fraction,
            ]
            ended = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
            if ended.returncode == 0:
                results.add(ended.stdout)
                break
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            kills += 1
    assert len(results) == 1
    assert kills >= 4


def test_inputs_survive_their_byte_form_in_the_log():
    parties = InProcess(make_settings(4)).enrol()
    parties.record_all(np.random.default_rng(0))
    context = parties.begin()
    masked = parties.sites["site-00"].mask(context)
    assert MaskedInput.from_bytes(masked.head_bytes()).head_bytes() == masked.head_bytes()
