"""Rows on disk and in memory: polars, Parquet, CSV and NDJSON, with the types that the columns declare.

One call from records to a table.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from abaton.atomic_files import replacing
from abaton.errors import AbatonError, SettingsError
from abaton.fhir.bundles import opened
from abaton.fhir.file_reader import given
from abaton.fhir.json_format import bounded, parse
from abaton.record_types import Consented, Deidentified, Record
from abaton.views.definition import Column, View
from abaton.views.required_elements import check_elements

if TYPE_CHECKING:
    import polars


Resources = Iterable[Mapping[str, Any]]
FORMS = (".csv", ".ndjson", ".jsonl", ".parquet")
_WHOLE = {"integer", "positiveInt", "unsignedInt", "integer64"}


def frame(view: View, resources: Resources) -> polars.DataFrame:
    """The table of a view in memory."""
    import polars

    return polars.DataFrame(_typed_rows(view, resources), schema=_schema(view), orient="row")


def write(view: View, resources: Resources, path: Path) -> int:
    """Write the table of a view, in bounded memory, whole or not at all.

    Args:
        view: The view.
        resources: Resources of any type; others than the view's give no rows.
        path: Where to; its ending says in which form.

    Returns:
        How many rows were written.
    """
    if path.suffix not in FORMS:
        raise SettingsError(
            "the form is not clear", where=str(path), remedy=f"end the name in {', '.join(FORMS)}"
        )
    try:
        with replacing(path) as begun:
            return _write(view, _typed_rows(view, resources), begun, path.suffix)
    except OSError as error:
        raise SettingsError(
            "the table cannot be written", where=str(path), remedy=error.strerror or ""
        ) from None


def _write(view: View, rows: Iterator[tuple[Any, ...]], path: Path, form: str) -> int:
    if form == ".parquet":
        # Polars reads the lines again in pieces: rows handed over one by one would all be in memory.
        with TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            lines = Path(folder, "lines")
            written = _write(view, rows, lines, ".ndjson")
            _to_parquet(view, lines, path)
            return written
    with path.open("w", encoding="utf-8", newline="") as stream:
        return (_csv if form == ".csv" else _ndjson)(view, rows, stream)


def _csv(view: View, rows: Iterator[tuple[Any, ...]], stream: IO[str]) -> int:
    out = csv.writer(stream, lineterminator="\n")
    out.writerow([column.name for column in view.columns])
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows is the answer
        out.writerow([_in_csv(cell) for cell in row])
    return count


def _in_csv(cell: Any) -> Any:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell


def _ndjson(view: View, rows: Iterator[tuple[Any, ...]], stream: IO[str]) -> int:
    names = [column.name for column in view.columns]
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows is the answer
        stream.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n")
    return count


def _to_parquet(view: View, lines: Path, path: Path) -> None:
    import polars

    if lines.stat().st_size:
        polars.scan_ndjson(lines, schema=_schema(view)).sink_parquet(path)
    else:
        polars.DataFrame(schema=_schema(view)).write_parquet(path)


def _schema(view: View) -> dict[str, Any]:
    import polars

    kinds = {"boolean": polars.Boolean(), "decimal": polars.Float64()}
    kinds |= dict.fromkeys(_WHOLE, polars.Int64())
    made = {column.name: kinds.get(column.type, polars.String()) for column in view.columns}
    lists = {column.name for column in view.columns if column.collection}
    return {name: polars.List(kind) if name in lists else kind for name, kind in made.items()}


def _typed_rows(view: View, resources: Resources) -> Iterator[tuple[Any, ...]]:
    casts = [_cast(column) for column in view.columns]
    for resource in resources:
        for row in view.rows(resource):
            yield tuple([cast(cell) for cast, cell in zip(casts, row, strict=True)])


def _cast(column: Column) -> Callable[[Any], Any]:
    one = _one(column)
    if column.collection:
        return lambda cell: [one(item) for item in cell]
    return lambda cell: None if cell is None else one(cell)


def _one(column: Column) -> Callable[[Any], Any]:
    """A cell as its column declares it; what does not fit is an error, never a guess."""

    def wrong() -> AbatonError:
        return AbatonError(
            f"a value is not of the declared type '{column.type}'",
            where=f"column {column.name}",
            remedy="correct the path or the type of the column",
        )

    def run(cell: Any) -> Any:
        if column.type == "boolean":
            if not isinstance(cell, bool):
                raise wrong()
            return cell
        if column.type in _WHOLE or column.type == "decimal":
            fits = int if column.type in _WHOLE else (int, float)
            if isinstance(cell, bool) or not isinstance(cell, fits):
                raise wrong()
            return float(cell) if column.type == "decimal" else cell
        return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)

    return run


_WRITTEN = (str, bytes, PathLike)


def view(definition: Mapping[str, Any] | str | PathLike[str], records: Any) -> polars.DataFrame:
    """Turn records into a table with the rows and columns that a view definition says.

    Args:
        definition: A ViewDefinition (SQL on FHIR v2) as a dict, or the path of its JSON file.
        records: A resource or a Bundle, as a dict or in any stage of de-identification; the text of a file; the path of
            a file or folder (JSON, NDJSON, gzip); or many of them. Bundles are opened.

    Returns:
        A polars frame; ``.to_dicts()`` makes it a list of rows.

    Raises:
        SettingsError: The definition is none, or names a resource or an element that R4 does not have.

    >>> patient = {"resourceType": "Patient", "id": "p1", "gender": "female"}
    >>> columns = [{"name": "subject", "path": "getResourceKey()"}, {"name": "sex", "path": "gender"}]
    >>> bundle = {"resourceType": "Bundle", "entry": [{"resource": patient}]}
    >>> view({"resource": "Patient", "select": [{"column": columns}]}, bundle).to_dicts()
    [{'subject': 'Patient/p1', 'sex': 'female'}]
    """
    return frame(load_view(definition), resources_of(records))


def load_view(definition: Mapping[str, Any] | str | PathLike[str]) -> View:
    """A view from its definition or the file of it; names that R4 does not have are refused with the nearest one."""
    if isinstance(definition, str | PathLike):
        try:
            raw = Path(definition).read_bytes()
        except OSError as error:
            raise SettingsError(
                "the view cannot be read", where=str(definition), remedy=error.strerror or "check the path"
            ) from None
        definition = parse(raw, where=str(definition))
    made = View.load(definition)
    check_elements(definition)
    return made


def resources_of(records: Any) -> Iterator[dict[str, Any]]:
    """Every resource of what was given: resources, Bundles, records of any stage, files and folders."""
    if isinstance(records, Consented):
        records = records.record.content
    elif isinstance(records, Record | Deidentified):
        records = records.content
    if isinstance(records, dict):
        bounded(records)
        yield from opened(records)
    elif not isinstance(records, Iterable) or isinstance(records, _WRITTEN) or _all_written(records):
        for document, _ in given(records):
            yield from opened(document)
    else:
        for each in records:
            yield from resources_of(each)


def _all_written(records: Iterable[Any]) -> bool:
    """Whether these are texts and paths only: given together, so that errors count the files through."""
    return isinstance(records, list | tuple) and all(isinstance(each, _WRITTEN) for each in records)
