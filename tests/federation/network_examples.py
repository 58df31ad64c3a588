"""Networks with frozen, tied, normalised and embedded tensors, and a program that runs them in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from abaton.controller import Strategy, TrainSettings
from abaton.federation import Federation, Run
from abaton.models import Examples, TorchModel
from abaton.store import Store


def freeze(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


class Adapter(nn.Module):
    """Dense layer with a frozen base and a trained low-rank part, as LoRA."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = freeze(nn.Linear(inputs, outputs))
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


class Tied(nn.Module):
    """Encoder and decoder with one weight; a random projection and a permutation are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(6, 6), nn.Linear(6, 6)
        self.up.weight = self.down.weight
        self.head = nn.Linear(6, 2)
        self.register_buffer("projection", torch.randn(6, 6))
        self.register_buffer("order", torch.randperm(6))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]).repeat(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(torch.tanh(self.down((x @ self.projection)[:, self.order])))
        return self.head(x + torch.exp(self.mask))


class Symbols(nn.Module):
    """Embedding of symbols with a padding row, whose weight is also that of the frozen reader."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6, padding_idx=0)
        self.reader = freeze(nn.Linear(6, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.reader(self.embedding(x.long()).mean(1))))


def normalised(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Linear(16, 2))


NETWORKS = {
    "frozen": lambda: nn.Sequential(freeze(nn.Linear(6, 24)), nn.Tanh(), nn.Linear(24, 2)),
    "frozen dense": lambda: nn.Sequential(nn.Linear(6, 32), nn.ReLU(), freeze(nn.Linear(32, 2))),
    "adapter": lambda: nn.Sequential(Adapter(6, 16), nn.Tanh(), freeze(nn.Linear(16, 2))),
    "batch norm": lambda: normalised(nn.BatchNorm1d(16)),
    "cumulative batch norm": lambda: normalised(nn.BatchNorm1d(16, momentum=None)),
    "group norm": lambda: normalised(nn.GroupNorm(4, 16)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)),
    "tied": Tied,
    "embedding": Symbols,
}
SITES, ROWS, ROUNDS = 3, 80, 12


def examples(network: str, seed: int, count: int) -> Examples:
    """Return rows of a nonlinear rule; the sites' inputs have different means."""
    rng = np.random.default_rng(seed)
    if network == "embedding":
        x = rng.integers(1, 12, size=(count, 5))
        return Examples(x, (np.sum(x % 3 == 0, axis=1) > 1).astype(np.int64))
    x = (1.5 * rng.normal(size=(count, 6)) + 0.5 * (seed % 4)).astype(np.float32)
    logit = (x - 0.5) @ np.arange(-2, 4)
    return Examples(x, (logit + rng.logistic(size=count) > 0).astype(np.int64))


def model(network: str) -> TorchModel:
    return TorchModel(NETWORKS[network])


def federation(network: str, **settings: object) -> Federation:
    # 81 rows in batches of 16: the last batch has one row.
    sites = {f"site{i}": examples(network, i, ROWS + i) for i in range(SITES)}
    training = TrainSettings(epochs=2, batch_size=16, learning_rate=0.1)
    options: dict[str, object] = {"strategy": Strategy(rounds=ROUNDS, training=training)}
    return Federation(model(network), sites, test=examples(network, 9, 400), **{**options, **settings})


def main(store_of_parent: Path, own_store: Path) -> None:
    """Predict with the runs of the other process, and run all networks here, on the local engine too."""
    predictions = {}
    for network in NETWORKS:
        name, x = network.replace(" ", "-"), examples(network, 9, 400).x
        with Store(store_of_parent) as store:
            run = Run(store, name, model(network))
            predictions[f"{network}/predict"] = run.predict(x)
            predictions[f"{network}/model"] = run.model(torch.from_numpy(x)).softmax(1).detach().numpy()
        with Store(own_store) as store:
            federation(network).run(name, store=store)
            run = federation(network).run(f"{name}-local", store=store, engine="local")
            predictions[f"{network}/local"] = run.predict(x)
    np.savez(own_store / "predictions.npz", **predictions)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
