"""The research centre at work on a study: a controller in a process of its own, and what keeps it and the rest running.

The controller waits for sites, prepares the run with them, lives it, and has the sites judge the result. A run that was
cut off is resumed: its row in the store says that it was prepared, and its journal how far it came. A controller that
ends early is started again.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from abaton.atomic_files import replacing
from abaton.controller import Event, State
from abaton.engines import Outcome, Profile, Running
from abaton.engines.flower import FlowerEngine, Network, Parcel, Post
from abaton.engines.flower.server_processes import Address, Centre, read_admitted, write_address
from abaton.engines.flower.site_processes import SitePrograms
from abaton.engines.flower.supervisor import Keeper, free_port
from abaton.engines.flower.tls import Certificates, issue
from abaton.errors import AbatonError, Refused, SettingsError
from abaton.features import columns
from abaton.federation.federation import Dossier, Federation, new_name
from abaton.federation.participants import Making
from abaton.federation.run import COMMUNITY, point_of, some_versions, traffic_of
from abaton.kernels import Vector
from abaton.learners import Learner, Model
from abaton.site import SiteFile
from abaton.store import Journal, RunRow, Store
from abaton.study import Learning, Study, study_from_toml, write_toml
from abaton.study_run.coordinator import STUDY, StudyOptions, study_facts, use_of
from abaton.study_run.evaluation import judge_counts
from abaton.study_run.interpretability import coefficients_of, explanation_of
from abaton.study_run.invitation import membership
from abaton.study_run.local_benefit import with_gains
from abaton.study_run.messages import worded
from abaton.study_run.model_signatures import Signatories
from abaton.study_run.site_client import Preparation, Step, Survey, explained, gained, judged

CONDUCT = "abaton.study_run.server:conduct"
ENGINE = "flower"


@dataclass(frozen=True, slots=True)
class Wish:
    """How a study is run on a network.

    Attributes:
        sites: How many sites are waited for before the run begins.
        seed: Decides every random number.
        resamples: How often subjects are drawn again for the intervals; 0 for none, and for no curve over time.
        patience: Seconds after which a task without an answer is given up.
        absence: Seconds after which a node that is away has left.
        poll: Seconds between looks for answers, the first of them.
    """

    sites: int = 2
    seed: int = 1990
    resamples: int = 1000
    patience: float = 3600.0
    absence: float = 300.0
    poll: float = 0.1


@dataclass(frozen=True, slots=True)
class Submission:
    """What the controller's process is told.

    Attributes:
        token: Names this start of it.
        store: The store's folder.
        folder: The centre's folder.
        wish: How the study is run.
    """

    token: str
    store: Path
    folder: Path
    wish: Wish

    def text(self) -> str:
        """As one text."""
        return json.dumps({**asdict(self), "store": str(self.store), "folder": str(self.folder)})

    @classmethod
    def of(cls, text: str) -> Submission:
        """What `text` wrote."""
        row = json.loads(text)
        return cls(row["token"], Path(row["store"]), Path(row["folder"]), Wish(**row["wish"]))

    @property
    def study_file(self) -> Path:
        """Where the centre keeps the study's document."""
        return self.folder / "study.toml"

    @property
    def progress_file(self) -> Path:
        """What the controller says, line by line."""
        return self.folder / "logs" / "controller.log"

    @property
    def outcome_file(self) -> Path:
        """How it ended."""
        return self.folder / "outcome.json"


def conduct(post: Post, about: str) -> None:
    """The controller; called in a process of its own at the centre."""
    told = Submission.of(about)
    with told.progress_file.open("a", buffering=1) as log:
        try:
            study = study_from_toml(told.study_file.read_text())
            with Store(told.store) as store:
                controller = Controller(post, store, study, told, lambda words: _line(log, words))
                _write_outcome(told, {"run": controller.run().run})
        except AbatonError as error:
            _write_outcome(told, {"error": str(error), "code": error.exit_code})
            raise


def _line(log: Any, words: str) -> None:
    log.write(f"{words}\n")


def _write_outcome(told: Submission, row: Mapping[str, Any]) -> None:
    with replacing(told.outcome_file) as begun:
        begun.write_text(json.dumps({"token": told.token, **row}))


