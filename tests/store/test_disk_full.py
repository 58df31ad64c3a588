"""A full disk at any write: one error line, no partial file, and the run resumes once there is space."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab import four_sites as four

from abaton.controller import STRATEGIES, Strategy
from abaton.engines import Checkpoints
from abaton.engines.checkpoint import Checkpoint
from abaton.errors import StoreError
from abaton.federation import Federation
from abaton.store import Store

FOUR_SITES = four.federation(seed=7, rounds=3, scale=0.1)
SPILLED = replace(FOUR_SITES.metadata, model_cache_bytes=0)  # the latest models go to the scratch file
SMALL = Federation(
    FOUR_SITES.model, FOUR_SITES.sites, FOUR_SITES.strategy, FOUR_SITES.codec, metadata=SPILLED
)
ASYNC = Federation(
    FOUR_SITES.model,
    FOUR_SITES.sites,
    Strategy(learners=4, rounds=5, **STRATEGIES["AsyncFedAvg"]),
    metadata=SPILLED,
)


class Full:
    """Disk on which the n-th write fails in the middle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing_write: int) -> None:
        self.failing_write, self.writes = failing_write, 0
        path_open, pwrite = Path.open, os.pwrite

        def counted(data: bytes, write) -> int:
            self.writes += 1
            if self.writes == self.failing_write:
                write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(data)

        def opened(path: Path, mode: str = "r", *rest: object, **more: object) -> object:
            file = path_open(path, mode, *rest, **more)
            if isinstance(file, io.BufferedWriter | io.BufferedRandom):
                real = file

                class Counted:
                    def write(self, data: bytes) -> int:
                        return counted(data, real.write)

                    def __getattr__(self, name: str) -> object:
                        return getattr(real, name)

                    def __enter__(self) -> Counted:
                        return self

                    def __exit__(self, *_: object) -> None:
                        real.close()

                return Counted()
            return file

        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(
            os, "pwrite", lambda fd, data, at: counted(data, lambda part: pwrite(fd, part, at))
        )


@pytest.mark.parametrize("federation", [SMALL, ASYNC], ids=["synchronous", "asynchronous, spilled"])
def test_at_every_failing_write_the_run_stops_cleanly_and_resumes(tmp_path, monkeypatch, federation):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path) as store, monkeypatch.context() as patch:
        disk = Full(patch, failing_write=-1)
        outcome = federation.run("whole", store=store).result
        expected = [m.digest for m in store.models("whole")]
    assert disk.writes >= 7
    for turn in range(1, disk.writes + 1):
        folder = tmp_path / str(turn)
        with Store(folder) as store:
            with monkeypatch.context() as patch:
                Full(patch, failing_write=turn)
                with pytest.raises(StoreError, match="No space left on device.*free space") as raised:
                    federation.run("run", store=store)
            assert "\n" not in str(raised.value)
            names = [p.name for p in folder.rglob("*") if p.is_file()]
            assert not [n for n in names if n.startswith(".")], "no partial file is left"
            for model in (folder / "models").glob("*.safetensors"):
                store.model_files.get(model.stem)  # every file is complete
            assert federation.run("run", store=store).result == outcome
            assert [m.digest for m in store.models("run")] == expected


def until_full(store: Store) -> None:
    for turn in range(40):
        SMALL.run(f"run{turn}", store=store)


@pytest.mark.parametrize("pages", [1, 2, 4, 8, 12])
def test_a_full_database_is_one_error_line_and_the_run_resumes(tmp_path, monkeypatch, pages):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    with Store(tmp_path / "whole") as store:
        outcome = SMALL.run("run", store=store).result
    with Store(tmp_path / "full") as store:
        with store.reading() as connection:
            size = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {size + pages - 1}")
        with pytest.raises(StoreError, match="database or disk is full.*has free space"):
            until_full(store)
        last = sorted(store.folder.glob("payloads/*.pack"), key=lambda p: p.stat().st_mtime)
        assert last
    with Store(tmp_path / "full") as store:
        assert SMALL.run(last[-1].stem, store=store).result == outcome


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(Checkpoint(3, "", {}))
    with monkeypatch.context() as patch:
        Full(patch, failing_write=1)
        with pytest.raises(StoreError, match="No space left on device"):
            checkpoints.write(Checkpoint(9, "", {}))
    assert checkpoints.read().events == 3


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [0, 3, 60, 200])
def test_the_command_ends_with_one_line_when_files_cannot_grow(tmp_path, kilobytes):
    """The operating system limits the size of every file: database, log, payload file and models."""
    command = [sys.executable, "-c", "from abaton.cli import main; main()"]
    environment = {
        **os.environ,
        "ABATON_STORE": str(tmp_path),
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
    }
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))  # noqa: E731
    done = subprocess.run(
        [*command, "lab", "compare", "--strategy", "SyncFedAvg", "--rows", "400", "--rounds", "60", "--seeds", "1",
         "--json", "--store", tmp_path],
        env=environment, capture_output=True, text=True, preexec_fn=limit,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    *_, line = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert line.startswith("abaton: ")
    again = subprocess.run(
        [*command, "runs", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    for row in json.loads(again.stdout):
        assert row["status"] == "interrupted"
        subprocess.run([*command, "resume", row["run"]], env=environment, check=True, capture_output=True)
