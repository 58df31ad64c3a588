"""The CNN of the SSTC paper, trained by non-IID learners on handwritten characters of 62 classes.

The images are the 28x28 sets of ``../shared/data`` (Chars74K pen strokes by writer, and scanned handwriting), not
FEMNIST. Training follows the paper: SGD, batches of 16, learning rate 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.codecs import CodecKey, parse_codec
from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.layout import Vector
from abaton.models import Examples, train_model
from abaton.models.zoo import sstc_cnn

VISION = Path(__file__).resolve().parents[2] / "shared" / "data" / "vision"
CLASSES = 62
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Pictures:
    """Training images by learner, and a test set."""

    learners: list[Examples]
    test: Examples


@dataclass(frozen=True)
class Round:
    """Result of one round."""

    model: Vector
    updates: list[Vector]
    sent: int  # bytes of all payloads of the round


def available() -> bool:
    """Return whether the images are available."""
    return VISION.is_dir()


def pictures(*, learners: int, scans: int, seed: int) -> Pictures:
    """Return images: each learner has one writer's strokes and a skewed part of the scans (Dirichlet over classes)."""
    if not available():
        raise SettingsError("the folder '../shared/data' is not there", remedy="put it beside the checkout")
    rng = np.random.default_rng(seed)
    strokes, scanned = _read("chars74k_hnd62_by_writer"), _read("hand62_scans")
    order = rng.permutation(len(scanned["y"]))
    test_rows, pool = order[:1240], order[1240:]
    writers = np.unique(strokes["writer"])
    parts = []
    for writer in writers[:learners]:
        probabilities = rng.dirichlet(np.full(CLASSES, 0.3))[scanned["y"][pool]]
        sampled = rng.choice(pool, scans, replace=False, p=probabilities / probabilities.sum())
        parts.append(_join(strokes, strokes["writer"] == writer, scanned, sampled))
    return Pictures(parts, _join(strokes, np.isin(strokes["writer"], writers[-10:]), scanned, test_rows))


def rounds(data: Pictures, line: str, *, count: int, epochs: int, seed: int) -> Iterator[Round]:
    """Train a federation with an uplink codec, weighted by examples, and yield each round."""
    net, pipeline = sstc_cnn(classes=CLASSES), parse_codec(line)
    settings = TrainSettings(epochs=epochs, batch_size=16, learning_rate=0.1)
    model, memories = net.initial(seed), [pipeline.initial_state(net.layout) for _ in data.learners]
    for number in range(count):
        round_key = f"seed {seed} round {number}".encode()
        total, updates, sent = pipeline.accumulator(net.layout, round_key), [], 0
        for i, part in enumerate(data.learners):
            shuffle, key = np.random.default_rng([seed, number, i]), CodecKey(round_key, f"learner {i}")
            update = train_model(net, model, part, settings, shuffle).vector - model
            payload, memories[i] = pipeline.encode(update, net.layout, key, memories[i])
            total.add(payload, len(part), key.learner)
            updates.append(update)
            sent += len(payload)
        model = model + total.mean()
        yield Round(model, updates, sent)


def curve(line: str, *, learners: int, count: int, epochs: int, seed: int) -> list[tuple[int, float]]:
    """Return, for each round, the bytes sent so far by all learners and the test accuracy."""
    data, sent, points = pictures(learners=learners, scans=150, seed=seed), 0, []
    for finished_round in rounds(data, line, count=count, epochs=epochs, seed=seed):
        sent += finished_round.sent
        points.append((sent, accuracy(finished_round.model, data.test)))
    return points


def accuracy(model: Vector, data: Examples) -> float:
    """Return the fraction of images that are classified correctly."""
    predicted = sstc_cnn(classes=CLASSES).score(model, data).predictions.argmax(1)
    return float((predicted == data.y).mean())


def _read(name: str) -> Arrays:
    with np.load(VISION / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


def _join(
    one: dict[str, NDArray[Any]], rows: NDArray[Any], two: dict[str, NDArray[Any]], more: NDArray[Any]
) -> Examples:
    x = np.concatenate([one["x"][rows], two["x"][more]]).astype(np.float32)[:, None] / 255
    return Examples(x, np.concatenate([one["y"][rows], two["y"][more]]).astype(np.int64))
