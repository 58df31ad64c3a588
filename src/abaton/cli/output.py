"""What the command line prints: data on stdout, progress and complaints on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress


def emit(data: Any) -> None:
    """Print data as JSON on stdout."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def complain(text: str) -> None:
    """Print what is wrong as one line on stderr."""
    sys.stderr.write(f"abaton: {' '.join(text.split())}\n")


def note(text: str) -> None:
    """Print a remark on stderr, where it does not disturb the data."""
    sys.stderr.write(text + "\n")


def told_place(path: Path, *, json: bool) -> None:
    """Print where something was written, on stdout."""
    emit({"file": str(path)}) if json else sys.stdout.write(f"{path}\n")


def save(path: Path, text: str) -> None:
    """Write a text to a file, whole or not at all."""
    from abaton.errors import SettingsError
    from abaton.atomic_files import replacing

    try:
        with replacing(path) as begun:
            begun.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None


def write_first(path: Path, text: str) -> None:
    """Write a file that must not exist yet: what somebody has written there is never replaced."""
    from abaton.errors import SettingsError

    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise SettingsError(
            "there is already a file", where=str(path), remedy="choose another name; nothing is overwritten"
        ) from None
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout; numbers are set to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    made = Table(header_style="bold")
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        made.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    console = Console(width=room())
    console.print(Text(title, style="italic"), soft_wrap=True)  # the table may be narrower than its title
    console.print(made)


def room() -> int:
    """How many columns a table may have."""
    from rich.console import Console

    # A pipe or a file has no width of its own: never fold what another program will read.
    return Console().width if sys.stdout.isatty() else 160


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    from rich.markup import escape

    return escape(str(value))


def progress() -> Progress:
    """A progress bar on stderr that disappears when done and keeps quiet when stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),  # files differ so much in size that a time left would be a guess
        TextColumn("{task.fields[detail]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
