"""Error against rate: unbiased codecs beside the bound, on random vectors and real updates of four networks.

``python benchmarks/_codecs_curves.py FIGURE.svg`` draws the error of the codecs for normal values, and that of ``tcdq``
relative to the bound 1 / (4^b - 1) for all updates and for ten and a hundred learners; it prints all numbers as JSON.
Updates of networks need the data sets of ``../shared/data``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from abaton.benchmark import BenchmarkResult, at_most
from abaton.codecs import CodecKey, parse_codec
from abaton.controller import TrainSettings
from abaton.lab import datasets
from abaton.layout import Layout, Tensor, TensorRole
from abaton.models import Examples, train_model
from abaton.models.zoo import cifar10_cnn, mlp, shakespeare, sstc_cnn

if TYPE_CHECKING:
    from abaton.layout import Vector

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
SIZE = 1 << 18
RATES = (0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6)
Points = list[tuple[float, float]]
COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#17becf",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
)


def bound(bits: float) -> float:
    """Return the smallest vNMSE of an unbiased code with ``bits`` bits per normal value."""
    return 1 / (4**bits - 1)


def random_updates() -> dict[str, Vector]:
    """Return normal, lognormal and sparse vectors."""
    rng = np.random.default_rng(0)
    sparse = rng.standard_normal(SIZE) * (rng.random(SIZE) < 0.01)
    vectors = {"normal": rng.standard_normal(SIZE), "lognormal": rng.lognormal(size=SIZE), "sparse": sparse}
    return {name: vector.astype(np.float32) for name, vector in vectors.items()}


def network_updates() -> dict[str, Vector]:
    """Return one local epoch's update of four networks; empty without the data sets."""
    if not DATA.is_dir():
        return {}
    colour = datasets.load("cifar10_20k", folder=DATA, preparation=None).train
    scans = datasets.load("hand62_scans", folder=DATA, preparation=None).train
    speech = datasets.load("shakespeare", folder=DATA, preparation=None).train
    rows = slice(0, 1000)
    crops = np.ascontiguousarray(colour.x[rows, 4:28, 4:28].transpose(0, 3, 1, 2), np.float32) / 255
    pictures = scans.x[rows].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    cases = {
        "cifar10_cnn": (cifar10_cnn(response_norm=False), Examples(crops, colour.y[rows])),
        "sstc_cnn": (sstc_cnn(), Examples(pictures, scans.y[rows])),
        "shakespeare": (shakespeare(), Examples(speech.x[rows], speech.y[rows])),
        "mlp": (
            mlp(features=784, classes=62, hidden=(256,)),
            Examples(pictures.reshape(-1, 784), scans.y[rows]),
        ),
    }
    settings, updates = TrainSettings(epochs=1, batch_size=16, learning_rate=0.05), {}
    for name, (network, examples) in cases.items():
        model = network.initial(1)
        update = train_model(network, model, examples, settings, np.random.default_rng(1)).vector - model
        updates[name] = update[: network.layout.trained.size]
    return updates


def points(name: str, rates: Sequence[float], update: Vector, learners: int = 1) -> Points:
    """Return bits per value and NMSE times the learners of a codec at several rates."""
    layout, results = Layout([Tensor("weight", (update.size,), TensorRole.DENSE)]), []
    for rate in rates:
        codec, size = parse_codec(f"{name}(bits={rate})").codec, 0
        total = codec.accumulator(layout, b"curves")
        for i in range(learners):
            payload = codec.encode(update, layout, CodecKey(b"curves", f"{i}"))
            total.add(payload, 1.0, f"{i}")
            size += len(payload)
        error = total.mean().astype(np.float64) - update
        nmse = learners * float(error @ error) / float(np.sum(update.astype(np.float64) ** 2))
        results.append((8 * size / learners / update.size, nmse))
    return results


