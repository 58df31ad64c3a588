"""``abaton site join``: a site's programs, kept connected to the centre; and what would leave it.

``abaton keys invite``, ``admit`` and ``revoke``: which sites may join a study on a network.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, note, table, told_place
from abaton.cli.runs import JsonOption, StoreOption
from abaton.cli.serve import keep
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.server_processes import Centre
    from abaton.site import SiteFile
    from abaton.study import Study
    from abaton.study_run.invitation import Accounts


def join(
    invitation: Path = typer.Argument(
        ..., metavar="CENTRE", help="The invitation, a file from the centre.", show_default=False
    ),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="The site's document."),
    study: Path | None = typer.Option(
        None, "--study", help="The site's own copy of the study document; by default the invitation's."
    ),
    home: Path = typer.Option(Path("member"), "--home", help="The site's own folder: keys, memory, logs."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print every field that would leave, and start nothing."
    ),
    account: str = typer.Option("", "--account", help="The account that reads records and trains (as root)."),
    node_account: str = typer.Option(
        "",
        "--node-account",
        help="The account that talks to the network, which should read nothing (as root).",
    ),
    systemd: bool = typer.Option(False, "--systemd", help="Print a systemd unit for this command."),
    json: bool = JsonOption,
) -> None:
    """Start a site's programs and keep its node connected until Ctrl-C; makes the node's key the first time.

    A line says when the site is connecting, connected, admitted, training and idle.

    The site only dials out. Consents are asked, records de-identified and models trained here; nothing but encoded
    updates, scores and counts leaves. The node, which alone talks to the network, cannot open the site's files; a
    warning says if it can. Send the file with its public key to the centre, which admits it.
    """
    from abaton.engines.flower.site_processes import SitePrograms, Standing
    from abaton.site import load_site
    from abaton.study_run.invitation import (
        Accounts,
        NodeKey,
        agreed_study,
        check_invited,
        prepare,
        read_invitation,
    )

    given, file = read_invitation(invitation), load_site(site)
    agreed = agreed_study(given, study)
    check_invited(given, file, agreed)
    if systemd:
        typer.echo(_unit(invitation, site, study, home, Accounts(account, node_account)), nl=False)
        return
    note(f"{agreed.study.title} ({agreed.study.id}), document {agreed.hash}")
    if dry_run:
        _preview(file, agreed, json=json)
        return
    folder = home.resolve()
    programs = SitePrograms(prepare(given, file, agreed, folder, Accounts(account, node_account)), note)
    new = programs.make_key()
    key, path = NodeKey(given.site, programs.public_key()), folder / f"{given.site}.node"
    key.write(path)
    if new:
        note(f"a key was made: send {path} to the centre, and tell it by telephone: {key.fingerprint}")
    keep(programs, Standing(programs, note).look)


def _preview(file: SiteFile, study: Study, *, json: bool) -> None:
    from dataclasses import asdict

    from abaton.study_run.invitation import preview
    from abaton.study_run.messages import FLOWER
    from abaton.study_run.policy_text import explained, in_words

    with tempfile.TemporaryDirectory() as folder:
        rows = list(preview(file, study, Path(folder)))
    if json:
        emit([asdict(row) for row in rows])
    else:
        names = ["asked for", "field", "what it is", "would be now"]
        table("what would leave", names, [(r.asked, r.field, r.words, r.value) for r in rows])
        for words in in_words(explained(file, study)):
            note(words)
    note(FLOWER)
    note("nothing was sent")


def _unit(invitation: Path, site: Path, study: Path | None, home: Path, accounts: Accounts) -> str:
    import getpass
    import shlex
    import sys

    from abaton.study_run.invitation import unit

    home = home.resolve()
    words = [str(Path(sys.executable).parent / "abaton"), "site", "join", str(invitation.resolve())]
    words += ["--site", str(site.resolve()), "--home", str(home)]
    if study is not None:
        words += ["--study", str(study.resolve())]
    if accounts.desks or accounts.node:
        words += ["--account", accounts.desks, "--node-account", accounts.node]
    account = "root" if accounts.desks or accounts.node else getpass.getuser()
    return unit(shlex.join(words), [home, site.resolve().parent], account)


_SITE = typer.Argument(..., metavar="SITE", help="The site's id.", show_default=False)


def invite(
    site: str = _SITE,
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Where to write it; SITE.invitation by default."
    ),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Write the one file that a site needs to join: address, authority, study and its hash; nothing in it is secret."""
    from abaton.engines.flower.server_processes import read_address
    from abaton.study import study_from_toml
    from abaton.study_run.invitation import Invitation

    folder = _folder(store)
    where, own = read_address(folder)
    try:
        document = (folder / "study.toml").read_text()
    except FileNotFoundError:
        raise SettingsError(
            "the centre serves no study yet",
            where=str(folder),
            remedy="start it with 'abaton serve study STUDY'",
        ) from None
    path = out or Path(f"{site}.invitation")
    authority, digest = own.authority.read_text(), study_from_toml(document).hash
    Invitation(site, str(where), authority, digest, document).write(path)
    told_place(path, json=json)


def admit(
    site: str = _SITE,
    file: Path = typer.Argument(..., metavar="KEY", help="The file that 'abaton site join' wrote."),
    *,
    fingerprint: str = typer.Option("", "--fingerprint", help="What the site told you by telephone."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Let the node with this key connect, as this site's and no other's; the centre must run.

    Compare the fingerprint with the site first, by a way that both trust.
    """
    from abaton.study_run.invitation import read_node_key

    key = read_node_key(file)
    if key.site != site or (fingerprint and fingerprint != key.fingerprint):
        raise Refused(
            f"this is the key of '{key.site}' with the fingerprint {key.fingerprint}",
            where=str(file),
            remedy="ask the site again",
        )
    node = _centre(store).admit(key.key, site)
    note(f"fingerprint {key.fingerprint}")
    emit({"site": site, "node": node}) if json else typer.echo(f"{site}: {node}")


def revoke(site: str = _SITE, *, store: Path | None = StoreOption, json: bool = JsonOption) -> None:
    """Let no node of a site connect any more, from now on; the centre must run."""
    gone = _centre(store).revoke(site)
    if not gone:
        raise SettingsError(f"no node of '{site}' is admitted", where="revoke", remedy="check the site's id")
    emit({"site": site, "nodes": gone}) if json else typer.echo(f"{site}: its node is out")


def _folder(store: Path | None) -> Path:
    from abaton.store import default_folder
    from abaton.study_run.server import centre_folder

    return centre_folder(store or default_folder()).resolve()


def _centre(store: Path | None) -> Centre:
    from abaton.engines.flower.server_processes import Centre, read_address

    folder = _folder(store)
    return Centre(folder, *read_address(folder), note)
