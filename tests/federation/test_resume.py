"""A run in real time resumes from its latest checkpoint, or from its journal if there is no valid one."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from abaton.controller import STRATEGIES, DifferentialPrivacy, Strategy, TrainSettings, UpdateReceived
from abaton.engines import checkpoint
from abaton.errors import SettingsError
from abaton.federation import Federation, RunMetadata
from abaton.models import Examples, logistic
from abaton.store import Journal, RetentionRule, Store, plan_pruning, prune

ROUNDS = 9
TRAINING = TrainSettings(epochs=1, batch_size=10)
FEEDBACK = "error_feedback | stc(sparsity=0.5)"


class Interrupted(BaseException):
    """The process dies here."""


@pytest.fixture(autouse=True)
def _every_event_is_written_at_once(monkeypatch):
    monkeypatch.setattr("abaton.store.journal._MAX_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))


def federation(strategy_name: str = "SyncFedAvg", codec: str = FEEDBACK, **settings) -> Federation:
    sites = {}
    for i, name in enumerate("abc"):
        x = np.random.default_rng(i).normal(size=(30, 4)).astype(np.float32)
        sites[name] = Examples(x, (x[:, 0] > 0).astype(np.int64))
    strategy = Strategy(
        **{
            "rounds": ROUNDS,
            "training": TRAINING,
            **STRATEGIES[strategy_name],
            **settings.pop("strategy", {}),
        }
    )
    return Federation(logistic(features=4), sites, strategy, codec, validation_fraction=0.3, **settings)


def interrupt_after(version: int) -> Callable[..., None]:
    def watch(state, _event) -> None:
        if state.version == version:
            raise Interrupted

    return watch


def digests(store: Store, run: str) -> list[str]:
    return [row.digest for row in store.models(run)]


def interrupt_once_all_have_sent() -> Callable[..., None]:
    """Interrupt with a delay: events that are received together have one checkpoint, after the last of them."""
    learners: list[str] = []

    def watch(_state, event) -> None:
        if isinstance(event, UpdateReceived):
            learners.append(event.learner)
            if len(set(learners[:-10])) == 3:
                raise Interrupted

    return watch


def interrupt_run(
    store: Store, run: str = "cut", checkpoint_every: int = 4, version: int = 6, watch=None, **settings
) -> Path:
    """Interrupt a run on local processes and return its latest checkpoint."""
    watch = watch or interrupt_after(version)
    with pytest.raises(Interrupted):
        federation(**settings).run(
            run, store=store, engine="local", watch=watch, checkpoints=checkpoint_every
        )
    return store.checkpoint_folder(run) / "latest.safetensors"


def resume_run(
    store: Store, run: str = "cut", checkpoint_every: int = 4, **settings
) -> tuple[list[str], int]:
    """Finish a run; return its digests and the number of replayed events."""
    stored_events, replayed = Journal(store, run).stored_events, []
    append = Journal.append

    def counted(self: Journal, kind, body) -> None:
        if self.length < self.stored_events:
            replayed.append(kind)
        append(self, kind, body)

    Journal.append = counted  # type: ignore[method-assign]
    try:
        resumed = federation(**settings).run(run, store=store, engine="local", checkpoints=checkpoint_every)
    finally:
        Journal.append = append  # type: ignore[method-assign]
    assert resumed.status == "finished"
    assert len(replayed) <= stored_events
    return digests(store, run), len(replayed)


@pytest.mark.parametrize(
    ("strategy_name", "codec", "settings"),
    [
        ("SyncFedAvg", FEEDBACK, {}),
        ("SyncDVW", "ecdq(bits=4)", {}),
        (
            "SyncFedAvg",
            "clip(norm=1) | gaussian_noise(std=9) | raw",
            {"privacy": DifferentialPrivacy(8.0, 1e-5, 9.0)},
        ),
    ],
    ids=["error feedback", "validation", "private"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, caplog, strategy_name, codec, settings):
    settings_of_run = {"strategy_name": strategy_name, "codec": codec, "strategy": settings}
    with Store(tmp_path) as store:
        assert interrupt_run(store, **settings_of_run).exists()
        shutil.copytree(tmp_path, tmp_path / "journal alone", ignore=shutil.ignore_patterns("checkpoints"))
        final_digests, replayed = resume_run(store, **settings_of_run)
        assert len(final_digests) == ROUNDS + 1
        assert replayed < 8
        with Store(tmp_path / "journal alone") as other:
            assert not other.checkpoint_folder("cut").exists()
            expected, all_events = resume_run(other, **settings_of_run)
            assert all_events > 18
            assert final_digests == expected
            results = [dict(opened.run("cut").result) for opened in (store, other)]
        for result in results:
            del result["seconds"]
        assert results[0] == results[1], "counts go on, too"
        metrics = [[row.metrics for row in opened.models("cut")] for opened in (store, other)]
        assert metrics[0] == metrics[1]
        if not settings:  # noise is drawn for each run
            uninterrupted = federation(**settings_of_run).run("whole", store=store, engine="local")
            assert digests(store, uninterrupted.name) == final_digests
    assert not caplog.records


def damage(path: Path) -> None:
    uninterrupted = bytearray(path.read_bytes())
    uninterrupted[-3] ^= 1
    path.write_bytes(uninterrupted)


def change_format(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format": "1"', b'"format": "0"'))


def add_unknown_field(path: Path) -> None:
    checkpoints = checkpoint.Checkpoints(path.parent)
    stored = checkpoints.read()
    components = {
        name: (dict(values), dict(vectors)) for name, (values, vectors) in stored.components.items()
    }
    components["run"][0]["state"]["unknown"] = 3
    checkpoints.write(checkpoint.Checkpoint(stored.events, stored.last_event_digest, components))


def remove_arrays(path: Path) -> None:
    checkpoints = checkpoint.Checkpoints(path.parent)
    stored = checkpoints.read()
    components = {name: (values, {}) for name, (values, _) in stored.components.items()}
    checkpoints.write(checkpoint.Checkpoint(stored.events, stored.last_event_digest, components))


def move_ahead(path: Path) -> None:
    checkpoints = checkpoint.Checkpoints(path.parent)
    stored = checkpoints.read()
    checkpoints.write(
        checkpoint.Checkpoint(stored.events + 1000, stored.last_event_digest, dict(stored.components))
    )


def change_event_count(path: Path) -> None:
    checkpoints = checkpoint.Checkpoints(path.parent)
    stored = checkpoints.read()
    checkpoints.write(
        checkpoint.Checkpoint(stored.events - 1, stored.last_event_digest, dict(stored.components))
    )


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (damage, "the checkpoint is damaged"),
        (change_format, "has another format"),
        (add_unknown_field, "unknown 'controller_state'"),
        (remove_arrays, "lacks state that this run needs"),
        (move_ahead, "that do not match the journal"),
        (change_event_count, "that do not match the journal"),
    ],
)
def test_an_invalid_checkpoint_is_logged_and_the_journal_is_replayed(tmp_path, caplog, tamper, message):
    with Store(tmp_path) as store:
        expected = digests(store, federation().run("whole", store=store, engine="local").name)
        tamper(interrupt_run(store))
        with caplog.at_level(logging.WARNING):
            final_digests, replayed = resume_run(store)
        assert final_digests == expected
        assert replayed > 18
        (record,) = caplog.records
        assert message in record.getMessage()
        assert "is resumed from its whole journal" in record.getMessage()


def test_a_missing_checkpoint_is_not_logged(tmp_path, caplog):
    with Store(tmp_path) as store:
        interrupt_run(store).unlink()
        assert resume_run(store)[1] > 18
        assert not caplog.records


def test_without_checkpoints_none_is_written_and_simulations_have_none(tmp_path):
    with Store(tmp_path) as store:
        assert not interrupt_run(store, "never", checkpoint_every=0).exists()
        assert resume_run(store, "never", checkpoint_every=0)[1] > 18
        with pytest.raises(Interrupted):
            federation().run("virtual", store=store, watch=interrupt_after(6), checkpoints=1)
        assert not (tmp_path / "checkpoints").exists()
        with pytest.raises(SettingsError, match="checkpoints is -1"):
            federation().run("refused", store=store, engine="local", checkpoints=-1)
        assert store.get_run("refused") is None


def scan(folder: Path, needle: bytes) -> list[str]:
    """Return the names of files that contain the bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if needle in path.read_bytes()]


