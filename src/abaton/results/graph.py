"""A model as an ONNX graph: missing values, scaling, layers and chances are all inside, so any runtime can ask it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.atomic_files import replacing
from abaton.deployment.portable_model import UsableModel

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
