"""Policies side by side: the same data, network, settings and simulated time for each, over several seeds."""

from __future__ import annotations

import math
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from abaton.errors import SettingsError
from abaton.lab.experiment import Setting
from abaton.lab.federation_builder import data_of, make, right
from abaton.lab.run_history import History, history
from abaton.store import Store

POINTS = 25  # moments at which the community model is judged
Heard = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Trial:
    """One policy with one seed in one environment.

    Attributes:
        environment: what the setting is called.
        policy, seed: which run it is.
        curve: seconds of simulated time, and the accuracy of the newest community model then.
        seconds: how much time there was.
        versions: how many versions of the community model were made.
        told: what the journal tells of it.
        run: its name in the store.
    """

    environment: str
    policy: str
    seed: int
    curve: tuple[tuple[float, float], ...]
    seconds: float
    versions: int
    told: History
    run: str

    @property
    def accuracy(self) -> float:
        """The accuracy of the community model when the time is up."""
        return self.curve[-1][1]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds and how far its 95 % confidence interval reaches to either side; no reach with one seed."""

    mean: float
    reach: float | None
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """The mean and its 95 % confidence interval by Student's distribution.

    >>> made = interval([0.30, 0.32, 0.34])
    >>> round(made.mean, 3), round(made.reach, 4)
    (0.32, 0.0497)
    """
    if not values:
        raise SettingsError("there are no seeds", where="compare", remedy="give at least one seed")
    if len(values) < 2:
        return Interval(fmean(values), None, len(values))
    from scipy.stats import t

    reach = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), reach, len(values))


def compare(
    settings: Mapping[str, Setting],
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    folder: Path | None = None,
    heard: Heard | None = None,
) -> list[Trial]:
    """Run every policy with every seed in every setting.

    Args:
        settings: the environments by name.
        policies: by the paper's names.
        seeds: each decides first weights, shuffles, validation sets and, unless the setting pins it, the partition.
        folder: a store that keeps the runs; they are forgotten if not given.
        heard: is told after each run how it went.
    """
    for setting in settings.values():  # refuse before anything starts
        for policy in policies:
            make(setting, policy, seeds[0] if seeds else 0)
    made: list[Trial] = []
    for name, setting in settings.items():
        for seed in seeds:
            for policy in policies:
                with _store(folder) as store:
                    one = run(store, name, setting, policy, seed)
                made.append(one)
                if heard is not None:
                    heard(f"{name}, {policy}, seed {seed}: {one.accuracy:.3f}")
    return made


def run(store: Store, name: str, setting: Setting, policy: str, seed: int) -> Trial:
    """Run one policy, and judge its community model at moments that are the same for all."""
    federation = make(setting, policy, seed)
    ended = federation.run(store=store)
    row, models = ended.row, ended.versions
    seconds = federation.rules.seconds
    assert seconds is not None
    times = [model.at for model in models]
    moments = [seconds * k / (POINTS - 1) for k in range(POINTS)]
    newest = [models[bisect_right(times, moment) - 1] for moment in moments]
    chosen = [model.digest for model in newest]
    test = data_of(setting.task).test
    judged = {
        digest: right(federation.model, store.vectors.get(digest), test) for digest in dict.fromkeys(chosen)
    }
    curve = tuple((moment, judged[digest]) for moment, digest in zip(moments, chosen, strict=True))
    # Kept with the run, so that its report and 'abaton compare' need not judge again.
    progress = [
        {"version": model.version, "at": model.at, "accuracy": judged[model.digest]}
        for model in {model.version: model for model in newest}.values()
    ]
    store.finish_run(row.run, row.status, {**(row.result or {}), "progress": progress})
    told = history(store, row.run, federation.rules)
    return Trial(name, policy, seed, curve, seconds, models[-1].version, told, row.run)


def chosen(runs: Sequence[Trial], environment: str, policy: str) -> list[Trial]:
    """The runs of one policy in one environment, by seed."""
    found = [one for one in runs if (one.environment, one.policy) == (environment, policy)]
    return sorted(found, key=lambda one: one.seed)


def summary(runs: Sequence[Trial]) -> list[dict[str, Any]]:
    """One line for each environment and policy: accuracy with its interval, and what travelled, as means over seeds."""
    keys = dict.fromkeys((one.environment, one.policy) for one in runs)
    lines = []
    for environment, policy in keys:
        mine = chosen(runs, environment, policy)
        lines.append(
            {
                "environment": environment,
                "policy": policy,
                "accuracy": asdict(interval([one.accuracy for one in mine])),
                "values": [one.accuracy for one in mine],
                "seeds": [one.seed for one in mine],
                "seconds": mine[0].seconds,
                "versions": fmean(one.versions for one in mine),
                "requests": fmean(one.told.requests for one in mine),
                "exchanged": fmean(one.told.exchanged for one in mine),
                "evaluations": fmean(one.told.evaluations for one in mine),
            }
        )
    return lines


def gain(runs: Sequence[Trial], environment: str, one: str, other: str) -> Interval:
    """How much better one policy is than another, seed by seed, with its interval."""
    first, second = chosen(runs, environment, one), chosen(runs, environment, other)
    pairs = zip(first, second, strict=True)
    return interval([a.accuracy - b.accuracy for a, b in pairs])


def curves(runs: Sequence[Trial]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """For each environment and policy: simulated seconds, and the accuracy then, as a mean over seeds."""
    made: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for environment, policy in dict.fromkeys((one.environment, one.policy) for one in runs):
        points = zip(*(one.curve for one in chosen(runs, environment, policy)), strict=True)
        made.setdefault(environment, {})[policy] = [
            (point[0][0], fmean(accuracy for _, accuracy in point)) for point in points
        ]
    return made


@contextmanager
def _store(folder: Path | None) -> Iterator[Store]:
    if folder is not None:
        with Store(folder) as store:
            yield store
        return
    with tempfile.TemporaryDirectory(prefix="abaton-") as place, Store(Path(place)) as store:
        yield store
