"""Exporting: many files through the plan, side by side, each written whole or not at all.

Invariants:
(1) an output appears under its name only when it is complete (a temporary file, then a rename);
(2) a refusal removes what was begun and leaves the other files alone;
(3) memory does not grow with the size of a file of lines;
(4) a resumed run skips what is complete and unchanged, and gives the same identities.
"""

from __future__ import annotations

import gzip
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import IO, Any, Protocol

from abaton.atomic_files import replacing, sweep
from abaton.deid.context import resting
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.mapping_table import MappingFile, MappingSink
from abaton.deid.minimisation import Minimiser
from abaton.deid.presets import rules
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.reference_index import NOWHERE, Addresses, Asks, asked_in, look_up
from abaton.deid.rule_compiler import Plan
from abaton.deid.settings import Identity, Mechanism, Need
from abaton.deid.transform_counts import Tally
from abaton.errors import AbatonError, Refused, SettingsError
from abaton.fhir.file_reader import STDIN, Source, numbered, safe_name
from abaton.fhir.json_format import dump, parse_all
from abaton.record_types import ConsentedLot, Ground
from abaton.records.export_state import Outcome, Pieces, State, unfinished

_STRETCHES, _LEAST_STRETCH = (
    16,
    4 * 1024 * 1024,
)  # of a file, for each process: nobody waits long for the last
LOT = 64
"""How many lines go through together: more are no quicker, because they do not fit a processor's own memory."""
_LOT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker needs to know to de-identify for one study at one site."""

    need: Need
    key: bytes
    year: int
    ground: Ground
    site: str = ""
    mapping: str = ""
    skip_refused: bool = False
    addresses: Addresses | None = None

    def __repr__(self) -> str:
        return "Job(…)"  # holds a key

    def names(self) -> Pseudonyms:
        """The pseudonyms of this job."""
        lasting = self.need.deidentification.mechanism is Mechanism.PSEUDONYMISE
        sink = MappingFile(Path(self.mapping)) if self.mapping and lasting else None
        return pseudonyms_for(self.need, self.key, self.site, sink)

    def check(self) -> None:
        """Refuse rules and lists that are not understood, before anything is begun."""
        Plan(rules(self.need.deidentification))
        Minimiser(self.need)

    def deidentifier(self) -> Deidentifier:
        """The de-identifier of this job."""
        return Deidentifier(self.need, self.names(), year=self.year, addresses=self.addresses)


def pseudonyms_for(need: Need, key: bytes, site: str, sink: MappingSink | None = None) -> Pseudonyms:
    """The pseudonyms that a study asks for, at a site.

    Args:
        need: What the study needs.
        key: The secret from which the study key is derived; an anonymising study throws it away.
        site: The site's name, which enters every pseudonym.
        sink: The mapping table; an anonymising study keeps none.
    """
    wish = need.deidentification
    lasting = wish.mechanism is Mechanism.PSEUDONYMISE
    sink = sink if lasting else None
    made = Pseudonyms(need.study, key, site=site, sink=sink)
    if lasting and wish.identity is Identity.PSEUDO_IDENTITY:

        def issue() -> str:
            return made.sign(secrets.token_bytes(16))

        return Pseudonyms(need.study, key, site=site, sink=sink, issue=issue)
    return made


def export_one(source: Source, target: Path, make: Deidentifier, job: Job) -> Outcome:
    """De-identify one file into another; on refusal the target is not there."""
    written = refused = 0
    try:
        # A stretch is not waited for on the disk: the whole is.
        with (
            replacing(target, sync=source.is_whole) as begun,
            _writer(begun, packed=source.is_packed) as stream,
        ):
            for lot in _lots(source):
                made = deidentified([raw for raw, _ in lot], make, ground=job.ground)
                for (_, number), each in zip(lot, made, strict=True):
                    if isinstance(each, Refused):
                        if not job.skip_refused:
                            raise Refused(each.what, where=source.place(number), remedy=each.remedy)
                        refused += 1
                    elif each is not None:
                        stream.write(each + b"\n")
                        written += 1
        if not written:
            target.unlink()
    except Asks:
        make.tally()
        return Outcome(source.name, asks=frozenset(asked_in(source)))
    except AbatonError as error:
        make.tally()
        refusal = type(error)(error.what, where=error.where or source.name, remedy=error.remedy)
        return Outcome(source.name, "", Tally(refused=1), str(refusal), error.exit_code)
    except OSError as error:
        make.tally()
        told = unfinished(error, source.name)
        return Outcome(source.name, "", Tally(), str(told), told.exit_code)
    counted = make.tally()
    counted.refused = refused
    return Outcome(source.name, str(target) if written else "", counted)


def _lots(source: Source) -> Iterator[list[tuple[bytes, int]]]:
    """The documents of a source, so many at a time as are quick together and small enough to hold."""
    lot: list[tuple[bytes, int]] = []
    size = 0
    for raw, number in numbered(source):
        lot.append((raw, number))
        size += len(raw)
        if len(lot) == LOT or size > _LOT_BYTES:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def deidentified(
    raws: Sequence[bytes], make: Deidentifier, *, ground: Ground
) -> list[bytes | Refused | None]:
    """Documents as they were read, de-identified, as they are written.

    In the place of a document stands nothing if the study does not need it, or why it is refused.
    """
    with resting():
        return _through(raws, make, ground)


def _through(raws: Sequence[bytes], make: Deidentifier, ground: Ground) -> list[bytes | Refused | None]:
    read = parse_all(raws)
    contents = [each for each in read if not isinstance(each, Refused)]
    made = [
        dump(each) if isinstance(each, dict) else each for each in make.lot(ConsentedLot(contents, ground))
    ]
    for place, each in enumerate(read) if len(contents) < len(read) else ():
        if isinstance(each, Refused):
            made.insert(place, each)
    return made


@contextmanager
def _writer(path: Path, *, packed: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with path.open("wb") as plain:
        if not packed:
            yield plain
            return
        # No name and no time inside: the same records give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0) as stream:
            yield stream


class Pool(Protocol):
    """Other machines that files can be worked on at, which see the same folders as this one."""

    @property
    def size(self) -> int:
        """How many pieces of work they do at once."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let one of them do something; more than once, if a machine is lost over it."""


