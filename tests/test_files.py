"""A file appears whole or not at all."""

from __future__ import annotations

import stat

import pytest

from abaton.atomic_files import replacing, sweep


def test_a_file_that_cannot_be_finished_leaves_the_old_one_and_no_trace(tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    for wrong in (RuntimeError, KeyboardInterrupt, OSError):

        def half(wrong=wrong):
            with replacing(target) as begun:
                begun.write_text("half")
                raise wrong

        with pytest.raises(wrong):
            half()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert target.read_text() == "before"


def test_the_place_is_taken_only_at_the_end(tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    with replacing(target) as begun:
        begun.write_text("after")
        assert target.read_text() == "before"
        assert begun.parent == tmp_path
        assert "out" not in begun.name
    assert target.read_text() == "after"


def test_what_is_secret_is_readable_by_its_owner_alone_from_the_start(tmp_path):
    with replacing(tmp_path / "key", mode=0o600, sync=False) as begun:
        assert stat.S_IMODE(begun.stat().st_mode) == 0o600
        begun.write_bytes(b"k")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
    with replacing(tmp_path / ("n" * 255)) as begun:
        begun.write_bytes(b"")
    assert (tmp_path / ("n" * 255)).exists()


def test_what_killed_processes_had_begun_is_swept_away_and_nothing_else(tmp_path):
    (tmp_path / ".hidden").touch()
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "gone" / "out"):
        pass
    with replacing(tmp_path / "out") as begun:
        begun.touch()
        begun.rename(copy := begun.with_name(begun.name.replace("abaton-", "abaton-0")))
        begun.touch()
    assert copy.exists()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "out"]
