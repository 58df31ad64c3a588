"""The pictures of the codecs as one page: ``python benchmarks/_codecs_pictures.py PAGE.html``.

Heat maps of a real update before and after STC and SSTC (Fig. 1 and 2 of the SSTC paper), error against bits
for every codec, and test accuracy against bytes sent. The page carries plotly's script and needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.codecs.advise import measure
from abaton.report import accuracy_curves, error_curves, heat_maps, kernel_map

sys.path.insert(0, str(Path(__file__).parent))
import _cnn
import _codecs_accuracy

if TYPE_CHECKING:
    from abaton.vectors import Layout
    from abaton.vectors.layout import Vector

SPARSITIES = (0.001, 0.003, 0.01, 0.03, 0.1)
FAMILIES = {
    "STC, Golomb": [f"stc(sparsity={p})" for p in SPARSITIES],
    "STC, context": [f"stc(sparsity={p}, coding=context)" for p in SPARSITIES],
    "SSTC, context": [f"sstc(sparsity={p}, kernels=0.125, coding=context)" for p in SPARSITIES],
    **{
        name: [f"{line}(bits={b})" for b in (1, 2, 3, 4)]
        for name, line in {
            "QUIC-FL": "quicfl",
            "ECDQ": "ecdq",
            "EDEN": "eden",
            "Hadamard": "hadamard",
            "Kashin": "kashin",
            "QSGD": "qsgd",
        }.items()
    },
    "fp16": ["fp16"],
}
WAYS = {
    "update": "raw",
    "after STC at 1 %": "stc(sparsity=0.01)",
    "after SSTC at 1 % and 12.5 % of kernels": "sstc(sparsity=0.01, kernels=0.125)",
}


def figures() -> list[Any]:
    """All figures, from a short federation."""
    data, layout = _cnn.pictures(learners=4, scans=100, seed=1), _cnn.sstc_cnn().layout
    made, update = [], layout.zeros()
    for number, result in enumerate(_cnn.rounds(data, "raw", count=4, epochs=5, seed=1), 1):
        update = result.updates[0]
        if number in (1, 4):
            made.append(_maps(f"second convolution, round {number}", update, layout))
    return [*made, error_curves(_curves(update, layout)), accuracy_curves(_codecs_accuracy.curves())]


def _maps(title: str, update: Vector, layout: Layout) -> Any:
    key, conv = _cnn.Key(b"pictures", "north"), layout.tensors[2].name
    ways = {name: _cnn.parse(line).codec for name, line in WAYS.items()}
    decoded = {
        name: codec.decode(codec.encode(update, layout, key), layout, key) for name, codec in ways.items()
    }
    return heat_maps({name: kernel_map(v, layout, conv) for name, v in decoded.items()}, title=title)


def _curves(update: Vector, layout: Layout) -> dict[str, list[tuple[float, float]]]:
    found = {}
    for name, lines in FAMILIES.items():
        rows = [measure(line, layout, update) for line in lines]
        found[name] = [(8 * row.bytes / layout.size, row.error) for row in rows]
    return found


if __name__ == "__main__":
    parts = [f.to_html(full_html=False, include_plotlyjs=i == 0) for i, f in enumerate(figures())]
    page = "<!doctype html><meta charset=utf-8><title>Codecs</title>" + "\n".join(parts)
    Path(sys.argv[1]).write_text(page, encoding="utf-8")
