"""A study as a federation: from its sites' records to a community model that was judged.

Steps: read every site (consent, de-identification, views, features), enforce anonymity over the union, deal subjects,
scale columns together; the rest is the one road (`federation.federation`). What a run was prepared with is kept while
it goes on: one that was cut off is resumed with the same ranges, scale and deal, without those who have left.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from abaton.anonymity.federated_recoding import Choice
from abaton.engines import Outcome, Profile, recall
from abaton.engines.runner import Watcher
from abaton.errors import Refused, SettingsError
from abaton.features import Column, Statistics
from abaton.federation.engine_factory import Carrier, Here
from abaton.federation.federation import Dossier, Federation, checked_name, new_name, states_of
from abaton.federation.participants import Making
from abaton.federation.run import COMMUNITY, Run, point_of, some_versions, traffic_of
from abaton.kernels import Vector
from abaton.learners import Learner, Model
from abaton.site import Ledger, SiteFile, gate_of, load_site
from abaton.site.factory import open_ledger
from abaton.store import Journal, RunRow, Store, default_folder, digest_of, head
from abaton.study import Learning, Study, study_from_toml, write_toml
from abaton.study_run.consent_roster import Moment, Roll, StillIn
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.evaluation import baselines, judge_models, layers_of
from abaton.study_run.ingest import GateOf, Reading, Step, read_sites
from abaton.study_run.interpretability import coefficients_of, explanation_of, site_explained
from abaton.study_run.local_benefit import GainSettings, keep_own, own_path, site_gain, with_gains
from abaton.study_run.preparation import Dealt, Member, Members, Sums, federate
from abaton.study_run.preparation_state import Prepared, Scale
from abaton.study_run.site_releases import as_told, sums_told, tellable
from abaton.study_run.site_run_state import Notes
from abaton.study_run.study_policy import policy_of

STUDY = "study"
"""What a run of a study says that made it."""

FLOWER = "flower"
_POLICIES = "policies"


@dataclass(frozen=True, slots=True)
class StudyOptions:
    """How a study is run, besides what its document says.

    Attributes:
        seed: Decides every random number.
        profiles: How fast each site's machine is, under the virtual clock.
        baselines: Whether to train each site alone and all rows pooled, too: for the lab alone.
        resamples: How often subjects are drawn again for the intervals; 0 for none, and for no curve over time.
    """

    seed: int = 1990
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    baselines: bool = False
    resamples: int = 1000

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        profiles = {
            name: {key: v for key, v in asdict(profile).items() if v != float("inf")}
            for name, profile in self.profiles.items()
        }
        return {**asdict(self), "profiles": profiles}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> StudyOptions:
        """Read what :meth:`row` wrote."""
        profiles = {name: Profile(**values) for name, values in row["profiles"].items()}
        return cls(row["seed"], profiles, row["baselines"], row["resamples"])


@dataclass(frozen=True, slots=True)
class StudySite:
    """A member of a study as a participant of its federation."""

    member: Member
    study: Study
    moment: Moment
    profile: Profile
    seated: dict[str, Learner] = field(default_factory=dict, repr=False)
    """Where the learners of a run are found again, to judge the model by what their sites have for themselves."""
    states: Path | None = None
    """Where the site notes what it was asked; in memory if not given, for a run that is replayed."""

    @property
    def lessened(self) -> bool:
        """Whether people have left since the run was begun."""
        return self.member.lessened

    def fingerprint(self, secret: bytes) -> str:
        """The digest of the site's rows as they were when the run was begun."""
        return self.member.digest

    def learner(self, making: Making) -> Learner:
        """A learner that asks for consent before each task."""
        made = self.seated[making.name] = ConsentedLearner(
            making.name,
            making.model,
            self.member.rows,
            making.codec,
            making.seed,
            roll=self.roll(making.run),
            floor=self.member.floor,
            batch=self.member.file.document.limits.batch,
            secret=making.secret,
        )
        folder = (
            None if self.states is None else self.states / _POLICIES / digest_of(making.name.encode())[:32]
        )
        policy_of(self.member.file, self.study, made, Notes(making.run, folder), self.ledger)
        return made

    @property
    def ledger(self) -> Ledger:
        """What has left the site before."""
        return open_ledger(self.member.file, self.member.floor)

    def roll(self, run: str) -> Roll:
        """Who may be used in a run."""
        return Roll(self.member.file, self.study, run, self.member.people, self.moment)

    def still_in(self, run: str, at: float) -> frozenset[str]:
        """Who may be used for the last evaluation; nobody if the site's registry forbids it altogether."""
        try:
            return tellable(self.ledger, self.member, self.roll(run).taken(self.member.everybody, at)[0])
        except Refused:
            return frozenset()