def test_checkpoints_of_a_finished_run_are_removed(tmp_path):
    """Neither a learner's latest model nor a partial checkpoint of a killed process remains."""
    settings = {"strategy_name": "AsyncFedAvg", "codec": "raw", "strategy": {"rounds": 300}}
    with Store(tmp_path) as store:
        path = interrupt_run(store, checkpoint_every=1, watch=interrupt_once_all_have_sent(), **settings)
        newest = checkpoint.Checkpoints(path.parent).read().components["community_model"][1]
        models = [newest[name].tobytes() for name in newest if name.startswith("latest/")]
        # The first versions contain the first learner's model only, and those are kept.
        needle = next(model for model in models if scan(tmp_path, model) == [path.name])
        path.with_name(".abaton-1.tmp").write_bytes(b"half " + needle)
        assert set(scan(tmp_path, needle)) == {path.name, ".abaton-1.tmp"}
        resume_run(store, checkpoint_every=0, **settings)
        assert scan(tmp_path, needle) == []
        assert list((tmp_path / "checkpoints").rglob("*")) == []


def test_checkpoints_left_by_a_killed_process_are_pruned(tmp_path, monkeypatch):
    monkeypatch.setattr("abaton.federation.federation.delete_run_state", lambda running: None)
    with Store(tmp_path) as store:
        interrupt_run(store)
        resume_run(store)
        checkpoint_folder = store.checkpoint_folder("cut")
        assert checkpoint_folder.exists()
        planned = plan_pruning(store, store.run("cut"), RetentionRule(last=20))
        assert planned.checkpoints == checkpoint_folder
        assert planned.bytes >= (checkpoint_folder / "latest.safetensors").stat().st_size
        prune(store, planned)
        assert not checkpoint_folder.exists()
        assert plan_pruning(store, store.run("cut"), RetentionRule(last=20)).checkpoints is None


