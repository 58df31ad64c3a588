"""``abaton bench``: measure this build on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import abaton
from abaton.cli.output import emit, note, table
from abaton.cli.runs import JsonOption
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.benchmark import Measure


def bench(
    name: str = typer.Argument("all", help="Which benchmark; 'all' runs every one."),
    *,
    json: bool = JsonOption,
) -> None:
    """Measure speed, size and error on this machine, as ratios within one run.

    Every row has a name, a value with its unit, the target where there is one, and whether it holds.
    """
    benchmarks = {path.stem: path for path in sorted(_folder().glob("*.py")) if not path.stem.startswith("_")}
    if name != "all" and name not in benchmarks:
        raise SettingsError(
            f"there is no benchmark '{name}'", remedy=f"choose one of {', '.join(benchmarks)} or all"
        )
    measures: list[Measure] = []
    for chosen in benchmarks if name == "all" else [name]:
        note(f"measuring {chosen} ...")
        measures += _load(benchmarks[chosen])()
    if json:
        emit([measure.row() for measure in measures])
    else:
        rows = [
            (m.name, m.value, m.unit, m.target or "", "" if m.holds is None else m.holds) for m in measures
        ]
        table(f"benchmark {name}", ["what", "value", "unit", "target", "holds"], rows)


def _folder() -> Path:
    package = Path(abaton.__file__).parent
    checkout = package.parents[1] / "benchmarks"
    return checkout if checkout.is_dir() else package / "benchmarks"


def _load(path: Path) -> Callable[[], list[Measure]]:
    spec = importlib.util.spec_from_file_location(f"abaton_benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run: Callable[[], list[Measure]] = module.run
    return run
