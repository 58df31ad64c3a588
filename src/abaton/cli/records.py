"""``abaton records deidentify``, ``check``, ``explain`` and ``key``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.key_access import DATABASE
from abaton.cli.output import emit, note, progress, table
from abaton.cli.privacy_inputs import fill_inputs, inputs_of_study, read_inputs, write_report
from abaton.cli.records_tables import anonymity, conformance, profile, view
from abaton.cli.runs import AddressOption, JsonOption
from abaton.errors import RefusedError, SettingsError

if TYPE_CHECKING:
    from abaton.deid.settings import DataRequest
    from abaton.deid.transform_counts import TransformCounts
    from abaton.governance import AuditedLegalBasis
    from abaton.records.export import ExportPool
    from abaton.report import PrivacyInputs

app = typer.Typer(help="De-identify, check and profile FHIR records.", no_args_is_help=True)
app.command()(profile)
app.command()(anonymity)
app.command()(view)
app.command()(conformance)

_STUDY = typer.Option(None, "--study", help="Study document (study.toml or an InteropEHRate Bundle)")
_KEY = typer.Option(
    None, "--key", help="File with the study key (at least 32 random bytes); required to pseudonymise"
)
_SITE_NAME = typer.Option("", "--site-name", help="Name of this site, part of every pseudonym")
_SHOW = typer.Option(
    False,
    "--show-names",
    help="Show the names of input files, which may identify patients, instead of numbers",
)


@app.command()
def deidentify(
    inputs: list[str] = typer.Argument(
        ..., metavar="IN...", help="Files, directories, or - for standard input"
    ),
    *,
    study: Path | None = _STUDY,
    out: Path = typer.Option(..., "--out", "-o", help="Write the records to this directory"),
    key: Path | None = _KEY,
    mapping: Path | None = typer.Option(
        None, "--mapping", help="Write the mapping table to this file, outside the output"
    ),
    site_name: str = _SITE_NAME,
    legal_basis: str = typer.Option(
        "stated by the data holder",
        "--legal-basis",
        help="Legal basis of the use: consent, permit or approval",
    ),
    jobs: int = typer.Option(1, "--jobs", "-j", min=1, help="Number of parallel processes"),
    ray: bool = typer.Option(False, "--ray", help="Use a Ray cluster whose machines share the folders"),
    address: str = AddressOption,
    resume: bool = typer.Option(False, "--resume", help="Resume an interrupted export"),
    skip_refused: bool = typer.Option(False, "--skip-refused", help="Skip refused records and continue"),
    database: str | None = DATABASE,
    show_names: bool = _SHOW,
    report: Path | None = typer.Option(
        None, "--report", help="Check the export and write the privacy report (.html or .json)"
    ),
    report_inputs_file: Path | None = typer.Option(
        None, "--report-inputs", help="JSON file with further sections of the report: consents, custody …"
    ),
    json: bool = JsonOption,
) -> None:
    """De-identify records for a study and print what was read, kept and dropped, by path and reason.

    Each output file is written completely or not at all. The privacy report lists every element kept and removed, and
    checks the export for validity and residual identifiers. Exit code 3: at least one file was refused.
    """
    from abaton.deid.settings import Mechanism
    from abaton.deid.transform_counts import TransformCounts
    from abaton.fhir.file_reader import find_files
    from abaton.records.export import ExportJob, export_records
    from abaton.records.export_state import ChunkResult

    report_inputs = read_inputs(report, report_inputs_file)
    if report is not None and "-" in inputs:
        raise SettingsError(
            "standard input cannot be read twice", where="--report", remedy="give files instead of -"
        )
    data_request = _data_request(study)
    _check_mapping_path(data_request, out, mapping)
    study_key = _study_key(data_request, key)
    audited = _audited_legal_basis(legal_basis, study, database)
    sources = find_files(inputs, show_names=show_names)
    year = datetime.now(UTC).year
    job = ExportJob(
        data_request, study_key, year, audited, site_name, str(mapping) if mapping else "", skip_refused
    )
    totals = TransformCounts()
    with progress() as bar, _pool(address) if ray else nullcontext() as pool:
        task_id = bar.add_task("de-identifying", total=len(sources), detail="")

        def step(outcome: ChunkResult) -> None:
            totals.add(outcome.transform_counts)
            bar.advance(task_id)
            if outcome.error:
                note(f"abaton: {outcome.error}")

        outcomes = export_records(
            sources, out, job, processes=jobs, pool=pool, resume=resume, on_progress=step
        )
    files = [{"in": o.source, "out": o.out, "refused": bool(o.error)} for o in outcomes]
    _print_counts(totals, data_request, files, json=json)
    codes = [outcome.exit_code for outcome in outcomes if outcome.error]
    if codes:
        if data_request.deidentification.mechanism is Mechanism.ANONYMISE:
            note(
                f"abaton: the export is incomplete and {out} still contains the key of its pseudonyms: do not pass it "
                "on; continue with --resume, or delete it"
            )
        raise typer.Exit(max(codes))
    if report is not None and study is not None:
        _write_privacy_report(
            report,
            report_inputs,
            study,
            data_request,
            inputs,
            [str(out / o.out) for o in outcomes if o.out],
            totals,
        )


def _audited_legal_basis(legal_basis: str, study: Path | None, database: str | None) -> AuditedLegalBasis:
    """Record the legal basis of `abaton records deidentify` in the audit log and return it."""
    from abaton.cli.key_access import database as opened
    from abaton.governance import ConsentRegistry, record_legal_basis
    from abaton.study import load_study

    assert study is not None  # the data request was read from it
    document = load_study(study)
    with opened(database, create=True) as audit_database:
        return record_legal_basis(
            ConsentRegistry(audit_database),
            document.study.id,
            document.hash,
            "",
            legal_basis,
            datetime.now(UTC),
        )


def _pool(address: str) -> AbstractContextManager[ExportPool]:
    from abaton.engines.ray import ray_pool

    return ray_pool(address)


def _write_privacy_report(
    path: Path,
    inputs_known: PrivacyInputs,
    study: Path,
    data_request: DataRequest,
    inputs: list[str],
    outputs: list[str],
    totals: TransformCounts,
) -> None:
    """Check de-identified records for residual identifiers of the source, and write the privacy report."""
    from dataclasses import replace

    from abaton.fhir.file_reader import find_files
    from abaton.records.residual_check import KnownIdentifiers, ResidualCheck
    from abaton.report import CheckSummary, PrivacyElement, ResidualSummary
    from abaton.study import load_study

    known_identifiers, residuals, year = KnownIdentifiers(), ResidualCheck(), datetime.now(UTC).year
    for document in _read_resources(inputs):
        known_identifiers.add(document)
    for document in _read_resources(outputs):
        residuals.add(document, data_request, known_identifiers, year=year)
    removed = totals.dropped + totals.dropped_resources
    method = "counted in the written export; a text is a value of more than one word"
    checks = CheckSummary(
        residuals.records,
        residuals.invalid,
        len(known_identifiers),
        residuals.residuals,
        len(list(find_files(outputs))),
    )
    privacy_inputs = replace(
        inputs_known,
        retained=tuple(
            PrivacyElement(element, count, reason)
            for (element, reason), count in sorted(residuals.retained.items())
            if count
        ),
        removed=tuple(
            PrivacyElement(element, count, reason) for (element, reason), count in sorted(removed.items())
        ),
        residual=inputs_known.residual or ResidualSummary(residuals.texts, residuals.attachments, method),
        checks=checks,
    )
    write_report(path, fill_inputs(privacy_inputs, inputs_of_study(load_study(study))))


def _read_resources(paths: list[str]) -> Iterator[dict[str, Any]]:
    from abaton.fhir.file_reader import find_files, read_documents
    from abaton.fhir.json_format import parse

    for source in find_files(paths):
        for raw, where in read_documents(source):
            yield parse(raw, where=where)


@app.command()
def check(
    inputs: list[str] = typer.Argument(
        ..., metavar="IN...", help="Files, directories, or - for standard input"
    ),
    *,
    show_names: bool = _SHOW,
    json: bool = JsonOption,
) -> None:
    """Validate records against FHIR R4 and print paths and broken rules, without values.

    Exit code 1: problems found.
    """
    from collections import Counter

    from abaton.fhir.file_reader import find_files, read_documents
    from abaton.fhir.json_format import parse
    from abaton.fhir.validation import validate_resource

    problems: Counter[tuple[str, str]] = Counter()
    read = unreadable = 0
    for source in find_files(inputs, show_names=show_names):
        try:
            for raw, where in read_documents(source):
                read += 1
                problems.update(
                    (problem.path, problem.rule) for problem in validate_resource(parse(raw, where=where))
                )
        except RefusedError as error:
            unreadable += 1
            note(f"abaton: {error}")
    rows = [(path, rule, count) for (path, rule), count in sorted(problems.items())]
    if json:
        listed = [{"path": path, "rule": rule, "count": count} for path, rule, count in rows]
        emit({"read": read, "refused": unreadable, "problems": listed})
    else:
        table(f"{read:,} records checked", ["path", "rule", "count"], rows)
    if unreadable:
        raise typer.Exit(RefusedError.exit_code)
    if rows:
        raise typer.Exit(1)


@app.command()
def explain(
    file: str = typer.Argument(..., metavar="FILE", help="File of records"),
    *,
    study: Path | None = _STUDY,
    json: bool = JsonOption,
) -> None:
    """Show which rule applies to each element of a record: paths, rules and counts, without values.

    Without --study the default rules apply.
    """
    import secrets
    from collections import Counter

    from abaton.deid.api import explain as explain_record
    from abaton.deid.pseudonyms import Pseudonyms
    from abaton.deid.settings import DataRequest
    from abaton.fhir.file_reader import find_files, read_documents
    from abaton.fhir.json_format import parse
    from abaton.record_types import Record

    data_request = DataRequest("explained") if study is None else _data_request(study)
    pseudonyms = Pseudonyms(data_request.study, secrets.token_bytes(32))
    year = datetime.now(UTC).year
    kept_counts: Counter[tuple[str, str]] = Counter()
    dropped_counts: Counter[tuple[str, str]] = Counter()
    for source in find_files([file]):
        for raw, where in read_documents(source):
            for row in explain_record(Record(parse(raw, where=where)), data_request, pseudonyms, year=year):
                kept_counts[row.path, row.reason] += row.kept_count
                dropped_counts[row.path, row.reason] += row.dropped
    rows = [
        (path, rule, kept_counts[path, rule], dropped_counts[path, rule])
        for path, rule in sorted(kept_counts | dropped_counts)
    ]
    if json:
        emit([{"path": p, "rule": rule, "kept": k, "dropped": d} for p, rule, k, d in rows])
    else:
        table("rules by element", ["path", "rule", "kept", "dropped"], rows)


@app.command()
def key(
    file: Path = typer.Argument(..., metavar="FILE", help="Write the new key to this file"),
) -> None:
    """Create a study key of 32 random bytes that only you can read.

    Without the key pseudonyms cannot be reproduced.
    """
    import os
    import secrets

    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise SettingsError(
            "the key was not written", where=str(file), remedy=error.strerror or "choose another path"
        ) from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(secrets.token_bytes(32))


def _data_request(study: Path | None) -> DataRequest:
    from abaton.study import load_study

    if study is None:
        raise SettingsError(
            "--study is missing", remedy="add --study study.toml; 'abaton study new' writes a template"
        )
    return load_study(study).data_request(datetime.now(UTC).date())


def _study_key(data_request: DataRequest, key: Path | None) -> bytes:
    from abaton.deid.pseudonyms import check_key
    from abaton.deid.settings import Mechanism

    if key is None:
        if data_request.deidentification.mechanism is Mechanism.PSEUDONYMISE:
            raise SettingsError(
                "the study pseudonymises, and --key is missing",
                remedy="add --key FILE; create one with 'abaton records key FILE'",
            )
        return b""  # an anonymising export uses a random key that is not stored
    try:
        return check_key(key.read_bytes())
    except OSError as error:
        raise SettingsError(
            "the key cannot be read", where=str(key), remedy=error.strerror or "check the path"
        ) from None


def _check_mapping_path(data_request: DataRequest, out: Path, mapping: Path | None) -> None:
    from abaton.deid.settings import Mechanism, PseudonymScheme

    if mapping is not None and out.resolve() in mapping.resolve().parents:
        raise RefusedError(
            "the mapping table is inside the output directory", remedy="choose another path for --mapping"
        )
    settings = data_request.deidentification
    is_random = (
        settings.mechanism is Mechanism.PSEUDONYMISE and settings.identity is PseudonymScheme.PSEUDO_IDENTITY
    )
    if is_random and mapping is None:
        raise SettingsError(
            "pseudo-identities are random and require a mapping table", remedy="add --mapping FILE"
        )


def _print_counts(
    counts: TransformCounts, data_request: DataRequest, files: list[dict[str, object]], *, json: bool
) -> None:
    min_cell_count = data_request.min_cell_count
    requirement_counts = {
        name: str(n) if n >= min_cell_count else f"fewer than {min_cell_count}"
        for name, n in sorted(counts.requirement_counts.items())
    }
    if json:
        emit({"files": files, **counts.row(), "requirement_counts": requirement_counts})
        return
    resource_types = sorted(counts.read | counts.kept_resources)
    table(
        f"records for study {data_request.study}",
        ["type", "read", "kept"],
        [
            (resource_type, counts.read[resource_type], counts.kept_resources[resource_type])
            for resource_type in resource_types
        ],
    )
    dropped = [*counts.dropped_resources.items(), *counts.dropped.items()]
    rows = [(path, reason, count) for (path, reason), count in sorted(dropped)]
    table("dropped", ["path", "reason", "count"], rows)
    if requirement_counts:
        table("required counts", ["data requirement", "subjects"], list(requirement_counts.items()))
    if counts.refused:
        note(f"{counts.refused:,} refused and not written")
