"""Figures about codecs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from abaton.codecs import CodecKey, Sstc, Stc
from abaton.errors import SettingsError
from abaton.layout import Layout, Tensor, TensorRole
from abaton.report import accuracy_curves, error_curves, heat_maps, kernel_map

LAYOUT = Layout([Tensor("conv", (6, 4, 5, 5), TensorRole.CONV), Tensor("dense", (3, 4), TensorRole.DENSE)])


def test_heat_maps_show_the_selected_kernels():
    update, key = (
        np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32),
        CodecKey(b"round", "north"),
    )
    codecs = {"STC": Stc(0.05), "SSTC": Sstc(0.05, 0.125)}
    maps = {"update": kernel_map(update, LAYOUT, "conv")}
    for name, codec in codecs.items():
        maps[name] = kernel_map(codec.decode(codec.encode(update, LAYOUT, key), LAYOUT, key), LAYOUT, "conv")
    assert maps["update"].shape == (25, 24)
    assert np.any(maps["SSTC"], axis=0).sum() <= 3 < np.any(maps["STC"], axis=0).sum()
    figure = heat_maps(maps, title="second layer")
    assert len(figure.data) == 3
    assert "second layer" in figure.to_html(include_plotlyjs=False)


def test_curves_have_a_line_for_each_codec():
    curves = {"stc": [(1.0, 0.5), (2.0, 0.25)], "raw": [(32.0, 1e-9)]}
    for make in (error_curves, accuracy_curves):
        figure = make(curves)
        assert [line.name for line in figure.data] == ["stc", "raw"]


def test_dense_tensors_have_no_kernels():
    with pytest.raises(SettingsError, match="no kernels"):
        kernel_map(LAYOUT.zeros(), LAYOUT, "dense")


def test_plotly_is_imported_only_for_a_figure():
    code = "import sys, abaton.report; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
