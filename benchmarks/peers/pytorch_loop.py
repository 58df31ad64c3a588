"""A PyTorch loop without a framework: training and averaging only.

Usage: pytorch_loop.py table ROUNDS | pytorch_loop.py images LEARNERS EXAMPLES THREADS. Prints one line of JSON.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import job
import numpy as np
import torch
from torch import nn


def network() -> nn.Sequential:
    """Return the small network with the job's initial weights."""
    net = nn.Sequential(nn.Linear(job.FEATURES, job.HIDDEN), nn.ReLU(), nn.Linear(job.HIDDEN, job.CLASSES))
    load_arrays(net, job.initial())
    return net


def load_arrays(net: nn.Module, arrays: Sequence[np.ndarray]) -> None:
    """Load arrays into a network."""
    names = net.state_dict().keys()
    net.load_state_dict({n: torch.tensor(a) for n, a in zip(names, arrays, strict=True)})


def fit(net: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, rate: float) -> None:
    """Train one epoch of shuffled batches."""
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    for rows in torch.randperm(len(y)).split(batch):  # type: ignore[no-untyped-call]
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


@functools.cache
def all_examples() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return all learners' data, created once per process."""
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in job.sites()[: job.LEARNERS]]


def table(rounds: int) -> dict[str, Any]:
    """Run federated averaging of the small network."""
    torch.manual_seed(0)
    data = all_examples()
    net = network()
    community = {name: value.clone() for name, value in net.state_dict().items()}
    fit(net, *data[0], job.BATCH, job.RATE)  # the first step of PyTorch is not timed
    start, cpu_start = time.perf_counter(), time.process_time()
    for names in job.sample_rounds(rounds):
        trained = []
        for name in names:
            net.load_state_dict(community)
            fit(net, *data[name], job.BATCH, job.RATE)
            trained.append({key: value.clone() for key, value in net.state_dict().items()})
        community = {key: torch.stack([t[key] for t in trained]).mean(0) for key in community}
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    accuracy = job.accuracy([value.numpy() for value in community.values()])
    return {"seconds": seconds, "cpu": cpu, "accuracy": accuracy, "version": torch.__version__}


def images(learners: int, examples: int, threads: int) -> dict[str, Any]:
    """Train the convolutional network of the SSTC paper for one learner after the other; send nothing."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Linear(512, 62),
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # fmt: skip
    x = torch.randn(examples, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 62, (examples,))
    fit(net, x[:64], y[:64], 16, 0.1)
    print("ready", flush=True)
    sys.stdin.readline()  # so that processes start together
    start = time.perf_counter()
    for _ in range(learners):
        fit(net, x, y, 16, 0.1)
    return {"seconds": time.perf_counter() - start, "version": torch.__version__}


if __name__ == "__main__":
    jobs: dict[str, Callable[..., dict[str, Any]]] = {"table": table, "images": images}
    print(json.dumps(jobs[sys.argv[1]](*map(int, sys.argv[2:]))))
