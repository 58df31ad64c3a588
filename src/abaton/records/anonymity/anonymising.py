"""One call from a table to an anonymous table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from abaton.anonymity.settings_reader import read_settings, settings_from, table_from
from abaton.anonymity.table_files import recoded_frame
from abaton.anonymity.risk_metrics import Measured
from abaton.records.anonymity.outcome import Outcome, examine
from abaton.anonymity.settings import AnonymitySettings
from abaton.records.frames import taken


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
