"""``abaton site enrol``, ``consents``, ``send``, ``withdraw`` and ``status``: a site and the research centre."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, note, table
from abaton.cli.key_access import JSON, PASSPHRASE_ENV, PASSPHRASE_FILE, ring
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import Case, Ring
    from abaton.site import Dealings

_STUDY = typer.Argument(..., metavar="STUDY", help="The study document.", show_default=False)
_SITE = typer.Option(Path("site.toml"), "--site", help="The site's document.")
_PATIENT = typer.Argument(..., metavar="PATIENT", help="The Patient's id; '-' reads it from stdin.")


def _now() -> datetime:
    return datetime.now(UTC)


@contextmanager
def _dealings(
    site: Path, passphrase_file: Path | None, passphrase_env: str | None, home: Path = Path("member")
) -> Iterator[Dealings]:
    """A site's dealings; its keys are opened only if something is to be signed."""
    from abaton.site import deal, load_site

    file = load_site(site)

    def keys() -> Ring:
        if file.document.keys.ring is None:
            raise SettingsError(
                "the site names no keys of its own", where=file.name, remedy="write ring under [keys]"
            )
        return ring(file.path(file.document.keys.ring), passphrase_file, passphrase_env)

    def forget(leaves: Callable[[str], bool]) -> None:
        if (home / "runs").is_dir():
            from abaton.study_run.site_service import forget_person

            forget_person(home / "runs", file, leaves)

    with deal(file, keys, _now, forget) as dealings:
        yield dealings


def _named(patient: str) -> str:
    """The patient's id; read from stdin it stays out of the shell's history and the list of processes."""
    return sys.stdin.readline().strip() if patient == "-" else patient


def enrol(
    study: Path = _STUDY,
    patient: str = _PATIENT,
    *,
    site: Path = _SITE,
    until: datetime | None = typer.Option(None, "--until", help="Until when the yes holds (UTC)."),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
) -> None:
    """Note that people have opted in and said yes to this study's document, as FHIR Consent resources.

    From stdin many ids are read, one in each line; all are noted, or none.
    """
    from abaton.study import load_study

    document = load_study(study)
    people = [line.strip() for line in sys.stdin if line.strip()] if patient == "-" else [patient]
    with _dealings(site, passphrase_file, passphrase_env) as dealings:
        dealings.enrol(document, people, until.replace(tzinfo=UTC) if until else None)
    note("the consent is on record" if len(people) == 1 else f"{len(people)} consents are on record")


def consents(study: Path = _STUDY, *, site: Path = _SITE, json: bool = JSON) -> None:
    """Take over what people have signed elsewhere, and who has opted out, from where the site's document says.

    Meant to run every night and before a run. Whoever has said no is not used any more from then on. Where records of
    theirs have been sent to a centre a withdrawal is opened: 'abaton site withdraw' has them deleted there, too.
    """
    from abaton.site import load_site, read_agreements
    from abaton.study import load_study

    done = read_agreements(load_site(site), load_study(study), _now())
    told: dict[str, int | None] = {
        "Consent resources read": done.resources, "people": done.people, "new or changed": done.taken.written,
        "as before": done.taken.same, "withdrew here since": done.taken.withdrew_here,
        "taken back on a form": len(done.taken.out), "form not there any more": len(done.taken.missing),
        "on the opt-out list": done.listed, "new on it": done.new_opt_outs, "no longer on it": done.lifted,
        "to be withdrawn": done.leaving,
    }  # fmt: skip
    if json:
        emit({**told, "say nothing": dict(sorted(done.doubts.items()))})
    else:
        doubts = [(f"says nothing: {why}", count) for why, count in sorted(done.doubts.items())]
        table("taken over", ["what", "count"], [*told.items(), *doubts])


