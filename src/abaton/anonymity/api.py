"""One call from a table to an anonymous table.

One table examined: what it is like, what it would become, and both in numbers.

Tables of any make: polars, pandas, Arrow, lists of rows, columns by name, or a file; told back in the same make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

import polars as pl

from abaton.anonymity.equivalence_classes import Table
from abaton.anonymity.release import Release, as_is, make_release
from abaton.anonymity.risk_metrics import Measured, levels, measure
from abaton.anonymity.settings import AnonymitySettings
from abaton.anonymity.settings_reader import read_settings, settings_from, table_from
from abaton.anonymity.table_encoding import encode
from abaton.anonymity.table_files import recoded_frame
from abaton.errors import Refused, SettingsError


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A table before and after.

    Attributes:
        settings: What the study asks.
        table: The table, counted.
        before: Measures of the table as it is.
        shown: What may be shown of it; ``None`` if nothing may.
        after: Measures of that.
        refusal: Why nothing may be shown.
    """

    settings: AnonymitySettings
    table: Table
    before: Measured
    shown: Release | None = None
    after: Measured | None = None
    refusal: Refused | None = None

    def row(self) -> dict[str, Any]:
        """The examination as plain values: numbers and column names, no cell of the table."""
        shown, after = self.shown, self.after
        return {
            "asked": {
                "k": self.settings.k,
                "suppression_limit": self.settings.suppression_limit,
                "local_floor": self.settings.local_floor,
                "method": self.settings.method,
                "population": self.settings.population,
                "sampling_fraction": self.settings.sampling_fraction,
                "subject": self.settings.subject,
                "rows_are_people": self.settings.rows_are_people,
                "sensitive": [asdict(column) for column in self.settings.sensitive],
            },
            "method": None if shown is None else shown.method,
            "node": None if shown is None or shown.node is None else list(shown.node),
            "loss": None if after is None else after.utility.loss,
            "suppressed": None if after is None else after.suppressed,
            "quasi_identifiers": levels(self.table, shown or as_is(self.table)),
            "before": self.before.row(),
            "after": None if after is None else after.row(),
            "nodes": 0 if shown is None else shown.nodes,
            "evaluated": 0 if shown is None else shown.evaluated,
        }


def examine(
    frame: pl.LazyFrame | pl.DataFrame, settings: AnonymitySettings, *, folder: Path = Path()
) -> Outcome:
    """Measure a table and find what may be shown of it.

    Args:
        frame: The table.
        settings: What the study asks.
        folder: Where hierarchy files lie: beside the study document.

    Returns:
        Both states in numbers; a table of which nothing may be shown comes back with the refusal.

    >>> import polars as pl
    >>> from abaton.anonymity import BinHierarchy, QuasiIdentifier
    >>> ages = pl.DataFrame({"age": [31, 33, 36, 38, 52, 57]})
    >>> quasi = (QuasiIdentifier("age", BinHierarchy((5.0, 10.0))),)
    >>> asked = AnonymitySettings(quasi, k=2, rows_are_people=True)
    >>> made = examine(ages, asked)
    >>> made.before.k, made.after.k, made.shown.node, made.shown.names
    (1, 2, (2,), (('30-39', '50-59'),))
    """
    table = encode(frame, settings, folder=folder)
    before = measure(table, as_is(table), settings)
    try:
        shown = make_release(table, settings)
    except Refused as refusal:
        return Outcome(settings, table, before, refusal=refusal)
    return Outcome(settings, table, before, shown, measure(table, shown, settings))


Back = Callable[[pl.DataFrame], Any]


def taken(table: Any) -> tuple[pl.LazyFrame, Back]:
    """A table as polars knows it, and how to give a table back in the make it came in.

    Args:
        table: A polars frame; a pandas or Arrow table, or anything else with the dataframe interchange; a list of rows
            (a dict each); a dict of columns; or the path of a CSV, TSV, Parquet or NDJSON file. A file, and a make
            that nobody knows here, come back as a polars frame.

    Raises:
        SettingsError: It is none of these, or its rows are not alike.

    >>> frame, back = taken([{"age": 31}, {"age": 34}])
    >>> back(frame.collect())
    [{'age': 31}, {'age': 34}]
    """
    if isinstance(table, pl.LazyFrame):
        return table, pl.DataFrame.lazy
    if isinstance(table, str | PathLike):
        from abaton.anonymity.table_files import scan

        return scan(Path(table)), _same
    try:
        return _frame(table).lazy(), _back(table)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError):
        # The reason is not passed on: it quotes cells.
        raise SettingsError(
            "the table cannot be read",
            where=type(table).__name__,
            remedy="give a polars, pandas or Arrow table, a list of dicts or a dict of lists, all rows alike",
        ) from None


def _frame(table: Any) -> pl.DataFrame:
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


