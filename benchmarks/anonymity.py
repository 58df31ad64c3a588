"""Anonymity of tables: agreement with ARX, speed beside anjana and pycanon, one million rows in bounded memory.

The peers pin an old numpy and need their own environment: with ``anjana``, ``pycanon`` and ``polars`` installed there,
``PYTHONPATH=src python benchmarks/anonymity.py`` prints the same rows with them. Times are processor seconds over all
threads, except for the million records, where they are wall-clock seconds.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from abaton.anonymity import (
    AnonymitySettings,
    BinHierarchy,
    FileHierarchy,
    LDiversity,
    QuasiIdentifier,
    SensitiveAttribute,
    TableHierarchy,
    TCloseness,
    encode,
    examine,
)
from abaton.anonymity.lattice import optimal_node
from abaton.anonymity.release import release_unchanged
from abaton.anonymity.risk_metrics import compute_metrics
from abaton.benchmark import BenchmarkResult, at_least, at_most

ADULT = Path(__file__).resolve().parents[2] / "shared" / "data" / "fhir" / "kanon"
COLUMNS = ("sex", "age", "race", "marital-status", "education", "native-country", "workclass", "occupation")
SALARY = "salary-class"

# Results of ARX 3.9.2 on Adult: quasi-identifiers, privacy model, suppression limit, loss, suppressed records.
ARX: tuple[tuple[str, int, SensitiveAttribute | None, float, float, int], ...] = (
    ("5 QI, k=5", 5, None, 0.05, 0.0802157442, 1385),
    ("8 QI, k=5", 8, None, 0.05, 0.2518517152, 1458),
    ("8 QI, k=5, l=2", 8, SensitiveAttribute(SALARY, LDiversity(2)), 0.05, 0.3282766575, 1389),
    ("8 QI, k=5, any suppression", 8, None, 1.0, 0.2200498762, 3049),
    (
        "8 QI, k=5, t=0.2 equal",
        8,
        SensitiveAttribute(SALARY, None, TCloseness(0.2)),
        0.05,
        0.4811442241,
        1022,
    ),
    (
        "8 QI, k=5, t=0.2 ordered",
        8,
        SensitiveAttribute(SALARY, None, TCloseness(0.2, "ordered")),
        0.05,
        0.4811442241,
        1022,
    ),
)


def run() -> list[BenchmarkResult]:
    """Run all measurements; those without data or peers are skipped with a remark."""
    frame, settings, folder = _adult() if ADULT.is_dir() else _synthetic()
    rows = _arx(frame, folder) if ADULT.is_dir() else []
    rows += _pycanon(frame)
    rows += _anjana(frame, settings, folder)
    return rows + _million(frame, settings, folder)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _adult() -> tuple[pl.DataFrame, Callable[..., AnonymitySettings], Path]:
    frame = pl.read_csv(ADULT / "adult.csv", separator=";", infer_schema=False)
    return frame, _adult_settings, ADULT


def _adult_settings(columns: int, **options: Any) -> AnonymitySettings:
    quasi = (QuasiIdentifier(c, FileHierarchy(f"adult_hierarchy_{c}.csv")) for c in COLUMNS[:columns])
    return AnonymitySettings(tuple(quasi), **options, one_row_per_subject=True)


def _synthetic() -> tuple[pl.DataFrame, Callable[..., AnonymitySettings], Path]:
    """Return a table of Adult's shape for machines without the Adult data."""
    _note("the Adult table is not beside this checkout: measuring a synthetic one of its shape, without ARX")
    rng = np.random.default_rng(1)
    sizes = {"sex": 2, "race": 5, "marital-status": 7, "education": 16, "native-country": 41, "workclass": 8}
    sizes |= {"occupation": 14, SALARY: 2}
    cells = {"age": rng.integers(17, 90, 30_162).astype(str)}
    for name, size in sizes.items():
        share = 1 / np.arange(1, size + 1)
        cells[name] = rng.choice([f"{name}{i}" for i in range(size)], 30_162, p=share / share.sum())

    def settings_for(columns: int, **options: Any) -> AnonymitySettings:
        quasi = [
            QuasiIdentifier(c, BinHierarchy((5.0, 10.0, 20.0)))
            if c == "age"
            else QuasiIdentifier(
                c, TableHierarchy(tuple((f"{c}{i}", f"{i // 4}", "*") for i in range(sizes[c])))
            )
            for c in COLUMNS[:columns]
        ]
        return AnonymitySettings(tuple(quasi), **options, one_row_per_subject=True)

    return pl.DataFrame(cells), settings_for, Path()


