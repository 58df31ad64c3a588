"""Where records come from: files, gzip, NDJSON, directories, standard input; read in bounded memory."""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

from abaton.errors import Refused, SettingsError
from abaton.records.elements import resources
from abaton.records.parsing import MAX_BYTES
from abaton.records.pseudonyms import Pseudonyms

STDIN = "-"
MAX_LINE = 64 * 1024 * 1024
_SUFFIXES = (".json", ".ndjson", ".jsonl", ".xml", ".json.gz", ".ndjson.gz", ".jsonl.gz")
_BULK = re.compile(r"(?:\d{1,4}\.)?([A-Z][A-Za-z]+)(?:\.\d{1,4})?")


@dataclass(frozen=True, slots=True)
class Source:
    """One input, or a stretch of bytes of one."""

    path: str
    relative: str
    start: int = 0
    end: int = -1

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
        return [Source(self.path, self.relative, a, b) for a, b in pairwise(edges)]


def find(inputs: Iterable[str]) -> list[Source]:
    """Every input file, directories searched; an input that is not there is refused."""
    found: list[Source] = []
    for text in inputs:
        if text == STDIN:
            found.append(Source(STDIN, "stdin.ndjson"))
            continue
        path = Path(text)
        if path.is_dir():
            found += [
                Source(str(each), str(each.relative_to(path)))
                for each in sorted(path.rglob("*"))
                if each.is_file() and each.name.endswith(_SUFFIXES) and not each.name.startswith(".")
            ]
        elif path.is_file():
            found.append(Source(str(path), path.name))
        else:
            raise SettingsError("an input is not there", where=text, remedy="give a file, a directory or -")
    if not found:
        raise SettingsError("no input holds records", remedy="give files that end in .json or .ndjson")
    return found


def safe_name(source: Source, names: Pseudonyms) -> str:
    """The name of the output: a file's name may be a person's, so only names of bulk exports stay.

    >>> names = Pseudonyms("heart", bytes(range(32)))
    >>> safe_name(Source("x", "Patient.000.ndjson"), names), len(safe_name(Source("x", "Jo_Smith.json"), names))
    ('Patient.000.ndjson', 39)
    """
    base = Path(source.relative).name
    suffix = next(s for s in (".ndjson", ".jsonl", ".json", "") if base.removesuffix(".gz").endswith(s))
    stem = base.removesuffix(".gz").removesuffix(suffix)
    match = _BULK.fullmatch(stem)
    packed = ".gz" if source.is_packed else ""
    plain = match is not None and match[1] in resources() and base == source.relative
    if plain or source.path == STDIN:
        return f"{stem}{suffix}{packed}"
    return f"records-{names.identity('file', source.relative)}{suffix or '.json'}{packed}"


def documents(source: Source) -> Iterator[tuple[bytes, str]]:
    """The documents of a source, each with the place it stands at."""
    if source.path == STDIN:
        yield from _standard_input()
        return
    with gzip.open(source.path, "rb") if source.is_packed else Path(source.path).open("rb") as stream:
        try:
            if source.is_lines:
                yield from _lines(cast("BinaryIO", stream), source)
            else:
                # Never more than is read anyway: a small gzip file may unpack to any size.
                yield cast("BinaryIO", stream).read(MAX_BYTES + 1), source.path
        except (gzip.BadGzipFile, zlib.error, EOFError):
            raise Refused(
                "the file is not complete gzip", where=source.path, remedy="copy it again"
            ) from None


def _lines(stream: BinaryIO, source: Source) -> Iterator[tuple[bytes, str]]:
    position, number, label = source.start, 0, "line"
    if source.start:
        # A line belongs to the stretch in which it begins.
        stream.seek(source.start - 1)
        position += len(stream.readline()) - 1
        label = f"line after byte {source.start}, number"
    while source.end < 0 or position < source.end:
        line = stream.readline(MAX_LINE + 1)
        if not line:
            return
        number += 1
        position += len(line)
        where = f"{source.path} {label} {number}"
        if len(line) > MAX_LINE:
            raise Refused(
                f"a line is longer than {MAX_LINE:,} bytes", where=where, remedy="split the document"
            )
        line = line.strip()
        if line:
            yield line, where


def _standard_input() -> Iterator[tuple[bytes, str]]:
    stream = sys.stdin.buffer
    first = stream.readline(MAX_LINE + 1)
    if first.rstrip().endswith(b"}") and first.lstrip().startswith(b"{"):
        yield first.strip(), "standard input line 1"
        for number, line in enumerate(stream, 2):
            if line.strip():
                yield line.strip(), f"standard input line {number}"
    else:
        yield first + stream.read(MAX_BYTES), "standard input"


def fingerprint(source: Source, names: Pseudonyms) -> str:
    """What a resumed run knows a file by: a keyed digest of its size and time of change, which tells neither."""
    state = Path(source.path).stat()
    return names.identity("state", f"{state.st_size} {state.st_mtime_ns}")
