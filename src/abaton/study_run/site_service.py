"""A site's side of a study on a network: the consent gate, de-identification, features, learner and evaluator, there.

Answers, in the order in which they are asked for: `read` (records become a table, which stays), `deal` (sums for
scaling), `scale` (rows become a member's), then training and evaluation as everywhere, then `judge` (counts of how a
model does on rows that nobody trained on) and `end`. Every answer passes one gate: a field that is not listed in
`federation.network.messages` does not leave.

Programs may end at any time, so rows must lie somewhere: in the site's own folder, readable by its account
alone, de-identified. Who is out once stays out (`federation.rolls`, invariant 2): whoever a consent no longer covers
is removed from the files, too, with their rows, their groups and their id, and the learner's memory begins anew. When
the run has ended everything is removed.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import Choice
from abaton.atomic_files import replacing
from abaton.engines.base import OTHER_TERMS, STRANGER, Said
from abaton.engines.flower import Parcel
from abaton.engines.flower.site_worker import (
    Desk,
    Drawer,
    Place,
    in_fixed_words,
    passed,
    place_of,
    run_folder,
)
from abaton.engines.site_state import SiteState
from abaton.errors import Refused
from abaton.features import Column, Scaled, Table, columns, hidden
from abaton.governance.keys import PrivateKey
from abaton.kernels import Vector
from abaton.learners import Model, SitePolicy
from abaton.learners.site_policy import ADMITS_ALL
from abaton.site import Ledger, SiteFile, load_site, not_allowed, smallest_count
from abaton.site.factory import open_ledger
from abaton.study import Study, load_study
from abaton.study_run.consent_roster import Roll
from abaton.study_run.consented_learner import ConsentedLearner, Rows, some
from abaton.study_run.evaluation import layers_of, site_counts
from abaton.study_run.ingest import Reading, read_sites
from abaton.study_run.interpretability import site_explained
from abaton.study_run.local_benefit import GainSettings, keep_own, own_path, site_gain
from abaton.study_run.messages import (
    body_of,
    check_fields,
    checked,
    explained_row,
    gain_row,
    scale_from,
    sums_row,
    told_row,
    worded,
)
from abaton.study_run.model_signatures import Signing, signing_key
from abaton.study_run.preparation import Member, deal, member
from abaton.study_run.site_releases import (
    as_told,
    check_choice,
    check_scale,
    combinations_told,
    one_seed,
    sums_told,
    tellable,
)
from abaton.study_run.site_run_state import Notes
from abaton.study_run.study_policy import StudyPolicy, policy_of

DESK = "abaton.study_run.site_service:open_desk"

_LOG = logging.getLogger(__name__)
_UNREAD = "its records cannot be read: see the site's own log"

RollOf = Callable[[SiteFile, Study, str, Mapping[str, str]], Roll]


def world_roll(file: SiteFile, study: Study, run: str, people: Mapping[str, str]) -> Roll:
    """The roll of a run by the time of the world."""
    return Roll(file, study, run, people, lambda at: datetime.fromtimestamp(at, UTC))


def open_desk(config: Mapping[str, Any]) -> StudyDesk:
    """A desk, from what `abaton site join` started it with."""
    file = load_site(Path(str(config["document"])))
    threads = str(file.document.limits.threads)
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, threads)
    return StudyDesk(file, load_study(Path(str(config["protocol"]))), place_of(config))


class StudyDesk:
    """Answers a study's messages for one site.

    Args:
        file: The site's document.
        study: The study document that the site agreed to.
        place: Where and for what the desk works.
        roll: Opens the roll of a run.
        ledger: What has left the site before; the one beside its document if not given.
        key: What the site signs models with; the one beside its document if not given.

    Attributes:
        policy: What the site does not do and does not let go of.
    """

    def __init__(
        self,
        file: SiteFile,
        study: Study,
        place: Place,
        roll: RollOf = world_roll,
        ledger: Ledger | None = None,
        key: PrivateKey | None = None,
    ) -> None:
        self.file, self.study, self.place, self._roll = file, study, place, roll
        self._ledger, self._key = ledger, key
        self.policy: SitePolicy = ADMITS_ALL

    def answer(self, parcel: Parcel) -> Parcel:
        """Do what a message asks; nothing leaves but what is listed."""
        return in_fixed_words(lambda: check_fields(parcel.kind, self._answer(parcel)))

    def _answer(self, parcel: Parcel) -> Parcel:
        run = str(checked(parcel).about["run"])
        if parcel.about["terms"] != self.study.hash:
            raise Said(OTHER_TERMS)
        if unwilling := next(not_allowed(self.file.document, self.study), None):
            return self._decline(parcel, unwilling)
        folder, do = Folder(run_folder(self.place, run)), self._doing.get(parcel.kind)
        if do is not None:
            return passed(self.policy, parcel.kind, lambda: do(self, folder, run, body_of(parcel)))
        return RunDesk(self, folder, run).answer(parcel)

    def _decline(self, parcel: Parcel, unwilling: tuple[Any, str, str]) -> Parcel:
        """Say why the site takes no part, in words that hold nothing but what the study's own document says."""
        _, what, remedy = unwilling
        if parcel.kind == "read":
            return worded("answer", {}, {"told": {}, "problem": what})
        raise Refused(what, where=self.file.name, remedy=remedy)

    @property
    def name(self) -> str:
        """The site's id."""
        return self.file.document.site.id

    def learner(self, folder: Folder, kept: Kept, run: str) -> KeptLearner:
        """The learner of a run, which answers by the site's policy."""
        made = KeptLearner(folder, kept, self.model(kept), self.study, self.roll(kept, run))
        notes, ledger = Notes(run, folder.folder / "policy"), self.ledger
        policy = policy_of(self.file, self.study, made, notes, ledger, self.policy)
        key, peers = self._key or signing_key(self.file), self.file.document.policy.peers
        policy.signing = Signing(key, self.name, self.study.hash, run, peers, ledger)
        return made

    @property
    def ledger(self) -> Ledger:
        """What has left the site before."""
        return self._ledger or open_ledger(self.file, smallest_count(self.file.document, self.study))

    def roll(self, kept: Kept, run: str) -> Roll:
        """Who may be used in a run."""
        return self._roll(self.file, self.study, run, kept.member.people)

    def model(self, kept: Kept) -> Model:
        """The network, untrained."""
        assert self.study.learning is not None
        return self.study.learning.model(features=len(kept.member.test.columns), classes=len(kept.classes))

    def _read(self, folder: Folder, run: str, body: Mapping[str, Any]) -> Parcel:
        (reading,) = read_sites(self.study, [self.file], datetime.now(UTC))
        table, problem = reading.table, reading.problem
        if (
            problem and not reading.told
        ):  # an error's own words may name the site's files: they stay in its log
            _LOG.warning("%s", problem)
            problem = _UNREAD
        told = as_told(self.ledger, self.study, _without_places(reading.told)) if reading.told else {}
        made: dict[str, Any] = {"told": told, "problem": problem}
        if table is not None:
            folder.wait(Waiting(table, reading.people))
            made["floor"] = table.floor
            if reading.anonymity is not None:
                made |= self._combinations(table, reading.anonymity)
        return worded("answer", {}, made)

    def _combinations(self, table: Table, asked: AnonymitySettings) -> dict[str, Any]:
        try:
            told = combinations_told(self.ledger, self.study, table, asked)
            return {"k": asked.k, "histogram": told.row()}
        except Refused as error:  # by a rule, whose words name nobody
            return {"problem": error.what}

    def _deal(self, folder: Folder, run: str, body: Mapping[str, Any]) -> Parcel:
        waiting = folder.waiting()
        try:
            seed = one_seed(self.ledger, self.study, int(body["seed"]))
            dealt = deal(self.study, self._reading(waiting), self._shown(waiting.table, body), seed)
            told = sums_told(self.ledger, self.study, seed, dealt)
            return worded("answer", {}, {"problem": "", "sums": sums_row(told)})
        except Refused as error:  # by a rule, whose words name its numbers
            return worded("answer", {}, {"problem": error.what})

    def _scale(self, folder: Folder, run: str, body: Mapping[str, Any]) -> Parcel:
        assert self.study.learning is not None
        if not folder.ready:
            waiting, secret = folder.waiting(), secrets.token_bytes(32)
            seed = one_seed(self.ledger, self.study, int(body["seed"]))
            reading = replace(self._reading(waiting), key=secret)
            dealt = deal(self.study, reading, self._shown(waiting.table, body), seed)
            scale = check_scale(
                self.study.learning,
                scale_from(body["scale"]),
                sums_told(self.ledger, self.study, seed, dealt),
            )
            made = member(self.study, dealt, scale, dealt.entries())
            kept = Kept(made, dealt.table.classes, scale.label, seed, secret, "")
            _, cohort = self.roll(kept, run).taken(made.everybody, datetime.now(UTC).timestamp())
            folder.keep(replace(kept, cohort=cohort))
        kept = folder.kept(self.file)
        told = {"table": kept.member.digest, "cohort": kept.cohort, "floor": kept.member.floor}
        return worded("answer", {}, told)

    def _end(self, folder: Folder, run: str, body: Mapping[str, Any]) -> Parcel:
        folder.remove()
        return worded("answer", {}, {})

    def _reading(self, waiting: Waiting) -> Reading:
        return Reading(self.file, waiting.table, waiting.people)

    def _shown(self, table: Table, body: Mapping[str, Any]) -> Table:
        """The table in the ranges that were chosen for all sites, with a k that is at least the site's own."""
        asked = self.study.privacy.anonymity
        if asked is None:
            return table
        own = max(asked.k, self.file.document.rules.k or 0)
        settings: AnonymitySettings = replace(asked, k=max(own, int(body["k"])))
        told = combinations_told(self.ledger, self.study, table, settings)
        choice = check_choice(self.ledger, self.study, told, Choice.from_row(body["choice"]), settings)
        return hidden(table, told, choice, settings)

    _doing: ClassVar[Mapping[str, Callable[[Any, Folder, str, Mapping[str, Any]], Parcel]]] = {
        "read": _read,
        "deal": _deal,
        "scale": _scale,
        "end": _end,
    }


