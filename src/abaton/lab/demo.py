"""The demonstration: four invented hospitals, their records, consents and refusals, ready for a study to be run.

Everything is made from a seed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from abaton.controller import Arrived, Event, State
from abaton.engines import Profile
from abaton.governance import Registry, members_of, metadata, rounds_with
from abaton.lab.synthetic_hospitals import HOSPITALS, write
from abaton.site import publish, subject_tag
from abaton.store import Database
from abaton.study import Study, load_study, write_toml

NOW = datetime(2026, 11, 16, 8, tzinfo=UTC)
"""When the demonstration begins: its people, consents and simulated seconds count from here."""

REFUSED, EXPIRED = 0.08, 0.03
"""Which part of the people say no, and of which the consent has run out."""

_LEFT_OUT_OF_FEW = 0.15
"""Which part of the people may be left out where there are fewer than usual."""

_SITE = """[site]
id = "{name}"
name = "{title}"

[records]
kind = "ndjson"
paths = ["."]

[consent]
registry = "consents.db"

[keys]
study = "study.key"
tags = "tags.key"

[policy]
fewest_rows = 10   # nobody here is real; a hospital leaves this at 50
"""


@dataclass
class Demonstration:
    """The four hospitals on disk, and somebody who withdraws while they train.

    Attributes:
        study: The study document.
        sites: The sites' documents.
        profiles: How fast each hospital's machine is.
        leaves_at: The hospital where somebody withdraws, and after how many of its updates.
        left: The tag of who withdrew, and when, in simulated seconds.
    """

    study: Study
    sites: tuple[Path, ...]
    profiles: Mapping[str, Profile]
    leaves_at: tuple[str, int] = ("athens", 3)
    left: tuple[str, float] | None = field(default=None, init=False)
    _heard: int = field(default=0, init=False)

    def watch(self, state: State, event: Event) -> None:
        """Let somebody whose records have been used withdraw, once enough updates of the hospital have arrived."""
        site, number = self.leaves_at
        if not isinstance(event, Arrived) or event.learner != site:
            return
        self._heard += 1
        if self._heard == number and self.left is None:
            registry = self._registry(site)
            person = members_of(registry.database, event.cohort)[0]
            registry.withdraw(person, self.study.study.id, NOW + timedelta(seconds=event.at))
            self.left = person, event.at

    def rounds_of_who_left(self, run: str) -> list[int]:
        """The rounds of a run that used the records of who withdrew."""
        if self.left is None:
            return []
        registry = self._registry(self.leaves_at[0])
        found = rounds_with(registry.database, self.study.study.id, self.left[0])
        return [number for name, number in found if name == run]

    def _registry(self, site: str) -> Registry:
        (file,) = (each for each in self.sites if each.parent.name == site)
        return Registry(Database(file.parent / "consents.db", metadata))


def demonstration(folder: Path, seed: int, scale: float = 1.0, rounds: int | None = None) -> Demonstration:
    """Write the four hospitals into a folder of their own, which is emptied first.

    Args:
        folder: Where to.
        seed: Decides everything.
        scale: How many people there are, as a multiple of the usual number.
        rounds: How many rounds the study has, if not as many as its document says.
    """
    shutil.rmtree(folder, ignore_errors=True)
    made = write(folder, seed, scale=scale)
    study = load_study(folder / "study.toml")
    if scale < 1 or rounds is not None:
        (folder / "study.toml").write_text(write_toml(_smaller(study, scale, rounds)), encoding="utf-8")
        study = load_study(folder / "study.toml")
    for i, (name, place) in enumerate(made.items()):
        (place / "site.toml").write_text(_SITE.format(name=name, title=f"Hospital of {name.capitalize()}"))
        for key in ("study.key", "tags.key"):
            (place / key).touch(mode=0o600)
            # Nobody here is real, so even keys may follow from the seed; a real key is drawn and told to nobody.
            (place / key).write_bytes(hashlib.sha256(f"demonstration {seed} {name} {key}".encode()).digest())
        _ask_everybody(place, study, np.random.default_rng([seed, 77, i]))
    return opened(folder)


def _smaller(study: Study, scale: float, rounds: int | None) -> Study:
    """The study for fewer people, of whom more may be left out, or else none of them could hide; and fewer rounds."""
    learning, privacy = study.learning, study.privacy
    if learning is not None and rounds is not None:
        learning = learning.model_copy(update={"rounds": rounds})
    if privacy.anonymity is not None and scale < 1:
        anonymity = replace(privacy.anonymity, suppression_limit=_LEFT_OUT_OF_FEW)
        privacy = privacy.model_copy(update={"anonymity": anonymity})
    return study.model_copy(update={"learning": learning, "privacy": privacy})


def opened(folder: Path) -> Demonstration:
    """The four hospitals that were written into a folder."""
    profiles = {
        name: Profile(speed=100 * hospital.speed, group="fast" if hospital.speed >= 0.5 else "slow")
        for name, hospital in HOSPITALS.items()
    }
    sites = tuple(folder / name / "site.toml" for name in HOSPITALS)
    return Demonstration(load_study(folder / "study.toml"), sites, profiles)


def _ask_everybody(place: Path, study: Study, rng: np.random.Generator) -> None:
    """Publish the study at a hospital and let everybody answer: most say yes, some no, some yeses have run out."""
    registry = Registry(Database(place / "consents.db", metadata, durable=False))
    key, before = (place / "tags.key").read_bytes(), NOW - timedelta(days=60)
    publish(registry, study, before)
    said: dict[str, datetime | None] = {}
    for line in (place / "Patient.ndjson").read_text(encoding="utf-8").splitlines():
        person = subject_tag(key, json.loads(line)["id"])
        answer = rng.random()
        if answer >= REFUSED:
            has_run_out = answer < REFUSED + EXPIRED
            said[person] = NOW + (timedelta(days=-1) if has_run_out else timedelta(days=365))
    registry.enrol(said, study.study.id, study.hash, before)
    registry.database.close()
