"""Models in a scratch file: the same bits as in memory, and no file remains."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abaton.codecs import parse_codec
from abaton.controller import ModelCache
from abaton.controller.aggregation import LatestMeanModel
from abaton.errors import SettingsError, StoreError
from abaton.layout import Layout, Tensor, TensorRole
from abaton.store import ScratchModelFile

LAYOUT = Layout([Tensor("weight", (50,), TensorRole.DENSE)])
sequences = st.lists(
    st.tuples(st.integers(0, 5), st.floats(0, 1e4), st.integers(0, 9), st.booleans()), min_size=1, max_size=40
)


@settings(max_examples=60)
@given(sequences, st.sampled_from([0, 199, 400, 1000]))
def test_scratch_file_and_memory_give_the_same_bits(tmp_path_factory, sequence, limit):
    models = np.random.default_rng(0).normal(size=(10, 50)).astype(np.float32)
    with ScratchModelFile(tmp_path_factory.getbasetemp(), 50) as file:
        spilled = LatestMeanModel(
            LAYOUT, parse_codec("raw"), LAYOUT.zeros(), model_cache=ModelCache(50, limit, file)
        )
        in_memory = LatestMeanModel(LAYOUT, parse_codec("raw"), LAYOUT.zeros())
        for site, weight, index, leaves in sequence:
            for community_model in (spilled, in_memory):
                community_model.replace(f"site{site}", models[index] * 10 ** (index - 5), weight)
                if leaves:
                    community_model.remove_learner(f"site{(site + 1) % 6}")
            assert spilled.publish().tobytes() == in_memory.publish().tobytes()


def test_only_models_above_the_limit_go_to_the_file_and_slots_are_reused(tmp_path):
    with ScratchModelFile(tmp_path, 50) as file:
        cache = ModelCache(50, 500, file)
        cache.put("a", LAYOUT.zeros())
        cache.put("b", LAYOUT.zeros())
        assert file._file is None
        cache.put("c", LAYOUT.zeros() + 3)
        assert os.fstat(file._file.fileno()).st_size == 200
        cache.drop("c")
        cache.put("d", LAYOUT.zeros() + 4)
        assert os.fstat(file._file.fileno()).st_size == 200
        assert cache.get("d")[0] == 4
        assert sorted(cache) == ["a", "b", "d"]
        assert not list(tmp_path.iterdir()), "it is unlinked"


def test_a_limit_needs_overflow_slots():
    with pytest.raises(SettingsError, match="model cache"):
        ModelCache(50, 100)
    with pytest.raises(SettingsError, match="model cache"):
        ModelCache(50, -1, ScratchModelFile(None, 50))


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with ScratchModelFile(tmp_path, 50) as file:
        monkeypatch.setattr("os.pwrite", full)
        with pytest.raises(StoreError, match="No space left on device.*free space"):
            file.write(0, LAYOUT.zeros())


def test_a_file_that_was_cut_is_refused(tmp_path):
    with ScratchModelFile(tmp_path, 50) as file:
        file.write(3, LAYOUT.zeros())
        file._file.truncate(700)
        with pytest.raises(StoreError, match="damaged"):
            file.read(3)
