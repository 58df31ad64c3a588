"""Public API: measure and anonymise a table of any format (polars, pandas, Arrow, rows, columns or a file)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from abaton.anonymity.equivalence_classes import EncodedTable
from abaton.anonymity.release import TableRelease, make_release, release_unchanged
from abaton.anonymity.risk_metrics import AnonymityMetrics, compute_metrics, describe_levels
from abaton.anonymity.settings import AnonymitySettings
from abaton.anonymity.settings_reader import read_settings, settings_from, table_from
from abaton.anonymity.table_encoding import encode
from abaton.anonymity.table_files import recoded_frame
from abaton.errors import RefusedError, SettingsError


@dataclass(frozen=True, slots=True, eq=False)
class TableExamination:
    """Table before and after anonymisation.

    Attributes:
        settings: the study's settings.
        table: the encoded table.
        before: metrics of the original table.
        release: the releasable table; ``None`` if there is none.
        after: metrics of the release.
        refusal: why there is no release.
    """

    settings: AnonymitySettings
    table: EncodedTable
    before: AnonymityMetrics
    release: TableRelease | None = None
    after: AnonymityMetrics | None = None
    refusal: RefusedError | None = None

    def row(self) -> dict[str, Any]:
        """Return the examination of a table's anonymity as JSON values, without any cell of the table."""
        release, after = self.release, self.after
        return {
            "settings": {
                "k": self.settings.k,
                "suppression_limit": self.settings.suppression_limit,
                "min_cell_count": self.settings.min_cell_count,
                "method": self.settings.method,
                "population": self.settings.population,
                "sampling_fraction": self.settings.sampling_fraction,
                "subject": self.settings.subject,
                "one_row_per_subject": self.settings.one_row_per_subject,
                "sensitive": [asdict(column) for column in self.settings.sensitive],
            },
            "method": None if release is None else release.method,
            "node": None if release is None or release.node is None else list(release.node),
            "loss": None if after is None else after.utility.loss,
            "suppressed": None if after is None else after.suppressed,
            "quasi_identifiers": describe_levels(self.table, release or release_unchanged(self.table)),
            "before": self.before.row(),
            "after": None if after is None else after.row(),
            "nodes": 0 if release is None else release.nodes,
            "evaluated": 0 if release is None else release.evaluated,
        }


def examine(
    frame: pl.LazyFrame | pl.DataFrame, settings: AnonymitySettings, *, folder: Path = Path()
) -> TableExamination:
    """Examine the anonymity of a table and find a release that satisfies the settings.

    Args:
        frame: the table.
        settings: the study's settings.
        folder: the folder of hierarchy files, that of the study document.

    Returns:
        Metrics before and after; with the refusal if no release is possible.

    >>> import polars as pl
    >>> from abaton.anonymity import BinHierarchy, QuasiIdentifier
    >>> ages = pl.DataFrame({"age": [31, 33, 36, 38, 52, 57]})
    >>> quasi = (QuasiIdentifier("age", BinHierarchy((5.0, 10.0))),)
    >>> settings = AnonymitySettings(quasi, k=2, one_row_per_subject=True)
    >>> examination = examine(ages, settings)
    >>> examination.before.k, examination.after.k, examination.release.node, examination.release.names
    (1, 2, (2,), (('30-39', '50-59'),))
    """
    table = encode(frame, settings, folder=folder)
    before = compute_metrics(table, release_unchanged(table), settings)
    try:
        release = make_release(table, settings)
    except RefusedError as refusal:
        return TableExamination(settings, table, before, refusal=refusal)
    return TableExamination(settings, table, before, release, compute_metrics(table, release, settings))


ConvertBack = Callable[[pl.DataFrame], Any]


def to_polars(table: Any) -> tuple[pl.LazyFrame, ConvertBack]:
    """Convert a table to anonymise (pandas, Arrow, rows, file) to polars; also return the conversion back.

    Args:
        table: a polars frame; a pandas or Arrow table, or another one with the dataframe interchange; a list of rows
            (dicts); a dict of columns; or the path of a CSV, TSV, Parquet or NDJSON file. Files and unknown types are
            converted back to a polars frame.

    Raises:
        SettingsError: It is none of these, or its rows differ in structure.

    >>> frame, back = to_polars([{"age": 31}, {"age": 34}])
    >>> back(frame.collect())
    [{'age': 31}, {'age': 34}]
    """
    if isinstance(table, pl.LazyFrame):
        return table, pl.DataFrame.lazy
    if isinstance(table, str | PathLike):
        from abaton.anonymity.table_files import scan

        return scan(Path(table)), _identity
    try:
        return _to_frame(table).lazy(), _converter_back(table)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        # The reason is not forwarded, because it quotes cells.
        raise SettingsError(
            "the table cannot be read",
            where=type(table).__name__,
            remedy="give a polars, pandas or Arrow table, or a list of dicts or a dict of lists with equal rows",
        ) from None


def _to_frame(table: Any) -> pl.DataFrame:
    if isinstance(table, pl.DataFrame):
        return table
    if isinstance(table, Mapping):
        return pl.DataFrame(dict(table))
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        return pl.DataFrame([dict(row) for row in table], infer_schema_length=None)
    if hasattr(table, "__arrow_c_stream__"):
        return pl.DataFrame(table)
    if hasattr(table, "__dataframe__"):
        return pl.from_dataframe(table)
    raise TypeError


