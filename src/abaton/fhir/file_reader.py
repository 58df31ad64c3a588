"""Where records come from: files, gzip, NDJSON, directories, standard input; read in bounded memory."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, cast

from abaton.errors import Refused, SettingsError
from abaton.deid.pseudonyms import Pseudonyms
from abaton.fhir.elements import resources
from abaton.fhir.json_format import MAX_BYTES, parse
from abaton.record_types import Json

One = Json | bytes | str | PathLike[str]
Given = One | Iterable[One]

STDIN = "-"
MAX_LINE = 64 * 1024 * 1024
_SUFFIXES = (".json", ".ndjson", ".jsonl", ".xml", ".json.gz", ".ndjson.gz", ".jsonl.gz")
_FOLDER = re.compile(r"folder-\d{1,4}")
_BULK = re.compile(r"(?:\d{1,4}\.)?([A-Z][A-Za-z]+)(?:\.\d{1,4})?")


@dataclass(frozen=True, slots=True)
class Source:
    """One input, or a stretch of bytes of one.

    ``relative`` is where it lies among the inputs, ``name`` how it is called in errors: by its number, because the
    name of a file may be a person's.
    """

    path: str
    relative: str
    start: int = 0
    end: int = -1
    name: str = "file 1"

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole file."""
        return self.end < 0

    @property
    def is_lines(self) -> bool:
        """Whether every line is a document of its own."""
        return self.relative.removesuffix(".gz").endswith((".ndjson", ".jsonl"))

    @property
    def is_packed(self) -> bool:
        """Whether the file is compressed."""
        return self.relative.endswith(".gz")

    @property
    def size(self) -> int:
        """How many bytes it has on disk; 0 for standard input."""
        if self.path == STDIN:
            return 0
        return (self.end if self.end >= 0 else Path(self.path).stat().st_size) - self.start

    def split(self, parts: int, least: int) -> list[Source]:
        """Cut a large file of lines into stretches that can be worked on side by side."""
        parts = min(parts, self.size // least) if self.is_lines and not self.is_packed else 1
        if parts < 2:
            return [self]
        edges = [self.size * i // parts for i in range(parts + 1)]
        return [replace(self, start=a, end=b) for a, b in pairwise(edges)]

    def place(self, number: int) -> str:
        """How one of its lines is called in errors; of a stretch, too, the lines before it count."""
        if self.path == STDIN:
            return f"standard input line {number}"
        if not self.is_lines:
            return self.name
        return f"{self.name} line {number + (self._lines_before() if self.start else 0)}"

    def _lines_before(self) -> int:
        with Path(self.path).open("rb") as stream:
            left, number, block = self.start, 0, b""
            while left > 0 and (block := stream.read(min(left, 1 << 20))):
                number += block.count(b"\n")
                left -= len(block)
        return number + (not block.endswith(b"\n"))  # the line that began before and ends within


def find(inputs: Iterable[str], *, show_names: bool = False) -> list[Source]:
    """Every input file, directories searched; an input that is not there is refused.

    Folders keep their place: of several, each gets a folder of its own, by its number.

    Args:
        inputs: Files, directories, or ``-`` for standard input.
        show_names: Whether errors may show the names of files.
    """
    listed = list(inputs)
    folders = [text for text in listed if text != STDIN and Path(text).is_dir()]
    found: list[tuple[str, str]] = []
    for text in listed:
        if text == STDIN:
            found.append((STDIN, "stdin.ndjson"))
            continue
        path = Path(text)
        if path.is_dir():
            above = Path(f"folder-{folders.index(text) + 1}" if len(folders) > 1 else "")
            found += [
                (str(each), str(above / each.relative_to(path)))
                for each in sorted(path.rglob("*"))
                if each.is_file() and each.name.endswith(_SUFFIXES) and not each.name.startswith(".")
            ]
        elif path.is_file():
            found.append((str(path), path.name))
        else:
            raise SettingsError("an input is not there", where=text, remedy="give a file, a directory or -")
    if not found:
        raise SettingsError("no input holds records", remedy="give files that end in .json or .ndjson")
    return [
        Source(path, relative, name=path if show_names else f"file {number}")
        for number, (path, relative) in enumerate(found, 1)
    ]


def given(records: Given) -> Iterator[tuple[Json, str]]:
    """Every document of what was handed over in Python, with the words for where it stands.

    Args:
        records: A resource or a Bundle as a dict; the text of a file; the path of a file or folder; or many of them,
            where a text is one document, as a line of NDJSON is.

    Raises:
        Refused: A text is no record.
        SettingsError: Something else was given.
    """
    if isinstance(records, dict):
        yield records, ""
    elif isinstance(records, bytes | str) and _is_text(records):
        yield from _texts(records.encode() if isinstance(records, str) else records)
    elif isinstance(records, str | PathLike):
        yield from _files([records])
    elif isinstance(records, Iterable) and not isinstance(records, bytes):
        yield from _many(records)
    else:
        raise _no_records(records)


def _many(records: Iterable[Any]) -> Iterator[tuple[Json, str]]:
    paths: list[str | PathLike[str]] = []
    for number, each in enumerate(records, 1):
        where = f"record {number}"
        if isinstance(each, dict):
            yield each, where
        elif isinstance(each, bytes | str) and (_is_text(each) or not each.strip()):
            raw = (each.encode() if isinstance(each, str) else each).strip()
            if raw:
                yield parse(raw, where=where), where
        elif isinstance(each, str | PathLike):
            paths.append(each)
        else:
            raise _no_records(each, where)
    if paths:
        yield from _files(paths)


def _is_text(each: bytes | str) -> bool:
    """Whether something is what a file holds, not its name; a text must not be looked for, since the error shows it."""
    raw = each.encode(errors="replace") if isinstance(each, str) else each
    return (
        isinstance(each, bytes)
        or raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[", b"<")
        or b"\n" in raw
    )


def _texts(text: bytes) -> Iterator[tuple[Json, str]]:
    """One document that may be written over many lines, or one in every line."""
    lines = [line.strip() for line in text.splitlines()]
    if sum(map(bool, lines)) > 1 and all(
        line.startswith(b"{") and line.endswith(b"}") for line in lines if line
    ):
        for number, line in enumerate(lines, 1):
            if line:
                yield parse(line, where=f"line {number}"), f"line {number}"
    else:
        yield parse(text.strip()), ""


def _files(paths: Iterable[str | PathLike[str]]) -> Iterator[tuple[Json, str]]:
    for source in find([str(path) for path in paths]):
        for raw, where in documents(source):
            yield parse(raw, where=where), where


def _no_records(what: object, where: str = "") -> SettingsError:
    return SettingsError(
        f"{where or 'what is given'} is a {type(what).__name__}, not a record",
        remedy="give resources or Bundles as dicts, lines of NDJSON, or the path of a file or folder",
    )


def safe_name(source: Source, names: Pseudonyms) -> str:
    """The name of the output: a name may be a person's, so only those of bulk exports and of our folders stay.

    >>> names = Pseudonyms("heart", bytes(range(32)))
    >>> safe_name(Source("x", "Patient.000.ndjson"), names), len(safe_name(Source("x", "Jo_Smith.json"), names))
    ('Patient.000.ndjson', 39)
    >>> safe_name(Source("x", "folder-2/Patient.ndjson"), names)
    'folder-2/Patient.ndjson'
    """
    folder = Path(source.relative).parent
    return str(_safe_folder(folder, names) / _safe_file(source, names))


def _safe_folder(folder: Path, names: Pseudonyms) -> Path:
    if folder == Path():
        return folder
    above = _safe_folder(folder.parent, names)
    plain = above == Path() and _FOLDER.fullmatch(folder.name)
    return above / (folder.name if plain else f"folder-{names.identity('folder', str(folder))}")


def _safe_file(source: Source, names: Pseudonyms) -> str:
    base = Path(source.relative).name
    suffix = next(s for s in (".ndjson", ".jsonl", ".json", "") if base.removesuffix(".gz").endswith(s))
    stem = base.removesuffix(".gz").removesuffix(suffix)
    match = _BULK.fullmatch(stem)
    packed = ".gz" if source.is_packed else ""
    plain = match is not None and match[1] in resources()
    if plain or source.path == STDIN:
        return f"{stem}{suffix}{packed}"
    return f"records-{names.identity('file', source.relative)}{suffix or '.json'}{packed}"


def documents(source: Source) -> Iterator[tuple[bytes, str]]:
    """The documents of a source, each with the place it stands at."""
    for raw, number in numbered(source):
        yield raw, source.place(number)


def numbered(source: Source) -> Iterator[tuple[bytes, int]]:
    """The documents of a source, each with the number of its line in this stretch of it."""
    if source.path == STDIN:
        yield from _standard_input()
        return
    with gzip.open(source.path, "rb") if source.is_packed else Path(source.path).open("rb") as stream:
        try:
            if source.is_lines:
                yield from _lines(cast("BinaryIO", stream), source)
            else:
                # Never more than is read anyway: a small gzip file may unpack to any size.
                yield cast("BinaryIO", stream).read(MAX_BYTES + 1), 1
        except (gzip.BadGzipFile, zlib.error, EOFError):
            raise Refused(
                "the file is not complete gzip", where=source.name, remedy="copy it again"
            ) from None


def _lines(stream: BinaryIO, source: Source) -> Iterator[tuple[bytes, int]]:
    position, number = source.start, 0
    if source.start:
        # A line belongs to the stretch in which it begins.
        stream.seek(source.start - 1)
        position += len(stream.readline()) - 1
    while source.end < 0 or position < source.end:
        line = stream.readline(MAX_LINE + 1)
        if not line:
            return
        number += 1
        position += len(line)
        if len(line) > MAX_LINE:
            raise Refused(
                f"a line is longer than {MAX_LINE:,} bytes",
                where=source.place(number),
                remedy="split the document",
            )
        line = line.strip()
        if line:
            yield line, number


def _standard_input() -> Iterator[tuple[bytes, int]]:
    stream = sys.stdin.buffer
    first = stream.readline(MAX_LINE + 1)
    if first.rstrip().endswith(b"}") and first.lstrip().startswith(b"{"):
        yield first.strip(), 1
        for number, line in enumerate(stream, 2):
            if line.strip():
                yield line.strip(), number
    else:
        yield first + stream.read(MAX_BYTES), 1


def fingerprint(source: Source, names: Pseudonyms) -> str:
    """What a resumed run knows a file by: a keyed digest of its size and time of change, which tells neither."""
    state = Path(source.path).stat()
    return names.identity("state", f"{state.st_size} {state.st_mtime_ns}")
