"""Output of the command line: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress


def emit(data: Any) -> None:
    """Print data as JSON on stdout, the output of commands with `--json`."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_error(text: str) -> None:
    """Print an error of a command as one line on stderr."""
    sys.stderr.write(f"abaton: {' '.join(text.split())}\n")


def note(text: str) -> None:
    """Print a message of a command on stderr, apart from the output on stdout."""
    sys.stderr.write(text + "\n")


def print_path(path: Path, *, json: bool) -> None:
    """Print the path of a file written by a command on stdout."""
    emit({"file": str(path)}) if json else sys.stdout.write(f"{path}\n")


def save(path: Path, text: str) -> None:
    """Write the output of a command to a file, completely or not at all."""
    from abaton.atomic_files import atomic_write
    from abaton.errors import SettingsError

    try:
        with atomic_write(path) as temporary_path:
            temporary_path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None


def write_first(path: Path, text: str) -> None:
    """Write the output of a command to a new file; an existing file is not replaced."""
    from abaton.errors import SettingsError

    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise SettingsError(
            "the file already exists",
            where=str(path),
            remedy="choose another path; files are not overwritten",
        ) from None
    except OSError as error:
        raise SettingsError(
            "the file cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as output of a command on stdout, with numbers aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [tuple(row) for row in rows]
    grid = Table(header_style="bold")
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], int | float) or row[i] is None for row in rows)
        grid.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    console = Console(width=table_width())
    console.print(Text(title, style="italic"), soft_wrap=True)  # the table may be narrower than its title
    console.print(grid)


def table_width() -> int:
    """Return the maximum width of an output table in characters."""
    from rich.console import Console

    # A pipe or a file has no width: output for other programs is not folded.
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
    """Return a progress bar for command output on stderr, hidden when done or not in a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),  # file sizes vary too much to estimate the time left
        TextColumn("{task.fields[detail]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