def send(
    study: Path = _STUDY,
    *,
    site: Path = _SITE,
    collect: bool = typer.Option(
        True, "--collect/--no-collect", help="Read and seal records first, or only send what waits."
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Collect, de-identify, seal and send the records of everybody who agreed; goes on where it was stopped.

    Exit code 1: the centre cannot be reached, or something was refused; what waits stays in the outbox.
    """
    from abaton.study import load_study

    document = load_study(study)
    with _dealings(site, passphrase_file, passphrase_env) as dealings:
        done = dealings.send(document, note, collect=collect)
        waiting = len(dealings.outbox.waiting()) if dealings.outbox else 0
    told = {
        "queued": done.queued, "unchanged": done.unchanged, "sent": done.sent, "bytes": done.bytes,
        "waiting": waiting,
    }  # fmt: skip
    if json:
        emit({**told, "refused": dict(sorted(done.refused.items()))})
    else:
        refused = [(f"refused: {why}", count) for why, count in sorted(done.refused.items())]
        table("sent to the centre", ["what", "count"], [*told.items(), *refused])
    if done.refused:
        raise typer.Exit(1)


def withdraw(
    study: Path | None = typer.Argument(
        None, metavar="[STUDY]", help="The study document.", show_default=False
    ),
    patient: str | None = typer.Argument(
        None, metavar="[PATIENT]", help="The Patient's id; '-' reads stdin."
    ),
    *,
    site: Path = _SITE,
    home: Path = typer.Option(
        Path("member"), "--home", help="The folder of 'site join': the person leaves the runs there, too."
    ),
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """Take a person out of a study, here and at the centre; without arguments, go on with what is pending.

    A study that shares nothing but updates is left without a centre and without the site's keys: the registry is
    enough. Exit code 1: something is still pending, for example because the centre cannot be reached.
    """
    from abaton.governance import CascadeStep
    from abaton.study import load_study

    if (study is None) != (patient is None):
        raise SettingsError("the study or the person is missing", remedy="give both, or none to go on")
    with _dealings(site, passphrase_file, passphrase_env, home) as dealings:
        if study is not None and patient is not None:
            cases = [dealings.withdraw(load_study(study), _named(patient))]
        else:
            cases = dealings.cascade().advance_all(_now())
    _print(cases, json=json)
    if any(case.step is not CascadeStep.DONE for case in cases):
        raise typer.Exit(1)


def status(
    *,
    site: Path = _SITE,
    passphrase_file: Path | None = PASSPHRASE_FILE,
    passphrase_env: str | None = PASSPHRASE_ENV,
    json: bool = JSON,
) -> None:
    """What waits in the outbox, which withdrawals are pending, and what the centre has of this site.

    Exit code 1: the centre cannot be reached.
    """
    from abaton.errors import AbatonError
    from abaton.governance import pending

    with _dealings(site, passphrase_file, passphrase_env) as dealings:
        everything = dealings.outbox.all() if dealings.outbox else []
        waiting = [queued for queued in everything if not queued.receipt]
        cases = pending(dealings.registry.database)
        away, centre = "", {}
        try:
            centre = dealings.line.client.account() if dealings.outbox else {}
        except AbatonError as error:
            away = str(error)
    told = {
        "waiting": len(waiting), "oldest": min((q.created for q in waiting), default=None),
        "receipts": len(everything) - len(waiting), "withdrawals pending": len(cases),
    }  # fmt: skip
    if json:
        emit({**told, "centre": centre or None, "problem": away or None})
    else:
        table("site", ["what", ""], [*told.items(), *((f"centre: {k}", v) for k, v in centre.items())])
        _print(cases, json=False) if cases else None
    if away:
        note(away)
        raise typer.Exit(1)


def _print(cases: list[Case], *, json: bool) -> None:
    names = ("study", "subject", "step", "waits for", "since")
    rows = [(c.study, c.subject, c.step.value, c.waits_for or None, c.since) for c in cases]
    emit([dict(zip(names, row, strict=True)) for row in rows]) if json else table("withdrawals", names, rows)
