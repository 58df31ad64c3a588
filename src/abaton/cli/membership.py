"""``abaton site join``, and ``abaton keys invite``, ``admit`` and ``revoke``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, note, print_path, table
from abaton.cli.runs import JsonOption, StoreOption
from abaton.cli.serve import run_processes
from abaton.errors import RefusedError, SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.server_processes import ServerProcesses
    from abaton.site import LoadedSiteConfig
    from abaton.study import Study
    from abaton.study_run.invitation import OsAccounts


def join(
    invitation: Path = typer.Argument(
        ..., metavar="CENTRE", help="Invitation file of the centre", show_default=False
    ),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="Configuration of the site"),
    study: Path | None = typer.Option(
        None, "--study", help="The site's copy of the study document (default: that of the invitation)"
    ),
    data_dir: Path = typer.Option(
        Path("member"), "--data-dir", help="Data folder of the site: keys, state, logs"
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print every field that would leave the site; start nothing"
    ),
    worker_user: str = typer.Option(
        "", "--worker-user", help="OS user that reads records and trains (as root)"
    ),
    node_user: str = typer.Option(
        "",
        "--node-user",
        help="OS user of the process with network access (as root)",
    ),
    systemd: bool = typer.Option(False, "--systemd", help="Print a systemd unit of this command"),
    json: bool = JsonOption,
) -> None:
    """Run the processes of a site and keep it connected to the centre until Ctrl-C.

    The site only opens outgoing connections. Records are read, de-identified and trained on locally; encoded updates
    and counts leave the site. A warning is printed if the node process, the only one with network access, can read the
    site's files. The first call creates the node key: send its public key to the centre for admission.
    """
    from abaton.engines.flower.site_processes import ConnectionStatus, SiteProcesses
    from abaton.site import load_site
    from abaton.study_run.invitation import (
        NodeKey,
        OsAccounts,
        agreed_study,
        check_invited,
        prepare_membership,
        read_invitation,
    )

    invited, file = read_invitation(invitation), load_site(site)
    agreed = agreed_study(invited, study)
    check_invited(invited, file, agreed)
    if systemd:
        typer.echo(_unit(invitation, site, study, data_dir, OsAccounts(worker_user, node_user)), nl=False)
        return
    note(f"{agreed.study.title} ({agreed.study.id}), document {agreed.hash}")
    if dry_run:
        _preview(file, agreed, json=json)
        return
    folder = data_dir.resolve()
    processes = SiteProcesses(
        prepare_membership(invited, file, agreed, folder, OsAccounts(worker_user, node_user)), note
    )
    is_new = processes.make_key()
    key, path = NodeKey(invited.site, processes.public_key()), folder / f"{invited.site}.node"
    key.write(path)
    if is_new:
        note(f"node key created: send {path} to the centre and confirm by telephone: {key.fingerprint}")
    run_processes(processes, ConnectionStatus(processes, note).update)


def _preview(file: LoadedSiteConfig, study: Study, *, json: bool) -> None:
    from dataclasses import asdict

    from abaton.study_run.messages import FLOWER
    from abaton.study_run.outbound_preview import preview_fields
    from abaton.study_run.policy_text import policy_as_text, policy_statements

    with tempfile.TemporaryDirectory() as folder:
        rows = list(preview_fields(file, study, Path(folder)))
    if json:
        emit([asdict(row) for row in rows])
    else:
        names = ["message", "field", "description", "current value"]
        table(
            "data that would leave the site",
            names,
            [(r.message_type, r.field, r.description, r.value) for r in rows],
        )
        for statement in policy_as_text(policy_statements(file, study)):
            note(statement)
    note(FLOWER)
    note("nothing was sent")


def _unit(invitation: Path, site: Path, study: Path | None, data_dir: Path, accounts: OsAccounts) -> str:
    import getpass
    import shlex
    import sys

    from abaton.study_run.invitation import systemd_unit

    data_dir = data_dir.resolve()
    arguments = [str(Path(sys.executable).parent / "abaton"), "site", "join", str(invitation.resolve())]
    arguments += ["--site", str(site.resolve()), "--data-dir", str(data_dir)]
    if study is not None:
        arguments += ["--study", str(study.resolve())]
    if accounts.workers or accounts.node:
        arguments += ["--worker-user", accounts.workers, "--node-user", accounts.node]
    user = "root" if accounts.workers or accounts.node else getpass.getuser()
    return systemd_unit(shlex.join(arguments), [data_dir, site.resolve().parent], user)


_SITE = typer.Argument(..., metavar="SITE", help="Id of the site", show_default=False)


def invite(
    site: str = _SITE,
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Write to this file (default: SITE.invitation)"
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Write the invitation of a site: address, certificate authority and study document, without secrets."""
    from abaton.engines.flower.server_processes import read_address
    from abaton.study import study_from_toml
    from abaton.study_run.invitation import Invitation

    folder = _folder(store)
    address, certificates = read_address(folder)
    try:
        document = (folder / "study.toml").read_text()
    except FileNotFoundError:
        raise SettingsError(
            "the centre does not serve a study",
            where=str(folder),
            remedy="start it with 'abaton serve study STUDY'",
        ) from None
    path = out or Path(f"{site}.invitation")
    authority, digest = certificates.authority.read_text(), study_from_toml(document).hash
    Invitation(site, str(address), authority, digest, document).write(path)
    print_path(path, json=json)


def admit(
    site: str = _SITE,
    file: Path = typer.Argument(..., metavar="KEY", help="Key file written by 'abaton site join'"),
    *,
    fingerprint: str = typer.Option(
        "", "--fingerprint", help="Key fingerprint, confirmed with the site over a second channel"
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Admit the node with this key as a node of this site; the centre must be running.

    Compare the fingerprint with the site over a trusted channel first.
    """
    from abaton.study_run.invitation import read_node_key

    key = read_node_key(file)
    if key.site != site or (fingerprint and fingerprint != key.fingerprint):
        raise RefusedError(
            f"the key belongs to '{key.site}' and has the fingerprint {key.fingerprint}",
            where=str(file),
            remedy="ask the site for its key file and fingerprint",
        )
    node = _centre(store).admit(key.key, site)
    note(f"fingerprint {key.fingerprint}")
    emit({"site": site, "node": node}) if json else typer.echo(f"{site}: {node}")


def revoke(site: str = _SITE, *, store: Path | None = StoreOption, json: bool = JsonOption) -> None:
    """Revoke the admission of a site's nodes; the centre must be running."""
    revoked = _centre(store).revoke(site)
    if not revoked:
        raise SettingsError(f"no node of '{site}' is admitted", where="revoke", remedy="check the site's id")
    emit({"site": site, "nodes": revoked}) if json else typer.echo(f"{site}: revoked")


def _folder(store: Path | None) -> Path:
    from abaton.store import default_folder
    from abaton.study_run.server import centre_folder

    return centre_folder(store or default_folder()).resolve()


def _centre(store: Path | None) -> ServerProcesses:
    from abaton.engines.flower.server_processes import ServerProcesses, read_address

    folder = _folder(store)
    return ServerProcesses(folder, *read_address(folder), note)