def curves() -> tuple[dict[str, Points], dict[str, Points]]:
    """Return the error of the codecs for normal values, and the error of TCDQ for all updates and learners."""
    updates = random_updates()
    codecs = {name: points(name, (1, 2, 3, 4), updates["normal"]) for name in ("quicfl", "eden", "ecdq")}
    codecs["tcdq"] = points("tcdq", RATES, updates["normal"])
    trellis = {
        name: points("tcdq", RATES, update) for name, update in {**updates, **network_updates()}.items()
    }
    for learners in (10, 100):
        trellis[f"lognormal, {learners} learners"] = points("tcdq", RATES, updates["lognormal"], learners)
    return codecs, trellis


def run() -> list[BenchmarkResult]:
    """Measure how far the error of TCDQ is from the bound, for every update."""
    _, trellis = curves()
    return [
        at_most(
            f"error of tcdq over the bound, {name}, at {rate} bits",
            line[RATES.index(rate)][1] / bound(line[RATES.index(rate)][0]),
            1.12 if rate == 1 else 1.1,
            "x",
        )
        for name, line in trellis.items()
        for rate in (1, 2, 4)
    ]


class Panel:
    """Axes of a figure with a logarithmic or linear vertical scale, as SVG elements."""

    def __init__(self, left: int, title: str, low: float, high: float, *, logarithmic: bool) -> None:
        self.left, self.low, self.high, self.logarithmic = left, low, high, logarithmic
        self.elements = [
            self._text(200, 18, title, "middle", 14),
            self._text(200, 388, "bits per value", "middle"),
        ]
        for bits in range(7):
            self.elements.append(self._text(self.x(bits), 368, f"{bits}", "middle"))
            self.elements.append(self._line([(bits, low), (bits, high)], "#e5e5e5", 1))
        ticks = [10.0**e for e in range(-4, 1)] if logarithmic else [0.6 + i / 5 for i in range(6)]
        for tick in ticks:
            self.elements.append(self._text(34, self.y(tick) + 4, f"{tick:g}", "end"))
            self.elements.append(self._line([(0, tick), (6.2, tick)], "#e5e5e5", 1))

    def x(self, bits: float) -> float:
        """Return the horizontal position of a rate."""
        return 40 + bits * 55

    def y(self, value: float) -> float:
        """Return the vertical position of an error."""
        scale = math.log if self.logarithmic else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return 350 - 320 * share

    def curve(self, name: str, line: Points, colour: str, order: int, dashes: str = "") -> None:
        """Draw a curve and its entry in the legend."""
        inside = [(bits, value) for bits, value in line if self.low <= value <= self.high]
        self.elements.append(self._line(inside, colour, 2, dashes))
        height = 36 + 16 * order
        self.elements.append(
            f'<path d="M{self.left + 215} {height}h22" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        )
        self.elements.append(self._text(242, height + 4, name, "start"))

    def _line(self, line: Points, colour: str, width: int, dashes: str = "") -> str:
        path = " ".join(f"{self.left + self.x(bits):.1f},{self.y(value):.1f}" for bits, value in line)
        style = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dashes}"'
        return f'<polyline points="{path}" {style}/>'

    def _text(self, x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
        return f'<text x="{self.left + x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{text}</text>'


def figure(codecs: Mapping[str, Points], trellis: Mapping[str, Points]) -> str:
    """Return the figure as SVG."""
    errors = Panel(12, "error (vNMSE), normal values", 1e-4, 5, logarithmic=True)
    fine = [i / 20 for i in range(6, 124)]
    errors.curve("bound", [(bits, bound(bits)) for bits in fine], "#000000", 0, "4 3")
    for order, (name, line) in enumerate(codecs.items(), 1):
        errors.curve(name, line, COLOURS[order], order)
    ratios = Panel(430, "error of tcdq relative to the bound", 0.5, 1.8, logarithmic=False)
    for order, (name, line) in enumerate(trellis.items()):
        relative = [(bits, error / bound(bits)) for bits, error in line]
        ratios.curve(name, relative, COLOURS[order % len(COLOURS)], order)
    body = "\n".join((*errors.elements, *ratios.elements))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 850 400" font-family="sans-serif">\n'
        f'<rect width="850" height="400" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    measured = curves()
    Path(sys.argv[1]).write_text(figure(*measured), encoding="utf-8")
    sys.stdout.write(json.dumps({"codecs": measured[0], "tcdq": measured[1]}, indent=1) + "\n")
