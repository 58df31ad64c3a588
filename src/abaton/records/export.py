"""De-identification of many files in parallel.

The pool is any object with a size and `submit`, so this package does not import Ray. On a cluster the job contains the
study key, so the cluster must belong to the site.

Invariants:
(1) an output appears under its name only when it is complete (a temporary file, then a rename);
(2) a refusal removes the incomplete output and does not affect other files;
(3) memory does not grow with the size of an NDJSON file;
(4) a resumed export skips complete and unchanged files, and gives the same pseudonyms.
"""

from __future__ import annotations

import gzip
import re
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

from abaton.atomic_files import atomic_write, remove_leftovers
from abaton.deid.context import gc_paused
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.mapping_table import MappingFile, MappingSink
from abaton.deid.minimisation import Minimiser
from abaton.deid.presets import preset_rules
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.reference_index import (
    EMPTY_INDEX,
    ReferenceIndex,
    UnresolvedReferenceError,
    build_index,
    unresolved_names,
)
from abaton.deid.rule_compiler import CompiledRules
from abaton.deid.settings import DataRequest, Mechanism, PseudonymScheme
from abaton.deid.transform_counts import TransformCounts
from abaton.errors import AbatonError, RefusedError, SettingsError
from abaton.fhir.elements import resource_types
from abaton.fhir.file_reader import STDIN, RecordFile, read_numbered
from abaton.fhir.json_format import dump, parse_all
from abaton.record_types import ConsentedBatch, LegalBasis
from abaton.records.export_state import ChunkResult, ExportState, FileChunks, unfinished

# Many small chunks keep all processes busy until the end.
_CHUNKS_PER_PROCESS, _MIN_CHUNK_BYTES = 16, 4 * 1024 * 1024
BATCH_RECORDS = 64
"""Records per batch; larger batches do not fit the processor cache and are no faster."""
_BATCH_BYTES = 1024 * 1024
_NUMBERED_FOLDER = re.compile(r"folder-\d{1,4}")
_BULK_FILE = re.compile(r"(?:\d{1,4}\.)?([A-Z][A-Za-z]+)(?:\.\d{1,4})?")


@dataclass(frozen=True, slots=True)
class ExportJob:
    """Job of a worker: de-identification for one study at one site."""

    data_request: DataRequest
    key: bytes
    year: int
    legal_basis: LegalBasis
    site: str = ""
    mapping: str = ""
    skip_refused: bool = False
    reference_index: ReferenceIndex | None = None

    def __repr__(self) -> str:
        return "ExportJob(…)"  # contains a key

    def pseudonyms(self) -> Pseudonyms:
        """Return the pseudonyms of this export job."""
        is_pseudonymised = self.data_request.deidentification.mechanism is Mechanism.PSEUDONYMISE
        sink = MappingFile(Path(self.mapping)) if self.mapping and is_pseudonymised else None
        return pseudonyms_for(self.data_request, self.key, self.site, sink)

    def check(self) -> None:
        """Refuse invalid de-identification rules and requirements before the export job starts."""
        CompiledRules(preset_rules(self.data_request.deidentification))
        Minimiser(self.data_request)

    def deidentifier(self) -> Deidentifier:
        """Return the de-identifier of this export job."""
        return Deidentifier(
            self.data_request, self.pseudonyms(), year=self.year, reference_index=self.reference_index
        )


def pseudonyms_for(
    request: DataRequest, key: bytes, site: str, sink: MappingSink | None = None
) -> Pseudonyms:
    """Return the pseudonyms for an export of a study's records at a site.

    Args:
        request: Data that the study needs.
        key: Secret from which the study key is derived; not stored if the study anonymises.
        site: Id of the site, part of every pseudonym.
        sink: Mapping table; not used if the study anonymises.
    """
    settings = request.deidentification
    is_pseudonymised = settings.mechanism is Mechanism.PSEUDONYMISE
    sink = sink if is_pseudonymised else None
    pseudonyms = Pseudonyms(request.study, key, site=site, sink=sink)
    if is_pseudonymised and settings.identity is PseudonymScheme.PSEUDO_IDENTITY:

        def issue() -> str:
            return pseudonyms.sign(secrets.token_bytes(16))

        return Pseudonyms(request.study, key, site=site, sink=sink, issue=issue)
    return pseudonyms


