"""``abaton codec``: codec recommendation, payload inspection, figures."""

from __future__ import annotations

import json as json_module
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.output import emit, note, save, table
from abaton.cli.runs import JsonOption, StoreOption, complete_run, opened_store
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.codecs.advisor import CodecAdvice
    from abaton.layout import Layout, Vector

app = typer.Typer(help="Recommend a codec; inspect payloads; draw figures.", no_args_is_help=True)

SOURCE = (
    "Model: a layout (.json), a model or update (.safetensors), the name of a network, or a run in the store"
)


@app.command()
def advise(
    source: str = typer.Argument(help=SOURCE, autocompletion=complete_run),
    *,
    sparsity: float = typer.Option(0.01, help="Fraction of weights that sparse codecs send"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Recommend the codec and settings with the smallest payload for a model.

    Runs and .safetensors files are measured on their last update; layouts and networks on random values, the worst case
    of the context coder.
    """
    from abaton.codecs.advisor import recommend_codec

    layout, update = _source(source, store)
    advice = recommend_codec(layout, update, sparsity=sparsity)
    if json:
        rows = [{**asdict(row), "kernel_fraction": row.kernel_fraction} for row in advice.break_even]
        emit({**asdict(advice), "break_even": rows, "values": layout.size, "layout": layout.digest})
    else:
        _print_advice(advice, layout)


@app.command()
def inspect(
    file: Path = typer.Argument(help="File with one payload"),
    *,
    layout: str | None = typer.Option(None, help="Model of the payload; see 'advise'"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Print the fields of a payload."""
    from abaton.codecs.inspection import inspect_payload

    fields = inspect_payload(_read_file(file), _source(layout, store)[0] if layout else None)
    if json:
        emit([asdict(field) for field in fields])
    else:
        table(
            file.name,
            ["offset", "bytes", "field", "value"],
            [(entry.offset, entry.size, entry.name, entry.value) for entry in fields],
        )


@app.command()
def figures(
    source: str = typer.Argument(help=SOURCE, autocompletion=complete_run),
    *,
    out: Path = typer.Option(..., "--out", "-o", help="Write the page to this file (.html)"),
    tensor: str | None = typer.Option(None, help="Convolution to show (default: the largest)"),
    sparsity: float = typer.Option(0.01, help="Fraction of weights that sparse codecs send"),
    kernels: float = typer.Option(0.125, help="Fraction of kernels that may contain them"),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Draw an update before and after STC and SSTC, and the error of every codec by bits per value.

    The page opens without a network. The values of the curves are printed, too.
    """
    from abaton.codecs.advisor import error_by_bits, random_update
    from abaton.report import error_curves, render_figures

    layout, update = _source(source, store)
    update = random_update(layout) if update is None else update
    curves = error_by_bits(layout, update)
    maps = _heat_maps(layout, update, tensor, sparsity, kernels)
    save(out, render_figures(f"Codecs: {source}", [*maps, error_curves(curves)]))
    rows = [(name, bits, error) for name, points in curves.items() for bits, error in points]
    if json:
        emit([dict(zip(("codec", "bits", "error"), row, strict=True)) for row in rows])
    else:
        table("error by size", ["codec", "bits per value", "relative error"], rows)
    note(f"wrote {out}")


def _heat_maps(
    layout: Layout, update: Vector, tensor: str | None, sparsity: float, kernels: float
) -> list[Any]:
    """Return the codec figures 1 and 2 of the SSTC paper, if the model has a convolution."""
    from abaton.codecs.advisor import ternary_updates
    from abaton.layout import TensorRole
    from abaton.report import heat_maps, kernel_map

    convolutions = sorted((t for t in layout if t.role is TensorRole.CONV), key=lambda t: t.size)
    if tensor is None and not convolutions:
        note("the model has no convolution: no heat maps")
        return []
    selected = tensor or convolutions[-1].name
    versions = ternary_updates(layout, update, sparsity, kernels)
    maps = {name: kernel_map(vector, layout, selected) for name, vector in versions.items()}
    return [heat_maps(maps, title=f"{selected}: magnitude by kernel")]


def _print_advice(advice: CodecAdvice, layout: Layout) -> None:
    rows = [
        (
            measurement.spec,
            measurement.bytes,
            measurement.compression_ratio,
            measurement.error,
            measurement.is_unbiased,
        )
        for measurement in advice.measurements
    ]
    basis = "its last update" if advice.is_from_update else "random values"
    table(
        f"{layout.size:,} values, measured on {basis}",
        ["codec", "bytes", "compression ratio", "relative error", "unbiased"],
        rows,
    )
    if advice.break_even:
        break_even = [
            (row.kernel_size, row.kernel_count, row.entries, row.max_kernels, row.kernel_fraction)
            for row in advice.break_even
        ]
        table(
            "SSTC is smaller than STC up to (Eq. 2)",
            ["kernel size", "kernels", "STC entries", "maximum kernels", "fraction"],
            break_even,
        )
    note(f"smallest: error_feedback | {advice.smallest}")
    note(f"best without error feedback: {advice.best_unbiased}")


def _read_file(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"'{file}' cannot be read: {error.strerror}", remedy="check the path") from None


def _source(source: str, store: Path | None) -> tuple[Layout, Vector | None]:
    path = Path(source)
    if path.suffix == ".json":
        return _from_json(path), None
    if path.suffix == ".safetensors":
        return _from_safetensors(path)
    from abaton.models import zoo

    if source.isidentifier() and not source.startswith("_") and source in _networks():
        return getattr(zoo, source)().layout, None
    return _from_run(source, store)


def _networks() -> list[str]:
    """Return the networks without settings that `abaton codec` accepts as a source."""
    return ["cifar10_cnn", "resnet50", "shakespeare", "sstc_cnn"]


def _from_json(path: Path) -> Layout:
    from abaton.layout import Layout, Tensor, TensorRole

    try:
        rows: Any = json_module.loads(_read_file(path))
        return Layout(Tensor(r["name"], tuple(map(int, r["shape"])), TensorRole(r["role"])) for r in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"'{path}' is not a layout: {error}",
            remedy='use [{"name": "w", "shape": [2, 3], "role": "dense"}, ...]',
        ) from None


def _from_safetensors(path: Path) -> tuple[Layout, Vector]:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    from abaton.layout import Layout, Tensor, TensorRole

    try:
        arrays = load(_read_file(path))
    except SafetensorError as error:
        raise SettingsError(
            f"'{path}' is not a safetensors file: {error}", remedy="write the file again"
        ) from None
    roles = {0: TensorRole.OTHER, 1: TensorRole.BIAS, 2: TensorRole.DENSE}
    tensors = {name: a for name, a in arrays.items() if a.dtype.kind == "f"}
    layout = Layout(Tensor(name, a.shape, roles.get(a.ndim, TensorRole.CONV)) for name, a in tensors.items())
    vectors = [a.astype(np.float32).ravel() for a in tensors.values()]
    return layout, np.concatenate([*vectors, np.zeros(0, np.float32)])


def _from_run(name: str, folder: Path | None) -> tuple[Layout, Vector | None]:
    from abaton.layout import Layout, Tensor, TensorRole

    with ExitStack() as stack:
        try:
            store = stack.enter_context(opened_store(folder))
            row = store.run(name)
        except SettingsError as error:
            raise SettingsError(
                f"'{name}' is neither a file, a network nor a run: {error.what}",
                where=error.where,
                remedy=f"networks are {', '.join(_networks())}; list runs with 'abaton runs'",
            ) from None
        tensors = row.recipe["deployment"]["layout"]
        layout = Layout(Tensor(name, tuple(shape), TensorRole(role)) for name, shape, role in tensors)
        versions = store.models(row.run)[-2:]
        if len(versions) < 2:
            return layout, None
        before, after = (store.model_files.get(version.digest) for version in versions)
        return layout, after - before
