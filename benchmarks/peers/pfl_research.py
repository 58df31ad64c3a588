"""The common job under pfl-research's simulated backend. Usage: pfl_research.py ROUNDS. Prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import job
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn


class Network(nn.Sequential):
    """The small network with the two methods that the library requires."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of a batch."""
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        """Return no metrics."""
        return {}


class RoundClock(TrainingProcessCallback):
    """Callback that records the time after each round."""

    def __init__(self) -> None:
        self.round_ends: list[tuple[float, float]] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: object, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Record the time and continue."""
        self.round_ends.append((time.perf_counter(), time.process_time()))
        return False, Metrics()


def main(rounds: int) -> dict[str, Any]:
    """Run the rounds; the first is not timed."""
    np.random.seed(0)
    torch.manual_seed(0)
    net = Network(nn.Linear(job.FEATURES, job.HIDDEN), nn.ReLU(), nn.Linear(job.HIDDEN, job.CLASSES))
    names = list(net.state_dict())
    net.load_state_dict({n: torch.tensor(a) for n, a in zip(names, job.initial(), strict=True)})
    users = [
        PyTorchTensorDataset([torch.from_numpy(x), torch.from_numpy(y)], user_id=str(i))
        for i, (x, y) in enumerate(job.sites()[: job.LEARNERS])
    ]
    sampler = get_user_sampler("minimize_reuse", list(range(job.LEARNERS)))
    data = FederatedDataset(users.__getitem__, sampler)
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
    )
    clock = RoundClock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=job.PARTICIPANTS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.RATE, local_batch_size=job.BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1024),
        callbacks=[clock],
    )
    arrays = [value.numpy() for value in net.state_dict().values()]
    (start, cpu_start), (end, cpu_end) = clock.round_ends[-1 - rounds], clock.round_ends[-1]
    accuracy = job.accuracy(arrays)
    return {
        "seconds": end - start,
        "cpu": cpu_end - cpu_start,
        "accuracy": accuracy,
        "version": version("pfl"),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
