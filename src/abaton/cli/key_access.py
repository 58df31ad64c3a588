"""How the command line gets at private keys and databases: passphrases never come as an argument."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import Ring
    from abaton.store import Database

PASSPHRASE_FILE = typer.Option(None, "--passphrase-file", help="A file whose first line is the passphrase.")
PASSPHRASE_ENV = typer.Option(
    None, "--passphrase-env", help="The name of an environment variable that holds the passphrase."
)
DATABASE = typer.Option(
    None,
    "--database",
    help="The governance database: a file or postgresql+psycopg://… [env: ABATON_GOVERNANCE]",
)
KEYS = typer.Option(..., "--keys", help="Your private key file.", show_default=False)
JSON = typer.Option(False, "--json", help="Print as JSON.")


def passphrase(file: Path | None, variable: str | None, *, confirm: bool = False) -> bytes:
    """The passphrase from a file, from an environment variable, or from the person at the keyboard."""
    if file is not None and variable is not None:
        raise SettingsError("two sources of the passphrase are named", remedy="name one")
    if file is not None:
        try:
            about = file.stat()
            if stat.S_ISREG(about.st_mode) and about.st_mode & 0o077:
                raise SettingsError(
                    "others can read the passphrase", where=str(file), remedy=f"run 'chmod 600 {file.name}'"
                )
            return file.read_bytes().splitlines()[0] if about.st_size else b""
        except OSError as error:
            raise SettingsError(
                "the passphrase cannot be read", where=str(file), remedy=error.strerror or "check the path"
            ) from None
    if variable is not None:
        if variable not in os.environ:
            raise SettingsError(f"there is no environment variable '{variable}'", remedy="set it")
        return os.environ[variable].encode()
    said: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return said.encode()


def ring(file: Path, passphrase_file: Path | None, variable: str | None) -> Ring:
    """The keys in a private key file."""
    from abaton.governance.keys import read_public, read_ring

    read_public(file)  # a wrong file is told before anybody types a passphrase
    return read_ring(file, passphrase(passphrase_file, variable))


def database(url: str | None, *, make: bool = False) -> Database:
    """The governance database that was named, or the default one.

    Args:
        url: A file, or the address of a server.
        make: Whether to make a file where none is; whoever only reads never makes one by a wrong name.
    """
    from abaton.governance import metadata
    from abaton.store import Database, default_folder

    chosen = url or os.environ.get("ABATON_GOVERNANCE")
    if not chosen:
        return Database(default_folder() / "governance.db", metadata)
    place = chosen.removeprefix("sqlite:///")
    if not make and "://" not in place and not Path(place).exists():
        raise SettingsError(
            "there is no governance database here",
            where=place,
            remedy="check --database and ABATON_GOVERNANCE; 'abaton study publish' and 'abaton serve intake' make one",
        )
    return Database(chosen, metadata)