def export_one(source: RecordFile, target: Path, deidentifier: Deidentifier, job: ExportJob) -> ChunkResult:
    """Export one file: de-identify its records into another; a refused file has no output."""
    written = refused = 0
    try:
        # Chunks are not synced to the disk; the complete file is.
        with (
            atomic_write(target, sync=source.is_complete) as temporary_path,
            _writer(temporary_path, packed=source.is_compressed) as stream,
        ):
            for batch in _batches(source):
                deidentified_records = deidentify_documents(
                    [raw for raw, _ in batch], deidentifier, legal_basis=job.legal_basis
                )
                for (_, number), record in zip(batch, deidentified_records, strict=True):
                    if isinstance(record, RefusedError):
                        if not job.skip_refused:
                            raise RefusedError(
                                record.what, where=source.location(number), remedy=record.remedy
                            )
                        refused += 1
                    elif record is not None:
                        stream.write(record + b"\n")
                        written += 1
        if not written:
            target.unlink()
    except UnresolvedReferenceError:
        deidentifier.take_counts()
        return ChunkResult(source.name, unresolved=frozenset(unresolved_names(source)))
    except AbatonError as error:
        deidentifier.take_counts()
        refusal = type(error)(error.what, where=error.where or source.name, remedy=error.remedy)
        return ChunkResult(source.name, "", TransformCounts(refused=1), str(refusal), error.exit_code)
    except OSError as error:
        deidentifier.take_counts()
        failure = unfinished(error, source.name)
        return ChunkResult(source.name, "", TransformCounts(), str(failure), failure.exit_code)
    counted = deidentifier.take_counts()
    counted.refused = refused
    return ChunkResult(source.name, str(target) if written else "", counted)


def _batches(source: RecordFile) -> Iterator[list[tuple[bytes, int]]]:
    """Yield the documents of a file to export in batches of bounded number and size."""
    batch: list[tuple[bytes, int]] = []
    size = 0
    for raw, number in read_numbered(source):
        batch.append((raw, number))
        size += len(raw)
        if len(batch) == BATCH_RECORDS or size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def deidentify_documents(
    raws: Sequence[bytes], deidentifier: Deidentifier, *, legal_basis: LegalBasis
) -> list[bytes | RefusedError | None]:
    """De-identify a batch of JSON documents of a record export.

    The result has None for a document that the study does not need, and the error for a refused one.
    """
    with gc_paused():
        return _deidentify_all(raws, deidentifier, legal_basis)


def _deidentify_all(
    raws: Sequence[bytes], deidentifier: Deidentifier, legal_basis: LegalBasis
) -> list[bytes | RefusedError | None]:
    read = parse_all(raws)
    contents = [parsed for parsed in read if not isinstance(parsed, RefusedError)]
    outputs = [
        dump(parsed) if isinstance(parsed, dict) else parsed
        for parsed in deidentifier.deidentify_batch(ConsentedBatch(contents, legal_basis))
    ]
    for position, parsed in enumerate(read) if len(contents) < len(read) else ():
        if isinstance(parsed, RefusedError):
            outputs.insert(position, parsed)
    return outputs


