"""Research centre of a network study: the controller in its own process, and the supervision of all processes.

The controller waits for sites, prepares the run with them, runs the federation, and requests the evaluation. An
interrupted run is resumed: its row in the store and its journal contain the state. A controller that ends early is
started again.
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

from abaton.atomic_files import atomic_write
from abaton.controller import ControllerState, Event
from abaton.engines import MachineProfile, RunContext, RunOutcome
from abaton.engines.flower import FlowerEngine, FlowerNetwork, Message, MessageTransport
from abaton.engines.flower.server_processes import (
    ServerAddress,
    ServerProcesses,
    read_admitted,
    write_address,
)
from abaton.engines.flower.site_processes import SiteProcesses
from abaton.engines.flower.supervisor import ProcessSupervisor, free_port
from abaton.engines.flower.tls import CertificateAuthority, issue_certificate
from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.features import feature_columns, model_columns
from abaton.federation.federation import Federation, RunMetadata, new_run_name
from abaton.federation.participants import LearnerContext
from abaton.federation.run import COMMUNITY, metric_point, sampled_versions, traffic_by_site
from abaton.layout import Vector
from abaton.learners import Learner
from abaton.models import Model
from abaton.site import LoadedSiteConfig
from abaton.store import Journal, RunRow, Store
from abaton.study import LearningSection, Study, study_from_toml, write_toml
from abaton.study_run.coordinator import STUDY_RECIPE, StudyOptions, deployment_data, study_facts
from abaton.study_run.evaluation import evaluate_counts
from abaton.study_run.ingest import ProgressCallback
from abaton.study_run.internal_external_validation import check_on_network
from abaton.study_run.interpretability import combine_interpretability, linear_coefficients
from abaton.study_run.invitation import make_membership
from abaton.study_run.local_benefit import add_benefits
from abaton.study_run.messages import make_message
from abaton.study_run.model_signatures import TrustedSigners
from abaton.study_run.preparation import MIN_SITES
from abaton.study_run.site_client import (
    RemotePreparation,
    SiteRequests,
    request_evaluations,
    request_interpretability,
    request_local_benefit,
)
from abaton.study_run.validation_scores import with_mean_scores

CONTROLLER_ENTRY_POINT = "abaton.study_run.server:run_controller"
ENGINE = "flower"


@dataclass(frozen=True, slots=True)
class NetworkRunOptions:
    """Options of a network run.

    Attributes:
        min_sites: Number of sites to wait for before the run starts.
        seed: Seed of all random numbers.
        bootstrap_resamples: Number of bootstrap samples for intervals; 0 for no intervals and no progress curve.
        answer_timeout: Seconds after which a task without a reply fails.
        absence_timeout: Seconds after which an absent node has left.
        poll_seconds: Shortest interval between polls for replies.
    """

    min_sites: int = 2
    seed: int = 1990
    bootstrap_resamples: int = 1000
    answer_timeout: float = 3600.0
    absence_timeout: float = 300.0
    poll_seconds: float = 0.1


@dataclass(frozen=True, slots=True)
class ControllerJob:
    """Job of the controller process.

    Attributes:
        token: Identifies this start of the process.
        store: The store's folder.
        folder: The centre's folder.
        options: Options of the run.
    """

    token: str
    store: Path
    folder: Path
    options: NetworkRunOptions

    def to_json(self) -> str:
        """Return the job of the study server's controller process as JSON text."""
        return json.dumps({**asdict(self), "store": str(self.store), "folder": str(self.folder)})

    @classmethod
    def from_json(cls, text: str) -> ControllerJob:
        """Return the job of the study server's controller process from :meth:`to_json`."""
        row = json.loads(text)
        options = NetworkRunOptions(**row["options"])
        return cls(row["token"], Path(row["store"]), Path(row["folder"]), options)

    @property
    def study_file(self) -> Path:
        """Path of the study document at the centre's study server."""
        return self.folder / "study.toml"

    @property
    def progress_file(self) -> Path:
        """Path of the progress log of the study server's controller process."""
        return self.folder / "logs" / "controller.log"

    @property
    def outcome_file(self) -> Path:
        """Path of the outcome of the study server's controller process."""
        return self.folder / "outcome.json"


