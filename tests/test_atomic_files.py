"""Files are written completely or not at all."""

from __future__ import annotations

import stat

import pytest

from abaton.atomic_files import atomic_write, remove_leftovers


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_file(tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    for error_type in (RuntimeError, KeyboardInterrupt, OSError):

        def half(error_type=error_type):
            with atomic_write(target) as temporary_path:
                temporary_path.write_text("half")
                raise error_type

        with pytest.raises(error_type):
            half()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert target.read_text() == "before"


def test_the_target_is_replaced_at_the_end(tmp_path):
    target = tmp_path / "out"
    target.write_text("before")
    with atomic_write(target) as temporary_path:
        temporary_path.write_text("after")
        assert target.read_text() == "before"
        assert temporary_path.parent == tmp_path
        assert "out" not in temporary_path.name
    assert target.read_text() == "after"


def test_a_secret_file_is_readable_by_its_owner_only_from_the_start(tmp_path):
    with atomic_write(tmp_path / "key", mode=0o600, sync=False) as temporary_path:
        assert stat.S_IMODE(temporary_path.stat().st_mode) == 0o600
        temporary_path.write_bytes(b"k")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
    with atomic_write(tmp_path / ("n" * 255)) as temporary_path:
        temporary_path.write_bytes(b"")
    assert (tmp_path / ("n" * 255)).exists()


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    (tmp_path / ".hidden").touch()
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "gone" / "out"):
        pass
    with atomic_write(tmp_path / "out") as temporary_path:
        temporary_path.touch()
        temporary_path.rename(
            copy := temporary_path.with_name(temporary_path.name.replace("abaton-", "abaton-0"))
        )
        temporary_path.touch()
    assert copy.exists()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "out"]