def run_study(
    study: Study,
    sites: Sequence[SiteFile | Path],
    store: Store | Path | None = None,
    options: StudyOptions | None = None,
    *,
    name: str = "",
    engine: str | Carrier = "virtual",
    watch: Watcher | None = None,
    step: Step = lambda words: None,
    now: datetime | None = None,
) -> Run:
    """Run a study at some sites, from their records to a judged community model.

    Args:
        study: The study document.
        sites: The sites' documents, or where they are.
        store: Where the run is kept; in the user's data folder if not given.
        options: How it is run.
        name: What the run is called; one of that name that was cut off is resumed.
        engine: `virtual`, `local`, `ray`, or `flower` (a network, rehearsed on this machine: a centre and every site's
            nodes).
        watch: Hears of every event.
        step: Told of progress, in words without content.
        now: The moment for which consents are asked and ages counted, and at which simulated time begins.

    Raises:
        Refused: Too few sites can take part, anonymity cannot be had, or a run of that name is made of something else;
            nothing was trained.
    """
    opened = store if isinstance(store, Store) else Store(store or default_folder())
    files = [site if isinstance(site, SiteFile) else load_site(site) for site in sites]
    options = options or StudyOptions()
    if engine == FLOWER:
        return _rehearse(study, files, opened, options, step)
    carrier = Here(engine) if isinstance(engine, str) else engine
    began, found = now or datetime.now(UTC), opened.known(name) if name else None
    gate: GateOf = gate_of
    if found is not None and found.status == "running":
        began = datetime.fromisoformat(found.recipe["settings"]["now"])
        gate = _still_in(opened, found, began)
    readings = read_sites(study, files, began, step, gate)
    return run_readings(
        study, readings, opened, options, name=name, engine=carrier, watch=watch, step=step, now=began
    )


def run_readings(
    study: Study,
    readings: Sequence[Reading],
    store: Store,
    options: StudyOptions,
    *,
    now: datetime,
    name: str = "",
    engine: str | Carrier = "virtual",
    watch: Watcher | None = None,
    step: Step = lambda words: None,
) -> Run:
    """Run a study at sites that have been read; several runs may share one reading.

    Args:
        study: The study document.
        readings: What the sites have.
        store: Where the run is kept.
        options: How it is run.
        now: The moment at which the sites were read.
        name: What the run is called.
        engine: What carries it; sites on a network read their own records.
        watch: Hears of every event.
        step: Told of progress, in words without content.
    """
    carrier = Here(engine) if isinstance(engine, str) else engine
    name = checked_name(name or new_name(study.study.id))
    made = study_federation(study, readings, store, options, now=now, run=name, carrier=carrier, step=step)
    return made.run(name, store=store, engine=carrier, watch=watch)


def resume_study(
    store: Store, row: RunRow, *, watch: Watcher | None = None, step: Step = lambda words: None
) -> Run:
    """Bring a run of a study that was cut off to its end, without those who have withdrawn since.

    Raises:
        Refused: What the sites have has changed otherwise.
    """
    settings = row.recipe["settings"]
    if row.engine == FLOWER:
        raise SettingsError(
            f"run '{row.run}' is one on a network",
            where="resume",
            remedy="type 'abaton serve study STUDY' with the same store and study again: it goes on",
        )
    files = [load_site(Path(place)) for place in settings["sites"]]
    options = StudyOptions.from_row(settings)
    study = study_from_toml(settings["study"])
    return run_study(study, files, store, options, name=row.run, engine=row.engine, watch=watch, step=step)


