"""``abaton codec advise`` and ``abaton codec inspect``."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.lab import four_sites as four
from typer.testing import CliRunner

from abaton.cli import app
from abaton.codecs import CodecKey, parse_codec
from abaton.codecs.advisor import recommend_codec
from abaton.errors import AbatonError, PayloadError, SettingsError
from abaton.lab import build_from_recipe
from abaton.layout import Layout, Tensor, TensorRole
from abaton.store import Store

KEY = CodecKey(b"round", "north")
LAYOUT = Layout(
    [
        Tensor("conv.weight", (8, 4, 5, 5), TensorRole.CONV),
        Tensor("conv.bias", (8,), TensorRole.BIAS),
        Tensor("dense.weight", (10, 50), TensorRole.DENSE),
    ]
)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["codec", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def layout_file(tmp_path):
    rows = [{"name": t.name, "shape": t.shape, "role": t.role} for t in LAYOUT]
    path = tmp_path / "layout.json"
    path.write_text(json.dumps(rows))
    return path


def test_advice_from_a_layout(layout_file):
    advice = json.loads(run("advise", str(layout_file), "--json"))
    sizes = [row["bytes"] for row in advice["measurements"]]
    assert sizes == sorted(sizes)
    assert advice["smallest"] == advice["measurements"][0]["spec"]
    assert advice["layout"] == LAYOUT.digest
    even = advice["break_even"][0]
    assert even["kernel_bits"] == 6
    assert even["index_bits"] == 10
    assert even["max_kernels"] == pytest.approx(even["entries"] * 10 / (2 * 25 + 6))
    assert even["kernel_fraction"] == pytest.approx(even["max_kernels"] / 32)
    assert "sstc(" in run("advise", str(layout_file))


def test_advice_from_an_update(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in LAYOUT}
    arrays["steps"] = np.zeros(3, np.int64)
    save_file(arrays, tmp_path / "update.safetensors")
    advice = json.loads(run("advise", str(tmp_path / "update.safetensors"), "--json", "--sparsity", "0.1"))
    assert advice["is_from_update"]
    assert advice["values"] == LAYOUT.size


@pytest.fixture(scope="module")
def store_with_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with Store(folder) as store:
        name = build_from_recipe(four.recipe(seed=7, rounds=2, scale=0.1)).run(store=store).name
    return folder, name


def test_advice_from_a_run_is_measured_on_its_last_update(store_with_run):
    folder, name = store_with_run
    advice = json.loads(run("advise", name, "--store", str(folder), "--json"))
    with Store(folder) as store:
        layout = build_from_recipe(store.run(name).recipe).model.layout
        before, after = (store.model_files.get(row.digest) for row in store.models(name)[-2:])
    assert advice["is_from_update"]
    assert advice["layout"] == layout.digest
    assert advice["break_even"] == []  # no convolutions
    for row in advice["measurements"]:
        payload, _ = parse_codec(row["spec"]).encode(
            after - before, layout, CodecKey(b"adviser", "adviser", b"adviser"), {}
        )
        assert row["bytes"] == len(payload)


def test_below_the_break_even_share_the_papers_encoding_is_smaller_and_above_it_is_not():
    layout = Layout([Tensor("conv", (64, 32, 5, 5), TensorRole.CONV)])
    even = recommend_codec(layout, sparsity=0.05).break_even[0]
    assert even.entries == 2560
    assert even.max_kernels == pytest.approx(2560 * 16 / (2 * 25 + 12))  # Eq. 2: 660.6 kernels
    assert even.kernel_fraction == pytest.approx(even.max_kernels / 2048)
    assert even.gain(even.entries) < 1
    below, above = (math.floor(even.max_kernels), math.ceil(even.max_kernels))
    assert even.gain(below) > 1 > even.gain(above)
    # The formulas are those of real payloads: k kernels take k * (12 + 50) bits.
    update = np.random.default_rng(0).standard_normal(layout.size).astype(np.float32)
    sizes = [
        len(
            parse_codec(f"sstc(sparsity=0.05, kernels={share}, coding=fixed)").codec.encode(
                update, layout, KEY
            )
        )
        for share in (0.25, 0.5)
    ]
    assert 8 * (sizes[1] - sizes[0]) == 512 * 62


def test_pictures_hold_the_update_and_every_codec(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in LAYOUT}
    save_file(arrays, tmp_path / "update.safetensors")
    page = tmp_path / "page.html"
    rows = json.loads(
        run("figures", str(tmp_path / "update.safetensors"), "-o", str(page), "--sparsity", "0.1", "--json")
    )
    assert {row["codec"] for row in rows} >= {
        "stc, context",
        "sstc, context",
        "quicfl",
        "ecdq",
        "eden",
        "fp16",
    }
    assert all(row["bits"] > 0 and row["error"] >= 0 for row in rows)
    text = page.read_text()
    assert text.count('"type": "heatmap"') >= 3
    assert "after STC at 10 %" in text
    assert all(f'"name": "{name}"' in text for name in ("ecdq", "sstc, context"))
    assert "://" not in re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)


def test_the_figures_hold_the_numbers(tmp_path, monkeypatch):
    rng, shown = np.random.default_rng(0), []
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in LAYOUT}
    save_file(arrays, tmp_path / "update.safetensors")
    monkeypatch.setattr("abaton.report.render_figures", lambda title, figures: shown.extend(figures) or title)
    rows = json.loads(
        run("figures", str(tmp_path / "update.safetensors"), "-o", str(tmp_path / "page"), "--json")
    )
    maps, curves = shown
    update, stc, sstc = (np.asarray(trace.z) for trace in maps.data)
    np.testing.assert_array_equal(update, np.abs(arrays["conv.weight"]).reshape(32, 25).T)
    assert set(np.flatnonzero(sstc)) | set(np.flatnonzero(stc)) <= set(np.flatnonzero(update))
    assert len(np.unique(stc)) == 2  # nothing, or the one size of all entries
    assert 0 < np.any(sstc, axis=0).sum() <= 4  # an eighth of 32 kernels
    points = [(line.name, x, y) for line in curves.data for x, y in zip(line.x, line.y, strict=True)]
    assert points == [(row["codec"], row["bits"], row["error"]) for row in rows]


def test_figures_of_a_run_without_convolutions_are_curves_only(tmp_path, store_with_run):
    folder, name = store_with_run
    page = tmp_path / "page.html"
    out = run("figures", name, "--store", str(folder), "-o", str(page))
    assert "quicfl" in out
    assert '"type":"heatmap","z"' not in page.read_text()
    with pytest.raises(AbatonError, match="cannot be written"):
        run("figures", name, "--store", str(folder), "-o", str(tmp_path / "none" / "page.html"))


@pytest.mark.parametrize(
    "line", ["raw", "stc(sparsity=0.1)", "sstc(sparsity=0.1, kernels=0.25)", "ecdq(bits=1)"]
)
def test_a_payload_is_explained_to_its_last_byte(line: str, tmp_path, layout_file):
    update = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    payload, _ = parse_codec(line).encode(update, LAYOUT, CodecKey(b"round", "north"), {})
    file = tmp_path / "payload"
    file.write_bytes(payload)
    fields = json.loads(run("inspect", str(file), "--layout", str(layout_file), "--json"))
    ends = [0, *(field["offset"] + field["size"] for field in fields)]
    assert [field["offset"] for field in fields] == ends[:-1]
    assert ends[-1] == len(payload)
    assert "matches the layout" in fields[4]["value"]
    assert line.split("(")[0] in run("inspect", str(file))


def test_other_files_than_payloads_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello, this is not a payload at all")
    with pytest.raises(PayloadError):
        run("inspect", str(tmp_path / "text"))
    with pytest.raises(SettingsError, match="cannot be read"):
        run("inspect", str(tmp_path / "nothing"))


def test_an_unknown_source_names_what_is_known(tmp_path):
    with pytest.raises(SettingsError, match="sstc_cnn"):
        run("advise", "nonsense", "--store", str(tmp_path / "store"))
    (tmp_path / "bad.json").write_text('[{"name": "w"}]')
    with pytest.raises(SettingsError, match="layout"):
        run("advise", str(tmp_path / "bad.json"))


def test_the_unbiased_codec_with_the_smallest_error_is_recommended():
    advice = recommend_codec(Layout([Tensor("weight", (300, 400), TensorRole.DENSE)]))
    assert advice.best_unbiased == "tcdq(bits=1)"
    by_spec = {row.spec: row for row in advice.measurements}
    assert by_spec["tcdq(bits=1)"].error < 0.7 * by_spec["ecdq(bits=1)"].error
    assert by_spec["tcdq(bits=1)"].bytes < 1.01 * by_spec["ecdq(bits=1)"].bytes
