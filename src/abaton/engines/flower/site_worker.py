"""The site's side: one message answered from the learner and from what the site keeps on its own disk; as a program.

Programs may end at any time, so nothing may live in memory alone: the learner's memory and its last answer, the models
that differences are taken from, and what others have committed, as far as the site has heard, are files in a folder
that belongs to the site, one for each run. All of it is written before the answer leaves.

As a program a desk has the learner open and the records at hand, and does not talk to the network. A site has two, so
that training does not keep it from evaluating. Its node hands each of them one message after the other, through a
socket in a folder that only the two accounts can enter. If a desk dies its keeper starts it again.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from abaton.atomic_files import replacing, writing
from abaton.codecs import Difference
from abaton.engines.base import (
    DIED,
    NO_BASE,
    OTHER_LAYOUT,
    OTHER_TERMS,
    UNKNOWN,
    EvaluateTask,
    Said,
    TrainTask,
)
from abaton.engines.flower.flower_messages import LARGEST, Parcel, decode, model_name
from abaton.engines.flower.supervisor import end_with_parent
from abaton.engines.model_transfer import authored, moved
from abaton.engines.site_state import SiteState
from abaton.engines.task_handler import Worker, told
from abaton.errors import PayloadError, SettingsError
from abaton.kernels import Vector
from abaton.learners import Learner, Reply, Request, Signed, SitePolicy, Watch
from abaton.store import digest_of
from abaton.training import settings_from

_TASKS = ("train", "evaluate")
_HELD = 4  # models that each of the two desks keeps as bases


@dataclass(frozen=True, slots=True)
class Place:
    """Where and for what a desk works.

    Attributes:
        role: `train` or `evaluate`.
        folder: the site's own folder; both of its desks share it.
        terms: the fingerprint of what the site agreed to; whoever goes by other terms is refused.
        group: which group of learners the site belongs to.
    """

    role: str
    folder: Path
    terms: str = ""
    group: str = ""


def run_folder(place: Place, run: str) -> Path:
    """Where a site keeps what belongs to a run; a run's name is never a way to another folder."""
    return Path(place.folder, digest_of(run.encode())[:32])


class Desk:
    """Answers messages for one site."""

    def __init__(self, learner: Learner, place: Place) -> None:
        self.learner, self.place = learner, place

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks; whatever goes wrong is told by one of a few fixed words."""
        return in_fixed_words(lambda: self._answer(parcel))

    def _answer(self, parcel: Parcel) -> Parcel:
        about, learner, do = parcel.about, self.learner, self._doing.get(parcel.kind)
        if do is None:
            raise Said(UNKNOWN)
        if about["terms"] != self.place.terms:
            raise Said(OTHER_TERMS)
        if about["layout"] != learner.model.layout.digest:
            raise Said(OTHER_LAYOUT)
        drawer = Drawer(run_folder(self.place, str(about["run"])), self.place.role, learner)
        if parcel.kind in _TASKS:
            made = do(self, drawer, parcel)  # each task is put to the site's policy by its worker
        else:
            made = passed(learner.policy, parcel.kind, lambda: do(self, drawer, parcel))
        return Parcel("answer", {**made.about, "holds": drawer.names()}, made.blobs)

    def _introduce(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        learner, place = self.learner, self.place
        numbers = {"examples": learner.declared, "labels": list(learner.labels)}
        return Parcel("answer", {"site": learner.name, "group": place.group, **numbers})

    def _train(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        about = parcel.about
        (start,) = drawer.models([(about, parcel.blobs["model"])])
        settings, key, version = settings_from(about["settings"]), str(about["key"]), int(about["version"])
        watch = Watch(time.monotonic, lambda: max(int(about["committed"]), drawer.committed()))
        task = TrainTask(key, self.learner.name, version, start, settings)
        made = self._worker(drawer).answer(task, watch)
        return Parcel("answer", made.about, {"update": made.payload} if made.payload else {})

    def _evaluate(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        """What the evaluator counted, or why it did not: one model that cannot be scored spoils no other."""
        drawer.tell(int(parcel.about["committed"]))
        asked = [(one, parcel.blobs[f"model/{i}"]) for i, one in enumerate(parcel.about["tasks"])]
        worker, name = self._worker(drawer), self.learner.name
        made = [
            worker.answer(EvaluateTask(str(one["key"]), name, model, signed=_signed(one))).about
            for (one, _), model in zip(asked, drawer.models(asked), strict=True)
        ]
        return Parcel(
            "answer", {"scores": [one["reason"] if "reason" in one else one["score"] for one in made]}
        )

    def _worker(self, drawer: Drawer) -> Worker:
        return Worker(self.learner, SiteState(drawer.folder, self.learner.name))

    def _tell(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        drawer.tell(int(parcel.about["committed"]))
        return Parcel("answer", {})

    _doing: ClassVar[Mapping[str, Callable[[Any, Drawer, Parcel], Parcel]]] = {
        "query": _introduce,
        "train": _train,
        "evaluate": _evaluate,
        "tell": _tell,
    }


def in_fixed_words(answer: Callable[[], Parcel]) -> Parcel:
    """An answer, or one of a few fixed words for what went wrong: no other text of an error leaves a site."""
    try:
        return answer()
    except Exception as error:
        return Parcel("answer", {"reason": told(error)})


def passed(policy: SitePolicy, kind: str, answer: Callable[[], Parcel]) -> Parcel:
    """The answer to a question that is no task, if the site's policy admits the one and lets go of the other."""
    asked = Request(kind)
    policy.admits(asked)
    made = answer()
    name = next(iter(made.blobs), "")
    reply = policy.releases(asked, Reply(made.about, made.blobs.get(name, b"")))
    return Parcel(made.kind, reply.about, {name: reply.payload} if name else {})


