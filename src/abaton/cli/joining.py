"""``abaton site join``: a site's nodes, kept connected to the centre; and what would leave it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.cli.output import emit, note, table
from abaton.cli.serving import keep

if TYPE_CHECKING:
    from abaton.site import SiteFile
    from abaton.study import Study


def join(
    invitation: Path = typer.Argument(
        ..., metavar="CENTRE", help="The invitation, a file from the centre.", show_default=False
    ),
    *,
    site: Path = typer.Option(Path("site.toml"), "--site", help="The site's document."),
    study: Path | None = typer.Option(
        None, "--study", help="The site's own copy of the study document; by default the invitation's."
    ),
    folder: Path = typer.Option(
        Path("member"), "--folder", help="The site's own folder: keys, memory, logs."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print every field that would leave, and start nothing."
    ),
    systemd: bool = typer.Option(False, "--systemd", help="Print a systemd unit for this command."),
    json: bool = typer.Option(False, "--json", help="Print as JSON, with --dry-run."),
) -> None:
    """Start a site's two nodes and keep them connected until Ctrl-C; makes their keys the first time.

    The site only dials out. Consents are asked, records de-identified and models trained here; nothing but encoded
    updates, scores and counts leaves. Send the file with the public keys to the centre, which admits them.
    """
    from abaton.engines.flower.nodes import Nodes
    from abaton.federation.network.invitation import read_invitation
    from abaton.federation.network.joining import agreed_study, check_invited, keys_of, prepare
    from abaton.site import load_site

    given, file = read_invitation(invitation), load_site(site)
    agreed = agreed_study(given, study)
    check_invited(given, file, agreed)
    if systemd:
        typer.echo(_unit(invitation, site, study, folder), nl=False)
        return
    note(f"{agreed.study.title} ({agreed.study.id}), document {agreed.hash}")
    if dry_run:
        _preview(file, agreed, json=json)
        return
    folder = folder.resolve()
    nodes = Nodes(prepare(given, file, agreed, folder), note)
    keys, new = keys_of(nodes)
    path = folder / f"{given.site}.keys"
    keys.write(path)
    if new:
        note(f"keys were made: send {path} to the centre, and tell it by telephone: {keys.fingerprint}")
    keep(nodes, f"{given.site} dials {given.centre}")


def _preview(file: SiteFile, study: Study, *, json: bool) -> None:
    from dataclasses import asdict

    from abaton.federation.network.fields import FLOWER
    from abaton.federation.network.previewing import preview

    with tempfile.TemporaryDirectory() as folder:
        rows = list(preview(file, study, Path(folder)))
    if json:
        emit([asdict(row) for row in rows])
    else:
        names = ["asked for", "field", "what it is", "would be now"]
        table("what would leave", names, [(r.asked, r.field, r.words, r.value) for r in rows])
    note(FLOWER)
    note("nothing was sent")


def _unit(invitation: Path, site: Path, study: Path | None, folder: Path) -> str:
    import getpass
    import shlex
    import sys

    from abaton.federation.network.joining import unit

    folder = folder.resolve()
    words = [str(Path(sys.executable).parent / "abaton"), "site", "join", str(invitation.resolve())]
    words += ["--site", str(site.resolve()), "--folder", str(folder)]
    if study is not None:
        words += ["--study", str(study.resolve())]
    return unit(shlex.join(words), [folder, site.resolve().parent], getpass.getuser())
