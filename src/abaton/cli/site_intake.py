"""``abaton site enrol``, ``import-consents``, ``send``, ``withdraw`` and ``status``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.key_access import JSON, PASSPHRASE_ENV, PASSPHRASE_FILE, open_key_set
from abaton.cli.output import emit, note, table
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import KeySet, WithdrawalCase
    from abaton.site import CentreSession

_STUDY = typer.Argument(..., metavar="STUDY", help="Study document", show_default=False)
_SITE = typer.Option(Path("site.toml"), "--site", help="Configuration of the site")
_PATIENT = typer.Argument(..., metavar="PATIENT", help="Id of the Patient; '-' reads it from stdin")


def _now() -> datetime:
    return datetime.now(UTC)


@contextmanager
def _open_session(
    site: Path, passphrase_file: Path | None, passphrase_env: str | None, data_dir: Path = Path("member")
) -> Iterator[CentreSession]:
    """Open the session with the centre's intake for `abaton site`; keys are opened only to sign."""
    from abaton.site import load_site, open_centre_session

    file = load_site(site)

    def keys() -> KeySet:
        if file.config.keys.key_set is None:
            raise SettingsError("keys.key_set is missing", where=file.name, remedy="add key_set to [keys]")
        return open_key_set(file.path(file.config.keys.key_set), passphrase_file, passphrase_env)

    def delete_runs_of(is_withdrawn: Callable[[str], bool]) -> None:
        if (data_dir / "runs").is_dir():
            from abaton.study_run.site_run_state import delete_subject

            delete_subject(data_dir / "runs", file, is_withdrawn)

    with open_centre_session(file, keys, _now, delete_runs_of) as session:
        yield session


def _read_patient(patient: str) -> str:
    """Return the patient's id given to `abaton site`; stdin keeps it out of shell history and process list."""
    return sys.stdin.readline().strip() if patient == "-" else patient