class Drawer:
    """A run's folder at the site: the models it holds, and how far others have come.

    Each of the site's desks lets go of its own models only, so that neither takes away what a message on its way to the
    other builds upon.
    """

    def __init__(self, folder: Path, role: str, learner: Learner) -> None:
        self.folder, self._learner, self._size = folder, learner, learner.model.layout.size
        self._models, self._count = folder / "models" / role, folder / "committed.json"

    def names(self) -> list[str]:
        """The models that this desk holds, the oldest first."""
        return [path.stem for path in self._held()]

    def models(self, sent: Sequence[tuple[Mapping[str, Any], bytes]]) -> list[Vector]:
        """The models that differences lead to; the newest of them are held, once all have been read."""
        kept: dict[str, Vector] = {}
        made = [self._model(about, data, kept) for about, data in sent]
        with writing(self._models):
            self._models.mkdir(parents=True, exist_ok=True)
            for name, vector in list(kept.items())[-_HELD:]:
                with replacing(self._models / f"{name}.model") as begun:
                    begun.write_bytes(vector.tobytes())
        for old in self._held()[:-_HELD]:
            old.unlink(missing_ok=True)
        return made

    def _model(self, about: Mapping[str, Any], data: bytes, kept: dict[str, Vector]) -> Vector:
        """A model; what others will build upon is kept: the model itself, or the version that it was made of."""
        name = about["base"]
        base = None if name is None else kept[name] if name in kept else self._read(str(name))
        if "steps" not in about:
            made = start = decode(data, self._size, base)
        else:
            start, rest = self._start(about, data, base)
            _checked(start, about["start"])
            version, author = about["made"]
            made = authored(self._learner, start, int(version), str(author), rest)
        kept[str(about.get("start", about["model"]))] = start
        return _checked(made, about["model"])

    def _start(self, about: Mapping[str, Any], data: bytes, base: Vector | None) -> tuple[Vector, bytes]:
        """The version that a model was made of, and the bytes that are left."""
        exact, rest = data[: about["exact"]], data[about["exact"] :]
        start = decode(exact, self._size, base) if exact or base is None else base
        steps = []
        for version, length in about["steps"]:
            steps.append(Difference(int(version), rest[:length]))
            rest = rest[length:]
        return moved(self._learner, start, steps), rest

    def tell(self, committed: int) -> None:
        """Write down how many steps have been committed, for the desk that trains."""
        if committed > self.committed():
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                with replacing(self._count, sync=False) as begun:
                    begun.write_text(json.dumps(committed))

    def committed(self) -> int:
        """How many steps have been committed, as far as the site has heard."""
        try:
            return int(json.loads(self._count.read_text()))
        except (OSError, ValueError):
            return 0

    def _read(self, name: str) -> Vector:
        if name.isalnum():  # a name is a digest, never a way to another folder
            for path in self._models.parent.glob(f"*/{name}.model"):
                with contextlib.suppress(OSError, ValueError):
                    vector = np.frombuffer(path.read_bytes(), "<f4")
                    if len(vector) == self._size and model_name(vector) == name:
                        return vector
        raise Said(NO_BASE)

    def _held(self) -> list[Path]:
        found = []
        for path in self._models.glob("*.model"):
            try:
                found.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:
                continue
        return [path for _, path in sorted(found)]


