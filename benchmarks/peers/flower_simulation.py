"""The common job under Flower's simulation engine. Usage: flower_simulation.py ROUNDS. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import job
import pytorch_loop
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

client, server = ClientApp(), ServerApp()
round_ends: list[float] = []
final_arrays: list[ArrayRecord] = []


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train one learner."""
    net = pytorch_loop.network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = pytorch_loop.all_examples()[int(context.node_config["partition-id"])]
    pytorch_loop.fit(net, x, y, job.BATCH, job.RATE)
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; the first two are not timed."""

    def record(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        round_ends.append(time.perf_counter())
        final_arrays[:] = [arrays]
        return None

    strategy = FedAvg(fraction_train=job.PARTICIPANTS / job.LEARNERS, fraction_evaluate=0.0)
    first = ArrayRecord(pytorch_loop.network().state_dict())
    strategy.start(grid, first, num_rounds=int(sys.argv[1]) + 2, evaluate_fn=record)


if __name__ == "__main__":
    rounds = int(sys.argv[1])
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=job.LEARNERS, backend_config=resources)
    arrays = [value.numpy() for value in final_arrays[0].to_torch_state_dict().values()]
    seconds = round_ends[-1] - round_ends[-1 - rounds]
    print(json.dumps({"seconds": seconds, "accuracy": job.accuracy(arrays), "version": version("flwr")}))
