"""``abaton keys invite``, ``admit`` and ``revoke``: which sites may join a study on a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, note, told_place
from abaton.cli.runs import JsonOption, StoreOption
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.server_processes import Centre

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
    from abaton.study_run.invitation import Invitation
    from abaton.study import study_from_toml

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
    from abaton.study_run.server import centre_folder
    from abaton.store import default_folder

    return centre_folder(store or default_folder()).resolve()


def _centre(store: Path | None) -> Centre:
    from abaton.engines.flower.server_processes import Centre, read_address

    folder = _folder(store)
    return Centre(folder, *read_address(folder), note)