class Controller:
    """Brings a study's run to its end.

    Args:
        post: What carries the messages.
        store: Where the run is kept.
        study: The study.
        told: What the process was told.
        step: Hears of progress, in words without content.
    """

    def __init__(self, post: Post, store: Store, study: Study, told: Submission, step: Step) -> None:
        self.store, self.study, self.told, self.step = store, study, told, step
        self._post = post
        wish = told.wish
        self._version = 0
        self._survey = Survey(post, self._admitted, patience=wish.patience, absence=wish.absence)

    def run(self) -> RunRow:
        """Begin a run, or go on with one of this study that was cut off."""
        row = self._begun()
        if row is None:
            run, sites, dossier = self._begin()
        else:
            run, sites = row.run, row.recipe["fingerprint"]["sites"]
            settings, packages = row.recipe["settings"], self._learning.parts
            dossier = Dossier(STUDY, settings, self.study.study.id, packages=packages)
            self.step(f"run {run} is resumed")
        learning, members = self._learning, tuple(sites)
        dossier = replace(dossier, judge=partial(self._judged, members=members))
        seed = dossier.settings["seed"]
        federation = Federation(
            self._model,
            {name: Elsewhere(digest) for name, digest in sites.items()},
            learning.rules(len(members), seed=seed),
            learning.pipeline(),
            downlink=learning.way_down(),
            dossier=dossier,
        )
        carrier = _OverPost(partial(self._engine, members=members))
        ended = federation.run(run, store=self.store, engine=carrier, watch=self._watch).row
        self.step(f"run {run} has ended: {(ended.result or {})['reason']}")
        about = {"run": run, "terms": self.study.hash}
        self._survey.ask(dict.fromkeys(set(members) & set(self._survey.there()), worded("end", about, {})))
        return ended

    @property
    def _learning(self) -> Learning:
        if self.study.learning is None:
            raise SettingsError(
                "the study has nothing to learn",
                where="study document",
                remedy="add [[views]], [features] and [learning]",
            )
        return self.study.learning

    @property
    def _model(self) -> Model:
        plan = self.study.plan()
        return self._learning.model(features=len(columns(plan)), classes=len(plan.label.names))

    def _admitted(self) -> Mapping[int, str]:
        return read_admitted(self.told.folder)

    def _begun(self) -> RunRow | None:
        """The newest run of this study that has not ended."""
        found = [
            row
            for row in self.store.runs()
            if row.engine == ENGINE
            and row.status == "running"
            and row.recipe["study"]["hash"] == self.study.hash
        ]
        return found[-1] if found else None

    def _begin(self) -> tuple[str, Mapping[str, str], Dossier]:
        """Wait for sites and prepare a run with them: its name, who takes part, and what is kept with it."""
        wish = self.told.wish
        run = new_name(self.study.study.id)
        self.step(f"waiting for {wish.sites} sites")
        names = self._survey.wait(wish.sites)
        ready = Preparation(self.study, self._survey, run, wish.seed, self.step)(names)
        self.step(f"run {run} begins with {', '.join(ready.tables)}")
        options = StudyOptions(wish.seed, resamples=wish.resamples)
        now = datetime.now(UTC).isoformat()
        settings = {"study": write_toml(self.study), "sites": [], "now": now, **options.row()}
        facts = {
            **study_facts(self.study),
            "tables": dict(ready.tables),
            "cohorts": dict(ready.cohorts),
            "left_out": dict(ready.left_out),
            "anonymity": ready.anonymity,
            "told": {name: dict(told) for name, told in ready.told.items()},
            "smallest_counts": dict(ready.floors),
        }
        plan = self.study.plan()
        floor = max(ready.floors.values())
        use = use_of(columns(plan), tuple(plan.label.names), ready.scale, ready.choice, floor)
        packages = self._learning.parts
        dossier = Dossier(STUDY, settings, self.study.study.id, facts=facts, use=use, packages=packages)
        return run, ready.tables, dossier

    def _engine(self, running: Running, *, members: tuple[str, ...]) -> FlowerEngine:
        wish, journal = self.told.wish, running.journal

        def admitted() -> dict[int, str]:
            return {node: site for node, site in self._admitted().items() if site in members}

        layout = running.model.layout.digest
        network = Network(
            journal.run, layout, self.study.hash, admitted, wish.patience, wish.absence, wish.poll
        )
        post = Among(self._post, admitted)
        told = (body for kind, body in journal.rows() if kind == "Arrived") if journal.known else ()
        signed = Signatories(
            self.study.hash,
            journal.run,
            running.rules.seed,
            running.codec,
            running.model.layout,
            ((body["learner"], body["signature"]) for body in told),
        )
        engine = FlowerEngine(post, network, keep=journal.payloads.put, check=running.check, signed=signed)
        self._journal = journal
        if journal.known:
            engine.note("the controller was started again")
        return engine

    def _watch(self, state: State, event: Event) -> None:
        if self._journal.length <= self._journal.known:  # it was said when it happened
            self._version = state.version
            return
        if what := getattr(event, "what", ""):
            self.step(f"{event.at:.0f} s: {getattr(event, 'learner', '')} {what}".replace("  ", " "))
        if state.version != self._version:
            self._version = state.version
            self.step(f"{event.at:.0f} s: version {state.version} of {self._learning.rounds}")

    def _judged(
        self, store: Store, row: RunRow, outcome: Outcome, *, members: tuple[str, ...]
    ) -> dict[str, Any]:
        """What the sites tell of the community model's versions, added up."""
        self.step("sites judge the community model")
        floors, classes = row.recipe["smallest_counts"], row.recipe["use"]["classes"]
        settings, floor = row.recipe["settings"], max(floors.values())
        seed, resamples = settings["seed"], settings["resamples"]
        some = list(some_versions(store, row.run)) if resamples else []
        models = [vector for _, vector in some] or [store.vectors.get(outcome.digest)]
        about = {"run": row.run, "terms": self.study.hash, "layout": row.layout}
        told = judged(self._survey, about, members, models, self.study)

        def judge(each: int, resamples: int) -> dict[str, Any]:
            last = {COMMUNITY: told[each]}
            return judge_counts(self._learning, classes, floor, last, seed=seed, resamples=resamples)

        points = [point_of(version, judge(i, 0)) for i, (version, _) in enumerate(some)]
        traffic = traffic_of(Journal(store, row.run), self._model.layout.size)
        evaluation = {"evaluation": judge(len(models) - 1, resamples)}
        if self._learning.personal is None and (resamples or self._learning.personalise):
            self.step("sites compare it with models of their own")
            most = max((each["updates"] for each in traffic.values()), default=1)
            epochs = self._learning.rules(len(members)).training.epochs * most
            wish = {"epochs": epochs, "seed": seed, "resamples": resamples}
            found = gained(self._survey, about, members, models[-1], wish, self.study)
            evaluation = with_gains(self._learning, evaluation["evaluation"], found)
        return {
            "traffic": traffic,
            **evaluation,
            "progress": [point for each in points for point in each],
            **self._explained(row, about, members, models[-1], floor),
        }

    def _explained(
        self, row: RunRow, about: Mapping[str, Any], members: tuple[str, ...], model: Vector, floor: int
    ) -> dict[str, Any]:
        """What the model goes by, if the study asks for it."""
        asked, plan, use = self._learning.explanation, self.study.plan(), row.recipe["use"]
        if asked is None:
            return {}
        self.step("sites tell what the model goes by")
        told = explained(self._survey, about, members, model, self.study)
        made = explanation_of(asked, columns(plan), use, floor, told)
        linear = coefficients_of(self._model, model, columns(plan), use)
        return {"explanation": {**made, "coefficients": linear}}


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A site that is a member of a run on a network: its rows and its learner are there."""

    digest: str
    profile: Profile = field(default_factory=Profile)
    lessened: ClassVar[bool] = False

    def fingerprint(self, secret: bytes) -> str:
        """The digest that the site told, under a key of its own."""
        return self.digest

    def learner(self, making: Making) -> Learner:
        """There is none here."""
        raise AssertionError(f"the learner of {making.name} is at its site")


@dataclass(frozen=True, slots=True)
class _OverPost:
    """Opens the engine over the post."""

    start: Callable[[Running], FlowerEngine]
    name: ClassVar[str] = ENGINE

    def secret(self, seed: int, site: str, states: Path) -> bytes:
        """Sites keep their own."""
        return b""

    def open(self, running: Running) -> FlowerEngine:
        """The engine, ready for a run."""
        return self.start(running)


class Among:
    """A post on which only a run's own sites are seen."""

    def __init__(self, post: Post, admitted: Any) -> None:
        self._post, self._admitted = post, admitted

    def nodes(self) -> list[int]:
        """The nodes of the run's sites that are connected."""
        mine = self._admitted()
        return [node for node in self._post.nodes() if node in mine]

    def send(self, node: int, parcel: Parcel, ttl: float) -> str:
        """Send a parcel."""
        return self._post.send(node, parcel, ttl)

    def collect(self, letters: Any) -> Any:
        """The answers that are there."""
        return self._post.collect(letters)

    def silence(self) -> float:
        """How long the network did not answer."""
        return self._post.silence()