def enrol(
    study: Path = _STUDY,
    patient: str = _PATIENT,
    *,
    site: Path = _SITE,
    until: datetime | None = typer.Option(None, "--until", help="End of the consent (UTC)"),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Record patients' consent to this study document as FHIR Consent resources.

    From stdin several ids are read, one per line; all are recorded, or none.
    """
    from abaton.study import load_study

    document = load_study(study)
    patients = [line.strip() for line in sys.stdin if line.strip()] if patient == "-" else [patient]
    with _open_session(site, passphrase_file, passphrase_env) as session:
        session.enrol(document, patients, until.replace(tzinfo=UTC) if until else None)
    note("1 consent recorded" if len(patients) == 1 else f"{len(patients)} consents recorded")


def import_consents(study: Path = _STUDY, *, site: Path = _SITE, json: bool = JSON) -> None:
    """Import consents and opt-outs from the sources in the site's configuration.

    Run it every night and before a study run. Subjects who withdrew or opted out are excluded from then on. If records
    were sent to a centre, a withdrawal is opened; 'abaton site withdraw' deletes them there.
    """
    from abaton.site import import_site_consents, load_site
    from abaton.study import load_study

    imported = import_site_consents(load_site(site), load_study(study), _now())
    counts: dict[str, int | None] = {
        "resources": imported.resources, "subjects": imported.subjects, "written": imported.changes.written,
        "unchanged": imported.changes.unchanged, "withdrawn_at_site": imported.changes.withdrawn_here,
        "withdrawn_by_form": len(imported.changes.withdrawn), "missing_form": len(imported.changes.missing),
        "opt_outs": imported.opted_out, "new_opt_outs": imported.new_opt_outs,
        "removed_opt_outs": imported.removed_opt_outs, "withdrawals": imported.withdrawals,
    }  # fmt: skip
    if json:
        emit({**counts, "undecided": dict(sorted(imported.issues.items()))})
    else:
        undecided = [(f"undecided: {reason}", count) for reason, count in sorted(imported.issues.items())]
        rows = [(name.replace("_", " "), count) for name, count in counts.items()]
        table("imported", ["state", "count"], [*rows, *undecided])


def send(
    study: Path = _STUDY,
    *,
    site: Path = _SITE,
    collect: bool = typer.Option(
        True, "--collect/--no-collect", help="Read and seal records first, or only send the outbox"
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Collect, de-identify, seal and send the records of all consented patients, resuming an earlier call.

    Exit code 1: the centre is unreachable or refused a record; unsent records stay in the outbox.
    """
    from abaton.study import load_study

    document = load_study(study)
    with _open_session(site, passphrase_file, passphrase_env) as session:
        sent = session.send(document, note, collect=collect)
        waiting = len(session.outbox.waiting()) if session.outbox else 0
    counts = {
        "queued": sent.queued, "unchanged": sent.unchanged, "sent": sent.sent, "bytes": sent.bytes,
        "waiting": waiting,
    }  # fmt: skip
    if json:
        emit({**counts, "refused": dict(sorted(sent.refused.items()))})
    else:
        refused = [(f"refused: {reason}", count) for reason, count in sorted(sent.refused.items())]
        table("sent to the centre", ["state", "count"], [*counts.items(), *refused])
    if sent.refused:
        raise typer.Exit(1)


def withdraw(
    study: Path | None = typer.Argument(None, metavar="[STUDY]", help="Study document", show_default=False),
    patient: str | None = typer.Argument(
        None, metavar="[PATIENT]", help="Id of the Patient; '-' reads it from stdin"
    ),
    *,
    site: Path = _SITE,
    data_dir: Path = typer.Option(
        Path("member"), "--data-dir", help="Data folder of 'site join'; also remove the patient from its runs"
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Withdraw a patient from a study, here and at the centre; without arguments, continue pending withdrawals.

    Studies that share only updates need neither the centre nor the site's keys. Exit code 1: a withdrawal is pending,
    for example because the centre is unreachable.
    """
    from abaton.governance import CascadeStep
    from abaton.study import load_study

    if (study is None) != (patient is None):
        raise SettingsError(
            "STUDY or PATIENT is missing", remedy="give both, or none to continue pending withdrawals"
        )
    with _open_session(site, passphrase_file, passphrase_env, data_dir) as session:
        if study is not None and patient is not None:
            cases = [session.withdraw(load_study(study), _read_patient(patient))]
        else:
            cases = session.cascade().advance_all(_now())
    _print_withdrawals(cases, json=json)
    if any(case.step is not CascadeStep.DONE for case in cases):
        raise typer.Exit(1)


def status(
    *,
    site: Path = _SITE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Show the outbox, pending withdrawals and what the centre has stored of this site.

    Exit code 1: the centre is unreachable.
    """
    from abaton.errors import AbatonError
    from abaton.governance import pending

    with _open_session(site, passphrase_file, passphrase_env) as session:
        queued_messages = session.outbox.all() if session.outbox else []
        waiting = [queued for queued in queued_messages if not queued.receipt]
        cases = pending(session.registry.database)
        problem, centre = "", {}
        try:
            centre = session.connection.client.usage() if session.outbox else {}
        except AbatonError as error:
            problem = str(error)
    counts = {
        "waiting": len(waiting), "oldest": min((q.created for q in waiting), default=None),
        "receipts": len(queued_messages) - len(waiting), "pending_withdrawals": len(cases),
    }  # fmt: skip
    if json:
        emit({**counts, "centre": centre or None, "problem": problem or None})
    else:
        rows = [(name.replace("_", " "), value) for name, value in counts.items()]
        table("site", ["state", "value"], [*rows, *((f"centre: {k}", v) for k, v in centre.items())])
        _print_withdrawals(cases, json=False) if cases else None
    if problem:
        note(problem)
        raise typer.Exit(1)


def _print_withdrawals(cases: list[WithdrawalCase], *, json: bool) -> None:
    names = ("study", "subject", "step", "pending_on", "opened_at")
    rows = [(c.study, c.subject, c.step.value, c.pending_on or None, c.opened_at) for c in cases]
    emit([dict(zip(names, row, strict=True)) for row in rows]) if json else table("withdrawals", names, rows)
