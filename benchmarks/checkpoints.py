"""What a crash costs: a run of 2,000 commits on local processes, killed by SIGKILL at 20 places and gone on with.

The run is lived once undisturbed. Then the same run is begun in a process that is killed at the first place; a new
process goes on and is killed at the second one, and so forth. Each is timed from the moment at which it is told to go
on until the first new update has arrived, and compared with the time of the undisturbed run. Processes are forked from
one that has loaded everything, so that the loading of Python and its packages is not in it.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from abaton.benchmark import Measure, at_most, best_seconds
from abaton.codecs import parse
from abaton.controller import Arrived, Asynchronous, Event, Rules, State, Synchronous, TrainSettings
from abaton.controller.aggregation import Newest
from abaton.engines import EVERY, Checkpoints
from abaton.engines.checkpoint import SHARE, Checkpoint
from abaton.federation import Federation, Run
from abaton.learners import Examples, mlp, train_model
from abaton.store import Store, head
from abaton.kernels import Layout, Role, Tensor

COMMITS, LEARNERS, ROWS, PLACES = 2000, 4, 800, 20
SHORT, REPEATS = 400, 4
PARAMETERS, MODELS = 1_690_046, 20
TRAINING = TrainSettings(epochs=4, batch_size=32, learning_rate=0.05)
MODEL = mlp(features=64, classes=10, hidden=(32,))


def run() -> list[Measure]:
    """The longest and the mean time to go on, as shares of the run's time; what checkpoints cost if nothing fails."""
    sites = _sites()
    for data in sites.values():  # what is compiled before a fork is not compiled in every child
        train_model(MODEL, MODEL.initial(0), data, TRAINING, np.random.default_rng(0))
    made = []
    for name, pacing in (("synchronous", Synchronous()), ("asynchronous", Asynchronous())):
        each = LEARNERS if name == "synchronous" else 1
        made += _crashes(
            name, Federation(MODEL, sites, Rules(rounds=COMMITS // each, pacing=pacing, training=TRAINING))
        )
    return [*made, *_cost(sites), *_large()]


def _crashes(name: str, federation: Federation) -> list[Measure]:
    rounds = federation.rules.rounds
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        whole = _in_a_child(lambda: _seconds(lambda: _live(federation, place, "whole")))
        taken = []
        for turn in range(PLACES + 1):
            version = (turn + 1) * rounds // (PLACES + 1) if turn < PLACES else rounds + 1
            going_on = _GoingOn(place, version, turn % 7)
            told = _in_a_child(lambda watch=going_on: _live(federation, place, "killed", watch=watch))
            assert (told < 0) == (turn < PLACES), "a process was not killed where it should have been"
            taken += [float(going_on.told.read_text())] if turn else []
            going_on.told.unlink(missing_ok=True)
        if name == "asynchronous":
            without = _from_the_journal(federation, place)
        with Store(place) as store:
            ends = {Run(store, run).versions[-1].digest for run in ("whole", "killed")}
    what = f"{name}, {COMMITS:,} commits of {LEARNERS} learners, killed at {PLACES} places"
    unit = "% of the run's time"
    made = [
        at_most(f"{what}: longest time to go on", 100 * max(taken) / whole, 5.0, unit),
        Measure(f"{what}: mean time to go on", 100 * sum(taken) / len(taken) / whole, unit),
        Measure(f"{what}: the run", whole, "s"),
    ]
    if name == "synchronous":
        made.append(at_most(f"{what}: other final models than undisturbed", len(ends) - 1, 0, "models"))
    else:
        made.append(Measure("the same without checkpoints, killed at the end", 100 * without / whole, unit))
    return made


def _from_the_journal(federation: Federation, place: Path) -> float:
    """How long it takes to go on from the whole journal of a run that was killed near its end."""
    last = federation.rules.rounds
    assert _in_a_child(lambda: _live(federation, place, "journal", _GoingOn(place, last - 1, 0), 0)) < 0
    going_on = _GoingOn(place, last + 1, 0)
    _in_a_child(lambda: _live(federation, place, "journal", going_on, 0))
    return float(going_on.told.read_text())


class _GoingOn:
    """Writes down when the first new update came, and kills this process some events after a version.

    Args:
        folder: The store's.
        version: The version.
        later: How many events after it was published.
    """

    def __init__(self, folder: Path, version: int, later: int) -> None:
        self.told = folder / "went-on"
        self._version, self._later, self._lived = version, later, 0.0
        self._begun: float | None = None

    def begin(self, lived: float) -> None:
        """The process begins to go on with a run that has lived so long."""
        self._begun, self._lived = time.perf_counter(), lived

    def __call__(self, state: State, event: Event) -> None:
        if self._begun is not None and isinstance(event, Arrived) and event.at > self._lived:
            self.told.write_text(str(time.perf_counter() - self._begun))
            self._begun = None
        if state.version >= self._version:
            self._later -= 1
            if self._later < 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _live(
    federation: Federation,
    folder: Path,
    run: str,
    watch: _GoingOn | None = None,
    checkpoints: int = EVERY,
) -> float:
    with Store(folder) as store:
        if watch is not None:
            watch.begin(head(store, run).at if store.known(run) else 0.0)
        federation.run(run, store=store, engine="local", watch=watch, checkpoints=checkpoints)
    return 0.0


def _cost(sites: dict[str, Examples]) -> list[Measure]:
    """Short runs with and without checkpoints, in turns; the best of each."""
    federation = Federation(MODEL, sites, Rules(rounds=SHORT, pacing=Asynchronous(), training=TRAINING))
    spent: dict[int, list[tuple[float, float]]] = {0: [], EVERY: []}
    for turn in range(2 * REPEATS):
        every = (0, EVERY)[turn % 2]
        with tempfile.TemporaryDirectory() as folder:
            spent[every].append(_spent(federation, Path(folder), every))
    without, with_them = (np.min(spent[every], axis=0) for every in (0, EVERY))
    processor, clock = with_them / without
    name = f"asynchronous, {SHORT} commits with checkpoints"
    return [
        at_most(f"{name}: processor time of all processes", float(processor), 1.05, "x without them"),
        Measure(f"{name}: time", float(clock), "x without them"),
    ]


def _spent(federation: Federation, folder: Path, every: int) -> tuple[float, float]:
    """Seconds that all processes of a run computed, and that it took."""
    before = os.times()
    seconds = _in_a_child(lambda: _seconds(lambda: _live(federation, folder, "r", checkpoints=every)))
    after = os.times()
    system = after.children_system - before.children_system
    return after.children_user - before.children_user + system, seconds


def _large() -> list[Measure]:
    """A checkpoint of the newest models of some learners, of the size of the SSTC paper's network."""
    layout = Layout([Tensor("weight", (PARAMETERS,), Role.DENSE)])
    mix, again = (Newest(layout, parse("raw"), layout.zeros()) for _ in range(2))
    model = np.random.default_rng(0).normal(size=PARAMETERS).astype(np.float32)
    for learner in range(MODELS):
        mix.replace(f"learner{learner}", model, 1.0)
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints(Path(folder))
        writing = best_seconds(lambda: kept.write(Checkpoint(1, "", {"mix": mix.save()})), repeats=3)
        size = kept.path.stat().st_size
        reading = _seconds(lambda: again.load(kept.read().parts["mix"]))  # type: ignore[union-attr]
    what = f"a checkpoint of {MODELS} newest models of 1.69 million parameters"
    return [
        Measure(f"{what}: its size", 1e-6 * size, "MB"),
        Measure(f"{what}: writing it", writing, "s"),
        Measure(f"{what}: the shortest time between two of them", writing / SHARE, "s"),
        Measure(f"{what}: reading it and taking it over", reading, "s"),
    ]


def _in_a_child(work: Callable[[], float]) -> float:
    """What some work in a process of its own says; less than nothing if the process was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            os.write(writing, str(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return -1.0
    assert status == 0, "a process failed"
    return float(said)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _sites() -> dict[str, Examples]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 64))
    sites = {}
    for i in range(LEARNERS):
        y = rng.integers(0, 10, ROWS)
        sites[f"learner{i}"] = Examples((centres[y] + rng.normal(size=(ROWS, 64))).astype(np.float32), y)
    return sites
