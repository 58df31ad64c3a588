"""Flower's own FedAvg for the network benchmark: the same model, trained by the same learner on the same nodes.

Flower starts a process for each message that imports this file, so what is heavy is imported where it is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from abaton.engines.flower import Parcel, Place
from abaton.engines.flower.centre import read_admitted
from abaton.engines.flower.resident import ask


class Trainers:
    """Flower's grid without the nodes that evaluate."""

    def __init__(self, grid: Any, centre: Path) -> None:
        self._grid = grid
        self._nodes = {node for node, (_, role) in read_admitted(centre).items() if role == "train"}

    def get_node_ids(self) -> list[int]:
        """Those that train."""
        return [node for node in self._grid.get_node_ids() if node in self._nodes]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        """As Flower does it."""
        return self._grid.send_and_receive(messages, timeout=timeout)


def serve(grid: Any, context: Any) -> None:
    """The strategy: as many rounds as ours, all nodes that train in each, nothing evaluated at a site."""
    from _network_app import MODEL, SITES, Marks
    from flwr.app import ArrayRecord, MetricRecord
    from flwr.serverapp.strategy import FedAvg

    told = json.loads(context.run_config["about"])
    marks = Marks(told)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=len(SITES), min_available_nodes=len(SITES))

    def mark(_: int, arrays: Any) -> Any:
        (vector,) = arrays.to_numpy_ndarrays()
        return MetricRecord(marks.add(vector))

    strategy.start(
        Trainers(grid, Path(told["centre"])),
        ArrayRecord([MODEL.initial(0)]),
        num_rounds=told["rounds"],
        evaluate_fn=mark,
    )
    marks.write()


def train(message: Any, context: Any) -> Any:
    """A training: at the desk that stays, as ours; or in this process, as Flower's apps do."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    told = json.loads(context.run_config["about"])
    (vector,) = message.content["arrays"].to_numpy_ndarrays()
    about = {"version": message.content["config"]["server-round"]}
    asked = Parcel("fedavg", about, {"model": vector.tobytes()})
    if told["desk"]:
        answer = ask(str(context.node_config["socket"]), asked)
    else:
        from _network_app import AnyRun

        site, role = read_admitted(Path(told["centre"]))[context.node_id]
        answer = AnyRun(site, Place(role, Path(told["store"]))).answer(asked)
    arrays = ArrayRecord([np.frombuffer(answer.blobs["model"], np.float32)])
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(answer.about)}), reply_to=message)
