from __future__ import annotations

import numpy as np
import pytest

from abaton.errors import StoreError
from abaton.store import ModelFiles, PayloadFile, content_digest, model_digest


def test_content_is_stored_once_and_comes_back(tmp_path):
    model_files = ModelFiles(tmp_path)
    vector = np.arange(5, dtype=np.float32)
    digest = model_files.put(vector, "layout")
    assert digest == model_files.put(vector.copy(), "layout") == model_digest(vector)
    assert np.array_equal(model_files.get(digest), vector)
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


def test_a_model_is_a_safetensors_file_that_others_can_read(tmp_path):
    from safetensors import safe_open

    digest = ModelFiles(tmp_path).put(np.ones(3, np.float32), "abc")
    with safe_open(next(tmp_path.rglob(f"{digest}.safetensors")), "np") as file:
        assert file.metadata() == {"layout": "abc"}
        assert file.get_tensor("model").tolist() == [1, 1, 1]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_and_missing_files_are_refused(tmp_path, damage):
    model_files = ModelFiles(tmp_path / "models")
    digest = model_files.put(np.ones(3, np.float32), "abc")
    payload_file = PayloadFile(tmp_path / "run.pack", {})
    payload = payload_file.put(b"an update")
    payload_file.write()
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(StoreError, match="missing" if damage is None else "damaged"):
        model_files.get(digest)
    with pytest.raises(StoreError, match="damaged"):
        payload_file.get(payload)
    with pytest.raises(StoreError, match="missing"):
        payload_file.get(content_digest(b"never seen"))


def test_a_payload_file_stores_each_payload_once_and_truncates_unknown_bytes(tmp_path):
    path = tmp_path / "run.pack"
    payload_file = PayloadFile(path, {})
    first, again, second = payload_file.put(b"first"), payload_file.put(b"first"), payload_file.put(b"second")
    assert first == again
    assert payload_file.get(first) == b"first", "readable before it is on disk"
    positions = payload_file.write()
    assert (path.read_bytes(), payload_file.get(second)) == (b"firstsecond", b"second")
    assert payload_file.write() == {}
    payload_file.put(b"cut off by a crash")
    payload_file.write()
    resumed = PayloadFile(path, positions)
    assert resumed.get(first) == b"first"
    third = resumed.put(b"third")
    assert resumed.write() == {third: (11, 5)}
    assert path.read_bytes() == b"firstsecondthird"


def test_a_flipped_number_is_noticed(tmp_path):
    model_files = ModelFiles(tmp_path)
    digest = model_files.put(np.ones(3, np.float32), "abc")
    path = next(tmp_path.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        model_files.get(digest)


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    import pathlib

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        ModelFiles(tmp_path).put(np.ones(3, np.float32), "abc")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