@contextmanager
def _writer(path: Path, *, packed: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    with path.open("wb") as uncompressed:
        if not packed:
            yield uncompressed
            return
        # Without name and time in the header, the same records give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=uncompressed, mtime=0) as stream:
            yield stream


class ExportPool(Protocol):
    """Pool of machines that share the folders of this one."""

    @property
    def size(self) -> int:
        """Number of export tasks that the pool runs at the same time."""

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run an export task on a machine of the pool, again if a machine is lost."""


Submit = Callable[[RecordFile, str], Future[ChunkResult]]
Work = Callable[[RecordFile, str], ChunkResult]

_worker: dict[str, Any] = {}


def _start(job: ExportJob) -> None:
    # Ctrl-C reaches every process of a terminal; the parent process terminates the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker["job"], _worker["deidentifier"] = job, job.deidentifier()


def _work(source: RecordFile, target: str) -> ChunkResult:
    return export_one(source, Path(target), _worker["deidentifier"], _worker["job"])


def export_remote(job: ExportJob, source: RecordFile, target: str) -> ChunkResult:
    """Export a file or a chunk of one on a machine of a pool, which runs one job after the other."""
    if _worker.get("job") != job:
        _worker["job"], _worker["deidentifier"] = job, job.deidentifier()
    return _work(source, target)


def export_records(
    sources: list[RecordFile],
    out: Path,
    job: ExportJob,
    *,
    processes: int = 1,
    pool: ExportPool | None = None,
    resume: bool = False,
    on_progress: Callable[[ChunkResult], None] = lambda result: None,
) -> list[ChunkResult]:
    """Export records: de-identify all files into a folder and return the result of each.

    Args:
        sources: The files.
        out: Output folder.
        job: The job.
        processes: Number of processes on this machine.
        pool: Machines to use instead.
        resume: Whether to resume an interrupted export.
        on_progress: Called with the result of every file.
    """
    if not resume and out.is_dir() and any(out.iterdir()):
        raise SettingsError(
            "the output folder is not empty", where=str(out), remedy="choose another folder, or add --resume"
        )
    job.check()
    _prepare(out)
    state = ExportState(out, resume=resume)
    if state.is_complete:
        return []
    job = state.with_key(job)
    names = job.pseudonyms()
    targets = _targets(sources, out, names)
    todo, results = [], []
    for source, target in targets:
        if state.is_done(source, names):
            continue
        _prepare(target.parent)
        todo.append((source, target))
    unresolved_files: set[RecordFile] = set()
    unresolved: set[str] = set()
    if any(source.path == STDIN for source in sources):
        job = replace(job, reference_index=EMPTY_INDEX)  # standard input cannot be read twice
    elif link_identifier := job.data_request.deidentification.link_identifier:
        unresolved = {name for source in sources for name in unresolved_names(source)}
        job = replace(job, reference_index=build_index(unresolved, sources, link_identifier))

    def work(todo: list[tuple[RecordFile, Path]], job: ExportJob) -> None:
        for result, source in _run(todo, job, processes) if pool is None else _run_remote(todo, job, pool):
            if result.unresolved is not None:
                unresolved_files.add(source)
                unresolved.update(result.unresolved)
                continue
            if result.out:
                result.out = str(Path(result.out).relative_to(out.resolve() if pool else out))
            if not result.error:
                state.mark_done(source, names, result.out)
            on_progress(result)
            results.append(result)

    work(todo, job)
    if unresolved_files:
        # Only files with references to other files wait until these have been indexed.
        known = build_index(unresolved, sources)
        work([pair for pair in todo if pair[0] in unresolved_files], replace(job, reference_index=known))
    if not any(result.error for result in results):
        state.finish()
    return results


def _targets(sources: list[RecordFile], out: Path, names: Pseudonyms) -> list[tuple[RecordFile, Path]]:
    """Return the export path of each input file; refuse two files with the same output."""
    sources_by_target: dict[Path, RecordFile] = {}
    for source in sources:
        target = out / safe_name(source, names)
        if target in sources_by_target:
            raise SettingsError(
                "two input files would have the same output file",
                where=f"{sources_by_target[target].name} and {source.name}",
                remedy="pass their folders instead of the files, or export them separately",
            )
        sources_by_target[target] = source
    return [(source, target) for target, source in sources_by_target.items()]


def safe_name(source: RecordFile, names: Pseudonyms) -> str:
    """Return the name of an exported file; only names of bulk exports and numbered folders are kept.

    >>> names = Pseudonyms("heart", bytes(range(32)))
    >>> safe_name(RecordFile("x", "Patient.000.ndjson"), names), len(safe_name(RecordFile("x", "Jo_Smith.json"), names))
    ('Patient.000.ndjson', 39)
    >>> safe_name(RecordFile("x", "folder-2/Patient.ndjson"), names)
    'folder-2/Patient.ndjson'
    """
    folder = Path(source.relative).parent
    return str(_safe_folder(folder, names) / _safe_file(source, names))


def _safe_folder(folder: Path, names: Pseudonyms) -> Path:
    if folder == Path():
        return folder
    parent = _safe_folder(folder.parent, names)
    if parent == Path() and _NUMBERED_FOLDER.fullmatch(folder.name):
        return parent / folder.name
    return parent / f"folder-{names.identity('folder', str(folder))}"  # frozen: part of the bytes


def _safe_file(source: RecordFile, names: Pseudonyms) -> str:
    base = Path(source.relative).name
    suffix = next(s for s in (".ndjson", ".jsonl", ".json", "") if base.removesuffix(".gz").endswith(s))
    stem = base.removesuffix(".gz").removesuffix(suffix)
    match = _BULK_FILE.fullmatch(stem)
    compressed_suffix = ".gz" if source.is_compressed else ""
    is_bulk_file = match is not None and match[1] in resource_types()
    if is_bulk_file or source.path == STDIN:
        return f"{stem}{suffix}{compressed_suffix}"
    pseudonym = names.identity("file", source.relative)  # frozen: part of the bytes
    return f"records-{pseudonym}{suffix or '.json'}{compressed_suffix}"


def _prepare(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
    except OSError as error:
        raise SettingsError(
            f"the output folder cannot be created: {error.strerror or type(error).__name__}",
            where=str(out),
            remedy="choose another folder",
        ) from None


@contextmanager
def _interrupt_delayed() -> Iterator[None]:
    """Delay Ctrl-C while export processes start; they ignore it, also while they load."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(
    todo: list[tuple[RecordFile, Path]], job: ExportJob, processes: int
) -> Iterator[tuple[ChunkResult, RecordFile]]:
    if processes == 1 or any(source.path == "-" for source, _ in todo):
        deidentifier = job.deidentifier()
        for source, target in todo:
            yield export_one(source, target, deidentifier, job), source
        return
    pool = ProcessPoolExecutor(
        processes - 1, mp_context=get_context("spawn"), initializer=_start, initargs=(job,)
    )
    others, threads = set(active_children()), set(threading.enumerate())

    local_deidentifier = cache(job.deidentifier)  # created while the workers start

    def export_here(source: RecordFile, target: str) -> ChunkResult:
        return export_one(source, Path(target), local_deidentifier(), job)

    def submit(source: RecordFile, target: str) -> Future[ChunkResult]:
        with _interrupt_delayed():
            return pool.submit(_work, source, target)

    try:
        yield from _export_in_parallel(submit, todo, processes, export_here)
    except BaseException:
        # On an interrupt, running work is abandoned and its temporary files are removed.
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(active_children()) - others:
            worker.terminate()
            worker.join()
        for thread in set(threading.enumerate()) - threads:
            thread.join()  # threads of the pool; one that is alive when Python exits prints a traceback
        for folder in {target.parent for _, target in todo}:
            remove_leftovers(folder)
        raise
    pool.shutdown()