def _without_places(told: Mapping[str, Any]) -> dict[str, Any]:
    """What there is to tell, without the names of the site's files."""
    if "set_aside" not in told:
        return dict(told)
    return {**told, "set_aside": [{**each, "places": []} for each in told["set_aside"]]}


class KeptLearner(ConsentedLearner):
    """A learner whose rows lie in the site's folder: who is out once is out of the file, too."""

    def __init__(self, folder: Folder, kept: Kept, model: Model, study: Study, roll: Roll) -> None:
        assert study.learning is not None
        member = kept.member
        super().__init__(
            member.name,
            model,
            member.rows,
            study.learning.pipeline(),
            kept.seed,
            roll=roll,
            floor=member.floor,
            batch=member.file.document.limits.batch,
            secret=kept.secret,
        )
        self._folder, self._kept = folder, kept
        self.downlink = study.learning.way_down()

    def begin(self, at: float, version: int | None = None) -> None:
        """Ask who is still in; the rows of the others leave memory and disk, test rows and ids included."""
        with self._folder.locked():
            kept = self._folder.kept(self._kept.member.file)
            inside = self._roll.inside(kept.member.everybody, at)
            self._let_go(kept, inside)
            kept = self._folder.kept(kept.member.file)
            self._keep(kept.member.rows)
            try:
                super().begin(at, version)
            finally:
                if self._rows != kept.member.rows:  # somebody has left just now
                    mine = {*self._rows.train.subjects, *self._rows.validation.subjects}
                    self._let_go(kept, frozenset(mine) | frozenset(kept.member.test.subjects))

    def _let_go(self, kept: Kept, inside: frozenset[str]) -> None:
        out = {kept.member.people[key] for key in kept.member.everybody if key not in inside}
        if out:
            self._folder.forget(kept.member.file, out.__contains__)


