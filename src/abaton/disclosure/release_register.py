"""Release register of a site: questions that were answered, and the privacy budget that they cost.

Invariants:
(1) an answer is recorded and charged in one transaction, before it leaves; a crash can charge an answer that was not
    received, and then the same answer is given again;
(2) a question is charged once in an epoch, in any number of threads and processes, and its first answer is repeated;
(3) the register holds digests of questions, answers, costs and times; it holds no Patient id and no pseudonym;
(4) the id of the register is in the site's key file: without the register, or with another one, nothing is released
    until the site confirms the loss, and the budget of that year is then used up.

Costs are exact rational numbers, so 18 tables at 1/18 each use up a budget of 1 and not a rounding error more or less.
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sql

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.disclosure.levels import DisclosureLevel, NoiseSettings
from abaton.errors import RefusedError, StoreError
from abaton.store import Database
from abaton.store.database import insert_new, mark_version

_SECRET_BYTES, _ID_BYTES = 32, 16

metadata = sql.MetaData()
_REGISTER = sql.Table("register", metadata, sql.Column("id", sql.Text, primary_key=True))
_RELEASES = sql.Table(
    "releases",
    metadata,
    sql.Column("question", sql.Text, primary_key=True),
    sql.Column("epoch", sql.Integer, primary_key=True),
    sql.Column("level", sql.Text, primary_key=True),
    sql.Column("kind", sql.Text, nullable=False),
    sql.Column("study", sql.Text, nullable=False),
    sql.Column("year", sql.Integer, nullable=False),
    sql.Column("cost", sql.Text, nullable=False),
    sql.Column("time", sql.Text, nullable=False),
    sql.Column("answer", sql.JSON, nullable=False),
)
_LOSSES = sql.Table(
    "losses",
    metadata,
    sql.Column("year", sql.Integer, primary_key=True),
    sql.Column("time", sql.Text, nullable=False),
)
_VALUES = sql.Table(
    "first_values",
    metadata,
    sql.Column("key", sql.Text, primary_key=True),
    sql.Column("name", sql.Text, primary_key=True),
    sql.Column("value", sql.Text, nullable=False),
)
mark_version(metadata, "release register", 1, "use the Abaton version that wrote it")


@dataclass(frozen=True, slots=True)
class RecordedRelease:
    """One entry of a release register.

    Attributes:
        question: Digest of the question.
        kind: Kind of the question, such as `attrition`.
        study: Id of the study.
        level: Disclosure level of the answer.
        epoch: Number of the epoch in which the answer is repeated.
        time: Time of the first answer.
        cost: What the answer used of the privacy budget.
    """

    question: str
    kind: str
    study: str
    level: DisclosureLevel
    epoch: int
    time: datetime
    cost: Fraction


class ReleaseRegister:
    """Release register of one site, shared by the site's processes.

    Args:
        path: SQLite file; created together with the key file, and never without it.
        key_path: Key file of the site: the secret of the noise, and the id of the register.

    Attributes:
        secret: Secret of the site from which noise is derived.

    Raises:
        RefusedError: The register or the key file is missing, or they do not belong together.
    """

    def __init__(self, path: Path, key_path: Path) -> None:
        self.path, self.key_path = path, key_path
        with _locked(path):
            self._database, self.secret = self._open()

    def _open(self) -> tuple[Database, bytes]:
        is_recorded, has_key = self.path.exists(), self.key_path.exists()
        if has_key and not is_recorded:
            raise _lost("the release register is missing", self.path)
        database = Database(self.path, metadata)
        if not has_key:
            if database.read(lambda connection: connection.execute(sql.select(_RELEASES)).first()):
                raise _lost("the key file of the release register is missing", self.key_path)
            return database, _write_key(self.key_path, secrets.token_bytes(_SECRET_BYTES), _new_id(database))
        secret, identifier = _read_key(self.key_path)
        if _stored_id(database) != identifier:
            raise _lost("the release register is not the one of this site", self.path)
        return database, secret

    def answer_once(
        self,
        release: RecordedRelease,
        settings: NoiseSettings,
        make_answer: Callable[[], dict[str, Any]],
    ) -> dict[str, Any]:
        """Return the recorded answer of the epoch; if there is none, charge the budget and record a new one.

        Args:
            release: Question, study, epoch and cost.
            settings: Budgets of the site.
            make_answer: Returns the answer as JSON values; called only if the budget suffices.

        Raises:
            RefusedError: The privacy budget is used up.
        """

        def work(connection: sql.Connection) -> dict[str, Any]:
            answer = connection.scalar(sql.select(_RELEASES.c.answer).where(*_same_key(release)))
            if answer is None:
                _check_budget(connection, release, settings)
                answer = make_answer()
                connection.execute(_RELEASES.insert().values(_to_row(release, answer)))
            return dict(answer)

        return self._database.write(work, lock="releases")

    def replace_answer(self, release: RecordedRelease, answer: dict[str, Any]) -> None:
        """Record an answer without noise in the release register, in place of an earlier one of the epoch."""

        def work(connection: sql.Connection) -> None:
            connection.execute(_RELEASES.delete().where(*_same_key(release)))
            connection.execute(_RELEASES.insert().values(_to_row(release, answer)))

        self._database.write(work, lock="releases")

    def first_value(self, key: str, name: str, value: str) -> str:
        """Return the first value of a name in the release register, which is this one if there was none.

        For what a study may choose once: the seed of its split, and the signing key of another site.
        """

        def work(connection: sql.Connection) -> str:
            insert_new(connection, _VALUES, [{"key": key, "name": name, "value": value}])
            stored = sql.select(_VALUES.c.value).where(_VALUES.c.key == key, _VALUES.c.name == name)
            return str(connection.scalar(stored))

        return self._database.write(work, lock="values")

    def count_once(self, key: str, name: str, limit: int) -> bool:
        """Count a name once in the release register, even if repeated; return whether it is within the limit."""

        def work(connection: sql.Connection) -> bool:
            names = connection.scalars(sql.select(_VALUES.c.name).where(_VALUES.c.key == key)).all()
            if name not in names and len(names) < limit:
                connection.execute(_VALUES.insert().values(key=key, name=name, value=""))
                return True
            return name in names

        return self._database.write(work, lock="values")

    def is_answered(self, question: str, epoch: int, level: DisclosureLevel) -> bool:
        """Return whether the release register has an answer to a question in an epoch."""
        row = sql.select(_RELEASES.c.question).where(
            _RELEASES.c.question == question, _RELEASES.c.epoch == epoch, _RELEASES.c.level == level.value
        )
        return self._database.read(lambda connection: connection.execute(row).first()) is not None

    def remaining(self, study: str, year: int, settings: NoiseSettings) -> Fraction:
        """Return what remains of the privacy budget for a study in a year, by the release register."""
        return self._database.read(lambda connection: min(_remaining(connection, study, year, settings)))

    def remaining_in_year(self, year: int, settings: NoiseSettings) -> Fraction:
        """Return what remains of the site's yearly privacy budget, by the release register."""
        return self._database.read(lambda connection: _remaining(connection, "", year, settings)[1])

    def releases(self) -> list[RecordedRelease]:
        """Return the entries of the release register in the order of their times."""
        rows = self._database.read(
            lambda connection: connection.execute(sql.select(_RELEASES).order_by(_RELEASES.c.time)).all()
        )
        return [
            RecordedRelease(
                row.question,
                row.kind,
                row.study,
                DisclosureLevel(row.level),
                row.epoch,
                datetime.fromisoformat(row.time),
                Fraction(row.cost),
            )
            for row in rows
        ]

    def loss_years(self) -> list[int]:
        """Return the years in which the loss of a release register was confirmed."""
        years = sql.select(_LOSSES.c.year).order_by(_LOSSES.c.year)
        return list(self._database.read(lambda connection: connection.scalars(years).all()))

    @classmethod
    def confirm_loss(cls, path: Path, key_path: Path, now: datetime) -> Self:
        """Start again after the loss of a release register or its key file; the year's budget counts as used up.

        The secret is kept if it exists, so that a repeated question has the same noise.

        Raises:
            RefusedError: Nothing is lost.
        """
        with _locked(path):
            has_both, has_neither = (
                path.exists() and key_path.exists(),
                not (path.exists() or key_path.exists()),
            )
            secret, identifier = (
                _read_key(key_path) if key_path.exists() else (secrets.token_bytes(_SECRET_BYTES), "")
            )
            with Database(path, metadata) as database:
                if has_neither or (has_both and _stored_id(database) == identifier):
                    raise RefusedError(
                        "the release register is not lost",
                        where=str(path),
                        remedy="use 'abaton site releases' without --confirm-loss",
                    )
                database.write(lambda connection: _record_loss(connection, now), lock="releases")
                _write_key(key_path, secret, _stored_id(database) or _new_id(database))
        return cls(path, key_path)

    def close(self) -> None:
        """Close the file of the release register."""
        self._database.close()