def study_federation(
    study: Study,
    readings: Sequence[Reading],
    store: Store,
    options: StudyOptions,
    *,
    now: datetime,
    run: str,
    carrier: Carrier,
    step: Step = lambda words: None,
) -> Federation:
    """The federation of a study whose sites have been read; of a run that goes on, as it was prepared."""
    if options.baselines and study.learning is not None and study.learning.personal is not None:
        raise SettingsError(
            "baselines are whole models, and this study's has layers that stay at each site",
            where="baselines",
            remedy="leave out the baselines, or [learning.personal]",
        )
    strange = set(options.profiles) - {each.name for each in readings}
    if strange:
        raise SettingsError(
            f"there is a profile of '{min(strange)}', but no such site", where="profiles", remedy="remove it"
        )
    states, simulated = states_of(store, run), carrier.name == "virtual"
    path = states / "prepared.json"
    kept = None if store.known(run) is None else Prepared.read(path)
    keyed = [
        replace(each, key=each.key + carrier.secret(options.seed, each.name, states)) for each in readings
    ]
    members = federate(study, keyed, options.seed, kept, partial(_sums_of, study, options.seed))
    moment = _moment(now, _lived(store, run) if _lessened(members) else 0.0) if simulated else _world
    seated: dict[str, Learner] = {}
    sites = {
        each.name: StudySite(
            each,
            study,
            moment,
            options.profiles.get(each.name, Profile()),
            seated,
            None if simulated else states,
        )
        for each in members.each
    }
    files = [str(Path(each.file.name).resolve()) for each in readings]
    about = _About(study, members, sites, options, files, now, run, simulated)
    return Federation(
        about.learning.model(features=len(members.columns), classes=len(members.classes)),
        sites,
        about.learning.rules(len(sites), seed=options.seed),
        about.learning.pipeline(),
        downlink=about.learning.way_down(),
        dossier=Dossier(
            maker=STUDY,
            settings=about.settings(),
            title=study.study.id,
            made_of=about.made_of(),
            packages=about.learning.parts,
            facts=about.facts() if kept is None else {},
            use=about.use(),
            judge=lambda opened, row, outcome: about.judged(opened, row, outcome, step),
            begin=lambda: _begin(members.prepared, path),
            end=lambda: _end(path),
        ),
    )


def use_of(
    columns: Sequence[Column], classes: Sequence[str], scale: Scale, choice: Choice | None, floor: int
) -> dict[str, Any]:
    """What is needed to use a study's model: columns, their ranges and scale, classes or the scale of values."""
    measured = {column.name for column in columns if column.measured}
    ranges = {} if choice is None else {"ranges": list(choice.node)}
    return {
        **ranges,
        "columns": [column.name for column in columns],
        "classes": list(classes),
        "label": list(scale.label),
        "scale": {
            name: [each.mean, each.deviation, name in measured] for name, each in scale.columns.of.items()
        },
        "known": known_shares(columns, scale.columns, floor),
    }


def known_shares(columns: Sequence[Column], told: Statistics, floor: int) -> dict[str, float]:
    """For how many of those whom a model learned from each input is known, as shares; few without it count as none.

    >>> from abaton.features import Moments
    >>> told = {"age": Moments(100), "dose": Moments(98), "ecg=normal": Moments(60), "ecg=other": Moments(40)}
    >>> named = [Column(name, name.split("=")[0], pooled=True) for name in told]
    >>> known_shares(named, Statistics(told), 5)
    {'age': 1.0, 'dose': 1.0, 'ecg': 0.6}
    """
    counts: dict[str, int] = {}
    for column in columns:  # a site that may not tell one category tells another
        if column.pooled:
            counts[column.input] = max(counts.get(column.input, 0), told.of[column.name].count)
    people = max(counts.values(), default=0)
    return {
        name: 1.0 if people - count < floor else round(count / people, 2) for name, count in counts.items()
    }


