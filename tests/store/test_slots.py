"""Models in a scratch file: the same bits as in memory, nothing left behind."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abaton.codecs import parse
from abaton.controller import Shelf
from abaton.controller.aggregation import Newest
from abaton.errors import SettingsError, StoreError
from abaton.store import SlotFile
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (50,), Role.DENSE)])
turns = st.lists(
    st.tuples(st.integers(0, 5), st.floats(0, 1e4), st.integers(0, 9), st.booleans()), min_size=1, max_size=40
)


@settings(max_examples=60)
@given(turns, st.sampled_from([0, 199, 400, 1000]))
def test_spilled_and_kept_in_memory_give_the_same_bits(tmp_path_factory, sequence, limit):
    models = np.random.default_rng(0).normal(size=(10, 50)).astype(np.float32)
    with SlotFile(tmp_path_factory.getbasetemp(), 50) as file:
        spilled = Newest(LAYOUT, parse("raw"), LAYOUT.zeros(), shelf=Shelf(50, limit, file))
        inside = Newest(LAYOUT, parse("raw"), LAYOUT.zeros())
        for site, weight, index, leaves in sequence:
            for mix in (spilled, inside):
                mix.replace(f"site{site}", models[index] * 10 ** (index - 5), weight)
                if leaves:
                    mix.retire(f"site{(site + 1) % 6}")
            assert spilled.publish().tobytes() == inside.publish().tobytes()


def test_only_what_exceeds_the_limit_goes_to_the_file_and_slots_are_used_again(tmp_path):
    with SlotFile(tmp_path, 50) as file:
        shelf = Shelf(50, 500, file)
        shelf.put("a", LAYOUT.zeros())
        shelf.put("b", LAYOUT.zeros())
        assert file._file is None
        shelf.put("c", LAYOUT.zeros() + 3)
        assert os.fstat(file._file.fileno()).st_size == 200
        shelf.drop("c")
        shelf.put("d", LAYOUT.zeros() + 4)
        assert os.fstat(file._file.fileno()).st_size == 200
        assert shelf.get("d")[0] == 4
        assert sorted(shelf) == ["a", "b", "d"]
        assert not list(tmp_path.iterdir()), "it has no name, so nothing is left behind"


def test_a_limit_needs_a_place_for_the_others():
    with pytest.raises(SettingsError, match="shelf"):
        Shelf(50, 100)
    with pytest.raises(SettingsError, match="shelf"):
        Shelf(50, -1, SlotFile(None, 50))


def test_a_full_disk_is_one_clear_line(tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with SlotFile(tmp_path, 50) as file:
        monkeypatch.setattr("os.pwrite", full)
        with pytest.raises(StoreError, match="No space left on device.*free space"):
            file.write(0, LAYOUT.zeros())


def test_a_file_that_was_cut_is_refused(tmp_path):
    with SlotFile(tmp_path, 50) as file:
        file.write(3, LAYOUT.zeros())
        file._file.truncate(700)
        with pytest.raises(StoreError, match="damaged"):
            file.read(3)