def _signed(about: Mapping[str, Any]) -> Signed | None:
    return Signed(*about["signed"]) if "signed" in about else None


def _checked(vector: Vector, name: object) -> Vector:
    if model_name(vector) != name:
        raise PayloadError("a model that came over the network is not what its name says")
    return vector


# ---- the program --------------------------------------------------------------------------------------------------

ROLES = ("train", "evaluate")
"""The two desks of a site."""

_QUICK = frozenset({"query", "evaluate", "tell"})
_LARGEST = LARGEST + (1 << 22)
_PATIENCE, _PAUSE = 300.0, 0.05


class Answers(Protocol):
    """Whoever answers a site's messages."""

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks."""


def role_of(parcel: Parcel) -> str:
    """The desk that a message is for.

    >>> role_of(Parcel("train", {})), role_of(Parcel("query", {}))
    ('train', 'evaluate')
    """
    return "evaluate" if parcel.kind in _QUICK else "train"


def ask(socket: str, parcel: Parcel, patience: float = _PATIENCE) -> Parcel:
    """Hand a message to the desk and wait for its answer; if the desk dies meanwhile, that is the answer.

    Args:
        socket: where the desk is reached.
        parcel: the message.
        patience: seconds to wait for a desk that is not there: it may be starting.
    """
    try:
        with _connected(socket, patience) as desk:
            desk.send_bytes(parcel.packed())
            return Parcel.unpacked(desk.recv_bytes(_LARGEST))
    except (EOFError, OSError):
        return Parcel("answer", {"reason": DIED})


def serve(
    socket: str,
    desk: Answers,
    until: Callable[[], bool] = lambda: False,
    busy: Callable[[str], None] = lambda kind: None,
) -> None:
    """Answer messages, one after the other; `busy` hears the kind of each, and nothing when it is answered."""
    Path(socket).unlink(missing_ok=True)
    with Listener(socket, "AF_UNIX") as listener:
        Path(socket).chmod(0o660)  # who may enter its folder may ask
        while not until():
            # Whoever asked may be gone by the time there is an answer; then it will be asked for again.
            with suppress(EOFError, OSError, PayloadError), listener.accept() as asker:
                parcel = Parcel.unpacked(asker.recv_bytes(_LARGEST))
                busy(parcel.kind)
                try:
                    answer = desk.answer(parcel)
                finally:
                    busy("")
                asker.send_bytes(answer.packed())


def _connected(socket: str, patience: float) -> Connection:
    end = time.monotonic() + patience
    while True:
        try:
            return Client(socket, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def place_of(config: Mapping[str, Any]) -> Place:
    """Where and for what a desk works, from what its site started it with."""
    folder = Path(str(config["folder"]))
    return Place(str(config["role"]), folder, str(config.get("terms", "")), str(config.get("group", "")))


def named(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; only a site's own settings name one, never a message.

    >>> named("math:sqrt")(16.0)
    4.0
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise SettingsError(
            f"there is no '{name}'", where="network", remedy="name it as package.module:function"
        ) from None
    return found


def main(words: list[str]) -> None:
    """The program: opens the desk that a file of settings names, and answers until it is ended."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    config: Mapping[str, Any] = json.loads(Path(words[0]).read_text())
    doing = Path(words[0]).with_suffix(".doing")

    def busy(kind: str) -> None:
        doing.write_text(kind)

    busy("")
    serve(str(config["socket"]), named(str(config["desk"]))(config), busy=busy)


if __name__ == "__main__":
    main(sys.argv[1:])