def run_controller(transport: MessageTransport, text: str) -> None:
    """Run the study server's controller; the entry point of its process at the centre."""
    job = ControllerJob.from_json(text)
    with job.progress_file.open("a", buffering=1) as log:
        try:
            study = study_from_toml(job.study_file.read_text())
            with Store(job.store) as store:
                controller = NetworkController(
                    transport, store, study, job, lambda line: _write_line(log, line)
                )
                _write_outcome(job, {"run": controller.run().run})
        except AbatonError as error:
            _write_outcome(job, {"error": str(error), "code": error.exit_code})
            raise


def _write_line(log: Any, line: str) -> None:
    log.write(f"{line}\n")


def _write_outcome(job: ControllerJob, row: Mapping[str, Any]) -> None:
    with atomic_write(job.outcome_file) as temporary_path:
        temporary_path.write_text(json.dumps({"token": job.token, **row}))


class NetworkController:
    """Controller of a study with sites on a network.

    Args:
        transport: Carries the messages.
        store: The store of the run.
        study: The study.
        job: The job of the process.
        on_progress: Receives progress texts without record content.
    """

    def __init__(
        self,
        transport: MessageTransport,
        store: Store,
        study: Study,
        job: ControllerJob,
        on_progress: ProgressCallback,
    ) -> None:
        self.store, self.study, self.job, self.on_progress = store, study, job, on_progress
        self._transport = transport
        options = job.options
        self._version = 0
        self._requests = SiteRequests(
            transport,
            self._admitted,
            answer_timeout=options.answer_timeout,
            absence_timeout=options.absence_timeout,
        )

    def run(self) -> RunRow:
        """Start a networked run of the study from the server, or resume an interrupted one."""
        row = self._unfinished_run()
        if row is None:
            run, sites, metadata = self._prepare()
        else:
            run, sites = row.run, row.recipe["manifest"]["sites"]
            settings, packages = row.recipe["settings"], self._learning.plugins
            metadata = RunMetadata(STUDY_RECIPE, settings, self.study.study.id, packages=packages)
            self.on_progress(f"run {run} is resumed")
        learning, names = self._learning, tuple(sites)
        metadata = replace(metadata, evaluate=partial(self._evaluate, names=names))
        seed = metadata.settings["seed"]
        federation = Federation(
            self._model,
            {name: RemoteSite(digest) for name, digest in sites.items()},
            with_mean_scores(learning.build_strategy(len(names), seed=seed), self.study.privacy.disclosure),
            learning.build_codec(),
            downlink=learning.build_downlink(),
            metadata=metadata,
        )
        engine_factory = _NetworkEngineFactory(partial(self._engine, names=names))
        finished = federation.run(run, store=self.store, engine=engine_factory, watch=self._watch).row
        self.on_progress(f"run {run} has finished: {(finished.result or {})['reason']}")
        header = {"run": run, "study_hash": self.study.hash}
        connected = set(names) & set(self._requests.connected_sites())
        self._requests.request_all(dict.fromkeys(connected, make_message("finish", header, {})))
        return finished

    @property
    def _learning(self) -> LearningSection:
        if self.study.learning is None:
            raise SettingsError(
                "the study has no [learning] section",
                where="study document",
                remedy="add [[views]], [features] and [learning]",
            )
        return self.study.learning

    @property
    def _model(self) -> Model:
        spec = self.study.feature_spec()
        return self._learning.build_model(
            features=len(model_columns(feature_columns(spec))), classes=len(spec.label.class_names)
        )

    def _admitted(self) -> Mapping[int, str]:
        return read_admitted(self.job.folder)

    def _unfinished_run(self) -> RunRow | None:
        """Return the newest unfinished networked run of the study that this server serves."""
        runs = [
            row
            for row in self.store.runs()
            if row.engine == ENGINE
            and row.status == "running"
            and row.recipe["study"]["hash"] == self.study.hash
        ]
        return runs[-1] if runs else None

    def _prepare(self) -> tuple[str, Mapping[str, str], RunMetadata]:
        """Wait for sites at the study server and prepare a run: its name, the sites' digests, the metadata."""
        network_options = self.job.options
        run = new_run_name(self.study.study.id)
        self.on_progress(f"waiting for {network_options.min_sites} sites")
        names = self._requests.wait_for_sites(network_options.min_sites)
        prepare = RemotePreparation(self.study, self._requests, run, network_options.seed, self.on_progress)
        prepared = prepare(names)
        self.on_progress(f"run {run} starts with {', '.join(prepared.tables)}")
        options = StudyOptions(network_options.seed, bootstrap_resamples=network_options.bootstrap_resamples)
        now = datetime.now(UTC).isoformat()
        settings = {"study": write_toml(self.study), "sites": [], "now": now, **options.to_row()}
        facts = {
            **study_facts(self.study),
            "tables": dict(prepared.tables),
            "cohorts": dict(prepared.cohorts),
            "excluded_sites": dict(prepared.excluded_sites),
            "anonymity": prepared.anonymity,
            "cohort_reports": {name: dict(report) for name, report in prepared.cohort_reports.items()},
            "min_cell_counts": dict(prepared.min_cell_counts),
        }
        spec = self.study.feature_spec()
        deployment = deployment_data(
            feature_columns(spec),
            tuple(spec.label.class_names),
            prepared.scale,
            prepared.recoding,
            max(prepared.min_cell_counts.values()),
        )
        metadata = RunMetadata(
            STUDY_RECIPE,
            settings,
            self.study.study.id,
            study_facts=facts,
            deployment=deployment,
            packages=self._learning.plugins,
        )
        return run, prepared.tables, metadata

    def _engine(self, context: RunContext, *, names: tuple[str, ...]) -> FlowerEngine:
        options, journal = self.job.options, context.journal

        def admitted() -> dict[int, str]:
            return {node: site for node, site in self._admitted().items() if site in names}

        layout = context.model.layout.digest
        network = FlowerNetwork(
            journal.run,
            layout,
            self.study.hash,
            admitted,
            options.answer_timeout,
            options.absence_timeout,
            options.poll_seconds,
        )
        transport = RunTransport(self._transport, admitted)
        updates = (
            (body for event_type, body in journal.rows() if event_type == "update_received")
            if journal.stored_events
            else ()
        )
        trusted_signers = TrustedSigners(
            self.study.hash,
            journal.run,
            context.strategy.seed,
            context.codec,
            context.model.layout,
            ((body["learner"], body["signature"]) for body in updates),
        )
        engine = FlowerEngine(
            transport,
            network,
            store_payload=journal.payloads.put,
            check_payload=context.check_payload,
            check_signature=trusted_signers,
        )
        self._journal = journal
        if journal.stored_events:
            engine.note("the controller was restarted")
        return engine

    def _watch(self, state: ControllerState, event: Event) -> None:
        if self._journal.length <= self._journal.stored_events:  # replayed events were reported before
            self._version = state.version
            return
        if note := getattr(event, "note", ""):
            learner = getattr(event, "learner", "")
            self.on_progress(f"{event.timestamp:.0f} s: {learner} {note}".replace("  ", " "))
        if state.version != self._version:
            self._version = state.version
            self.on_progress(f"{event.timestamp:.0f} s: version {state.version} of {self._learning.rounds}")

    def _evaluate(
        self, store: Store, row: RunRow, outcome: RunOutcome, *, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Return the results of a networked run at the study server, from the sites' evaluation counts."""
        self.on_progress("evaluating the community model at the sites")
        classes = row.recipe["deployment"]["classes"]
        settings, min_cell_count = row.recipe["settings"], max(row.recipe["min_cell_counts"].values())
        seed, resamples = settings["seed"], settings["bootstrap_resamples"]
        versions = list(sampled_versions(store, row.run)) if resamples else []
        models = [vector for _, vector in versions] or [store.model_files.get(outcome.digest)]
        header = {"run": row.run, "study_hash": self.study.hash, "layout": row.layout}
        counts = request_evaluations(self._requests, header, names, models, self.study)

        def evaluate(index: int, bootstrap_resamples: int) -> dict[str, Any]:
            return evaluate_counts(
                self._learning,
                classes,
                min_cell_count,
                {COMMUNITY: counts[index]},
                seed=seed,
                bootstrap_resamples=bootstrap_resamples,
            )

        points = [metric_point(version, evaluate(i, 0)) for i, (version, _) in enumerate(versions)]
        traffic = traffic_by_site(Journal(store, row.run), self._model.layout)
        results = {"evaluation": evaluate(len(models) - 1, resamples)}
        if self._learning.personal_layers is None and (resamples or self._learning.personalise):
            self.on_progress("comparing with local-only models at the sites")
            max_updates = max((site["updates"] for site in traffic.values()), default=1)
            epochs = self._learning.build_strategy(len(names)).training.epochs * max_updates
            benefit_settings = {"epochs": epochs, "seed": seed, "bootstrap_resamples": resamples}
            benefits = request_local_benefit(
                self._requests, header, names, models[-1], benefit_settings, self.study
            )
            results = add_benefits(self._learning, results["evaluation"], benefits)
        return {
            "traffic": traffic,
            **results,
            "progress": [point for version_points in points for point in version_points],
            **self._interpretability(row, header, names, models[-1], min_cell_count),
        }

    def _interpretability(
        self,
        row: RunRow,
        header: Mapping[str, Any],
        names: tuple[str, ...],
        model: Vector,
        min_cell_count: int,
    ) -> dict[str, Any]:
        """Return the interpretability results of a networked run at the study server, if requested."""
        section, deployment = self._learning.interpretability, row.recipe["deployment"]
        if section is None:
            return {}
        self.on_progress("computing interpretability counts at the sites")
        all_columns = feature_columns(self.study.feature_spec())
        site_results = request_interpretability(self._requests, header, names, model, self.study)
        combined = combine_interpretability(section, all_columns, deployment, min_cell_count, site_results)
        coefficients = linear_coefficients(self._model, model, all_columns, deployment)
        return {"interpretability": {**combined, "coefficients": coefficients}}


@dataclass(frozen=True, slots=True)
class RemoteSite:
    """Participant of a network run: its rows and its learner are at the site."""

    digest: str
    profile: MachineProfile = field(default_factory=MachineProfile)
    has_withdrawals: ClassVar[bool] = False

    def data_digest(self, secret: bytes) -> str:
        """Return the digest that a remote site sent to the study server, keyed by the site's own secret."""
        return self.digest

    def learner(self, context: LearnerContext) -> Learner:
        """Fail: in a networked study the learner is at the site, not at the server."""
        raise AssertionError(f"the learner of {context.name} is at its site")


@dataclass(frozen=True, slots=True)
class _NetworkEngineFactory:
    """Factory of the network engine."""

    start: Callable[[RunContext], FlowerEngine]
    name: ClassVar[str] = ENGINE

    def secret(self, seed: int, site: str, state_dir: Path) -> bytes:
        """Return no secret: in a networked study sites keep their own, and the server has none."""
        return b""

    def open(self, context: RunContext) -> FlowerEngine:
        """Return the network engine of a run at the study server."""
        return self.start(context)


class RunTransport:
    """Transport that is restricted to the sites of a run."""

    def __init__(self, transport: MessageTransport, admitted: Callable[[], Mapping[int, str]]) -> None:
        self._transport, self._admitted = transport, admitted

    def nodes(self) -> list[int]:
        """Return the connected nodes of the sites in the study server's run."""
        admitted = self._admitted()
        return [node for node in self._transport.nodes() if node in admitted]

    def send(self, node: int, message: Message, ttl: float) -> str:
        """Send a message of the study server's run and return its id."""
        return self._transport.send(node, message, ttl)

    def collect(self, message_ids: Any) -> Any:
        """Return the replies that have arrived for the study server's run."""
        return self._transport.collect(message_ids)

    def silence(self) -> float:
        """Return the longest time without a response from the network in the study server's run."""
        return self._transport.silence()


# ---- supervision of processes -------------------------------------------------------------------------------------

LogCallback = Callable[[str], None]

_POLL_SECONDS = 0.25
_ERROR_TYPES = {error.exit_code: error for error in (SettingsError, RefusedError)}


class SupervisedProcesses(Protocol):
    """Supervised processes."""

    def start(self) -> None:
        """Interface for processes beside the study server: start them."""

    def watch(self) -> None:
        """Interface for processes beside the study server: restart those that have ended."""

    def stop(self) -> None:
        """Interface for processes beside the study server: stop them."""


def centre_folder(store: Path) -> Path:
    """Return the study server's folder in a store: the SuperLink's database, certificates, admitted nodes, logs."""
    return store / "network"


def open_centre(
    store: Path,
    address: ServerAddress,
    authority: CertificateAuthority | None,
    log: LogCallback,
    *,
    embedded: bool = True,
) -> ServerProcesses:
    """Return the server processes of a store's centre; without an authority, issue or renew a certificate."""
    folder = centre_folder(store).resolve()
    certificates = authority or issue_certificate(folder / "certificates", address.hosts, datetime.now(UTC))
    write_address(folder, address, certificates)
    return ServerProcesses(folder, address, certificates, log, embedded=embedded)


@dataclass
class StudyServer:
    """Server of one study until its run has finished.

    Args:
        centre: The centre's processes.
        store: The store's folder.
        study: The study.
        options: Options of the run.
        log: Receives one line per event.
        other_processes: Further processes to supervise, such as those of the sites on a loopback network.
    """

    centre: ServerProcesses
    store: Path
    study: Study
    options: NetworkRunOptions
    log: LogCallback
    other_processes: Sequence[SupervisedProcesses] = ()
    _log_position: int = field(default=0, init=False)

    def run(self) -> RunRow:
        """Start all processes of a networked study at the server, wait for the end of the run, stop them.

        Raises:
            AbatonError: The controller failed.
        """
        check_on_network(self.study)
        try:
            self.centre.start()
            with atomic_write(self.centre.folder / "study.toml") as temporary_path:
                temporary_path.write_text(write_toml(self.study))
            self.log(f"the centre listens at {self.centre.address}")
            for processes in self.other_processes:
                processes.start()
            return self._run_controller()
        finally:
            for processes in (*self.other_processes, self.centre):
                processes.stop()

    def _run_controller(self) -> RunRow:
        job = self._make_job()
        controller = self.centre.start_controller(CONTROLLER_ENTRY_POINT, job.to_json())
        try:
            outcome = self._wait_for_outcome(job, controller)
        finally:
            controller.stop()
        self._forward_log(job)
        if "error" in outcome:
            raise _ERROR_TYPES.get(outcome["code"], AbatonError)(outcome["error"])
        with Store(self.store) as store:
            return store.run(outcome["run"])

    def _wait_for_outcome(self, job: ControllerJob, controller: ProcessSupervisor) -> dict[str, Any]:
        """Wait for the outcome of the study server's run; restart any process that ends before."""
        while (outcome := self._read_outcome(job)) is None:
            for processes in (self.centre, *self.other_processes):
                processes.watch()
            self._forward_log(job)
            if self._read_outcome(job) is None:
                controller.watch()
            time.sleep(_POLL_SECONDS)
        return outcome

    def _make_job(self) -> ControllerJob:
        job = ControllerJob(secrets.token_hex(8), self.store.resolve(), self.centre.folder, self.options)
        job.progress_file.parent.mkdir(parents=True, exist_ok=True)
        job.progress_file.touch()
        self._log_position = job.progress_file.stat().st_size
        return job

    def _read_outcome(self, job: ControllerJob) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] = json.loads(job.outcome_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return row if row["token"] == job.token else None

    def _forward_log(self, job: ControllerJob) -> None:
        """Forward new lines of the controller's log to the study server's log."""
        with job.progress_file.open("rb") as log:
            log.seek(self._log_position)
            content = log.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._log_position += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            self.log(line)


def run_loopback(
    study: Study,
    files: Sequence[LoadedSiteConfig],
    store: Store,
    options: NetworkRunOptions,
    log: LogCallback,
) -> RunRow:
    """Serve a study on a loopback network on this machine: a centre, a node for each site, TLS and keys.

    Raises:
        RefusedError: Fewer sites than are needed can take part.
    """
    if len(files) < MIN_SITES:
        raise RefusedError(
            f"{len(files)} of {len(files)} sites can take part, {MIN_SITES} are needed", remedy="add others"
        )
    centre = open_centre(store.folder, ServerAddress("127.0.0.1", free_port()), None, log)
    authority = centre.folder / "certificates" / "ca.pem"
    sites = LocalSiteProcesses(centre, log)
    document = centre.folder / "study.toml"
    for file in files:
        folder = centre.folder / "sites" / file.config.site.id
        membership = make_membership(file, study, document, str(centre.address), authority, folder)
        sites.add(SiteProcesses(membership, log))
    return StudyServer(centre, store.folder, study, options, log, [sites]).run()


class LocalSiteProcesses:
    """Processes of several sites on this machine; their keys are admitted at the start."""

    def __init__(self, centre: ServerProcesses, log: LogCallback) -> None:
        self._centre, self._log = centre, log
        self.processes: dict[str, SiteProcesses] = {}

    def add(self, processes: SiteProcesses) -> None:
        """Add the processes of a site to the study server's loopback network."""
        self.processes[processes.membership.site] = processes

    def start(self) -> None:
        """Start the sites' processes beside the study server: create keys, admit them at the centre."""
        admitted = set(self._centre.admitted_nodes().values())
        for site, processes in self.processes.items():
            processes.make_key()
            if site not in admitted:
                self._centre.admit(processes.public_key(), site)
            processes.start()

    def watch(self) -> None:
        """Restart sites' processes beside the study server that have ended."""
        for processes in self.processes.values():
            processes.watch()

    def stop(self) -> None:
        """Stop all sites' processes beside the study server."""
        for processes in self.processes.values():
            processes.stop()
