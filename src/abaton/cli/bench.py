"""``abaton bench``: benchmarks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import abaton
from abaton.cli.output import emit, note, table
from abaton.cli.runs import JsonOption
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.benchmark import BenchmarkResult


def bench(
    name: str = typer.Argument("all", help="Name of a benchmark, or all"),
    *,
    json: bool = JsonOption,
) -> None:
    """Run benchmarks of speed, size and error on this machine.

    Each row has a name, a value with its unit, and the target with whether it is met.
    """
    benchmarks = {path.stem: path for path in sorted(_folder().glob("*.py")) if not path.stem.startswith("_")}
    if name != "all" and name not in benchmarks:
        raise SettingsError(f"unknown benchmark '{name}'", remedy=f"use {', '.join(benchmarks)} or all")
    results: list[BenchmarkResult] = []
    for benchmark in benchmarks if name == "all" else [name]:
        note(f"measuring {benchmark} ...")
        results += _load(benchmarks[benchmark])()
    if json:
        emit([result.to_row() for result in results])
    else:
        rows = [
            (row.name, row.value, row.unit, row.target or "", "" if row.holds is None else row.holds)
            for row in results
        ]
        table(f"benchmark {name}", ["name", "value", "unit", "target", "met"], rows)


def _folder() -> Path:
    package = Path(abaton.__file__).parent
    checkout = package.parents[1] / "benchmarks"
    return checkout if checkout.is_dir() else package / "benchmarks"


def _load(path: Path) -> Callable[[], list[BenchmarkResult]]:
    spec = importlib.util.spec_from_file_location(f"abaton_benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    run: Callable[[], list[BenchmarkResult]] = module.run
    return run