def _back(table: Any) -> Back:
    make = type(table).__module__.partition(".")[0]
    if isinstance(table, Mapping):
        return lambda made: made.to_dict(as_series=False)
    if isinstance(table, Sequence):
        return pl.DataFrame.to_dicts
    if make == "pandas":
        return lambda made: import_module("pandas").DataFrame(made.to_dict(as_series=False))
    if make == "pyarrow":
        return lambda made: import_module("pyarrow").table(made)
    return _same


def _same(made: pl.DataFrame) -> pl.DataFrame:
    return made


@dataclass(frozen=True, slots=True, eq=False)
class Anonymised:
    """A table in which everybody hides, and what it cost.

    Attributes:
        table: The released table, in the make that was given.
        outcome: The table before and after in numbers; ``outcome.row()`` is what the privacy report takes.
    """

    table: Any
    outcome: Outcome

    @property
    def before(self) -> Measured:
        """What the table was like."""
        return self.outcome.before

    @property
    def after(self) -> Measured:
        """What the released table is like."""
        assert self.outcome.after is not None
        return self.outcome.after

    def __repr__(self) -> str:
        return (
            f"Anonymised(k={self.after.k}, people={self.after.people}, left out={self.after.people_left_out})"
        )


def anonymise(
    table: Any,
    quasi_identifiers: Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    subject: str | None = None,
    study: AnonymitySettings | str | PathLike[str] | None = None,
    folder: str | PathLike[str] | None = None,
    **settings: Any,
) -> Anonymised:
    """Make a table anonymous: everybody in it hides among at least k people.

    Args:
        table: A polars, pandas or Arrow table, a list of dicts, a dict of lists, or a file.
        quasi_identifiers: The columns that recognise a person together, each with its hierarchy (or none), as the
            study document writes them; or a list of columns.
        subject: The column that says whose record a row is. Without it, say ``rows_are_people=True``.
        study: Settings to begin with: the path of a study document with ``[privacy.anonymity]``, or the settings.
        folder: Where files of hierarchies lie; beside the study document if not given.
        **settings: Further keys of ``[privacy.anonymity]``: ``k``, ``sensitive``, ``suppression_limit``, ``method``,
            ``keep``, ``missing``, ``population``, ``sampling_fraction``, ``rows_are_people``.

    Returns:
        The released table and its measures.

    Raises:
        SettingsError: A key or a column is not known (the nearest one is named), or it is not said who is who.
        Refused: The anonymity that is asked for cannot be reached.

    >>> stays = [{"patient": who, "age": age, "ill": ill} for who, age, ill in
    ...          [("a", 31, "x"), ("a", 32, "y"), ("b", 36, "x"), ("c", 38, "y"), ("d", 34, "x")]]
    >>> made = anonymise(stays, {"age": {"bins": [5, 10]}}, subject="patient", k=3, keep=["ill"])
    >>> made.table[0], made.before.k, made.after.k
    ({'age': '30-39', 'ill': 'x'}, 1, 4)
    """
    given = {"quasi_identifiers": quasi_identifiers, "subject": subject, **settings}
    wanted = _settings(study, {key: value for key, value in given.items() if value is not None})
    if folder is None:
        folder = Path(study).parent if isinstance(study, str | PathLike) else Path()
    frame, back = taken(table)
    outcome = examine(frame, wanted, folder=Path(folder))
    if outcome.refusal is not None:
        raise outcome.refusal
    assert outcome.shown is not None
    return Anonymised(back(recoded_frame(frame, outcome.table, outcome.shown, wanted).collect()), outcome)


def _settings(
    study: AnonymitySettings | str | PathLike[str] | None, given: dict[str, Any]
) -> AnonymitySettings:
    """The study's settings, if there are any, with what was given in their place."""
    table: dict[str, Any] = {}
    if study is not None:
        table = table_from(study if isinstance(study, AnonymitySettings) else read_settings(Path(study)))
    if "subject" in given or "rows_are_people" in given:
        table = {key: table[key] for key in table if key not in ("subject", "rows_are_people")}
    if "quasi_identifiers" in given:
        given["quasi_identifiers"] = _columns(
            given["quasi_identifiers"], lambda spec: {"hierarchy": spec or {}}
        )
    if "sensitive" in given:
        given["sensitive"] = _columns(given["sensitive"], lambda models: models or {})
    return settings_from({**table, **given}, where="anonymise")


def _columns(given: Any, about: Callable[[Any], Any]) -> Any:
    """Columns by name, or in a list, as the study document lists them."""
    if isinstance(given, Mapping):
        return [{"column": name, **about(each)} for name, each in given.items()]
    if isinstance(given, Sequence) and not isinstance(given, str):
        return [{"column": each} if isinstance(each, str) else each for each in given]
    return given