def test_a_new_run_ignores_checkpoints_of_an_old_one(tmp_path):
    with Store(tmp_path / "first") as store:
        path = interrupt_run(store)
        with Store(tmp_path / "second") as other:
            shutil.copytree(path.parent, other.checkpoint_folder("cut"))
            uninterrupted = federation().run("cut", store=other, engine="local", checkpoints=0)
            assert len(uninterrupted.versions) == ROUNDS + 1
            assert not other.checkpoint_folder("cut").exists()
            assert digests(other, "cut") == resume_run(store)[0]


def test_retention_is_the_same_after_resuming(tmp_path):
    retention = {"metadata": RunMetadata(retention=RetentionRule(last=3, every=4))}

    def on_disk(store: Store, run: str) -> list[int]:
        return [row.version for row in store.models(run) if store.model_files.path(row.digest).exists()]

    with Store(tmp_path) as store:
        interrupt_run(store, checkpoint_every=1, **retention)
        assert resume_run(store, checkpoint_every=1, **retention)[1] < 4
        assert on_disk(store, "cut") == [0, 4, 7, 8, 9]


def test_a_run_interrupted_during_evaluation_is_not_replayed(tmp_path):
    def fails(*_: object) -> dict:
        raise Interrupted

    with Store(tmp_path) as store:
        with pytest.raises(Interrupted):
            federation(metadata=RunMetadata(evaluate=fails)).run(
                "cut", store=store, engine="local", checkpoints=4
            )
        assert store.run("cut").status == "running"
        final_digests, replayed = resume_run(store)
        assert len(final_digests) == ROUNDS + 1
        assert replayed < 8


def test_deleting_the_state_of_a_run_keeps_the_others(tmp_path):
    with Store(tmp_path) as store:
        paths = [interrupt_run(store, run) for run in ("cut", "cut-2")]
        resume_run(store, "cut")
        assert [path.exists() for path in paths] == [False, True]
