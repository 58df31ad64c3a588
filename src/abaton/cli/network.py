"""``abaton network``: a research centre and its sites on a real network, carried by Flower."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from abaton.cli.output import emit, note
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.centre import Centre

app = typer.Typer(help="A research centre and its sites on a real network.", no_args_is_help=True)

_CENTRE = typer.Option(Path("centre"), "--centre", help="The centre's folder: database, certificates, logs.")
_SITE = typer.Argument(..., metavar="SITE", help="The site's name.", show_default=False)
_JSON = typer.Option(False, "--json", help="Print as JSON.")
_GIVEN = "PEM; without it, a private authority is made in the centre's folder."


@app.command()
def centre(
    *,
    folder: Path = _CENTRE,
    host: str = typer.Option("127.0.0.1", "--host", help="The address that sites reach it at."),
    port: int = typer.Option(8443, "--port", help="The one port that sites dial."),
    certificate: Path | None = typer.Option(
        None, "--certificate", help=f"The centre's certificate, {_GIVEN}"
    ),
    key: Path | None = typer.Option(None, "--key", help="Its private key, PEM."),
    authority: Path | None = typer.Option(None, "--authority", help="The certificate that signed it, PEM."),
) -> None:
    """Start the centre's programs and keep them running until Ctrl-C."""
    from abaton.engines.flower.centre import Address, Centre, write_address
    from abaton.engines.flower.certificates import Certificates, issue

    where = Address(host, port)
    given = [path for path in (certificate, key, authority) if path is not None]
    if given and len(given) < 3:
        raise SettingsError(
            "a certificate, its key and its authority belong together",
            where="network",
            remedy="give all three of --certificate, --key and --authority, or none",
        )
    if certificate and key and authority:
        own = Certificates(authority, certificate, key)
    else:
        own = issue(folder / "certificates", [host], datetime.now(UTC))
    write_address(folder, where, own)
    _keep(Centre(folder, where, own, note), f"the centre listens at {where}")


@app.command()
def invite(
    site: str = _SITE,
    *,
    folder: Path = _CENTRE,
    study: str = typer.Option("", "--study", help="The digest of the study document."),
    output: Path | None = typer.Option(
        None, "--output", help="Where to write it; SITE.invitation by default."
    ),
) -> None:
    """Write the one file that a site needs to join: address, authority, study; nothing in it is secret."""
    from abaton.engines.flower.centre import read_address
    from abaton.engines.flower.invitation import Invitation

    where, own = read_address(folder)
    path = output or Path(f"{site}.invitation")
    Invitation(site, str(where), own.authority.read_text(), study).write(path)
    typer.echo(str(path))


@app.command()
def admit(
    site: str = _SITE,
    train: Path = typer.Argument(..., metavar="TRAIN.pub", help="The public key of its trainer."),
    evaluate: Path = typer.Argument(..., metavar="EVALUATE.pub", help="The public key of its evaluator."),
    *,
    folder: Path = _CENTRE,
    json: bool = _JSON,
) -> None:
    """Let the nodes with these keys connect, as this site's and no other's; the centre must run."""
    made = _centre(folder)
    nodes = {role: made.admit(key, site, role) for role, key in (("train", train), ("evaluate", evaluate))}
    emit({"site": site, **nodes}) if json else typer.echo(f"{site}: {nodes['train']}, {nodes['evaluate']}")


@app.command()
def revoke(site: str = _SITE, *, folder: Path = _CENTRE, json: bool = _JSON) -> None:
    """Let no node of a site connect any more; the centre must run."""
    gone = _centre(folder).revoke(site)
    emit({"site": site, "nodes": gone}) if json else typer.echo(f"{site}: {len(gone)} nodes are out")


@app.command()
def join(
    invitation: Path = typer.Argument(..., metavar="INVITATION", help="The file from the centre."),
    *,
    learner: str = typer.Option(..., "--learner", help="module:function that opens the site's learner."),
    folder: Path = typer.Option(
        Path("member"), "--folder", help="The site's own folder: keys, memory, logs."
    ),
) -> None:
    """Start a site's two nodes and keep them connected until Ctrl-C; makes their keys the first time.

    The site only dials out. Send the two public keys to the centre, which admits them.
    """
    from abaton.engines.flower.certificates import node_key
    from abaton.engines.flower.invitation import read_invitation
    from abaton.engines.flower.nodes import ROLES, Membership, Nodes

    given = read_invitation(invitation)
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    authority = folder / "ca.pem"
    authority.write_text(given.authority)
    nodes = Nodes(Membership(given.site, given.centre, authority, learner, folder, given.study), note)
    for role in ROLES:
        if not nodes.key(role).exists():
            _, public = node_key(nodes.key(role))
            note(f"a key was made for the node that will {role}: send {public} to the centre")
    _keep(nodes, f"{given.site} dials {given.centre}")


class _Kept(Protocol):
    def start(self) -> None: ...
    def watch(self) -> None: ...
    def stop(self) -> None: ...


def _keep(programs: _Kept, said: str) -> None:
    """Keep programs running until somebody says stop, by Ctrl-C or as systemd does."""
    import signal
    import time

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        programs.start()
        note(said)
        while True:
            programs.watch()
            time.sleep(1.0)
    finally:
        programs.stop()


def _centre(folder: Path) -> Centre:
    from abaton.engines.flower.centre import Centre, read_address

    return Centre(folder, *read_address(folder), note)