@dataclass(frozen=True, slots=True)
class _About:
    """What is told and kept of a study's run."""

    study: Study
    members: Members
    sites: Mapping[str, StudySite]
    options: StudyOptions
    files: Sequence[str]
    now: datetime
    run: str
    simulated: bool

    @property
    def learning(self) -> Learning:
        assert self.study.learning is not None
        return self.study.learning

    def settings(self) -> dict[str, Any]:
        """Enough to make the same run again."""
        return {
            "study": write_toml(self.study),
            "sites": list(self.files),
            "now": self.now.isoformat(),
            **self.options.row(),
        }

    def use(self) -> dict[str, Any]:
        """What is needed to use the model."""
        members, floor = self.members, max(each.floor for each in self.members.each)
        prepared = members.prepared
        return use_of(members.columns, members.classes, prepared.scale, prepared.choice, floor)

    def made_of(self) -> dict[str, Any]:
        """What decides the result besides rules and rows: the document, how it is judged, what sites allow."""
        judged = {"baselines": self.options.baselines, "resamples": self.options.resamples}
        batches = {each.name: each.file.document.limits.batch for each in self.members.each}
        floors = {each.name: each.floor for each in self.members.each}
        return {
            "evaluation": {**self.learning.evaluation.model_dump(mode="json"), **judged},
            "document": self.study.hash,
            "largest batch": batches,
            "smallest count": floors,
        }

    def facts(self) -> dict[str, Any]:
        """What a reader of the run wants to know, small numbers masked."""
        at, members = 0.0 if self.simulated else self.now.timestamp(), self.members
        cohorts = {
            name: site.roll(self.run).taken(site.member.everybody, at)[1] for name, site in self.sites.items()
        }
        return {
            **study_facts(self.study),
            "tables": {each.name: each.digest for each in members.each},
            "cohorts": cohorts,
            "left_out": dict(members.left_out),
            "anonymity": members.anonymity,
            "told": {
                name: as_told(self.sites[name].ledger, self.study, told) if name in self.sites else dict(told)
                for name, told in members.told.items()
            },
        }

    def judged(self, store: Store, row: RunRow, outcome: Outcome, step: Step) -> dict[str, Any]:
        """Who sent how much, how good the models are, and how they got there."""
        step("judging")
        options, members, learning = self.options, self.members, self.learning
        model = learning.model(features=len(members.columns), classes=len(members.classes))
        traffic = traffic_of(Journal(store, row.run), model.layout.size)
        models = {COMMUNITY: store.vectors.get(outcome.digest)}
        training = learning.rules(len(self.sites)).training
        epochs = training.epochs * max((each["updates"] for each in traffic.values()), default=1)
        if options.baselines:
            models |= baselines(members, model, training, epochs, options.seed)
        # Consents are asked once more: the test rows of whoever has left are not used.
        at = outcome.seconds if self.simulated else datetime.now(UTC).timestamp()
        inside = {name: site.still_in(row.run, at) for name, site in self.sites.items()}
        seated = {name: each for site in self.sites.values() for name, each in site.seated.items()}
        recall(states_of(store, row.run), seated)
        local = {name: layers_of(learner) for name, learner in seated.items()}

        def judge(models: Mapping[str, Any], resamples: int) -> dict[str, Any]:
            return judge_models(
                learning, members, model, models, lambda member: inside[member.name], seed=options.seed,
                resamples=resamples, local=local,
            )  # fmt: skip

        points = [
            point_of(version, judge({COMMUNITY: vector}, 0))
            for version, vector in (some_versions(store, row.run) if options.resamples else ())
        ]
        evaluation = judge(models, options.resamples)
        wish = GainSettings(epochs, options.seed, options.resamples)
        return {
            "traffic": traffic,
            **self._gains(store, row, (model, models[COMMUNITY]), inside, wish, evaluation, step),
            "progress": [point for each in points for point in each],
            **self._explained(model, models[COMMUNITY], inside, local),
        }

    def _explained(
        self,
        model: Model,
        vector: Vector,
        inside: Mapping[str, frozenset[str]],
        local: Mapping[str, Mapping[str, Vector]],
    ) -> dict[str, Any]:
        """What the model goes by, if the study asks for it."""
        asked, members = self.learning.explanation, self.members
        if asked is None:
            return {}
        use = self.use()
        told = {
            each.name: site_explained(
                each, asked, members.columns, members, model, vector, inside[each.name],
                seed=self.options.seed, local=local.get(each.name),
            )
            for each in members.each
        }  # fmt: skip
        floor = max(each.floor for each in members.each)
        made = explanation_of(asked, members.columns, use, floor, told)
        linear = coefficients_of(model, vector, members.columns, use)
        return {"explanation": {**made, "coefficients": linear}}

    def _gains(
        self,
        store: Store,
        row: RunRow,
        models: tuple[Model, Vector],
        inside: Mapping[str, frozenset[str]],
        wish: GainSettings,
        evaluation: Mapping[str, Any],
        step: Step,
    ) -> dict[str, Any]:
        """How models were judged, with what each site gains and makes of the community model; that stays with it."""
        learning = self.learning
        if learning.personal is not None or not (wish.resamples or learning.personalise):
            return {"evaluation": evaluation}
        step("each site against its own model")
        found = {
            each.name: site_gain(each, self.members, learning, models, inside[each.name], wish)
            for each in self.members.each
        }
        for name, each in found.items():
            if each.models:
                keep_own(own_path(states_of(store, row.run), name), each.models)
        return with_gains(learning, evaluation, found)


