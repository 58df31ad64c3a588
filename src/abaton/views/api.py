"""Views of records as polars frames, Parquet, CSV and NDJSON, with the declared types of the columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from abaton.atomic_files import atomic_write
from abaton.errors import AbatonError, SettingsError
from abaton.fhir.bundles import bundle_resources
from abaton.fhir.file_reader import read_records
from abaton.fhir.json_format import check_depth, parse
from abaton.record_types import ConsentedRecord, DeidentifiedRecord, Record
from abaton.views.definition import ViewColumnDefinition, ViewDefinition
from abaton.views.required_elements import check_elements

if TYPE_CHECKING:
    import polars


Resources = Iterable[Mapping[str, Any]]
FORMATS = (".csv", ".ndjson", ".jsonl", ".parquet")
_INTEGER_TYPES = {"integer", "positiveInt", "unsignedInt", "integer64"}


def to_frame(view: ViewDefinition, resources: Resources) -> polars.DataFrame:
    """Return the table of a view as a polars frame."""
    import polars

    return polars.DataFrame(_typed_rows(view, resources), schema=_schema(view), orient="row")


def write_table(view: ViewDefinition, resources: Resources, path: Path) -> int:
    """Write the table of a view to a file in bounded memory; return its rows; on an error no file is created.

    Args:
        view: The view.
        resources: Resources of any type; those of other types than the view's give no rows.
        path: Output file; its suffix determines the format.
    """
    if path.suffix not in FORMATS:
        raise SettingsError(
            f"'{path.suffix}' is not a format of tables", where=str(path), remedy=f"use {', '.join(FORMATS)}"
        )
    try:
        with atomic_write(path) as temporary_path:
            return _write(view, _typed_rows(view, resources), temporary_path, path.suffix)
    except OSError as error:
        raise SettingsError(
            f"the table cannot be written: {error.strerror or type(error).__name__}",
            where=str(path),
            remedy="check the folder and the free space",
        ) from None


def _write(view: ViewDefinition, rows: Iterator[tuple[Any, ...]], path: Path, format: str) -> int:
    if format == ".parquet":
        # Polars reads NDJSON in chunks; rows passed one by one would all be in memory.
        with TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            lines = Path(folder, "lines")
            written = _write(view, rows, lines, ".ndjson")
            _to_parquet(view, lines, path)
            return written
    with path.open("w", encoding="utf-8", newline="") as stream:
        return (_csv if format == ".csv" else _ndjson)(view, rows, stream)


def _csv(view: ViewDefinition, rows: Iterator[tuple[Any, ...]], stream: IO[str]) -> int:
    out = csv.writer(stream, lineterminator="\n")
    out.writerow([column.name for column in view.columns])
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows is the answer
        out.writerow([_csv_cell(cell) for cell in row])
    return count


def _csv_cell(cell: Any) -> Any:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list) else cell


def _ndjson(view: ViewDefinition, rows: Iterator[tuple[Any, ...]], stream: IO[str]) -> int:
    names = [column.name for column in view.columns]
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows is the answer
        stream.write(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n")
    return count


def _to_parquet(view: ViewDefinition, lines: Path, path: Path) -> None:
    import polars

    if lines.stat().st_size:
        polars.scan_ndjson(lines, schema=_schema(view)).sink_parquet(path)
    else:
        polars.DataFrame(schema=_schema(view)).write_parquet(path)


def _schema(view: ViewDefinition) -> dict[str, Any]:
    import polars

    polars_types = {"boolean": polars.Boolean(), "decimal": polars.Float64()}
    polars_types |= dict.fromkeys(_INTEGER_TYPES, polars.Int64())
    schema = {column.name: polars_types.get(column.type, polars.String()) for column in view.columns}
    lists = {column.name for column in view.columns if column.collection}
    return {name: polars.List(kind) if name in lists else kind for name, kind in schema.items()}


def _typed_rows(view: ViewDefinition, resources: Resources) -> Iterator[tuple[Any, ...]]:
    casts = [_cast(column) for column in view.columns]
    for resource in resources:
        for row in view.rows(resource):
            yield tuple([cast(cell) for cast, cell in zip(casts, row, strict=True)])


def _cast(column: ViewColumnDefinition) -> Callable[[Any], Any]:
    cast_item = _cast_item(column)
    if column.collection:
        return lambda cell: [cast_item(item) for item in cell]
    return lambda cell: None if cell is None else cast_item(cell)


def _cast_item(column: ViewColumnDefinition) -> Callable[[Any], Any]:
    """Return the conversion of a view's cell to the declared type; other types raise an error."""

    def type_error() -> AbatonError:
        return AbatonError(
            f"a value is not of the declared type '{column.type}'",
            where=f"column {column.name}",
            remedy="correct the path or the type of the column",
        )

    def run(cell: Any) -> Any:
        if column.type == "boolean":
            if not isinstance(cell, bool):
                raise type_error()
            return cell
        if column.type in _INTEGER_TYPES or column.type == "decimal":
            python_types = int if column.type in _INTEGER_TYPES else (int, float)
            if isinstance(cell, bool) or not isinstance(cell, python_types):
                raise type_error()
            return float(cell) if column.type == "decimal" else cell
        return cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)

    return run