def _converter_back(table: Any) -> ConvertBack:
    library = type(table).__module__.partition(".")[0]
    if isinstance(table, Mapping):
        return lambda frame: frame.to_dict(as_series=False)
    if isinstance(table, Sequence):
        return pl.DataFrame.to_dicts
    if library == "pandas":
        return lambda frame: import_module("pandas").DataFrame(frame.to_dict(as_series=False))
    if library == "pyarrow":
        return lambda frame: import_module("pyarrow").table(frame)
    return _identity


def _identity(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@dataclass(frozen=True, slots=True, eq=False)
class AnonymisationResult:
    """Anonymised table with its metrics.

    Attributes:
        table: the released table, in the format of the input.
        outcome: the examination; ``outcome.row()`` is the input of the privacy report.
    """

    table: Any
    outcome: TableExamination

    @property
    def before(self) -> AnonymityMetrics:
        """Anonymity metrics of the original table."""
        return self.outcome.before

    @property
    def after(self) -> AnonymityMetrics:
        """Anonymity metrics of the anonymised table."""
        assert self.outcome.after is not None
        return self.outcome.after

    def __repr__(self) -> str:
        counts = f"subjects={self.after.subjects}, suppressed_subjects={self.after.suppressed_subjects}"
        return f"AnonymisationResult(k={self.after.k}, {counts})"


def anonymise(
    table: Any,
    quasi_identifiers: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    subject: str | None = None,
    study: AnonymitySettings | str | PathLike[str] | None = None,
    folder: str | PathLike[str] | None = None,
    **settings: Any,
) -> AnonymisationResult:
    """Return a k-anonymous version of a table, the public function.

    Args:
        table: a polars, pandas or Arrow table, a list of dicts, a dict of lists, or a file.
        quasi_identifiers: the columns that identify a subject in combination, each with its hierarchy (or none), as
            in the study document; or a list of columns.
        subject: the column that identifies the subject of a row. Without it, set ``one_row_per_subject=True``.
        study: base settings: the path of a study document with ``[privacy.anonymity]``, or the settings.
        folder: the folder of hierarchy files; by default that of the study document.
        **settings: further keys of ``[privacy.anonymity]``: ``k``, ``sensitive``, ``suppression_limit``, ``method``,
            ``passthrough_columns``, ``missing_values``, ``population``, ``sampling_fraction``, ``one_row_per_subject``.

    Returns:
        The released table and its metrics.

    Raises:
        SettingsError: A key or column is unknown (the closest one is named), or the subject of a row is not specified.
        RefusedError: The required anonymity cannot be reached.

    >>> stays = [{"patient": patient, "age": age, "diagnosis": diagnosis} for patient, age, diagnosis in
    ...          [("a", 31, "x"), ("a", 32, "y"), ("b", 36, "x"), ("c", 38, "y"), ("d", 34, "x")]]
    >>> result = anonymise(
    ...     stays, {"age": {"bins": [5, 10]}}, subject="patient", k=3, passthrough_columns=["diagnosis"]
    ... )
    >>> result.table[0], result.before.k, result.after.k
    ({'age': '30-39', 'diagnosis': 'x'}, 1, 4)
    """
    overrides = {"quasi_identifiers": quasi_identifiers, "subject": subject, **settings}
    effective = _settings(study, {key: value for key, value in overrides.items() if value is not None})
    if folder is None:
        folder = Path(study).parent if isinstance(study, str | PathLike) else Path()
    frame, back = to_polars(table)
    outcome = examine(frame, effective, folder=Path(folder))
    if outcome.refusal is not None:
        raise outcome.refusal
    assert outcome.release is not None
    return AnonymisationResult(
        back(recoded_frame(frame, outcome.table, outcome.release, effective).collect()), outcome
    )


def _settings(
    study: AnonymitySettings | str | PathLike[str] | None, given: dict[str, Any]
) -> AnonymitySettings:
    """Return the study's anonymity settings, overridden by the arguments of `anonymise`."""
    table: dict[str, Any] = {}
    if study is not None:
        table = table_from(study if isinstance(study, AnonymitySettings) else read_settings(Path(study)))
    if "subject" in given or "one_row_per_subject" in given:
        table = {key: table[key] for key in table if key not in ("subject", "one_row_per_subject")}
    if "quasi_identifiers" in given:
        given["quasi_identifiers"] = _columns(
            given["quasi_identifiers"], lambda spec: {"hierarchy": spec or {}}
        )
    if "sensitive" in given:
        given["sensitive"] = _columns(given["sensitive"], lambda models: models or {})
    return settings_from({**table, **given}, where="anonymise")


def _columns(columns: Any, to_keys: Callable[[Any], Any]) -> Any:
    """Return the columns given to `anonymise`, by name or in a list, in the format of the study document."""
    if isinstance(columns, Mapping):
        return [{"column": name, **to_keys(options)} for name, options in columns.items()]
    if isinstance(columns, Sequence) and not isinstance(columns, str):
        return [{"column": column} if isinstance(column, str) else column for column in columns]
    return columns
