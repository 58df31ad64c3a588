"""``abaton records``: de-identify, check and explain FHIR records where they live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from abaton.cli.key_access import DATABASE
from abaton.cli.output import emit, note, progress, table
from abaton.cli.privacy_inputs import completed, facts_of, read_inputs, write_report
from abaton.cli.records_tables import anonymity, conformance, inventory, view
from abaton.cli.runs import AddressOption, JsonOption
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.deid.settings import Need
    from abaton.deid.transform_counts import Tally
    from abaton.governance import Held
    from abaton.records.export import Pool
    from abaton.report import PrivacyInputs

app = typer.Typer(help="De-identify, check and explain FHIR records.", no_args_is_help=True)
app.command()(inventory)
app.command()(anonymity)
app.command()(view)
app.command()(conformance)

_STUDY = typer.Option(None, "--study", help="The study document (study.toml or an InteropEHRate Bundle).")
_KEY = typer.Option(
    None, "--key", help="The file with the study key (at least 32 random bytes); needed to pseudonymise."
)
_SITE_NAME = typer.Option("", "--site-name", help="This site's name, which enters every pseudonym.")
_SHOW = typer.Option(
    False, "--show-names", help="Show the names of input files, which may be people's, instead of numbers."
)


@app.command()
def deidentify(
    inputs: list[str] = typer.Argument(
        ..., metavar="IN...", help="Files, directories, or - for standard input."
    ),
    *,
    study: Path | None = _STUDY,
    out: Path = typer.Option(..., "--out", "-o", help="The directory to write to."),
    key: Path | None = _KEY,
    mapping: Path | None = typer.Option(
        None, "--mapping", help="The mapping table, kept by the data controller; never inside the output."
    ),
    site_name: str = _SITE_NAME,
    stated: str = typer.Option(
        "stated by the data holder", "--ground", help="Why these records may be used: the consent or vote."
    ),
    jobs: int = typer.Option(1, "--jobs", "-j", min=1, help="How many processes work side by side."),
    ray: bool = typer.Option(
        False, "--ray", help="Work on a Ray cluster whose machines see the same folders."
    ),
    address: str = AddressOption,
    resume: bool = typer.Option(False, "--resume", help="Go on with an export that was interrupted."),
    skip_refused: bool = typer.Option(False, "--skip-refused", help="Leave refused records out and go on."),
    database: str | None = DATABASE,
    show_names: bool = _SHOW,
    report: Path | None = typer.Option(
        None, "--report", help="Read the export again and write the privacy report (.html or .json)."
    ),
    supplied: Path | None = typer.Option(
        None, "--report-inputs", help="JSON with what other parts know: consents, custody ..."
    ),
    json: bool = JsonOption,
) -> None:
    """De-identify records for a study and print what was read, kept and dropped, by path and reason.

    Every output is written whole or not at all. Exit code 3: at least one file was refused. The report tells every
    element kept and removed, whether the export is valid, and whether anything of the people is still found in it.
    """
    from abaton.deid.settings import Mechanism
    from abaton.deid.transform_counts import Tally
    from abaton.fhir.file_reader import find
    from abaton.records.export import Job, export
    from abaton.records.export_state import Outcome

    known = read_inputs(report, supplied)
    if report is not None and "-" in inputs:
        raise SettingsError(
            "standard input cannot be read a second time", where="--report", remedy="give files instead of -"
        )
    need = _need(study)
    _check_places(need, out, mapping)
    secret = _secret(need, key)
    ground = _held(stated, study, database)
    sources = find(inputs, show_names=show_names)
    year = datetime.now(UTC).year
    job = Job(need, secret, year, ground, site_name, str(mapping) if mapping else "", skip_refused)
    whole = Tally()
    with progress() as bar, _pool(address) if ray else nullcontext() as pool:
        task = bar.add_task("de-identifying", total=len(sources), detail="")

        def step(outcome: Outcome) -> None:
            whole.add(outcome.tally)
            bar.advance(task)
            if outcome.error:
                note(f"abaton: {outcome.error}")

        outcomes = export(sources, out, job, processes=jobs, pool=pool, resume=resume, step=step)
    files = [{"in": o.source, "out": o.out, "refused": bool(o.error)} for o in outcomes]
    _print_tally(whole, need, files, json=json)
    codes = [outcome.exit_code for outcome in outcomes if outcome.error]
    if codes:
        if need.deidentification.mechanism is Mechanism.ANONYMISE:
            note(
                f"abaton: the export is not complete: {out} still holds the key of its identities; do not hand it "
                "on, but go on with --resume, or delete it"
            )
        raise typer.Exit(max(codes))
    if report is not None and study is not None:
        _report(report, known, study, need, inputs, [str(out / o.out) for o in outcomes if o.out], whole)


def _held(stated: str, study: Path | None, database: str | None) -> Held:
    """The stated ground, once the audit chain holds it: nothing is de-identified on mere words."""
    from abaton.cli.key_access import database as opened
    from abaton.governance import Registry, state_ground
    from abaton.study import load_study

    assert study is not None  # without a study nothing is known to be needed
    document = load_study(study)
    with opened(database, make=True) as chain:
        return state_ground(Registry(chain), document.study.id, document.hash, "", stated, datetime.now(UTC))


def _pool(address: str) -> AbstractContextManager[Pool]:
    from abaton.engines.ray import ray_pool

    return ray_pool(address)


def _report(
    path: Path,
    known: PrivacyInputs,
    study: Path,
    need: Need,
    inputs: list[str],
    outs: list[str],
    whole: Tally,
) -> None:
    """Survey the export beside the records it was made of, and write the privacy report."""
    from dataclasses import replace

    from abaton.fhir.file_reader import find
    from abaton.records.residual_check import Sought, Survey
    from abaton.report import Checks, Element, Residual
    from abaton.study import load_study

    sought, found, year = Sought(), Survey(), datetime.now(UTC).year
    for document in _parsed(inputs):
        sought.note(document)
    for document in _parsed(outs):
        found.note(document, need, sought, year=year)
    removed = whole.dropped + whole.left_out
    said = "counted by reading the export again; a text is a value of more than one word"
    checks = Checks(found.records, found.invalid, len(sought), found.found, len(list(find(outs))))
    parts = replace(
        known,
        kept=tuple(Element(place, count, why) for (place, why), count in sorted(found.kept.items()) if count),
        removed=tuple(Element(place, count, why) for (place, why), count in sorted(removed.items())),
        residual=known.residual or Residual(found.texts, found.attachments, said),
        checks=checks,
    )
    write_report(path, completed(parts, facts_of(load_study(study))))


def _parsed(places: list[str]) -> Iterator[dict[str, Any]]:
    from abaton.fhir.file_reader import documents, find
    from abaton.fhir.json_format import parse

    for source in find(places):
        for raw, where in documents(source):
            yield parse(raw, where=where)


@app.command()
def check(
    inputs: list[str] = typer.Argument(
        ..., metavar="IN...", help="Files, directories, or - for standard input."
    ),
    *,
    show_names: bool = _SHOW,
    json: bool = JsonOption,
) -> None:
    """Check records against R4: places and rules that are broken, never a value. Exit code 1: problems found."""
    from collections import Counter

    from abaton.fhir.file_reader import documents, find
    from abaton.fhir.json_format import parse
    from abaton.fhir.validation import problems

    found: Counter[tuple[str, str]] = Counter()
    read = unreadable = 0
    for source in find(inputs, show_names=show_names):
        try:
            for raw, where in documents(source):
                read += 1
                found.update((problem.path, problem.rule) for problem in problems(parse(raw, where=where)))
        except Refused as error:
            unreadable += 1
            note(f"abaton: {error}")
    rows = [(path, rule, count) for (path, rule), count in sorted(found.items())]
    if json:
        listed = [{"path": path, "rule": rule, "count": count} for path, rule, count in rows]
        emit({"read": read, "refused": unreadable, "problems": listed})
    else:
        table(f"{read:,} records checked", ["path", "rule", "count"], rows)
    if unreadable:
        raise typer.Exit(Refused.exit_code)
    if rows:
        raise typer.Exit(1)


@app.command()
def explain(
    file: str = typer.Argument(..., metavar="FILE", help="A file of records."),
    *,
    study: Path | None = _STUDY,
    json: bool = JsonOption,
) -> None:
    """Show which rule does what to each element of a record: places, rules and counts, never a value.

    Without a study, the default rules are explained.
    """
    import secrets
    from collections import Counter

    from abaton.deid.api import explain as told_of
    from abaton.deid.pseudonyms import Pseudonyms
    from abaton.deid.settings import Need
    from abaton.fhir.file_reader import documents, find
    from abaton.fhir.json_format import parse
    from abaton.record_types import Record

    need = Need("explained") if study is None else _need(study)
    names = Pseudonyms(need.study, secrets.token_bytes(32))
    year = datetime.now(UTC).year
    kept: Counter[tuple[str, str]] = Counter()
    dropped: Counter[tuple[str, str]] = Counter()
    for source in find([file]):
        for raw, where in documents(source):
            for row in told_of(Record(parse(raw, where=where)), need, names, year=year):
                kept[row.path, row.why] += row.kept
                dropped[row.path, row.why] += row.dropped
    rows = [(path, why, kept[path, why], dropped[path, why]) for path, why in sorted(kept | dropped)]
    if json:
        emit([{"path": p, "rule": why, "kept": k, "dropped": d} for p, why, k, d in rows])
    else:
        table("what happens to each element", ["path", "rule", "kept", "dropped"], rows)


@app.command()
def key(
    file: Path = typer.Argument(..., metavar="FILE", help="The file to write the new key to."),
) -> None:
    """Make a study key: 32 random bytes, readable by you alone. Without it no pseudonym can be made again."""
    import os
    import secrets

    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise SettingsError(
            "the key was not written", where=str(file), remedy=error.strerror or "choose another place"
        ) from None
    with os.fdopen(handle, "wb") as stream:
        stream.write(secrets.token_bytes(32))


def _need(study: Path | None) -> Need:
    from abaton.study import load_study

    if study is None:
        raise SettingsError(
            "no study is named", remedy="add --study study.toml; 'abaton study new' writes a first one"
        )
    return load_study(study).need(datetime.now(UTC).date())


def _secret(need: Need, key: Path | None) -> bytes:
    from abaton.deid.pseudonyms import check_key
    from abaton.deid.settings import Mechanism

    if key is None:
        if need.deidentification.mechanism is Mechanism.PSEUDONYMISE:
            raise SettingsError(
                "the study pseudonymises and no key is given",
                remedy="add --key FILE; make one with 'abaton records key FILE'",
            )
        return b""  # an anonymising export draws a key of its own and forgets it
    try:
        return check_key(key.read_bytes())
    except OSError as error:
        raise SettingsError(
            "the key cannot be read", where=str(key), remedy=error.strerror or "check the path"
        ) from None


def _check_places(need: Need, out: Path, mapping: Path | None) -> None:
    from abaton.deid.settings import Identity, Mechanism

    if mapping is not None and out.resolve() in mapping.resolve().parents:
        raise Refused("the mapping table would lie inside the output", remedy="keep it somewhere else")
    wish = need.deidentification
    random = wish.mechanism is Mechanism.PSEUDONYMISE and wish.identity is Identity.PSEUDO_IDENTITY
    if random and mapping is None:
        raise SettingsError(
            "pseudo-identities are random and live only in the mapping table", remedy="add --mapping FILE"
        )


def _print_tally(tally: Tally, need: Need, files: list[dict[str, object]], *, json: bool) -> None:
    floor = need.deidentification.count_floor
    answers = {
        name: str(n) if n >= floor else f"fewer than {floor}" for name, n in sorted(tally.answers.items())
    }
    if json:
        emit({"files": files, **tally.row(), "answers": answers})
        return
    kinds = sorted(tally.read | tally.kept)
    table(
        f"records for study {need.study}",
        ["type", "read", "kept"],
        [(kind, tally.read[kind], tally.kept[kind]) for kind in kinds],
    )
    dropped = [*tally.left_out.items(), *tally.dropped.items()]
    rows = [(path, reason, count) for (path, reason), count in sorted(dropped)]
    table("dropped", ["path", "reason", "count"], rows)
    if answers:
        table("answers", ["line of the study's list", "count"], list(answers.items()))
    if tally.refused:
        note(f"{tally.refused:,} refused; nothing of them was written")
