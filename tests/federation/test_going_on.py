"""A run in real time goes on from its newest checkpoint, and from its journal where there is none to trust."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from abaton.controller import POLICIES, Arrived, Privacy, Rules, TrainSettings
from abaton.engines import checkpoint
from abaton.errors import SettingsError
from abaton.federation import Dossier, Federation
from abaton.learners import Examples, logistic
from abaton.store import Journal, Keep, Store, plan, prune

ROUNDS = 9
TRAINING = TrainSettings(epochs=1, batch_size=10)
FEEDBACK = "error_feedback | stc(sparsity=0.5)"


class Cut(BaseException):
    """The process dies here."""


@pytest.fixture(autouse=True)
def _every_event_is_written_at_once(monkeypatch):
    monkeypatch.setattr("abaton.store.journal._LONGEST_WAIT", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE", float("inf"))


def federation(policy: str = "SyncFedAvg", codec: str = FEEDBACK, **more) -> Federation:
    sites = {}
    for i, name in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(30, 4)).astype(np.float32)
        sites[name] = Examples(x, (x[:, 0] > 0).astype(np.int64))
    rules = Rules(**{"rounds": ROUNDS, "training": TRAINING, **POLICIES[policy], **more.pop("rules", {})})
    return Federation(logistic(features=4), sites, rules, codec, validation=0.3, **more)


def cut_after(version: int) -> Callable[..., None]:
    def watch(state, _event) -> None:
        if state.version == version:
            raise Cut

    return watch


def digests(store: Store, run: str) -> list[str]:
    return [row.digest for row in store.models(run)]


def cut_once_all_have_come() -> Callable[..., None]:
    """Cut a while after: events that are heard together have one checkpoint, after the last of them."""
    heard: list[str] = []

    def watch(_state, event) -> None:
        if isinstance(event, Arrived):
            heard.append(event.learner)
            if len(set(heard[:-10])) == 3:
                raise Cut

    return watch


def cut_off(store: Store, run: str = "cut", every: int = 4, version: int = 6, watch=None, **more) -> Path:
    """Cut a run off on local processes; its newest checkpoint."""
    watch = watch or cut_after(version)
    with pytest.raises(Cut):
        federation(**more).run(run, store=store, engine="local", watch=watch, checkpoints=every)
    return store.checkpoint_folder(run) / "newest.safetensors"


def go_on(store: Store, run: str = "cut", every: int = 4, **more) -> tuple[list[str], int]:
    """Bring a run to its end: its digests, and how many events were told again."""
    known, told = Journal(store, run).known, []
    made = Journal.append

    def counted(self: Journal, kind, body) -> None:
        if self.length < self.known:
            told.append(kind)
        made(self, kind, body)

    Journal.append = counted  # type: ignore[method-assign]
    try:
        ended = federation(**more).run(run, store=store, engine="local", checkpoints=every)
    finally:
        Journal.append = made  # type: ignore[method-assign]
    assert ended.status == "finished"
    assert len(told) <= known
    return digests(store, run), len(told)


@pytest.mark.parametrize(
    ("policy", "codec", "more"),
    [
        ("SyncFedAvg", FEEDBACK, {}),
        ("SyncDVW", "ecdq(bits=4)", {}),
        ("SyncFedAvg", "clip(norm=1) | gaussian_noise(std=9) | raw", {"privacy": Privacy(8.0, 1e-5, 9.0)}),
    ],
    ids=["error feedback", "validation", "private"],
)
def test_a_run_ends_as_if_nothing_had_happened(tmp_path, caplog, policy, codec, more):
    made = {"policy": policy, "codec": codec, "rules": more}
    with Store(tmp_path) as store:
        assert cut_off(store, **made).exists()
        shutil.copytree(tmp_path, tmp_path / "journal alone", ignore=shutil.ignore_patterns("checkpoints"))
        ends, told = go_on(store, **made)
        assert len(ends) == ROUNDS + 1
        assert told < 8
        with Store(tmp_path / "journal alone") as other:
            assert not other.checkpoint_folder("cut").exists()
            expected, all_of_it = go_on(other, **made)
            assert all_of_it > 18
            assert ends == expected
            results = [dict(each.run("cut").result) for each in (store, other)]
        for result in results:
            del result["seconds"]
        assert results[0] == results[1], "counts go on, too"
        metrics = [[row.metrics for row in each.models("cut")] for each in (store, other)]
        assert metrics[0] == metrics[1]
        if not more:  # noise is drawn for each run
            whole = federation(**made).run("whole", store=store, engine="local")
            assert digests(store, whole.name) == ends
    assert not caplog.records


def damage(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 1
    path.write_bytes(whole)


def of_another_form(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"form": "1"', b'"form": "0"'))


def of_another_version(path: Path) -> None:
    made = checkpoint.Checkpoints(path.parent)
    found = made.read()
    parts = {name: (dict(about), dict(vectors)) for name, (about, vectors) in found.parts.items()}
    parts["run"][0]["state"]["unheard"] = 3
    made.write(checkpoint.Checkpoint(found.events, found.mark, parts))


def without_a_vector(path: Path) -> None:
    made = checkpoint.Checkpoints(path.parent)
    found = made.read()
    parts = {name: (about, {}) for name, (about, _) in found.parts.items()}
    made.write(checkpoint.Checkpoint(found.events, found.mark, parts))


def ahead_of_the_journal(path: Path) -> None:
    made = checkpoint.Checkpoints(path.parent)
    found = made.read()
    made.write(checkpoint.Checkpoint(found.events + 1000, found.mark, dict(found.parts)))


def of_another_run(path: Path) -> None:
    made = checkpoint.Checkpoints(path.parent)
    found = made.read()
    made.write(checkpoint.Checkpoint(found.events - 1, found.mark, dict(found.parts)))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (damage, "the checkpoint is damaged"),
        (of_another_form, "of another form"),
        (of_another_version, "this version does not know"),
        (without_a_vector, "does not hold what this run needs"),
        (ahead_of_the_journal, "events that its journal does not have"),
        (of_another_run, "events that its journal does not have"),
    ],
)
def test_a_checkpoint_that_cannot_be_trusted_is_said_and_the_journal_is_told(tmp_path, caplog, what, said):
    with Store(tmp_path) as store:
        expected = digests(store, federation().run("whole", store=store, engine="local").name)
        what(cut_off(store))
        with caplog.at_level(logging.WARNING):
            ends, told = go_on(store)
        assert ends == expected
        assert told > 18
        (record,) = caplog.records
        assert said in record.getMessage()
        assert "goes on from its whole journal" in record.getMessage()


def test_a_checkpoint_that_is_missing_needs_no_word(tmp_path, caplog):
    with Store(tmp_path) as store:
        cut_off(store).unlink()
        assert go_on(store)[1] > 18
        assert not caplog.records


def test_without_checkpoints_none_is_written_and_simulations_have_none(tmp_path):
    with Store(tmp_path) as store:
        assert not cut_off(store, "never", every=0).exists()
        assert go_on(store, "never", every=0)[1] > 18
        with pytest.raises(Cut):
            federation().run("virtual", store=store, watch=cut_after(6), checkpoints=1)
        assert not (tmp_path / "checkpoints").exists()
        with pytest.raises(SettingsError, match="checkpoints is -1"):
            federation().run("refused", store=store, engine="local", checkpoints=-1)
        assert store.known("refused") is None


def scan(folder: Path, needle: bytes) -> list[str]:
    """The files that hold some bytes anywhere."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if needle in path.read_bytes()]


