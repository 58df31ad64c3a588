"""A model as an ONNX graph: missing values, scaling, layers and chances are all inside, so any runtime can ask it.

A model as a file of weights (safetensors), which holds numbers and words and can do nothing else.

Export a run's model: the file's ending says which form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.atomic_files import replacing
from abaton.deployment.portable_model import Layer, UsableModel, usable
from abaton.deployment.sklearn_export import write_estimator
from abaton.errors import SettingsError
from abaton.federation import Run

OPSET = 17
"""The version of ONNX's operators that the graph is written in."""

_IR = 8  # the file format that goes with them: older runtimes read it, too


def write_graph(model: UsableModel, path: Path) -> None:
    """Write a model as a checked ONNX file: input `x`, output `probabilities` or `value`."""
    made = graph_of(model)
    with replacing(path) as begun:
        begun.write_bytes(made.SerializeToString())


def graph_of(model: UsableModel) -> Any:
    """The model as a graph: `x` has one row for each person, columns in order, NaN where a value is missing."""
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

    def constant(name: str, value: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def then(operator: str, inputs: list[str], output: str, **settings: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], name=output, **settings))
        return output

    rows = "x"
    if model.width.any():
        coarse = constant("coarse", model.width > 0)
        wide = constant("width", np.where(model.width > 0, model.width, 1.0))
        origin, half = constant("origin", model.origin), constant("half", np.array(0.5))
        place = then("Div", [then("Sub", ["x", origin], "from_origin"), wide], "place")
        number = then("Add", [then("Floor", [place], "number"), half], "middle_number")
        middle = then("Add", [then("Mul", [number, wide], "middle_from_origin"), origin], "middle")
        rows = then("Where", [coarse, middle, "x"], "ranges")
    missing = then("IsNaN", [rows], "missing")
    filled = then("Where", [missing, constant("fill", model.fill), rows], "filled")
    centred = then("Sub", [filled, constant("mean", model.mean)], "centred")
    scaled = then("Div", [centred, constant("deviation", model.deviation)], "scaled")
    made = then("Cast", [scaled], "inputs", to=TensorProto.FLOAT)
    for i, layer in enumerate(model.layers):
        if i:
            made = then("Relu", [made], f"active{i}")
        weight, bias = constant(f"weight{i}", layer.weight), constant(f"bias{i}", layer.bias)
        made = then("Gemm", [made, weight, bias], f"layer{i}", transB=1)
    if model.classes:
        made = then("Softmax", [made], "probabilities", axis=1)
        width = len(model.classes)
    else:
        mean, deviation = (np.array([each], np.float32) for each in model.label)
        spread = then("Mul", [made, constant("label_deviation", deviation)], "spread")
        made, width = then("Add", [spread, constant("label_mean", mean)], "value"), 1
    graph = helper.make_graph(
        nodes,
        str(model.about.get("study") or "model"),
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["people", len(model.columns)])],
        [helper.make_tensor_value_info(made, TensorProto.FLOAT, ["people", width])],
        constants,
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="abaton")
    whole.ir_version = _IR
    told = {"columns": list(model.columns), "classes": list(model.classes), **model.about}
    helper.set_model_props(whole, {name: json.dumps(value) for name, value in told.items()})
    onnx.checker.check_model(whole, full_check=True)
    return whole


FORMAT = "abaton-model-1"


def write_weights(model: UsableModel, path: Path) -> None:
    """Write a model; columns, classes and where it comes from stand beside the weights."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {
        "width": model.width,
        "origin": model.origin,
        "fill": model.fill,
        "mean": model.mean,
        "deviation": model.deviation,
    }
    for i, layer in enumerate(model.layers):
        arrays |= {f"layer{i}.weight": layer.weight, f"layer{i}.bias": layer.bias}
    told = {
        "columns": list(model.columns),
        "classes": list(model.classes),
        "label": list(model.label),
        "layers": len(model.layers),
        "about": dict(model.about),
    }
    made = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={"format": FORMAT, "model": json.dumps(told)},
    )
    with replacing(path) as begun:
        begun.write_bytes(made)


def load_model(path: Path) -> UsableModel:
    """Read a model that was exported as weights; neither PyTorch nor the run is needed to ask it.

    Raises:
        SettingsError: The file is none of these, or is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError("format")
        told = json.loads(metadata["model"])
        mean, deviation = told["label"]
        return UsableModel(
            columns=tuple(told["columns"]),
            width=arrays["width"],
            origin=arrays["origin"],
            fill=arrays["fill"],
            mean=arrays["mean"],
            deviation=arrays["deviation"],
            layers=tuple(
                Layer(arrays[f"layer{i}.weight"], arrays[f"layer{i}.bias"]) for i in range(told["layers"])
            ),
            classes=tuple(told["classes"]),
            label=(mean, deviation),
            about=told["about"],
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            "this is no model that Abaton wrote, or it is damaged",
            where=str(path),
            remedy="export it again: abaton model export RUN --out model.safetensors",
        ) from error


FORMS: Mapping[str, Callable[[UsableModel, Path], None]] = {
    ".onnx": write_graph,
    ".safetensors": write_weights,
    ".skops": write_estimator,
}
"""How a model is written, by the file's ending."""


def export(run: Run, out: Path) -> UsableModel:
    """Write a run's model to a file: ONNX, weights, or an estimator of scikit-learn, by the file's ending.

    Raises:
        SettingsError: There is no such form, the file cannot be written, or the model cannot be exported.
    """
    if out.suffix not in FORMS:
        raise SettingsError(
            f"there is no form '{out.suffix}' of a model",
            where=str(out),
            remedy=f"end it in {', '.join(FORMS)}",
        )
    made = usable(run)
    try:
        FORMS[out.suffix](made, out)
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(out), remedy=error.strerror or "choose another place"
        ) from None
    return made
