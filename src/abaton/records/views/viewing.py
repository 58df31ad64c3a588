"""One call from records to a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.errors import SettingsError
from abaton.records.fhir.bundles import opened
from abaton.fhir.json_format import bounded, parse
from abaton.fhir.file_reader import given
from abaton.record_types import Consented, Deidentified, Record
from abaton.views.definition import View
from abaton.views.required_elements import check_elements
from abaton.records.views.tables import frame

if TYPE_CHECKING:
    import polars

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
