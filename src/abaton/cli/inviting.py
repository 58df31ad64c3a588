"""``abaton keys invite``, ``admit`` and ``revoke``: which sites may join a study on a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, note
from abaton.cli.runs import JsonOption, StoreOption
from abaton.errors import Refused, SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.centre import Centre

_SITE = typer.Argument(..., metavar="SITE", help="The site's id.", show_default=False)


def invite(
    site: str = _SITE,
    *,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="Where to write it; SITE.invitation by default."
    ),
    store: Path | None = StoreOption,
) -> None:
    """Write the one file that a site needs to join: address, authority, study and its hash; nothing in it is secret."""
    from abaton.engines.flower.centre import read_address
    from abaton.federation.network.invitation import Invitation
    from abaton.study import study_from_toml

    folder = _folder(store)
    where, own = read_address(folder)
    try:
        document = (folder / "study.toml").read_text()
    except FileNotFoundError:
        raise SettingsError(
            "the centre serves no study yet", where=str(folder), remedy="run 'abaton serve --engine flower'"
        ) from None
    path = out or Path(f"{site}.invitation")
    authority, digest = own.authority.read_text(), study_from_toml(document).hash
    Invitation(site, str(where), authority, digest, document).write(path)
    typer.echo(str(path))


def admit(
    site: str = _SITE,
    file: Path = typer.Argument(..., metavar="KEYS", help="The file that 'abaton site join' wrote."),
    *,
    fingerprint: str = typer.Option("", "--fingerprint", help="What the site told you by telephone."),
    store: Path | None = StoreOption,
    json: bool = JsonOption,
) -> None:
    """Let the nodes with these keys connect, as this site's and no other's; the centre must run.

    Compare the fingerprint with the site first, by a way that both trust.
    """
    import tempfile

    from abaton.engines.flower.nodes import ROLES
    from abaton.federation.network.invitation import read_node_keys

    keys = read_node_keys(file)
    if keys.site != site or (fingerprint and fingerprint != keys.fingerprint):
        raise Refused(
            f"these are the keys of '{keys.site}' with the fingerprint {keys.fingerprint}",
            where=str(file),
            remedy="ask the site again",
        )
    centre, nodes = _centre(store), {}
    with tempfile.TemporaryDirectory() as folder:
        for role in ROLES:
            public = Path(folder, f"{role}.pub")
            public.write_text(f"{getattr(keys, role)}\n")
            nodes[role] = centre.admit(public, site, role)
    note(f"fingerprint {keys.fingerprint}")
    emit({"site": site, **nodes}) if json else typer.echo(f"{site}: {nodes['train']}, {nodes['evaluate']}")


def revoke(site: str = _SITE, *, store: Path | None = StoreOption, json: bool = JsonOption) -> None:
    """Let no node of a site connect any more, from now on; the centre must run."""
    gone = _centre(store).revoke(site)
    if not gone:
        raise SettingsError(f"no node of '{site}' is admitted", where="revoke", remedy="check the site's id")
    emit({"site": site, "nodes": gone}) if json else typer.echo(f"{site}: {len(gone)} nodes are out")


def _folder(store: Path | None) -> Path:
    from abaton.federation.network.serving import centre_folder
    from abaton.store import default_folder

    return centre_folder(store or default_folder()).resolve()


def _centre(store: Path | None) -> Centre:
    from abaton.engines.flower.centre import Centre, read_address

    folder = _folder(store)
    return Centre(folder, *read_address(folder), note)
