"""Error, speed, size and accuracy of the codecs; each part is a file beside this one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from abaton.benchmark import BenchmarkResult

PARTS = ("error", "curves", "additive", "speed", "simd", "size", "accuracy")


def run() -> list[BenchmarkResult]:
    """Run all measurements of the codecs."""
    results: list[BenchmarkResult] = []
    for part in PARTS:
        path = Path(__file__).with_name(f"_codecs_{part}.py")
        if path.is_file():
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            results += module.run()
    return results
