"""Reading of records from files, gzip, NDJSON, directories and standard input in bounded memory."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, cast

from abaton.errors import RefusedError, SettingsError
from abaton.fhir.json_format import MAX_BYTES, parse
from abaton.record_types import Json

RecordInput = Json | bytes | str | PathLike[str]
RecordInputs = RecordInput | Iterable[RecordInput]

STDIN = "-"
MAX_LINE_BYTES = 64 * 1024 * 1024
_SUFFIXES = (".json", ".ndjson", ".jsonl", ".xml", ".json.gz", ".ndjson.gz", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class RecordFile:
    """Input file, or a chunk of one.

    ``relative`` is its path among the inputs, ``name`` its name in errors: a number by default, because a file name may
    contain a person's name.
    """

    path: str
    relative: str
    start: int = 0
    end: int = -1
    name: str = "file 1"

    @property
    def is_complete(self) -> bool:
        """Return whether this is a complete record file rather than a chunk of one."""
        return self.end < 0

    @property
    def is_ndjson(self) -> bool:
        """Return whether every line of the record file is a document (NDJSON)."""
        return self.relative.removesuffix(".gz").endswith((".ndjson", ".jsonl"))

    @property
    def is_compressed(self) -> bool:
        """Return whether the record file is compressed with gzip."""
        return self.relative.endswith(".gz")

    @property
    def size(self) -> int:
        """Return the number of bytes of the record file on disk; 0 for standard input."""
        if self.path == STDIN:
            return 0
        return (self.end if self.end >= 0 else Path(self.path).stat().st_size) - self.start

    def split(self, chunks: int, min_bytes: int) -> list[RecordFile]:
        """Split a large NDJSON record file into chunks that can be processed in parallel."""
        chunks = min(chunks, self.size // min_bytes) if self.is_ndjson and not self.is_compressed else 1
        if chunks < 2:
            return [self]
        edges = [self.size * i // chunks for i in range(chunks + 1)]
        return [replace(self, start=a, end=b) for a, b in pairwise(edges)]

    def location(self, number: int) -> str:
        """Return how errors name a line of the record file; lines before a chunk are counted."""
        if self.path == STDIN:
            return f"standard input line {number}"
        if not self.is_ndjson:
            return self.name
        return f"{self.name} line {number + (self._lines_before() if self.start else 0)}"

    def _lines_before(self) -> int:
        with Path(self.path).open("rb") as stream:
            remaining, count, block = self.start, 0, b""
            while remaining > 0 and (block := stream.read(min(remaining, 1 << 20))):
                count += block.count(b"\n")
                remaining -= len(block)
        return count + (not block.endswith(b"\n"))  # the line that ends in this chunk


def find_files(inputs: Iterable[str], *, show_names: bool = False) -> list[RecordFile]:
    """Return every FHIR file (JSON, NDJSON, gzip) of the inputs; folders are searched recursively.

    The files of several directories are kept apart by numbered folders.

    Args:
        inputs: Files, directories, or ``-`` for standard input.
        show_names: Whether errors may contain file names.

    Raises:
        SettingsError: An input does not exist, or no input contains records.
    """
    listed = list(inputs)
    folders = [text for text in listed if text != STDIN and Path(text).is_dir()]
    paths: list[tuple[str, str]] = []
    for text in listed:
        if text == STDIN:
            paths.append((STDIN, "stdin.ndjson"))
            continue
        path = Path(text)
        if path.is_dir():
            parent = Path(f"folder-{folders.index(text) + 1}" if len(folders) > 1 else "")
            paths += [
                (str(file), str(parent / file.relative_to(path)))
                for file in sorted(path.rglob("*"))
                if file.is_file() and file.name.endswith(_SUFFIXES) and not file.name.startswith(".")
            ]
        elif path.is_file():
            paths.append((str(path), path.name))
        else:
            raise SettingsError("an input does not exist", where=text, remedy="give a file, a directory or -")
    if not paths:
        raise SettingsError("no input contains records", remedy="give files that end in .json or .ndjson")
    return [
        RecordFile(path, relative, name=path if show_names else f"file {number}")
        for number, (path, relative) in enumerate(paths, 1)
    ]


def read_records(records: RecordInputs) -> Iterator[tuple[Json, str]]:
    """Read records given as dicts, text, files or folders; yield each document with its location.

    Args:
        records: A resource or Bundle as a dict; the text of a file; the path of a file or folder; or an iterable of
            these, where a text is one document, like a line of NDJSON.

    Raises:
        RefusedError: A text is not a record.
        SettingsError: The argument has another type.
    """
    if isinstance(records, dict):
        yield records, ""
    elif isinstance(records, bytes | str) and _is_text(records):
        yield from _parse_text(records.encode() if isinstance(records, str) else records)
    elif isinstance(records, str | PathLike):
        yield from _parse_files([records])
    elif isinstance(records, Iterable) and not isinstance(records, bytes):
        yield from _parse_many(records)
    else:
        raise _not_a_record(records)


def _parse_many(records: Iterable[Any]) -> Iterator[tuple[Json, str]]:
    paths: list[str | PathLike[str]] = []
    for number, record in enumerate(records, 1):
        where = f"record {number}"
        if isinstance(record, dict):
            yield record, where
        elif isinstance(record, bytes | str) and (_is_text(record) or not record.strip()):
            raw = (record.encode() if isinstance(record, str) else record).strip()
            if raw:
                yield parse(raw, where=where), where
        elif isinstance(record, str | PathLike):
            paths.append(record)
        else:
            raise _not_a_record(record, where)
    if paths:
        yield from _parse_files(paths)


def _is_text(record: bytes | str) -> bool:
    """Return whether an argument is FHIR text rather than a file path; text is never opened as a path."""
    raw = record.encode(errors="replace") if isinstance(record, str) else record
    return (
        isinstance(record, bytes)
        or raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[", b"<")
        or b"\n" in raw
    )


def _parse_text(text: bytes) -> Iterator[tuple[Json, str]]:
    """Read a text of records: one JSON document over many lines, or NDJSON with one per line."""
    lines = [line.strip() for line in text.splitlines()]
    if sum(map(bool, lines)) > 1 and all(
        line.startswith(b"{") and line.endswith(b"}") for line in lines if line
    ):
        for number, line in enumerate(lines, 1):
            if line:
                yield parse(line, where=f"line {number}"), f"line {number}"
    else:
        yield parse(text.strip()), ""


def _parse_files(paths: Iterable[str | PathLike[str]]) -> Iterator[tuple[Json, str]]:
    for source in find_files([str(path) for path in paths]):
        for raw, where in read_documents(source):
            yield parse(raw, where=where), where


def _not_a_record(record: object, where: str = "") -> SettingsError:
    return SettingsError(
        f"{where or 'the argument'} is a {type(record).__name__}, not a record",
        remedy="give resources or Bundles as dicts, lines of NDJSON, or the path of a file or folder",
    )


def read_documents(source: RecordFile) -> Iterator[tuple[bytes, str]]:
    """Read the unparsed documents of a FHIR file, each with its location (file and line)."""
    for raw, number in read_numbered(source):
        yield raw, source.location(number)


def read_numbered(source: RecordFile) -> Iterator[tuple[bytes, int]]:
    """Read the unparsed documents of a FHIR file or chunk, each with its line number in it."""
    if source.path == STDIN:
        yield from _standard_input()
        return
    with gzip.open(source.path, "rb") if source.is_compressed else Path(source.path).open("rb") as stream:
        try:
            if source.is_ndjson:
                yield from _lines(cast("BinaryIO", stream), source)
            else:
                # Bounded, because a small gzip file may decompress to any size.
                yield cast("BinaryIO", stream).read(MAX_BYTES + 1), 1
        except (gzip.BadGzipFile, zlib.error, EOFError):
            raise RefusedError(
                "the gzip file is truncated or damaged", where=source.name, remedy="copy it again"
            ) from None


def _lines(stream: BinaryIO, source: RecordFile) -> Iterator[tuple[bytes, int]]:
    position, number = source.start, 0
    if source.start:
        # A line belongs to the chunk in which it begins.
        stream.seek(source.start - 1)
        position += len(stream.readline()) - 1
    while source.end < 0 or position < source.end:
        line = stream.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        number += 1
        position += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise RefusedError(
                f"a line is longer than {MAX_LINE_BYTES:,} bytes",
                where=source.location(number),
                remedy="split the document",
            )
        line = line.strip()
        if line:
            yield line, number


def _standard_input() -> Iterator[tuple[bytes, int]]:
    stream = sys.stdin.buffer
    first = stream.readline(MAX_LINE_BYTES + 1)
    if first.rstrip().endswith(b"}") and first.lstrip().startswith(b"{"):
        yield first.strip(), 1
        for number, line in enumerate(stream, 2):
            if line.strip():
                yield line.strip(), number
    else:
        yield first + stream.read(MAX_BYTES), 1
