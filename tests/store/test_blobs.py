from __future__ import annotations

import numpy as np
import pytest

from abaton.errors import StoreError
from abaton.store import Models, Pack, digest_of, model_digest


def test_content_is_stored_once_and_comes_back(tmp_path):
    blobs = Models(tmp_path)
    vector = np.arange(5, dtype=np.float32)
    digest = blobs.put(vector, "layout")
    assert digest == blobs.put(vector.copy(), "layout") == model_digest(vector)
    assert np.array_equal(blobs.get(digest), vector)
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


def test_a_model_is_a_safetensors_file_that_others_can_read(tmp_path):
    from safetensors import safe_open

    digest = Models(tmp_path).put(np.ones(3, np.float32), "abc")
    with safe_open(next(tmp_path.rglob(f"{digest}.safetensors")), "np") as file:
        assert file.metadata() == {"layout": "abc"}
        assert file.get_tensor("model").tolist() == [1, 1, 1]


@pytest.mark.parametrize("damage", [b"", b"garbage", None])
def test_damaged_and_missing_files_are_refused(tmp_path, damage):
    blobs = Models(tmp_path / "models")
    digest = blobs.put(np.ones(3, np.float32), "abc")
    pack = Pack(tmp_path / "run.pack", {})
    payload = pack.put(b"an update")
    pack.write()
    for path in [p for p in tmp_path.rglob("*") if p.is_file()]:
        path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(StoreError, match="missing" if damage is None else "damaged"):
        blobs.get(digest)
    with pytest.raises(StoreError, match="damaged"):
        pack.get(payload)
    with pytest.raises(StoreError, match="missing"):
        pack.get(digest_of(b"never seen"))


def test_a_pack_keeps_each_payload_once_and_forgets_what_was_not_written_down(tmp_path):
    path = tmp_path / "run.pack"
    pack = Pack(path, {})
    first, again, second = pack.put(b"first"), pack.put(b"first"), pack.put(b"second")
    assert first == again
    assert pack.get(first) == b"first", "readable before it is on disk"
    places = pack.write()
    assert (path.read_bytes(), pack.get(second)) == (b"firstsecond", b"second")
    assert pack.write() == {}
    pack.put(b"cut off by a crash")
    pack.write()
    resumed = Pack(path, places)
    assert resumed.get(first) == b"first"
    third = resumed.put(b"third")
    assert resumed.write() == {third: (11, 5)}
    assert path.read_bytes() == b"firstsecondthird"


def test_a_flipped_number_is_noticed(tmp_path):
    blobs = Models(tmp_path)
    digest = blobs.put(np.ones(3, np.float32), "abc")
    path = next(tmp_path.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="damaged"):
        blobs.get(digest)


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    import pathlib

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", full)
    with pytest.raises(StoreError, match="No space left"):
        Models(tmp_path).put(np.ones(3, np.float32), "abc")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
