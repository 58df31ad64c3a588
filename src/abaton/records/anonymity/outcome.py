"""One table examined: what it is like, what it would become, and both in numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abaton.errors import Refused
from abaton.anonymity.table_encoding import encode
from abaton.anonymity.risk_metrics import Measured, levels, measure
from abaton.anonymity.release import Release, as_is, make_release
from abaton.anonymity.settings import AnonymitySettings
from abaton.records.anonymity.tables import Table

if TYPE_CHECKING:
    import polars as pl


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
