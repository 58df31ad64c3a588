"""``abaton codec``: which codec to use for a model, and what a payload says."""

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
    from abaton.codecs.advisor import Advice
    from abaton.layout import Layout, Vector

app = typer.Typer(help="Codecs: advice for a model, and what a payload says.", no_args_is_help=True)

SOURCE = (
    "The model: a layout (.json), a model or update (.safetensors), a network by name, or a run in the store."
)


@app.command()
def advise(
    source: str = typer.Argument(help=SOURCE, autocompletion=complete_run),
    *,
    sparsity: float = typer.Option(0.01, help="The share of weights that sparse codecs send."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Say which codec and settings are smallest for a model.

    A run, or a file with numbers, is measured on its own last update; a layout or a network on random
    numbers, which is the worst case for the context coder.
    """
    from abaton.codecs.advisor import advise as ask

    layout, update = _source(source, store)
    advice = ask(layout, update, sparsity=sparsity)
    if json:
        rows = [{**asdict(b), "share": b.share} for b in advice.break_even]
        emit({**asdict(advice), "break_even": rows, "numbers": layout.size, "layout": layout.digest})
    else:
        _print(advice, layout)


@app.command()
def inspect(
    file: Path = typer.Argument(help="A file that holds one payload."),
    *,
    layout: str | None = typer.Option(None, help="The model it was made for; see 'advise'."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Explain a payload, field by field."""
    from abaton.codecs.inspection import explain

    fields = explain(_bytes(file), _source(layout, store)[0] if layout else None)
    if json:
        emit([asdict(field) for field in fields])
    else:
        table(
            file.name, ["at", "bytes", "field", "value"], [(f.at, f.bytes, f.name, f.value) for f in fields]
        )


@app.command()
def pictures(
    source: str = typer.Argument(help=SOURCE, autocompletion=complete_run),
    *,
    out: Path = typer.Option(..., "--out", "-o", help="The page to write (.html)."),
    tensor: str | None = typer.Option(None, help="Which convolution to show; the largest by default."),
    sparsity: float = typer.Option(0.01, help="The share of weights that sparse codecs send."),
    kernels: float = typer.Option(0.125, help="The share of kernels that may hold them."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Draw an update before and after STC and SSTC, and the error of every codec against its bits.

    The page opens anywhere, offline. The numbers of the curves are printed as well.
    """
    from abaton.codecs.advisor import error_by_bits, unpredictable
    from abaton.report import error_curves, figures_page

    layout, update = _source(source, store)
    update = unpredictable(layout) if update is None else update
    curves = error_by_bits(layout, update)
    maps = _heat_maps(layout, update, tensor, sparsity, kernels)
    save(out, figures_page(f"Codecs: {source}", [*maps, error_curves(curves)]))
    rows = [(name, bits, error) for name, points in curves.items() for bits, error in points]
    if json:
        emit([dict(zip(("codec", "bits", "error"), row, strict=True)) for row in rows])
    else:
        table("error against bits", ["codec", "bits a number", "relative error"], rows)
    note(f"written: {out}")


def _heat_maps(
    layout: Layout, update: Vector, tensor: str | None, sparsity: float, kernels: float
) -> list[Any]:
    """Fig. 1 and 2 of the SSTC paper, if the model has a convolution."""
    from abaton.codecs.advisor import ternary
    from abaton.report import heat_maps, kernel_map
    from abaton.kernels import Role

    convolutions = sorted((t for t in layout if t.role is Role.CONV), key=lambda t: t.size)
    if tensor is None and not convolutions:
        note("the model has no convolution: no heat maps")
        return []
    chosen = tensor or convolutions[-1].name
    versions = ternary(layout, update, sparsity, kernels)
    maps = {name: kernel_map(vector, layout, chosen) for name, vector in versions.items()}
    return [heat_maps(maps, title=f"{chosen}: size of change, by kernel")]


def _print(advice: Advice, layout: Layout) -> None:
    rows = [(m.line, m.bytes, m.ratio, m.error, m.unbiased) for m in advice.measured]
    basis = "its last update" if advice.from_update else "random numbers"
    table(
        f"{layout.size:,} numbers, measured on {basis}",
        ["codec", "bytes", "times smaller", "relative error", "unbiased"],
        rows,
    )
    if advice.break_even:
        even = [(b.kernel, b.kernels, b.entries, b.most, b.share) for b in advice.break_even]
        table(
            "SSTC's own encoding beats STC's below (Eq. 2)",
            ["kernel size", "kernels", "STC entries", "most kernels", "share"],
            even,
        )
    note(f"smallest: error_feedback | {advice.smallest}")
    note(f"smallest without memory at the learner: {advice.smallest_unbiased}")


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"cannot read '{file}': {error.strerror}", remedy="give a file that holds a payload"
        ) from None


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
    """The networks that need no settings."""
    return ["cifar10_cnn", "resnet50", "shakespeare", "sstc_cnn"]


def _from_json(path: Path) -> Layout:
    from abaton.kernels import Layout, Role, Tensor

    try:
        rows: Any = json_module.loads(_bytes(path))
        return Layout(Tensor(r["name"], tuple(map(int, r["shape"])), Role(r["role"])) for r in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"'{path}' is not a layout: {error}",
            remedy='write [{"name": "w", "shape": [2, 3], "role": "dense"}, ...]',
        ) from None


def _from_safetensors(path: Path) -> tuple[Layout, Vector]:
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import load

    from abaton.kernels import Layout, Role, Tensor

    try:
        arrays = load(_bytes(path))
    except SafetensorError as error:
        raise SettingsError(f"'{path}' is not a safetensors file: {error}", remedy="save it again") from None
    roles = {0: Role.OTHER, 1: Role.BIAS, 2: Role.DENSE}
    chosen = {name: a for name, a in arrays.items() if a.dtype.kind == "f"}
    layout = Layout(Tensor(name, a.shape, roles.get(a.ndim, Role.CONV)) for name, a in chosen.items())
    parts = [a.astype(np.float32).ravel() for a in chosen.values()]
    return layout, np.concatenate([*parts, np.zeros(0, np.float32)])


def _from_run(name: str, folder: Path | None) -> tuple[Layout, Vector | None]:
    from abaton.kernels import Layout, Role, Tensor

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
        tensors = row.recipe["use"]["layout"]
        layout = Layout(Tensor(name, tuple(shape), Role(role)) for name, shape, role in tensors)
        versions = store.models(row.run)[-2:]
        if len(versions) < 2:
            return layout, None
        before, after = (store.vectors.get(version.digest) for version in versions)
        return layout, after - before
