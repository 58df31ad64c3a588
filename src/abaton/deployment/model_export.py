"""Model files: ONNX, safetensors and scikit-learn, selected by the suffix.

Imputation, scaling, layers and the softmax are part of each file, so it needs no other program of Abaton.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import atomic_write
from abaton.deployment.portable_model import PortableLayer, PortableModel, to_portable_model
from abaton.deployment.sklearn_export import write_sklearn
from abaton.errors import SettingsError
from abaton.features import SplineBasis
from abaton.federation import Run

OPSET = 17
"""Version of the ONNX operator set of exported graphs."""

_IR_VERSION = 8  # file format of this operator set; older runtimes read it, too


def write_onnx(model: PortableModel, path: Path) -> None:
    """Write a model as a checked ONNX file: input `x`, output `probabilities` or `value`."""
    graph = to_onnx(model)
    with atomic_write(path) as temporary_path:
        temporary_path.write_bytes(graph.SerializeToString())


def to_onnx(model: PortableModel) -> Any:
    """Return the model as an ONNX graph; input `x` has one row per patient, NaN where a value is missing."""
    try:
        import onnx
        from onnx import TensorProto, helper, numpy_helper
    except ModuleNotFoundError:
        raise SettingsError(
            "the package 'onnx' is not installed",
            where="model export",
            remedy="pip install 'abaton[export]', or export to .safetensors",
        ) from None

    constants: list[Any] = []
    nodes: list[Any] = []

    def add_constant(name: str, value: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add_node(operator: str, inputs: list[str], output: str, **settings: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], name=output, **settings))
        return output

    rows = "x"
    if model.bin_width.any():
        is_binned = add_constant("is_binned", model.bin_width > 0)
        bin_width = add_constant("bin_width", np.where(model.bin_width > 0, model.bin_width, 1.0))
        origin, half = add_constant("bin_origin", model.bin_origin), add_constant("half", np.array(0.5))
        bin_position = add_node(
            "Div", [add_node("Sub", ["x", origin], "from_origin"), bin_width], "bin_position"
        )
        bin_index = add_node("Add", [add_node("Floor", [bin_position], "bin"), half], "bin_centre")
        midpoint = add_node(
            "Add", [add_node("Mul", [bin_index, bin_width], "centre_from_origin"), origin], "centre"
        )
        rows = add_node("Where", [is_binned, midpoint, "x"], "binned")
    missing = add_node("IsNaN", [rows], "missing")
    imputed = add_node("Where", [missing, add_constant("fill_value", model.fill_value), rows], "imputed")
    centred = add_node("Sub", [imputed, add_constant("mean", model.mean)], "centred")
    scaled = add_node("Div", [centred, add_constant("std", model.std)], "scaled")
    if any(model.splines):
        scaled = _add_splines(model, scaled, add_constant, add_node)
    activations = add_node("Cast", [scaled], "inputs", to=TensorProto.FLOAT)
    for i, layer in enumerate(model.layers):
        if i:
            activations = add_node("Relu", [activations], f"active{i}")
        weight, bias = add_constant(f"weight{i}", layer.weight), add_constant(f"bias{i}", layer.bias)
        activations = add_node("Gemm", [activations, weight, bias], f"layer{i}", transB=1)
    if model.classes:
        activations = add_node("Softmax", [activations], "probabilities", axis=1)
        width = len(model.classes)
    else:
        mean, std = (np.array([number], np.float32) for number in model.label)
        rescaled = add_node("Mul", [activations, add_constant("label_std", std)], "rescaled")
        activations, width = add_node("Add", [rescaled, add_constant("label_mean", mean)], "value"), 1
    graph = helper.make_graph(
        nodes,
        str(model.metadata.get("study") or "model"),
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["patients", len(model.columns)])],
        [helper.make_tensor_value_info(activations, TensorProto.FLOAT, ["patients", width])],
        constants,
    )
    onnx_model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="abaton"
    )
    onnx_model.ir_version = _IR_VERSION
    properties = {"columns": list(model.columns), "classes": list(model.classes), **model.metadata}
    helper.set_model_props(onnx_model, {name: json.dumps(value) for name, value in properties.items()})
    onnx.checker.check_model(onnx_model, full_check=True)
    return onnx_model


def _add_splines(
    model: PortableModel, rows: str, add_constant: Callable[..., str], add_node: Callable[..., str]
) -> str:
    """Add the splines of a model to its ONNX graph; comparisons, not Clip, so that a missing value stays missing."""
    blocks = []
    zero, three = add_constant("zero", np.array(0.0)), add_constant("three", np.array(3.0))
    for i, spline in enumerate(model.splines):
        column = add_node("Gather", [rows, add_constant(f"index{i}", np.array([i]))], f"column{i}", axis=1)
        if spline is not None:
            matrix, offset = spline.coefficients
            low, high = (
                add_constant(f"{name}{i}", np.array(value))
                for name, value in zip(("low", "high"), spline.cut_range, strict=True)
            )
            is_low = add_node("Less", [column, low], f"is_low{i}")
            raised = add_node("Where", [is_low, low, column], f"raised{i}")
            is_high = add_node("Greater", [raised, high], f"is_high{i}")
            value = add_node("Where", [is_high, high, raised], f"cut{i}")
            if spline.is_log:
                value = add_node("Log", [value], f"log{i}")
            first, last = (
                np.log(knot) if spline.is_log else knot for knot in (spline.knots[0], spline.knots[-1])
            )
            shifted = add_node("Sub", [value, add_constant(f"first{i}", np.array(first))], f"shifted{i}")
            position = add_node(
                "Div", [shifted, add_constant(f"extent{i}", np.array(last - first))], f"position{i}"
            )
            distance = add_node(
                "Sub", [position, add_constant(f"knots{i}", spline.knot_positions)], f"distance{i}"
            )
            truncated = add_node("Max", [distance, zero], f"truncated{i}")
            cubes = add_node("Pow", [truncated, three], f"cubes{i}")
            terms = add_node("Concat", [position, cubes], f"powers{i}", axis=1)
            combined = add_node("MatMul", [terms, add_constant(f"basis{i}", matrix)], f"combined{i}")
            column = add_node("Sub", [combined, add_constant(f"offset{i}", offset)], f"spline{i}")
        blocks.append(column)
    return add_node("Concat", blocks, "expanded", axis=1)


FORMAT = "abaton-model-1"


def write_safetensors(model: PortableModel, path: Path) -> None:
    """Write a model as safetensors; columns, classes and provenance are in the file's metadata."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {
        "bin_width": model.bin_width,
        "bin_origin": model.bin_origin,
        "fill_value": model.fill_value,
        "mean": model.mean,
        "std": model.std,
    }
    for i, layer in enumerate(model.layers):
        arrays |= {f"layer{i}.weight": layer.weight, f"layer{i}.bias": layer.bias}
    metadata = {
        "columns": list(model.columns),
        "classes": list(model.classes),
        "label": list(model.label),
        "layers": len(model.layers),
        "splines": [spline.to_row() if spline else None for spline in model.splines],
        "metadata": dict(model.metadata),
    }
    content = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={"format": FORMAT, "model": json.dumps(metadata)},
    )
    with atomic_write(path) as temporary_path:
        temporary_path.write_bytes(content)