_FILE_TYPES = (str, bytes, PathLike)


def view(definition: Mapping[str, Any] | str | PathLike[str], records: Any) -> polars.DataFrame:
    """Return the table of a view definition over records as a polars frame.

    Args:
        definition: A ViewDefinition (SQL on FHIR v2) as a dict, or the path of its JSON file.
        records: A resource or a Bundle, as a dict or in any stage of de-identification; the text of a file; the path of
            a file or folder (JSON, NDJSON, gzip); or several of them.

    Raises:
        SettingsError: The definition is invalid, or R4 does not have its resource type or an element.

    >>> patient = {"resourceType": "Patient", "id": "p1", "gender": "female"}
    >>> columns = [{"name": "subject", "path": "getResourceKey()"}, {"name": "sex", "path": "gender"}]
    >>> bundle = {"resourceType": "Bundle", "entry": [{"resource": patient}]}
    >>> view({"resource": "Patient", "select": [{"column": columns}]}, bundle).to_dicts()
    [{'subject': 'Patient/p1', 'sex': 'female'}]
    """
    return to_frame(load_view(definition), resources_of(records))


def load_view(definition: Mapping[str, Any] | str | PathLike[str]) -> ViewDefinition:
    """Load a view for the API from a definition or its file; refuse names that R4 does not have."""
    if isinstance(definition, str | PathLike):
        try:
            raw = Path(definition).read_bytes()
        except OSError as error:
            raise SettingsError(
                f"the view cannot be read: {error.strerror or type(error).__name__}",
                where=str(definition),
                remedy="check the path",
            ) from None
        definition = parse(raw, where=str(definition))
    view_definition = ViewDefinition.load(definition)
    check_elements(definition)
    return view_definition


def resources_of(records: Any) -> Iterator[dict[str, Any]]:
    """Yield the resources that a view is run on: of records, Bundles, files and folders."""
    if isinstance(records, ConsentedRecord):
        records = records.record.content
    elif isinstance(records, Record | DeidentifiedRecord):
        records = records.content
    if isinstance(records, dict):
        check_depth(records)
        yield from bundle_resources(records)
    elif not isinstance(records, Iterable) or isinstance(records, _FILE_TYPES) or _are_all_files(records):
        for document, _ in read_records(records):
            yield from bundle_resources(document)
    else:
        for record in records:
            yield from resources_of(record)


def _are_all_files(records: Iterable[Any]) -> bool:
    """Return whether all records given to a view are texts or paths, read together to number the files."""
    return isinstance(records, list | tuple) and all(isinstance(record, _FILE_TYPES) for record in records)
