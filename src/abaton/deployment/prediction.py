"""Ask a run's model about new people, or say why it should not be asked."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.deployment.applicability import Misfit, misfits, unusual
from abaton.deployment.new_patients import GROUND, read_newcomers
from abaton.errors import Refused, SettingsError
from abaton.features import Table
from abaton.federation import COMMUNITY, Run
from abaton.federation.federation import states_of
from abaton.study import study_from_toml
from abaton.study_run.local_benefit import kept_own, own_path

Floats = NDArray[np.float64]


class Unfit(Refused):
    """People whom a model should not be asked about.

    Args:
        misfits: Every reason.
        source: Where the records are.
        hopeless: Whether it cannot be asked about anybody.
    """

    def __init__(self, misfits: Sequence[Misfit], source: str, *, hopeless: bool) -> None:
        self.misfits = tuple(misfits)
        words = "; ".join(map(str, misfits)) or "there is nobody whom the model could be asked about"
        remedy = "correct the records" if hopeless else "correct the records, or ask in spite of it: --anyway"
        super().__init__(words, where=source, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Person:
    """What the model says of one person.

    Attributes:
        id: The Patient's id in the records.
        said: The chance of every class, or the value, as the model says it.
        calibrated: The same, corrected by how the model did on the run's test subjects; of values the same.
        filled: Inputs that are missing, for which the mean of all stands.
        unusual: Columns whose value is far outside of what the model has learned from.
    """

    id: str
    said: tuple[float, ...]
    calibrated: tuple[float, ...]
    filled: tuple[str, ...]
    unusual: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model says of new people.

    Attributes:
        about: Which model of which run.
        names: The classes, or the name of the value.
        people: Each person, by their id.
        misfits: What does not fit.
    """

    about: dict[str, Any]
    names: tuple[str, ...]
    people: Sequence[Person]
    misfits: Sequence[Misfit]

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            **self.about,
            "people": [
                {
                    "person": each.id,
                    "said": dict(zip(self.names, each.said, strict=True)),
                    "calibrated": dict(zip(self.names, each.calibrated, strict=True)),
                    "filled": list(each.filled),
                    "unusual": list(each.unusual),
                }
                for each in self.people
            ],
            "misfits": [{"about": m.about, "what": m.what, "refuses": m.refuses} for m in self.misfits],
        }

    def csv(self) -> str:
        """A table with one line for each person."""
        out = io.StringIO()
        made = csv.writer(out, lineterminator="\n")
        said, calibrated = ([f"{kind} {name}" for name in self.names] for kind in ("said", "calibrated"))
        made.writerow(["person", *said, *calibrated, "filled", "unusual"])
        for each in self.people:
            numbers = [f"{value:.6g}" for value in (*each.said, *each.calibrated)]
            made.writerow([_plain(each.id), *numbers, "; ".join(each.filled), "; ".join(each.unusual)])
        return out.getvalue()


def predict(
    run: Run,
    source: Path,
    now: datetime,
    key: bytes,
    *,
    site: str = "",
    way: str = "interpolate",
    anyway: bool = False,
    ground: str = GROUND,
    step: Callable[[str], None] = lambda words: None,
) -> Predictions:
    """Ask a run's model about new people, whose records go the study's own way.

    Args:
        run: The run.
        source: A Bundle, NDJSON, a folder of them, or a `site.toml`.
        now: The moment for which ages are counted.
        key: What pseudonyms are made with; forgotten afterwards.
        site: Whose own model is asked; without it, the community model.
        way: How the site has made it.
        anyway: Whether to ask it in spite of what does not fit.
        ground: Why their records may be read.
        step: Told of progress, in words without content.

    Raises:
        Unfit: The people do not fit the model, with every reason.
        SettingsError: The run has no such model.
    """
    use, recipe = run.row.recipe["use"], run.row.recipe
    if "known" not in use:
        raise SettingsError(
            f"run '{run.name}' is no study's, or an older version's",
            where="predict",
            remedy="choose a run of 'abaton run' of this version, or use run.predict in Python",
        )
    study = study_from_toml(recipe["settings"]["study"])
    people = read_newcomers(
        study, source, now, key, notes=run.store.folder / "predictions", ground=ground, step=step
    )
    found = misfits(people, use)
    bad = [each for each in found if each.refuses]
    if people.table is None or (bad and not anyway):
        raise Unfit(bad, str(source), hopeless=people.table is None)
    step("asking the model")
    said, calibrated = _said(run, people.table, site, way)
    names = tuple(use["classes"]) or (study.plan().label.name,)
    far = unusual(people.table.x, people.table.columns, use)
    made = [
        Person(
            people.people[subject],
            tuple(said[i]),
            tuple(calibrated[i]),
            _filled(people.table, i),
            tuple(far[i]),
        )
        for i, subject in enumerate(people.table.subjects)
    ]
    versions = run.versions
    about = {
        "run": run.name,
        "study": recipe["study"]["id"],
        "model": f"{way} at {site}" if site else COMMUNITY,
        "version": versions[-1].version,
        "digest": versions[-1].digest,
    }
    return Predictions(about, names, sorted(made, key=lambda each: each.id), found)


def _said(run: Run, table: Table, site: str, way: str) -> tuple[Floats, Floats]:
    """What the model says of every row, and the same calibrated."""
    if site:
        return _own(run, table, site, way)
    told = np.asarray(run.predict(table.x), np.float64)
    if told.ndim == 1:
        return told[:, None], told[:, None]
    line = run.result.get("evaluation", {}).get("recalibration", {}).get(COMMUNITY)
    if line is None or told.shape[1] != 2:
        return told, told
    safe = np.clip(told[:, 1], 1e-6, 1 - 1e-6)
    right = 1 / (1 + np.exp(-(line[0] + line[1] * np.log(safe / (1 - safe)))))
    return told, np.stack([1 - right, right], axis=1)


def _own(run: Run, table: Table, site: str, way: str) -> tuple[Floats, Floats]:
    """What a site's own model says; it was fitted to the site's people, so it needs no other calibration."""
    use = run.row.recipe["use"]
    mine = kept_own(own_path(states_of(run.store, run.name), site), way)
    classes = bool(use["classes"])
    said = mine.predict(run.trained, run.scaled(table.x), classes=classes)
    if classes:
        both = np.stack([1 - said, said], axis=1)
        return both, both
    values = (said * use["label"][1] + use["label"][0])[:, None]
    return values, values


def _filled(table: Table, row: int) -> tuple[str, ...]:
    gaps = (
        column.input for i, column in enumerate(table.columns) if column.pooled and np.isnan(table.x[row, i])
    )
    return tuple(dict.fromkeys(gaps))


def _plain(person: str) -> str:
    """An id that no spreadsheet takes for a formula."""
    return f"'{person}" if person[:1] in "=+-@\t\r" else person