Submit = Callable[[Source, str], Future[Outcome]]
Work = Callable[[Source, str], Outcome]

_worker: dict[str, Any] = {}


def _start(job: Job) -> None:
    # Ctrl-C reaches every process of a terminal; the one that waits for the others ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker["job"], _worker["make"] = job, job.deidentifier()


def _work(source: Source, target: str) -> Outcome:
    return export_one(source, Path(target), _worker["make"], _worker["job"])


def work_elsewhere(job: Job, source: Source, target: str) -> Outcome:
    """De-identify one file or a stretch of one on a machine of a pool, which serves one job after the other."""
    if _worker.get("job") != job:
        _worker["job"], _worker["make"] = job, job.deidentifier()
    return _work(source, target)


def export(
    sources: list[Source],
    out: Path,
    job: Job,
    *,
    processes: int = 1,
    pool: Pool | None = None,
    resume: bool = False,
    step: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """De-identify all sources into a directory and tell what became of each.

    Args:
        sources: The files.
        out: The directory.
        job: What is done.
        processes: How many processes of this machine do it.
        pool: Machines that do it instead.
        resume: Whether to go on with an export that was interrupted.
        step: Told of every file.
    """
    if not resume and out.is_dir() and any(out.iterdir()):
        raise SettingsError(
            "the output directory is not empty", where=str(out), remedy="choose another, or add --resume"
        )
    job.check()
    _prepare(out)
    state = State(out, resume=resume)
    if state.is_complete:
        return []
    job = state.settle(job)
    names = job.names()
    targets = _targets(sources, out, names)
    todo, outcomes = [], []
    for source, target in targets:
        if state.is_done(source, names):
            continue
        _prepare(target.parent)
        todo.append((source, target))
    asking: set[Source] = set()
    wanted: set[str] = set()
    if any(source.path == STDIN for source in sources):
        job = replace(job, addresses=NOWHERE)  # it cannot be read twice
    elif link_by := job.need.deidentification.link_by:
        wanted = {name for source in sources for name in asked_in(source)}
        job = replace(job, addresses=look_up(wanted, sources, link_by))

    def work(todo: list[tuple[Source, Path]], job: Job) -> None:
        for outcome, source in (
            _run(todo, job, processes) if pool is None else _run_elsewhere(todo, job, pool)
        ):
            if outcome.asks is not None:
                asking.add(source)
                wanted.update(outcome.asks)
                continue
            if outcome.out:
                outcome.out = str(Path(outcome.out).relative_to(out.resolve() if pool else out))
            if not outcome.error:
                state.done(source, names, outcome.out)
            step(outcome)
            outcomes.append(outcome)

    work(todo, job)
    if asking:
        # Only files that name what is not in them have to wait for what the other files answer.
        known = look_up(wanted, sources)
        work([pair for pair in todo if pair[0] in asking], replace(job, addresses=known))
    if not any(outcome.error for outcome in outcomes):
        state.finish()
    return outcomes


def _targets(sources: list[Source], out: Path, names: Pseudonyms) -> list[tuple[Source, Path]]:
    """Where each source goes; two that would go to one place are refused before anything is written."""
    made: dict[Path, Source] = {}
    for source in sources:
        target = out / safe_name(source, names)
        if target in made:
            raise SettingsError(
                "two inputs have the same name and would become one output",
                where=f"{made[target].name} and {source.name}",
                remedy="give the folders that hold them instead of the files, or export them apart",
            )
        made[target] = source
    return [(source, target) for target, source in made.items()]


def _prepare(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        sweep(out)
    except OSError as error:
        raise SettingsError(
            "the output directory cannot be made", where=str(out), remedy=error.strerror or "choose another"
        ) from None


@contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Hear of Ctrl-C afterwards; a process that is started meanwhile never does, not even while it loads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(todo: list[tuple[Source, Path]], job: Job, processes: int) -> Iterator[tuple[Outcome, Source]]:
    if processes == 1 or any(source.path == "-" for source, _ in todo):
        make = job.deidentifier()
        for source, target in todo:
            yield export_one(source, target, make, job), source
        return
    pool = ProcessPoolExecutor(
        processes - 1, mp_context=get_context("spawn"), initializer=_start, initargs=(job,)
    )
    others, threads = set(active_children()), set(threading.enumerate())

    make_here = cache(job.deidentifier)  # made while the others start

    def here(source: Source, target: str) -> Outcome:
        return export_one(source, Path(target), make_here(), job)

    def elsewhere(source: Source, target: str) -> Future[Outcome]:
        with _ctrl_c_later():
            return pool.submit(_work, source, target)

    try:
        yield from _side_by_side(elsewhere, todo, processes, here)
    except BaseException:
        # Interrupted: nobody waits for what is under way, and what it had begun goes.
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(active_children()) - others:
            worker.terminate()
            worker.join()
        for thread in set(threading.enumerate()) - threads:
            thread.join()  # the pool's own: one that still closes when Python ends is told to with a traceback
        for folder in {target.parent for _, target in todo}:
            sweep(folder)
        raise
    pool.shutdown()


def _run_elsewhere(todo: list[tuple[Source, Path]], job: Job, pool: Pool) -> Iterator[tuple[Outcome, Source]]:
    """Let the machines of a pool work: they know places by their whole names."""
    if any(source.path == "-" for source, _ in todo):
        raise SettingsError(
            "standard input cannot be read elsewhere", where="IN", remedy="give files instead of -"
        )
    whole = replace(job, mapping=str(Path(job.mapping).resolve()) if job.mapping else "")

    def submit(source: Source, target: str) -> Future[Outcome]:
        there = replace(source, path=str(Path(source.path).resolve()))
        return pool.submit(work_elsewhere, whole, there, str(Path(target).resolve()))

    try:
        yield from _side_by_side(submit, todo, pool.size)
    finally:
        for folder in {target.parent for _, target in todo}:
            sweep(folder)  # what a machine that was lost had begun


def _side_by_side(
    submit: Submit, todo: list[tuple[Source, Path]], processes: int, here: Work | None = None
) -> Iterator[tuple[Outcome, Source]]:
    """Every process reads stretches of its own and writes pieces of its own; this one, too, if it knows how."""
    pending: dict[Future[Outcome], tuple[Pieces, int]] = {}
    for source, target in sorted(todo, key=lambda pair: -pair[0].size):
        pieces = Pieces(source, target, source.split(_STRETCHES * processes, _LEAST_STRETCH))
        for number, stretch in enumerate(pieces.stretches):
            pending[submit(stretch, str(pieces.place(number)))] = pieces, number
    while pending:
        made: list[tuple[Pieces, int, Outcome]] = []
        own = next((future for future in pending if future.cancel()), None) if here is not None else None
        if own is not None and here is not None:
            pieces, number = pending.pop(own)
            made.append((pieces, number, here(pieces.stretches[number], str(pieces.place(number)))))
        done, _ = wait(pending, timeout=None if own is None else 0, return_when=FIRST_COMPLETED)
        made += [(*pending.pop(future), future.result()) for future in done]
        for pieces, number, outcome in made:
            whole = pieces.add(number, outcome)
            if whole is not None:
                yield whole, pieces.source
