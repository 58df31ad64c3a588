"""A study run from records to community model, and gone on with after it was cut off.

Steps: read every site (consent, de-identification, views, features), enforce anonymity over the union, deal subjects,
scale columns together, let learners train and evaluators judge by the study's rules, judge the result. What a run was
made of is pinned in its row: the study's hash, every site's table and cohort by their fingerprints.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from abaton import __version__
from abaton.codecs import Pipeline
from abaton.control import Rules
from abaton.engines import (
    LocalEngine,
    Outcome,
    Profile,
    RayEngine,
    Run,
    VirtualEngine,
    live,
    local,
    on_ray,
    status_of,
    virtual,
)
from abaton.engines.drive import Watcher
from abaton.engines.ray import require_ray
from abaton.errors import Refused, SettingsError
from abaton.federation.baselines import baselines
from abaton.federation.judging import judge_models
from abaton.federation.learners import ConsentedLearner
from abaton.federation.members import Federation, Member, federate
from abaton.federation.reading import Reading, Step, read_sites
from abaton.federation.recipes import facts, point_of, some_versions, traffic_of
from abaton.federation.rolls import Roll
from abaton.federation.scaling import remake
from abaton.learning import Model
from abaton.site import SiteFile, load_site
from abaton.software import versions
from abaton.store import Journal, RunRow, Store
from abaton.study import Learning, Study, study_from_toml, write_toml

ENGINES = ("virtual", "local", "ray", "flower")
RECIPE = "study"
COMMUNITY = "community"


@dataclass(frozen=True, slots=True)
class Options:
    """How a study is run.

    Attributes:
        engine: `virtual` (a simulated clock), `local` (processes of this machine), `ray` (tasks on a Ray cluster) or
            `flower` (a network, rehearsed on this machine: a centre and every site's nodes).
        seed: Decides every random number.
        profiles: How fast each site's machine is, under the virtual clock.
        baselines: Whether to train each site alone and all rows pooled, too: for the lab alone.
        resamples: How often subjects are drawn again for the intervals; 0 for none, and for no curve over time.
        address: Where the Ray cluster is; without one `RAY_ADDRESS` counts, or one is started here. Not kept.
    """

    engine: str = "virtual"
    seed: int = 1990
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    baselines: bool = False
    resamples: int = 1000
    address: str = ""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise SettingsError(
                f"there is no engine '{self.engine}'", where="engine", remedy=f"use {' or '.join(ENGINES)}"
            )
        if self.engine == "ray":
            require_ray()


@dataclass(frozen=True, slots=True)
class _Plan:
    """A study whose sites have been read, ready to be lived."""

    study: Study
    federation: Federation
    rolls: Mapping[str, Roll]
    options: Options

    @property
    def learning(self) -> Learning:
        assert self.study.learning is not None
        return self.study.learning

    @property
    def rules(self) -> Rules:
        return self.learning.rules(len(self.federation.members), seed=self.options.seed)

    @property
    def model(self) -> Model:
        made = self.federation
        return self.learning.model(features=len(made.columns), classes=len(made.classes))

    def learners(self, codec: Pipeline, model: Model) -> dict[str, ConsentedLearner]:
        return {member.name: self._learner(member, codec, model) for member in self.federation.members}

    def _learner(self, member: Member, codec: Pipeline, model: Model) -> ConsentedLearner:
        seed, simulated = self.options.seed, self.options.engine == "virtual"
        # A simulation can be lived through again: its sites' secrets follow from its seed. Real ones never do.
        secret = f"simulated {seed} {member.name}".encode() if simulated else secrets.token_bytes(32)
        return ConsentedLearner(
            member.name,
            model,
            member.rows,
            codec,
            seed,
            roll=self.rolls[member.name],
            floor=member.floor,
            batch=member.file.document.limits.batch,
            secret=secret,
        )


def run_study(
    study: Study,
    sites: Sequence[SiteFile | Path],
    store: Store,
    options: Options | None = None,
    *,
    watch: Watcher | None = None,
    step: Step = lambda words: None,
    now: datetime | None = None,
) -> RunRow:
    """Run a study at some sites, from their records to a judged community model.

    Args:
        study: The study document.
        sites: The sites' documents, or where they are.
        store: Where the run is kept.
        options: How it is run.
        watch: Hears of every event.
        step: Told of progress, in words without content.
        now: The moment for which consents are asked and ages counted, and at which simulated time begins.

    Raises:
        Refused: Too few sites can take part, or anonymity cannot be had; nothing was trained.
    """
    now = now or datetime.now(UTC)
    files = [site if isinstance(site, SiteFile) else load_site(site) for site in sites]
    if options is not None and options.engine == "flower":
        return _rehearse(study, files, store, options, step)
    readings = read_sites(study, files, now, step)
    return run_readings(study, readings, store, options, watch=watch, step=step, now=now)


def _rehearse(study: Study, files: Sequence[SiteFile], store: Store, options: Options, step: Step) -> RunRow:
    """Run a study as on a network; what only a simulation or one place can have is refused."""
    from abaton.federation.network.conducting import Wish
    from abaton.federation.network.serving import rehearse

    if options.profiles or options.baselines:
        raise SettingsError(
            "a network has no profiles, and rows are not brought together for baselines",
            where="engine flower",
            remedy="leave them out, or use the engine 'virtual'",
        )
    wish = Wish(len(files), options.seed, options.resamples)
    return rehearse(study, files, store, wish, step)


def run_readings(
    study: Study,
    readings: Sequence[Reading],
    store: Store,
    options: Options | None = None,
    *,
    now: datetime,
    watch: Watcher | None = None,
    step: Step = lambda words: None,
) -> RunRow:
    """Run a study at sites that have been read; several runs may share one reading.

    Args:
        study: The study document.
        readings: What the sites have.
        store: Where the run is kept.
        options: How it is run.
        now: The moment at which the sites were read.
        watch: Hears of every event.
        step: Told of progress, in words without content.
    """
    options, created = options or Options(), datetime.now(UTC)
    if options.engine == "flower":
        raise SettingsError(
            "on a network every site reads its own records", where="engine flower", remedy="use run_study"
        )
    files = [reading.file for reading in readings]
    run = f"{study.study.id}-{created:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    plan = _plan(study, readings, options, now, run)
    row = RunRow(
        run, created.isoformat(), options.engine, _recipe(plan, files, now), plan.model.layout.digest, "running", None
    )  # fmt: skip
    with store.holding(run):
        store.add_run(row)
        return _live(store, row, plan, watch, step)


def resume_study(
    store: Store, row: RunRow, *, watch: Watcher | None = None, step: Step = lambda words: None
) -> RunRow:
    """Bring a run of a study that was cut off to its end, if its records and consents are as they were.

    Raises:
        Refused: What the sites have has changed.
    """
    settings = row.recipe["settings"]
    if row.engine == "flower":
        raise SettingsError(
            f"run '{row.run}' is one on a network",
            where="resume",
            remedy="start 'abaton serve --engine flower' with the same store and study again: it goes on",
        )
    study = study_from_toml(settings["study"])
    files = [load_site(Path(place)) for place in settings["sites"]]
    profiles = {name: Profile(**values) for name, values in settings["profiles"].items()}
    options = Options(row.engine, settings["seed"], profiles, settings["baselines"], settings["resamples"])
    now = datetime.fromisoformat(settings["now"])
    plan = _plan(study, read_sites(study, files, now, step), options, now, row.run)
    _check_unchanged(row, plan)
    with store.holding(row.run):
        return _live(store, row, plan, watch, step)


def _plan(study: Study, readings: Sequence[Reading], options: Options, now: datetime, run: str) -> _Plan:
    made = federate(study, readings, options.seed)
    moment = _moment(options.engine, now)
    rolls = {each.name: Roll(each.file, study, run, each.people, moment) for each in made.members}
    strange = set(options.profiles) - {each.name for each in readings}
    if strange:
        raise SettingsError(
            f"there is a profile of '{min(strange)}', but no such site", where="profiles", remedy="remove it"
        )
    return _Plan(study, made, rolls, options)


def _moment(engine: str, began: datetime) -> Callable[[float], datetime]:
    """Simulated seconds count from the run's beginning; a real engine's learners tell the time of the world."""
    if engine == "virtual":
        return lambda at: began + timedelta(seconds=at)
    return lambda at: datetime.fromtimestamp(at, UTC)


def _recipe(plan: _Plan, files: Sequence[SiteFile], now: datetime) -> dict[str, Any]:
    """What is kept with the run: enough to build it again, and what it was made of by fingerprints."""
    options, made = plan.options, plan.federation
    settings = {
        "study": write_toml(plan.study),
        "sites": [str(Path(file.name).resolve()) for file in files],
        "seed": options.seed,
        "now": now.isoformat(),
        "profiles": {
            name: {key: v for key, v in asdict(profile).items() if v != float("inf")}
            for name, profile in options.profiles.items()
        },
        "baselines": options.baselines,
        "resamples": options.resamples,
    }
    at = 0.0 if options.engine == "virtual" else now.timestamp()
    return {
        "name": RECIPE,
        "settings": settings,
        "study": facts(plan.study),
        "method": plan.learning.model_dump(mode="json"),
        "tables": {member.name: member.digest for member in made.members},
        "cohorts": {member.name: _cohort(plan, member, at)[1] for member in made.members},
        "left_out": dict(made.left_out),
        "anonymity": made.anonymity,
        "told": {name: dict(told) for name, told in made.told.items()},
        "columns": list(made.columns),
        "classes": list(made.classes),
        "software": f"abaton {__version__}",
        "versions": versions(),
    }


def _cohort(plan: _Plan, member: Member, at: float) -> tuple[frozenset[str], str]:
    everybody = (*member.rows.train.subjects, *member.rows.validation.subjects, *member.test.subjects)
    return plan.rolls[member.name].taken(everybody, at)


def _still_in(plan: _Plan, member: Member, at: float) -> frozenset[str]:
    """Who of a site may be used for the last evaluation; nobody if the site's registry forbids it altogether."""
    try:
        return _cohort(plan, member, at)[0]
    except Refused:
        return frozenset()


def _check_unchanged(row: RunRow, plan: _Plan) -> None:
    before = row.recipe["tables"]
    now = {member.name: member.digest for member in plan.federation.members}
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    if changed:
        raise Refused(
            f"what {', '.join(changed)} has for the study is not what run '{row.run}' was started with",
            where="records or consents have changed since",
            remedy="start a new run",
        )


def _live(store: Store, row: RunRow, plan: _Plan, watch: Watcher | None, step: Step) -> RunRow:
    journal, rules, model, codec = Journal(store, row.run), plan.rules, plan.model, plan.learning.pipeline()
    run = Run(rules, model, codec, journal)
    learners = plan.learners(codec, model)
    outcome = live(run, _engine(plan, learners, run, store.folder / "states" / row.run), watch)
    step("judging")
    result = {**asdict(outcome), **_judged(store, row, plan, journal, outcome)}
    store.finish_run(row.run, status_of(outcome, rules), result)
    return store.run(row.run)


def _engine(
    plan: _Plan, learners: Mapping[str, ConsentedLearner], run: Run, states: Path
) -> VirtualEngine | LocalEngine | RayEngine:
    options, made = plan.options, plan.federation
    match options.engine:
        case "virtual":
            return virtual(learners, run.journal, options.profiles, options.seed)
        case "local":
            return local(learners, run, states)
        case _:
            sites = {name: (learner.batch, learner.secret) for name, learner in learners.items()}
            shape = len(made.columns), len(made.classes)
            again = remake(plan.learning, options.seed, shape, sites)
            return on_ray(learners, run, again, states, address=options.address)


def _judged(store: Store, row: RunRow, plan: _Plan, journal: Journal, outcome: Outcome) -> dict[str, Any]:
    """What is kept of how it went: who sent how much, how good the models are, and how they got there."""
    model, options = plan.model, plan.options
    traffic = traffic_of(journal, model.layout.size)
    final = store.vectors.get(outcome.digest)
    models = {COMMUNITY: final}
    if options.baselines:
        most = max((each["updates"] for each in traffic.values()), default=1)
        epochs = plan.learning.training.epochs * most
        models |= baselines(plan.federation, model, plan.rules.training, epochs, options.seed)
    # Consents are asked once more: the test rows of whoever has left are not used.
    at = outcome.seconds if options.engine == "virtual" else datetime.now(UTC).timestamp()
    inside = {member.name: _still_in(plan, member, at) for member in plan.federation.members}
    return {
        "traffic": traffic,
        "evaluation": judge_models(
            plan.learning, plan.federation, model, models, lambda member: inside[member.name], seed=options.seed,
            resamples=options.resamples,
        ),
        "progress": _progress(store, row, plan, inside) if options.resamples else [],
    }  # fmt: skip


def _progress(
    store: Store, row: RunRow, plan: _Plan, inside: Mapping[str, frozenset[str]]
) -> list[dict[str, Any]]:
    """The main measure of some versions of the community model, over time."""
    made = []
    for version, vector in some_versions(store, row.run):
        judged = judge_models(
            plan.learning,
            plan.federation,
            plan.model,
            {COMMUNITY: vector},
            lambda member: inside[member.name],
            resamples=0,
        )
        made += point_of(version, judged, classes=bool(plan.federation.classes))
    return made