def _begin(prepared: Prepared, path: Path) -> None:
    """Keep what a run was prepared with; what sites noted of an earlier one of its name is gone."""
    shutil.rmtree(path.parent / _POLICIES, ignore_errors=True)
    prepared.write(path)


def _end(path: Path) -> None:
    """Remove what a run needed to go on."""
    path.unlink(missing_ok=True)
    shutil.rmtree(path.parent / _POLICIES, ignore_errors=True)


def _sums_of(study: Study, seed: int, dealt: Dealt) -> Sums:
    """What a site of this machine tells for scaling, by its ledger."""
    return sums_told(open_ledger(dealt.reading.file, dealt.floor), study, seed, dealt)


def study_facts(study: Study) -> dict[str, Any]:
    """What a reader of any run of a study wants to know of the study, and the method that it names."""
    about, kept = study.study, study.deidentification
    assert study.learning is not None
    return {
        "study": {
            "id": about.id,
            "hash": study.hash,
            "title": about.title,
            "question": " ".join((about.question or "").split()),
            "purpose": about.purpose.value,
            "legal_basis": about.legal_basis,
            "centre": study.centre.name,
            "shares": [each.value for each in about.shares],
            "mechanism": kept.mechanism.value,
            "dates": kept.dates.value,
            "smallest_count": kept.count_floor,
            "statements": {key.value: words for key, words in study.consent.statements.items()}
            if study.consent
            else {},
            "outcome": study.features.label.name if study.features else None,
        },
        "method": study.learning.model_dump(mode="json"),
    }


def _moment(began: datetime, lived: float) -> Moment:
    """Simulated seconds count from the run's beginning, or from where it was cut for an engine that begins anew."""
    return lambda at: began + timedelta(seconds=lived + at)


def _world(at: float) -> datetime:
    """A real engine's learners tell the time of the world."""
    return datetime.fromtimestamp(at, UTC)


def _lessened(members: Members) -> bool:
    return any(each.lessened for each in members.each)


def _lived(store: Store, run: str) -> float:
    """How long a run has gone on by its own clock."""
    return head(store, run).at


def _still_in(store: Store, row: RunRow, began: datetime) -> GateOf:
    """Gates that let nobody pass who has left since a run was begun, by its own clock or the world's."""
    simulated = row.engine == "virtual"
    lived = timedelta(seconds=_lived(store, row.run)) if simulated else timedelta()
    later = max(datetime.now(UTC), began + lived)
    return lambda file, study: StillIn(gate_of(file, study), later, simulated=simulated)


def _rehearse(
    study: Study, files: Sequence[SiteFile], store: Store, options: StudyOptions, step: Step
) -> Run:
    """Run a study as on a network; what only a simulation or one place can have is refused."""
    from abaton.study_run.server import Wish, rehearse

    if options.profiles or options.baselines:
        raise SettingsError(
            "a network has no profiles, and rows are not brought together for baselines",
            where="engine flower",
            remedy="leave them out, or use the engine 'virtual'",
        )
    wish = Wish(len(files), options.seed, options.resamples)
    return Run(store, rehearse(study, files, store, wish, step).run)