def _same_key(release: RecordedRelease) -> tuple[sql.ColumnElement[bool], ...]:
    return (
        _RELEASES.c.question == release.question,
        _RELEASES.c.epoch == release.epoch,
        _RELEASES.c.level == release.level.value,
    )


def _to_row(release: RecordedRelease, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "question": release.question,
        "epoch": release.epoch,
        "level": release.level.value,
        "kind": release.kind,
        "study": release.study,
        "year": release.time.year,
        "cost": str(release.cost),
        "time": release.time.isoformat(timespec="seconds"),
        "answer": answer,
    }


def _check_budget(connection: sql.Connection, release: RecordedRelease, settings: NoiseSettings) -> None:
    of_study, of_year = _remaining(connection, release.study, release.time.year, settings)
    if release.cost > of_study:
        raise RefusedError(
            "the privacy budget of the study is used up at this site",
            where="policy.study_budget",
            remedy="see 'abaton site releases'",
        )
    if release.cost > of_year:
        raise RefusedError(
            f"the site's privacy budget of {release.time.year} is used up",
            where="policy.yearly_budget",
            remedy="see 'abaton site releases'",
        )


def _remaining(
    connection: sql.Connection, study: str, year: int, settings: NoiseSettings
) -> tuple[Fraction, Fraction]:
    """Return what remains of a study's budget and of the year's budget; never below 0."""
    of_study = _sum_costs(connection, _RELEASES.c.study == study)
    of_year = _sum_costs(connection, _RELEASES.c.year == year)
    is_lost = connection.scalar(sql.select(_LOSSES.c.year).where(_LOSSES.c.year == year)) is not None
    # A budget is a decimal number of the configuration, so 0.1 means one tenth.
    study_budget, yearly_budget = Fraction(str(settings.study_budget)), Fraction(str(settings.yearly_budget))
    return (
        max(Fraction(0), study_budget - of_study),
        Fraction(0) if is_lost else max(Fraction(0), yearly_budget - of_year),
    )


