"""A plain PyTorch loop: what one writes by hand, and nothing but training and averaging.

Call: plain.py table ROUNDS | plain.py images LEARNERS EXAMPLES THREADS. It prints one line of JSON.
"""

from __future__ import annotations

import functools
import json
import sys
import time

import job
import torch
from torch import nn


def network() -> nn.Sequential:
    """The small network with the job's first weights."""
    net = nn.Sequential(nn.Linear(job.FEATURES, job.HIDDEN), nn.ReLU(), nn.Linear(job.HIDDEN, job.CLASSES))
    put(net, job.initial())
    return net


def put(net: nn.Module, arrays: list) -> None:
    """Load arrays into a network."""
    names = net.state_dict().keys()
    net.load_state_dict({n: torch.tensor(a) for n, a in zip(names, arrays, strict=True)})


def fit(net: nn.Module, x: torch.Tensor, y: torch.Tensor, batch: int, rate: float) -> None:
    """One epoch of shuffled batches."""
    optimiser = torch.optim.SGD(net.parameters(), lr=rate)
    for rows in torch.randperm(len(y)).split(batch):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


@functools.cache
def everyone() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """All learners' data, made once in each process."""
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in job.sites()[: job.LEARNERS]]


def table(rounds: int) -> dict:
    """Federated averaging of the small network."""
    torch.manual_seed(0)
    data = everyone()
    net = network()
    community = {name: value.clone() for name, value in net.state_dict().items()}
    marks = [time.perf_counter()]
    for names in job.chosen(rounds):
        trained = []
        for name in names:
            net.load_state_dict(community)
            fit(net, *data[name], job.BATCH, job.RATE)
            trained.append({key: value.clone() for key, value in net.state_dict().items()})
        community = {key: torch.stack([t[key] for t in trained]).mean(0) for key in community}
        marks.append(time.perf_counter())
    arrays = [value.numpy() for value in community.values()]
    return {"seconds": marks[-1] - marks[0], "accuracy": job.accuracy(arrays), "version": torch.__version__}


def images(learners: int, examples: int, threads: int) -> dict:
    """Train the convolutional network of the SSTC paper for one learner after the other; send nothing anywhere."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(7 * 7 * 64, 512), nn.ReLU(), nn.Linear(512, 62),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    x = torch.randn(examples, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 62, (examples,))
    fit(net, x[:64], y[:64], 16, 0.1)
    sys.stdin.readline()  # so that processes start together
    start = time.perf_counter()
    for _ in range(learners):
        fit(net, x, y, 16, 0.1)
    return {"seconds": time.perf_counter() - start, "version": torch.__version__}


if __name__ == "__main__":
    ways = {"table": table, "images": images}
    print(json.dumps(ways[sys.argv[1]](*map(int, sys.argv[2:]))))
