"""One call from a table to an anonymous table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from abaton.errors import SettingsError
from abaton.records.anonymity.document import read_settings, settings_from, table_from
from abaton.records.anonymity.files import recoded_frame
from abaton.records.anonymity.measures import Measured
from abaton.records.anonymity.outcome import Outcome, examine
from abaton.records.anonymity.settings import AnonymitySettings
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
    asked: AnonymitySettings | Mapping[str, Any] | Sequence[Any] | str | PathLike[str],
    *,
    subject: str | None = None,
    folder: str | PathLike[str] | None = None,
    **settings: Any,
) -> Anonymised:
    """Make a table anonymous: everybody in it hides among at least k people.

    Args:
        table: A polars, pandas or Arrow table, a list of dicts, a dict of lists, or a file.
        asked: The quasi-identifiers, each with its hierarchy (or none), as the study document writes them; or whole
            settings; or the path of a study document with ``[privacy.anonymity]``.
        subject: The column that says whose record a row is. Without it, say ``rows_are_people=True``.
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
    wanted = _settings(asked, {**settings, **({} if subject is None else {"subject": subject})})
    if folder is None:
        folder = Path(asked).parent if isinstance(asked, str | PathLike) else Path()
    frame, back = taken(table)
    outcome = examine(frame, wanted, folder=Path(folder))
    if outcome.refusal is not None:
        raise outcome.refusal
    assert outcome.shown is not None
    return Anonymised(back(recoded_frame(frame, outcome.table, outcome.shown, wanted).collect()), outcome)


def _settings(asked: Any, more: dict[str, Any]) -> AnonymitySettings:
    if isinstance(asked, str | PathLike):
        asked = read_settings(Path(asked))
    if isinstance(more.get("sensitive"), Mapping):
        more["sensitive"] = [{"column": name, **(models or {})} for name, models in more["sensitive"].items()]
    elif "sensitive" in more:
        more["sensitive"] = [_column(each) for each in more["sensitive"]]
    if isinstance(asked, AnonymitySettings):
        table = table_from(asked)
        if "subject" in more or "rows_are_people" in more:
            table = {key: table[key] for key in table if key not in ("subject", "rows_are_people")}
        return settings_from({**table, **more}, where="anonymise")
    if isinstance(asked, Mapping):
        quasi = [{"column": name, "hierarchy": spec or {}} for name, spec in asked.items()]
    elif isinstance(asked, Sequence):
        quasi = [_column(each) for each in asked]
    else:
        raise SettingsError(
            "it is not said what recognises a person", where="anonymise", remedy="name columns"
        )
    return settings_from({"quasi_identifiers": quasi, **more}, where="anonymise")


def _column(each: Any) -> Any:
    return {"column": each} if isinstance(each, str) else each