def test_nothing_of_a_checkpoint_is_left_of_a_run_that_has_ended(tmp_path):
    """Not a byte of a learner's newest model, nor of a checkpoint that a killed process had begun to write."""
    more = {"policy": "AsyncFedAvg", "codec": "raw", "rules": {"rounds": 300}}
    with Store(tmp_path) as store:
        path = cut_off(store, every=1, watch=cut_once_all_have_come(), **more)
        newest = checkpoint.Checkpoints(path.parent).read().parts["mix"][1]
        models = [newest[name].tobytes() for name in newest if name.startswith("newest/")]
        # Whoever was first made the first versions alone, and those stay.
        needle = next(model for model in models if scan(tmp_path, model) == [path.name])
        path.with_name(".abaton-1.begun").write_bytes(b"half " + needle)
        assert set(scan(tmp_path, needle)) == {path.name, ".abaton-1.begun"}
        go_on(store, every=0, **more)
        assert scan(tmp_path, needle) == []
        assert list((tmp_path / "checkpoints").rglob("*")) == []


def test_what_a_killed_process_left_of_a_run_that_had_just_ended_is_pruned(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.federation.federation.forget", lambda running: None)
    with Store(tmp_path) as store:
        cut_off(store)
        go_on(store)
        left = store.checkpoint_folder("cut")
        assert left.exists()
        made = plan(store, store.run("cut"), Keep(last=20))
        assert made.checkpoints == left
        assert made.bytes >= (left / "newest.safetensors").stat().st_size
        prune(store, made)
        assert not left.exists()
        assert plan(store, store.run("cut"), Keep(last=20)).checkpoints is None


def test_a_new_run_does_not_go_on_from_one_that_had_its_name(tmp_path):
    with Store(tmp_path / "first") as store:
        path = cut_off(store)
        with Store(tmp_path / "second") as other:
            shutil.copytree(path.parent, other.checkpoint_folder("cut"))
            whole = federation().run("cut", store=other, engine="local", checkpoints=0)
            assert len(whole.versions) == ROUNDS + 1
            assert not other.checkpoint_folder("cut").exists()
            assert digests(other, "cut") == go_on(store)[0]


def test_versions_are_kept_and_removed_as_if_nothing_had_happened(tmp_path):
    kept = {"dossier": Dossier(keep=Keep(last=3, every=4))}

    def on_disk(store: Store, run: str) -> list[int]:
        return [row.version for row in store.models(run) if store.vectors.path(row.digest).exists()]

    with Store(tmp_path) as store:
        cut_off(store, every=1, **kept)
        assert go_on(store, every=1, **kept)[1] < 4
        assert on_disk(store, "cut") == [0, 4, 7, 8, 9]


def test_a_run_that_is_cut_off_while_it_is_judged_does_not_tell_its_journal_again(tmp_path):
    def fails(*_: object) -> dict:
        raise Cut

    with Store(tmp_path) as store:
        with pytest.raises(Cut):
            federation(dossier=Dossier(judge=fails)).run("cut", store=store, engine="local", checkpoints=4)
        assert store.run("cut").status == "running"
        ends, told = go_on(store)
        assert len(ends) == ROUNDS + 1
        assert told < 8


def test_forgetting_a_run_leaves_the_others(tmp_path):
    with Store(tmp_path) as store:
        paths = [cut_off(store, run) for run in ("cut", "cut-2")]
        go_on(store, "cut")
        assert [path.exists() for path in paths] == [False, True]