def _sum_costs(connection: sql.Connection, condition: sql.ColumnElement[bool]) -> Fraction:
    """Return the exact sum of the costs of releases; there are few different costs."""
    counts = sql.select(_RELEASES.c.cost, sql.func.count()).where(condition).group_by(_RELEASES.c.cost)
    return sum((Fraction(cost) * n for cost, n in connection.execute(counts)), Fraction(0))


def _record_loss(connection: sql.Connection, now: datetime) -> None:
    connection.execute(_LOSSES.delete().where(_LOSSES.c.year == now.year))
    connection.execute(_LOSSES.insert().values(year=now.year, time=now.isoformat(timespec="seconds")))


def _stored_id(database: Database) -> str:
    """Return the id of a release register; empty if the file has none."""
    return str(database.read(lambda connection: connection.scalar(sql.select(_REGISTER.c.id))) or "")


def _new_id(database: Database) -> str:
    """Give a release register a new id and return it."""
    identifier = secrets.token_hex(_ID_BYTES)

    def work(connection: sql.Connection) -> None:
        connection.execute(_REGISTER.delete())
        connection.execute(_REGISTER.insert().values(id=identifier))

    database.write(work, lock="releases")
    return identifier


def _write_key(path: Path, secret: bytes, identifier: str) -> bytes:
    with map_os_errors(path.parent), atomic_write(path, mode=0o600) as temporary_path:
        temporary_path.write_text(f"{secret.hex()}\n{identifier}\n")
    return secret


def _read_key(path: Path) -> tuple[bytes, str]:
    """Return the secret and the register's id from the key file of a release register."""
    with map_os_errors(path):
        if path.stat().st_mode & 0o077:
            raise StoreError(
                "other users can read the key", where=str(path), remedy=f"run 'chmod 600 {path.name}'"
            )
        text = path.read_text()
    try:
        secret, identifier = text.split()
        key = bytes.fromhex(secret)
    except ValueError:
        key, identifier = b"", ""
    if len(key) != _SECRET_BYTES or len(identifier) != 2 * _ID_BYTES:
        raise StoreError(
            "the key file of the release register is not readable",
            where=str(path),
            remedy="restore it from a backup",
        )
    return key, identifier


def _lost(what: str, path: Path) -> RefusedError:
    return RefusedError(
        what,
        where=str(path),
        remedy="restore it from a backup; or run 'abaton site releases --confirm-loss': the privacy budget of this "
        "year then counts as used up",
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the creation of a release register, which has two files."""
    with map_os_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f"{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
