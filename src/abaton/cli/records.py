"""``abaton records``: what happens to records before anything else sees them."""

from __future__ import annotations

import typer

from abaton.cli.anonymity import anonymity

app = typer.Typer(help="Records: de-identify, check, measure anonymity.", no_args_is_help=True)
app.command("anonymity")(anonymity)