class RunDesk(Desk):
    """Training, evaluation and judging for a member of a run."""

    def __init__(self, desk: StudyDesk, folder: Folder, run: str) -> None:
        self._kept = folder.kept(desk.file)
        self._desk, self._run = desk, run
        super().__init__(desk.learner(folder, self._kept, run), desk.place)

    def _judge(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        """Counts of how models do on test rows; those of whoever has left are not used."""
        kept, models, inside = self._kept, self._models(drawer, parcel), self._inside()
        self._policy.judges(models)
        SiteState(drawer.folder, self.learner.name).refresh(self.learner)
        model, local = self.learner.model, layers_of(self.learner)
        told = [told_row(site_counts(kept.member, kept, model, vector, inside, local)) for vector in models]
        return worded("answer", {}, {"told": told})

    def _gain(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        """What the site gains: it makes models of its own, which stay here in a file, and compares."""
        kept, learning, (community,) = self._kept, self._desk.study.learning, self._models(drawer, parcel)
        assert learning is not None
        wish = GainSettings(*(int(parcel.about[key]) for key in ("epochs", "seed", "resamples"))).bounded()
        self._policy.answers_once("gain", community, wish.epochs, wish.seed, wish.resamples)
        both = self.learner.model, community
        found = site_gain(kept.member, kept, learning, both, self._inside(), wish)
        if found.models:  # beside the run's folder, which is emptied when the run ends
            keep_own(own_path(self.place.folder, self._run), found.models)
        return worded("answer", {}, gain_row(found))

    def _explain(self, drawer: Drawer, parcel: Parcel) -> Parcel:
        """What a model goes by, as far as the study asks for it and the site's limits allow it."""
        kept, study = self._kept, self._desk.study
        assert study.learning is not None
        asked = study.learning.explanation
        if asked is None:
            return worded("answer", {}, {"why": "the study does not ask for it"})
        (vector,) = self._models(drawer, parcel)
        self._policy.answers_once("explain", vector)
        SiteState(drawer.folder, self.learner.name).refresh(self.learner)
        made = site_explained(
            kept.member,
            asked,
            columns(study.plan()),
            kept,
            self.learner.model,
            vector,
            self._inside(),
            seed=kept.seed,
            local=layers_of(self.learner),
        )
        if isinstance(made, str):
            return worded("answer", {}, {"why": made})
        return worded("answer", {}, {"why": "", "explained": explained_row(made)})

    @property
    def _policy(self) -> StudyPolicy:
        policy = self.learner.policy
        assert isinstance(policy, StudyPolicy)
        return policy

    def _models(self, drawer: Drawer, parcel: Parcel) -> list[Vector]:
        """The models that a question is about."""
        tasks = parcel.about["tasks"]
        return drawer.models([(one, parcel.blobs[f"model/{i}"]) for i, one in enumerate(tasks)])

    def _inside(self) -> frozenset[str]:
        """Whose test rows may be told of now: those of whoever is still in, as far as the ledger allows."""
        mine, roll = self._kept.member, self._desk.roll(self._kept, self._run)
        inside, _ = roll.taken(mine.everybody, datetime.now(UTC).timestamp())
        return tellable(self._desk.ledger, mine, inside)

    _doing: ClassVar[Mapping[str, Callable[[Any, Drawer, Parcel], Parcel]]] = {
        **Desk._doing,
        "judge": _judge,
        "gain": _gain,
        "explain": _explain,
    }


# ---- what is kept of a run ----------------------------------------------------------------------------------------

_PARTS = ("train", "validation", "test")

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A table that waits for the other sites."""

    table: Table
    people: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kept:
    """A member with what all sites share."""

    member: Member
    classes: tuple[str, ...]
    label: tuple[float, float]
    seed: int
    secret: bytes
    cohort: str


def without(member: Member, gone: frozenset[str]) -> Member:
    """A member without some people, known as rows name them."""

    def rest(table: Scaled) -> Scaled:
        return some(table, np.array([each not in gone for each in table.subjects], dtype=bool))

    stays = [each not in gone for each in member.test.subjects]
    return replace(
        member,
        people={key: patient for key, patient in member.people.items() if key not in gone},
        rows=Rows(rest(member.rows.train), rest(member.rows.validation)),
        test=rest(member.test),
        groups={name: tuple(compress(of, stays)) for name, of in member.groups.items()},
        lessened=True,
    )


def forget_person(runs: Path, file: SiteFile, leaves: Callable[[str], bool]) -> None:
    """Remove a person from everything that a site's node keeps of the runs that are under way."""
    for place in sorted(runs.iterdir()) if runs.is_dir() else ():
        if place.is_dir():
            folder = Folder(place)
            with folder.locked():
                folder.forget(file, leaves)


class Folder:
    """A run's folder at a site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table, self._member = folder / "table.safetensors", folder / "member.safetensors"

    @property
    def ready(self) -> bool:
        """Whether the site is a member of the run."""
        return self._member.exists()

    def wait(self, kept: Waiting) -> None:
        """Keep a table until all sites have told what is needed."""
        table = kept.table
        about = {
            "columns": [[c.name, c.input, c.measured, c.pooled] for c in table.columns],
            "classes": table.classes,
            "subjects": table.subjects,
            "floor": table.floor,
            "label": table.label,
            "people": dict(kept.people),
        }
        self._write(self._table, {"x": table.x, "y": table.y}, about)

    def waiting(self) -> Waiting:
        """The table that waits."""
        arrays, about = self._read(self._table)
        columns = tuple(Column(*each) for each in about["columns"])
        names = tuple(about["subjects"])
        table = Table(
            columns, arrays["x"], arrays["y"], tuple(about["classes"]), names, about["floor"], about["label"]
        )
        return Waiting(table, about["people"])

    def keep(self, kept: Kept) -> None:
        """Keep a member's rows; the table that they were made of is removed."""
        self._write_member(kept)
        self._table.unlink(missing_ok=True)

    def kept(self, file: SiteFile) -> Kept:
        """The member; a site that is none says so."""
        arrays, about = self._read(self._member)
        columns, classes = tuple(about["columns"]), tuple(about["classes"])
        parts = {
            name: Scaled(
                columns, arrays[f"{name}/x"], arrays[f"{name}/y"], classes, tuple(about["subjects"][name])
            )
            for name in _PARTS
        }
        groups = {name: tuple(of) for name, of in about["groups"].items()}
        rows = Rows(parts["train"], parts["validation"])
        member = Member(file, about["people"], rows, parts["test"], groups, about["floor"], about["digest"])
        mean, deviation = about["label"]
        secret = bytes.fromhex(about["secret"])
        return Kept(member, classes, (mean, deviation), about["seed"], secret, about["cohort"])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process of the site change the rows meanwhile."""
        with (self.folder / "rows.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def forget(self, file: SiteFile, leaves: Callable[[str], bool]) -> None:
        """Remove people from everything that lies here; whoever calls holds :meth:`locked`.

        Args:
            file: The site's document.
            leaves: Whether a person leaves, by the Patient's id.
        """
        if self._table.exists():
            waiting = self.waiting()
            gone = frozenset(key for key, patient in waiting.people.items() if leaves(patient))
            if gone:
                people = {key: patient for key, patient in waiting.people.items() if key not in gone}
                self.wait(Waiting(waiting.table.without(gone), people))
        if self.ready:
            kept = self.kept(file)
            gone = frozenset(key for key, patient in kept.member.people.items() if leaves(patient))
            if gone:
                self._write_member(replace(kept, member=without(kept.member, gone)))
                SiteState(self.folder, kept.member.name).lose_memory()

    def remove(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_member(self, kept: Kept) -> None:
        member = kept.member
        parts = {"train": member.rows.train, "validation": member.rows.validation, "test": member.test}
        arrays = {f"{name}/x": part.x for name, part in parts.items()}
        arrays |= {f"{name}/y": part.y for name, part in parts.items()}
        about = {
            "columns": member.test.columns,
            "classes": kept.classes,
            "subjects": {name: part.subjects for name, part in parts.items()},
            "groups": {name: list(of) for name, of in member.groups.items()},
            "people": dict(member.people),
            "floor": member.floor,
            "digest": member.digest,
            "label": list(kept.label),
            "seed": kept.seed,
            "secret": kept.secret.hex(),
            "cohort": kept.cohort,
        }
        self._write(self._member, arrays, about)

    def _write(self, path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
        from safetensors.numpy import save

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        with replacing(path, mode=0o600) as begun:
            begun.write_bytes(save(whole, metadata={"about": json.dumps(about)}))

    def _read(self, path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        from safetensors import safe_open

        if not path.exists():
            raise Said(STRANGER)
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return arrays, json.loads(file.metadata()["about"])