def load_model(path: Path) -> PortableModel:
    """Read a model from a safetensors file; neither PyTorch nor the run is needed.

    Raises:
        SettingsError: The file is not an exported model, or is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError("format")
        description = json.loads(metadata["model"])
        mean, std = description["label"]
        return PortableModel(
            columns=tuple(description["columns"]),
            bin_width=arrays["bin_width"],
            bin_origin=arrays["bin_origin"],
            fill_value=arrays["fill_value"],
            mean=arrays["mean"],
            std=arrays["std"],
            layers=tuple(
                PortableLayer(arrays[f"layer{i}.weight"], arrays[f"layer{i}.bias"])
                for i in range(description["layers"])
            ),
            classes=tuple(description["classes"]),
            label=(mean, std),
            metadata=description["metadata"],
            splines=tuple(SplineBasis.from_row(row) if row else None for row in description["splines"]),
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            "the file is not a model exported by Abaton, or is damaged",
            where=str(path),
            remedy="export it again: abaton model export RUN --out model.safetensors",
        ) from error


EXPORT_FORMATS: Mapping[str, Callable[[PortableModel, Path], None]] = {
    ".onnx": write_onnx,
    ".safetensors": write_safetensors,
    ".skops": write_sklearn,
}
"""Functions that write a model, by suffix."""


def export_model(run: Run, out: Path) -> PortableModel:
    """Write a run's community model as ONNX, safetensors or a scikit-learn estimator, by the suffix of `out`.

    Raises:
        SettingsError: The suffix is unknown, the file cannot be written, or the model cannot be exported.
    """
    if out.suffix not in EXPORT_FORMATS:
        raise SettingsError(
            f"'{out.suffix}' is not a suffix of a model file",
            where=str(out),
            remedy=f"use {', '.join(EXPORT_FORMATS)}",
        )
    model = to_portable_model(run)
    try:
        EXPORT_FORMATS[out.suffix](model, out)
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(out), remedy=error.strerror or "choose another path"
        ) from None
    return model