def _arx(frame: pl.DataFrame, folder: Path) -> list[BenchmarkResult]:
    rows = []
    for name, columns, sensitive, limit, loss, suppressed in ARX:
        settings = _adult_settings(
            columns, sensitive=(sensitive,) if sensitive else (), suppression_limit=limit
        )
        table = encode(frame, settings, folder=folder)
        recoding = optimal_node(table, settings)
        rows += [
            at_most(f"ARX, {name}: difference in loss", abs(round(recoding.loss, 10) - loss), 0, ""),
            at_most(
                f"ARX, {name}: difference in suppressed records", abs(recoding.suppressed - suppressed), 0, ""
            ),
            BenchmarkResult(
                f"ARX, {name}: search",
                _seconds(partial(optimal_node, table, settings), repeats=3),
                "s",
            ),
            BenchmarkResult(f"ARX, {name}: nodes counted of {recoding.nodes}", recoding.evaluated, ""),
        ]
    return rows


def _peer(name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        _note(
            f"{name.split('.')[0]} is not installed here: its rows are skipped (see benchmarks/anonymity.py)"
        )
        return None


def _seconds(call: Callable[[], object], *, repeats: int = 1) -> float:
    """Return the least processor time of a call over all threads."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        call()
        best = min(best, time.process_time() - start)
    return best


def _pycanon(frame: pl.DataFrame) -> list[BenchmarkResult]:
    peer = _peer("pycanon.anonymity")
    rows = []
    for columns in (5, 8):
        names = list(COLUMNS[:columns])
        sensitive = (SensitiveAttribute(SALARY),)
        k_settings = AnonymitySettings(
            tuple(QuasiIdentifier(name) for name in names), one_row_per_subject=True
        )
        full_settings = AnonymitySettings(
            k_settings.quasi_identifiers, sensitive=sensitive, one_row_per_subject=True
        )

        def compute(settings: AnonymitySettings) -> object:
            table = encode(frame, settings)
            return compute_metrics(table, release_unchanged(table), settings)

        k = _seconds(lambda: compute(k_settings), repeats=30)  # noqa: B023
        all_metrics = _seconds(lambda: compute(full_settings), repeats=30)  # noqa: B023
        rows += [
            BenchmarkResult(f"measure {columns} QI: k and risks", k, "s"),
            BenchmarkResult(f"measure {columns} QI: k, l, t and risks", all_metrics, "s"),
        ]
        if peer is None:
            continue
        data = _pandas(frame)
        peer_seconds = {
            "k": _seconds(lambda: peer.k_anonymity(data, names), repeats=3),  # noqa: B023
            "l": _seconds(lambda: peer.l_diversity(data, names, [SALARY])),  # noqa: B023
            "t": _seconds(lambda: peer.t_closeness(data, names, [SALARY])),  # noqa: B023
        }
        rows += [
            BenchmarkResult(f"pycanon {columns} QI: {metric} only", seconds, "s")
            for metric, seconds in peer_seconds.items()
        ]
        rows += [
            at_least(f"pycanon {columns} QI: k only, times slower", peer_seconds["k"] / k, 10, "x"),
            at_least(
                f"pycanon {columns} QI: l only, times slower than all metrics",
                peer_seconds["l"] / all_metrics,
                10,
                "x",
            ),
            at_least(
                f"pycanon {columns} QI: t only, times slower than all metrics",
                peer_seconds["t"] / all_metrics,
                10,
                "x",
            ),
        ]
    return rows


def _pandas(frame: pl.DataFrame) -> Any:
    pandas = importlib.import_module("pandas")
    return pandas.DataFrame({name: frame[name].to_list() for name in frame.columns})


def _anjana(
    frame: pl.DataFrame, settings: Callable[..., AnonymitySettings], folder: Path
) -> list[BenchmarkResult]:
    peer = _peer("anjana.anonymity")
    sensitive = (SensitiveAttribute(SALARY, LDiversity(2)),)
    cases = [("5 QI, k=5", 5, ()), ("8 QI, k=5", 8, ()), ("5 QI, k=5, l=2", 5, sensitive)]
    rows = []
    for name, columns, models in cases:
        requested = settings(columns, sensitive=models)
        own_seconds = _seconds(lambda: examine(frame, requested, folder=folder), repeats=5)  # noqa: B023
        rows.append(BenchmarkResult(f"best recoding, {name}: from rows to result", own_seconds, "s"))
        if peer is None:
            continue
        names = list(COLUMNS[:columns])
        data, levels = _pandas(frame), _levels(encode(frame, requested, folder=folder))
        arguments: tuple[Any, ...] = (
            data,
            [],
            names,
            *([SALARY] if models else []),
            5,
            *([2] if models else []),
            5.0,
        )
        call = peer.l_diversity if models else peer.k_anonymity
        peer_seconds = _seconds(lambda: call(*arguments, levels))  # noqa: B023
        rows += [
            BenchmarkResult(f"anjana {name} (greedy, not optimal)", peer_seconds, "s"),
            at_least(f"anjana {name}: times slower", peer_seconds / own_seconds, 10, "x"),
        ]
    return rows


def _levels(table: Any) -> dict[str, dict[int, Any]]:
    """Return hierarchies in anjana's format."""
    return {
        hierarchy.column: {
            level: np.array([hierarchy.labels[level][code] for code in hierarchy.ancestors[level]])
            for level in range(hierarchy.height + 1)
        }
        for hierarchy in table.hierarchies
    }


def _million(
    frame: pl.DataFrame, settings: Callable[..., AnonymitySettings], folder: Path
) -> list[BenchmarkResult]:
    """Measure one million records with jittered ages, examined and anonymised from disk."""
    rng = np.random.default_rng(7)
    rows = frame[rng.integers(0, len(frame), 1_000_000)]
    ages = np.clip(rows["age"].cast(pl.Int64).to_numpy() + rng.integers(-3, 4, len(rows)), 17, 90)
    subjects = rng.integers(
        0, 1_250_000, len(rows)
    )  # about 690,000 have a record, three in ten of them several
    rows = rows.with_columns(pl.Series("age", ages.astype(str)), pl.Series("patient", subjects))
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        rows.write_csv(work / "million.csv")
        size = (work / "million.csv").stat().st_size / 2**20
        del rows
        subject_settings = {"": "one_row_per_subject = true", " of 690,000 subjects": 'subject = "patient"'}
        for method, subjects_label in product(("recode", "mondrian"), subject_settings):
            _study(work / "study.toml", settings(8), folder, method, subject_settings[subjects_label])
            completed = subprocess.run(
                [
                    sys.executable,
                    Path(__file__).with_name("_anonymise_table.py"),
                    work / "million.csv",
                    work / "study.toml",
                    work / "out.csv",
                ],
                check=True,
                capture_output=True,
                text=True,
            )
            report = json.loads(completed.stdout)
            name = f"1M records{subjects_label}, 8 QI, {method}"
            results += [
                BenchmarkResult(f"{name}: read, measure, search", report["search"], "s"),
                BenchmarkResult(f"{name}: write {size:.0f} MB", report["write"], "s"),
                at_least(f"{name}: k reached", report["k"], 5, ""),
                at_most(f"{name}: memory above an idle start", report["memory"], 1024, "MB"),
            ]
    return results


def _study(path: Path, settings: AnonymitySettings, folder: Path, method: str, subject_setting: str) -> None:
    """Write the study document of a benchmark."""
    lines = [
        "[privacy.anonymity]",
        subject_setting,
        "k = 5",
        f'method = "{method}"',
        f'passthrough_columns = ["{SALARY}"]',
    ]
    for quasi in settings.quasi_identifiers:
        match quasi.hierarchy:
            case FileHierarchy(file=file):
                hierarchy = json.dumps(str(folder / file))
            case TableHierarchy(rows=rows):
                hierarchy = f"{{ rows = {json.dumps(rows)} }}"
            case BinHierarchy(bins=widths):
                hierarchy = f"{{ bins = {json.dumps(widths)} }}"
        lines += [
            "[[privacy.anonymity.quasi_identifiers]]",
            f'column = "{quasi.column}"',
            f"hierarchy = {hierarchy}",
        ]
    path.write_text("\n".join(lines))


if __name__ == "__main__":
    print(json.dumps([row.to_row() for row in run()], indent=2))