def _run_remote(
    todo: list[tuple[RecordFile, Path]], job: ExportJob, pool: ExportPool
) -> Iterator[tuple[ChunkResult, RecordFile]]:
    """Export files on the machines of a pool, with absolute paths."""
    if any(source.path == "-" for source, _ in todo):
        raise SettingsError(
            "standard input cannot be read on other machines", where="IN", remedy="pass files instead of -"
        )
    resolved_job = replace(job, mapping=str(Path(job.mapping).resolve()) if job.mapping else "")

    def submit(source: RecordFile, target: str) -> Future[ChunkResult]:
        resolved = replace(source, path=str(Path(source.path).resolve()))
        return pool.submit(export_remote, resolved_job, resolved, str(Path(target).resolve()))

    try:
        yield from _export_in_parallel(submit, todo, pool.size)
    finally:
        for folder in {target.parent for _, target in todo}:
            remove_leftovers(folder)  # temporary files of lost machines


def _export_in_parallel(
    submit: Submit, todo: list[tuple[RecordFile, Path]], processes: int, export_here: Work | None = None
) -> Iterator[tuple[ChunkResult, RecordFile]]:
    """Export chunks of files in parallel, also in this process if `export_here` is given."""
    pending: dict[Future[ChunkResult], tuple[FileChunks, int]] = {}
    for source, target in sorted(todo, key=lambda pair: -pair[0].size):
        file_chunks = FileChunks(
            source, target, source.split(_CHUNKS_PER_PROCESS * processes, _MIN_CHUNK_BYTES)
        )
        for number, chunk in enumerate(file_chunks.chunks):
            pending[submit(chunk, str(file_chunks.chunk_path(number)))] = file_chunks, number
    while pending:
        finished: list[tuple[FileChunks, int, ChunkResult]] = []
        # A future that can still be cancelled has not started; its chunk is exported in this process.
        taken = next((future for future in pending if future.cancel()), None) if export_here else None
        if taken is not None and export_here is not None:
            file_chunks, number = pending.pop(taken)
            path = str(file_chunks.chunk_path(number))
            finished.append((file_chunks, number, export_here(file_chunks.chunks[number], path)))
        done, _ = wait(pending, timeout=None if taken is None else 0, return_when=FIRST_COMPLETED)
        finished += [(*pending.pop(future), future.result()) for future in done]
        for file_chunks, number, result in finished:
            total = file_chunks.add(number, result)
            if total is not None:
                yield total, file_chunks.source
