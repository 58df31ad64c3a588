"""Access to private keys and governance databases; passphrases are not taken from arguments."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.governance import KeySet
    from abaton.store import Database

PASSPHRASE_FILE = typer.Option(
    None, "--passphrase-file", help="Read the passphrase from the first line of this file"
)
PASSPHRASE_ENV = typer.Option(
    None, "--passphrase-env", help="Read the passphrase from this environment variable"
)
DATABASE = typer.Option(
    None,
    "--database",
    help="Governance database: a file or postgresql+psycopg://… [env: ABATON_GOVERNANCE]",
)
KEYS = typer.Option(..., "--keys", help="Private key file", show_default=False)
JSON = typer.Option(False, "--json", help="Print JSON")


def passphrase(file: Path | None, variable: str | None, *, confirm: bool = False) -> bytes:
    """Return the passphrase for access to a private key, from a file, an environment variable or a prompt."""
    if file is not None and variable is not None:
        raise SettingsError("--passphrase-file and --passphrase-env are both set", remedy="use one of them")
    if file is not None:
        try:
            status = file.stat()
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                raise SettingsError(
                    "other users can read the passphrase file",
                    where=str(file),
                    remedy=f"run 'chmod 600 {file.name}'",
                )
            return file.read_bytes().splitlines()[0] if status.st_size else b""
        except OSError as error:
            raise SettingsError(
                "the passphrase cannot be read", where=str(file), remedy=error.strerror or "check the path"
            ) from None
    if variable is not None:
        if variable not in os.environ:
            raise SettingsError(f"environment variable '{variable}' is not set", remedy=f"set {variable}")
        return os.environ[variable].encode()
    entered: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return entered.encode()


def open_key_set(file: Path, passphrase_file: Path | None, variable: str | None) -> KeySet:
    """Return the key set in a private key file, after access with the passphrase that the user gives."""
    from abaton.governance.key_files import read_key_set, read_public

    read_public(file)  # report a wrong file before prompting for the passphrase
    return read_key_set(file, passphrase(passphrase_file, variable))


def database(url: str | None, *, create: bool = False) -> Database:
    """Return the governance database that the command line names for access, or the default one.

    Args:
        url: A file or a database URL.
        create: Whether to create a missing file; commands that only read do not.
    """
    from abaton.governance import metadata
    from abaton.store import Database, default_folder

    address = url or os.environ.get("ABATON_GOVERNANCE")
    if not address:
        return Database(default_folder() / "governance.db", metadata)
    path = address.removeprefix("sqlite:///")
    if not create and "://" not in path and not Path(path).exists():
        raise SettingsError(
            "the governance database does not exist",
            where=path,
            remedy="check --database and ABATON_GOVERNANCE, or create it with 'abaton study publish'",
        )
    return Database(address, metadata)
