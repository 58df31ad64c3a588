"""``abaton codec advise`` and ``abaton codec inspect``."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from abaton.cli import app
from abaton.codecs import Key, parse
from abaton.errors import PayloadError, SettingsError
from abaton.vectors import Layout, Role, Tensor

LAYOUT = Layout(
    [
        Tensor("conv.weight", (8, 4, 5, 5), Role.CONV),
        Tensor("conv.bias", (8,), Role.BIAS),
        Tensor("dense.weight", (10, 50), Role.DENSE),
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
    sizes = [row["bytes"] for row in advice["measured"]]
    assert sizes == sorted(sizes)
    assert advice["smallest"] == advice["measured"][0]["line"]
    assert advice["layout"] == LAYOUT.digest
    even = advice["break_even"][0]
    assert even["kernel_bits"] == 6
    assert even["index_bits"] == 10
    assert even["most"] == pytest.approx(even["entries"] * 10 / (2 * 25 + 6))
    assert even["share"] == pytest.approx(even["most"] / 32)
    assert "sstc(" in run("advise", str(layout_file))


def test_advice_from_an_update(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in LAYOUT}
    arrays["steps"] = np.zeros(3, np.int64)
    save_file(arrays, tmp_path / "update.safetensors")
    advice = json.loads(run("advise", str(tmp_path / "update.safetensors"), "--json", "--sparsity", "0.1"))
    assert advice["from_update"]
    assert advice["numbers"] == LAYOUT.size


@pytest.mark.parametrize(
    "line", ["raw", "stc(sparsity=0.1)", "sstc(sparsity=0.1, kernels=0.25)", "ecdq(bits=1)"]
)
def test_a_payload_is_explained_to_its_last_byte(line: str, tmp_path, layout_file):
    update = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    payload, _ = parse(line).encode(update, LAYOUT, Key(b"round", "north"), {})
    file = tmp_path / "payload"
    file.write_bytes(payload)
    fields = json.loads(run("inspect", str(file), "--layout", str(layout_file), "--json"))
    ends = [0, *(field["at"] + field["bytes"] for field in fields)]
    assert [field["at"] for field in fields] == ends[:-1]
    assert ends[-1] == len(payload)
    assert "the layout given" in fields[4]["value"]
    assert line.split("(")[0] in run("inspect", str(file))


def test_what_is_no_payload_is_refused(tmp_path):
    (tmp_path / "text").write_text("hello, this is not a payload at all")
    with pytest.raises(PayloadError):
        run("inspect", str(tmp_path / "text"))
    with pytest.raises(SettingsError, match="cannot read"):
        run("inspect", str(tmp_path / "nothing"))


def test_an_unknown_source_names_what_is_known(tmp_path):
    with pytest.raises(SettingsError, match="sstc_cnn"):
        run("advise", "nonsense", "--store", str(tmp_path / "store"))
    (tmp_path / "bad.json").write_text('[{"name": "w"}]')
    with pytest.raises(SettingsError, match="layout"):
        run("advise", str(tmp_path / "bad.json"))