# ---- keeping everything running -----------------------------------------------------------------------------------

Say = Callable[[str], None]

_LOOK = 0.25
_ERRORS = {error.exit_code: error for error in (SettingsError, Refused)}


class Kept(Protocol):
    """Programs that are kept running."""

    def start(self) -> None:
        """Start them."""

    def watch(self) -> None:
        """Start again what has ended."""

    def stop(self) -> None:
        """End them."""


def centre_folder(store: Path) -> Path:
    """Where a store's research centre keeps its own: the SuperLink's database, certificates, admitted nodes, logs."""
    return store / "network"


def open_centre(
    store: Path, address: Address, given: Certificates | None, say: Say, *, embedded: bool = True
) -> Centre:
    """The centre of a store; without given certificates a private authority is made, and the certificate renewed."""
    folder = centre_folder(store).resolve()
    own = given or issue(folder / "certificates", address.hosts, datetime.now(UTC))
    write_address(folder, address, own)
    return Centre(folder, address, own, say, embedded=embedded)


@dataclass
class Service:
    """Serves one study until its run has ended.

    Args:
        centre: The centre's programs.
        store: The store's folder.
        study: The study.
        wish: How it is run.
        say: Hears, in one line, when something happens.
        others: Further programs to keep running, such as the sites' in a rehearsal.
    """

    centre: Centre
    store: Path
    study: Study
    wish: Wish
    say: Say
    others: Sequence[Kept] = ()
    _heard: int = field(default=0, init=False)

    def run(self) -> RunRow:
        """Start everything, bring the run to its end, end everything.

        Raises:
            AbatonError: What the controller was refused.
        """
        try:
            self.centre.start()
            with replacing(self.centre.folder / "study.toml") as begun:
                begun.write_text(write_toml(self.study))
            self.say(f"the centre listens at {self.centre.address}")
            for programs in self.others:
                programs.start()
            return self._bring_to_end()
        finally:
            for programs in (*self.others, self.centre):
                programs.stop()

    def _bring_to_end(self) -> RunRow:
        told = self._told()
        controller = self.centre.conduct(CONDUCT, told.text())
        try:
            outcome = self._awaited(told, controller)
        finally:
            controller.stop()
        self._tell(told)
        if "error" in outcome:
            raise _ERRORS.get(outcome["code"], AbatonError)(outcome["error"])
        with Store(self.store) as store:
            return store.run(outcome["run"])

    def _awaited(self, told: Submission, controller: Keeper) -> dict[str, Any]:
        """How the run ended; whatever ends before it is started again, the controller as well."""
        while (outcome := self._outcome(told)) is None:
            for programs in (self.centre, *self.others):
                programs.watch()
            self._tell(told)
            if self._outcome(told) is None:
                controller.watch()
            time.sleep(_LOOK)
        return outcome

    def _told(self) -> Submission:
        told = Submission(secrets.token_hex(8), self.store.resolve(), self.centre.folder, self.wish)
        told.progress_file.parent.mkdir(parents=True, exist_ok=True)
        told.progress_file.touch()
        self._heard = told.progress_file.stat().st_size
        return told

    def _outcome(self, told: Submission) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] = json.loads(told.outcome_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return row if row["token"] == told.token else None

    def _tell(self, told: Submission) -> None:
        """Pass on what the controller has said since."""
        with told.progress_file.open("rb") as log:
            log.seek(self._heard)
            lines = log.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._heard += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.say(line)


def rehearse(study: Study, files: Sequence[SiteFile], store: Store, wish: Wish, say: Say) -> RunRow:
    """Run a study on this machine as on a network: a centre on loopback, a node for each site, TLS and keys.

    Raises:
        Refused: Fewer sites than are needed can take part.
    """
    if len(files) < 2:
        raise Refused(f"{len(files)} of {len(files)} sites can take part, 2 are needed", remedy="add others")
    centre = open_centre(store.folder, Address("127.0.0.1", free_port()), None, say)
    authority = centre.folder / "certificates" / "ca.pem"
    sites = Sites(centre, say)
    document = centre.folder / "study.toml"
    for file in files:
        folder = centre.folder / "members" / file.document.site.id
        sites.add(
            SitePrograms(membership(file, study, document, str(centre.address), authority, folder), say)
        )
    return Service(centre, store.folder, study, wish, say, [sites]).run()


class Sites:
    """The programs of several sites on this machine; their keys are admitted when they start."""

    def __init__(self, centre: Centre, say: Say) -> None:
        self._centre, self._say = centre, say
        self.programs: dict[str, SitePrograms] = {}

    def add(self, programs: SitePrograms) -> None:
        """One more site."""
        self.programs[programs.member.site] = programs

    def start(self) -> None:
        """Make keys, admit them, start the programs."""
        known = set(self._centre.admitted().values())
        for site, programs in self.programs.items():
            programs.make_key()
            if site not in known:
                self._centre.admit(programs.public_key(), site)
            programs.start()

    def watch(self) -> None:
        """Start again what has ended."""
        for programs in self.programs.values():
            programs.watch()

    def stop(self) -> None:
        """End all programs."""
        for programs in self.programs.values():
            programs.stop()
