"""What a bad learner does to the community model: accuracy with and without it, and how much it still counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from abaton.lab.experiment import Setting
from abaton.lab.federation_builder import make
from abaton.lab.strategy_comparison import Heard, Trial, compare, interval


@dataclass(frozen=True, slots=True)
class Judge:
    """A policy, and how it judges if it weighs by validation: by which measure, with the own validation set or not."""

    policy: str
    measure: str = "micro_f1"
    own: bool = True

    @property
    def words(self) -> str:
        """How it judges, in words."""
        if "DVW" not in self.policy:
            return "examples"
        return self.measure if self.own else f"{self.measure}, others only"


# The paper's weighting, and two that are stricter, each beside FedAvg at the same pacing.
JUDGES: Sequence[Judge] = tuple(
    judge
    for fedavg, dvw in (("SyncFedAvg", "SyncDVW"), ("AsyncFedAvg", "AsyncDVW(na)"))
    for judge in (Judge(fedavg), Judge(dvw), Judge(dvw, own=False), Judge(dvw, "mcc", own=False))
)
ATTACKS: Mapping[str, Mapping[int, str]] = {
    "flipped labels": {0: "flipped"},
    "noise": {0: "noise"},
    "flipped labels and noise": {0: "flipped", 2: "noise"},
}


def harm(
    setting: Setting,
    seeds: Sequence[int],
    *,
    judges: Sequence[Judge] = JUDGES,
    attacks: Mapping[str, Mapping[int, str]] = ATTACKS,
    folder: Path | None = None,
    heard: Heard | None = None,
) -> list[dict[str, Any]]:
    """One line for each attack and policy: accuracy without and with bad learners, the loss, and their weight.

    `share` is the largest share that a bad learner has of the weight of all newest models, as a mean over seeds;
    `limit` is 1/(2N). `against_fedavg` is the loss as a part of what the same attack costs FedAvg at the same pacing.
    """
    made: list[dict[str, Any]] = []
    for judge in judges:
        policy, mine = judge.policy, replace(setting, measure=judge.measure, own=judge.own, bad={})
        clean = compare({"clean": mine}, [policy], seeds, folder=folder, heard=heard)
        for attack, bad in attacks.items():
            spoilt = compare({attack: replace(mine, bad=bad)}, [policy], seeds, folder=folder, heard=heard)
            losses = [a.accuracy - b.accuracy for a, b in zip(clean, spoilt, strict=True)]
            made.append(
                {
                    "attack": attack,
                    "policy": policy,
                    "judged_by": judge.words,
                    "clean": asdict(interval([one.accuracy for one in clean])),
                    "poisoned": asdict(interval([one.accuracy for one in spoilt])),
                    "loss": asdict(interval(losses)),
                    "share": fmean(_share(one, setting, bad) for one in spoilt),
                    "limit": 1 / (2 * setting.world.learners),
                }
            )
    return [{**line, "against_fedavg": _against(line, made)} for line in _by_attack(made, attacks)]


def _by_attack(lines: Sequence[dict[str, Any]], attacks: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [line for attack in attacks for line in lines if line["attack"] == attack]


def _against(line: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> float | None:
    pacing = "Sync" if line["policy"].startswith("Sync") else "Async"
    for other in lines:
        if other["attack"] == line["attack"] and other["policy"] == f"{pacing}FedAvg":
            lost = other["loss"]["mean"]
            return line["loss"]["mean"] / lost if lost > 0 and other is not line else None
    return None


def _share(one: Trial, setting: Setting, bad: Mapping[int, str]) -> float:
    """The largest share of a bad learner in the last mix."""
    partition = make(setting, one.policy, one.seed).dossier.facts["partition"]
    by_size = sorted(partition["learners"], key=lambda line: -int(line["examples"]))
    names = [by_size[place]["learner"] for place in bad]
    shares = one.told.shares()
    return max(shares.get(name, 0.0) for name in names)
