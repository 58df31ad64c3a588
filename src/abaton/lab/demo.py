"""Demonstration: synthetic hospitals with records, consents and refusals for a study, generated from a seed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from abaton.controller import ControllerState, Event, UpdateReceived
from abaton.engines import MachineProfile
from abaton.governance import ConsentRegistry, metadata, rounds_with, snapshot_members
from abaton.lab.synthetic_hospitals import SIX_HOSPITALS, Cohort, write
from abaton.site import publish, subject_pseudonym
from abaton.store import Database
from abaton.study import Study, load_study, write_toml

NOW = datetime(2026, 11, 16, 8, tzinfo=UTC)
"""Start of the demonstration: consents and simulated seconds are relative to it."""

REFUSED, EXPIRED = 0.08, 0.03
"""Fractions of patients with a refusal, and with an expired consent."""

_SMALL_SUPPRESSION_LIMIT = 0.15
"""Suppression limit of the small demonstration."""

_SITE = """[site]
id = "{name}"
name = "{title}"

[records]
source = "ndjson"
paths = ["."]

[consent]
registry = "consents.db"

[keys]
study = "study.key"
registry = "registry.key"

[policy]
min_rows = 10   # the records are synthetic; a hospital uses 50
"""


@dataclass
class Demonstration:
    """Synthetic hospitals on disk, with a subject that withdraws during training.

    Attributes:
        study: The study document.
        sites: Paths of the site documents.
        profiles: Machine profile of each hospital.
        withdraws_at: The hospital of the withdrawal, and after how many of its updates.
        withdrawn: Registry pseudonym of the subject and time of the withdrawal, in simulated seconds.
    """

    study: Study
    sites: tuple[Path, ...]
    profiles: Mapping[str, MachineProfile]
    withdraws_at: tuple[str, int] = ("athens", 3)
    withdrawn: tuple[str, float] | None = field(default=None, init=False)
    _updates_received: int = field(default=0, init=False)

    def watch(self, state: ControllerState, event: Event) -> None:
        """Withdraw the consent of one subject of the demonstration, after enough updates of its hospital."""
        site, number = self.withdraws_at
        if not isinstance(event, UpdateReceived) or event.learner != site:
            return
        self._updates_received += 1
        if self._updates_received == number and self.withdrawn is None:
            registry = self._registry(site)
            pseudonym = snapshot_members(registry.database, event.cohort)[0]
            registry.withdraw(pseudonym, self.study.study.id, NOW + timedelta(seconds=event.timestamp))
            self.withdrawn = pseudonym, event.timestamp

    def rounds_of_withdrawn_subject(self, run: str) -> list[int]:
        """Return the rounds of the demonstration that used the records of the withdrawn subject."""
        if self.withdrawn is None:
            return []
        registry = self._registry(self.withdraws_at[0])
        rounds = rounds_with(registry.database, self.study.study.id, self.withdrawn[0])
        return [number for name, number in rounds if name == run]

    def _registry(self, site: str) -> ConsentRegistry:
        (file,) = (path for path in self.sites if path.parent.name == site)
        return ConsentRegistry(Database(file.parent / "consents.db", metadata))


def make_demo(
    folder: Path,
    seed: int,
    scale: float = 1.0,
    rounds: int | None = None,
    *,
    cohort: Cohort = SIX_HOSPITALS,
) -> Demonstration:
    """Write the hospitals of the demonstration into a folder, which is emptied first.

    Args:
        folder: Target folder.
        seed: Seed of records, keys and consents.
        scale: Number of patients, as a multiple of the default.
        rounds: Number of rounds; that of the study document if None.
        cohort: The synthetic hospitals.
    """
    shutil.rmtree(folder, ignore_errors=True)
    site_folders = write(folder, seed, scale=scale, cohort=cohort)
    study = load_study(folder / "study.toml")
    if scale < 1 or rounds is not None:
        (folder / "study.toml").write_text(
            write_toml(_downscale_study(study, scale, rounds)), encoding="utf-8"
        )
        study = load_study(folder / "study.toml")
    for i, (name, site_folder) in enumerate(site_folders.items()):
        (site_folder / "site.toml").write_text(
            _SITE.format(name=name, title=f"Hospital of {name.capitalize()}")
        )
        for key, label in (
            ("study.key", "study.key"),
            ("registry.key", "tags.key"),
        ):  # frozen: part of the bytes
            (site_folder / key).touch(mode=0o600)
            # The records are synthetic, so keys may follow from the seed; real keys are random and secret.
            (site_folder / key).write_bytes(
                hashlib.sha256(f"demonstration {seed} {name} {label}".encode()).digest()
            )
        _record_consents(site_folder, study, np.random.default_rng([seed, 77, i]))
    return open_demo(folder, cohort=cohort)


def _downscale_study(study: Study, scale: float, rounds: int | None) -> Study:
    """Return the demonstration's study with a suppression limit for fewer subjects, and with other rounds."""
    learning, privacy = study.learning, study.privacy
    if learning is not None and rounds is not None:
        learning = learning.model_copy(update={"rounds": rounds})
    if privacy.anonymity is not None and scale < 1:
        anonymity = replace(privacy.anonymity, suppression_limit=_SMALL_SUPPRESSION_LIMIT)
        privacy = privacy.model_copy(update={"anonymity": anonymity})
    return study.model_copy(update={"learning": learning, "privacy": privacy})


def open_demo(folder: Path, *, cohort: Cohort = SIX_HOSPITALS) -> Demonstration:
    """Return the demonstration of a folder: its study and the hospitals of a cohort."""
    profiles = {
        name: MachineProfile(speed=100 * hospital.speed, group="fast" if hospital.speed >= 0.5 else "slow")
        for name, hospital in cohort.hospitals.items()
    }
    sites = tuple(folder / name / "site.toml" for name in profiles)
    return Demonstration(load_study(folder / "study.toml"), sites, profiles)


def _record_consents(site_folder: Path, study: Study, rng: np.random.Generator) -> None:
    """Publish the demonstration's study at a hospital and record consents, refusals and expired consents."""
    registry = ConsentRegistry(Database(site_folder / "consents.db", metadata, durable=False))
    key, before = (site_folder / "registry.key").read_bytes(), NOW - timedelta(days=60)
    publish(registry, study, before)
    expiry_times: dict[str, datetime | None] = {}
    for line in (site_folder / "Patient.ndjson").read_text(encoding="utf-8").splitlines():
        pseudonym = subject_pseudonym(key, json.loads(line)["id"])
        draw = rng.random()
        if draw >= REFUSED:
            is_expired = draw < REFUSED + EXPIRED
            expiry_times[pseudonym] = NOW + (timedelta(days=-1) if is_expired else timedelta(days=365))
    registry.enrol(expiry_times, study.study.id, study.hash, before)
    registry.database.close()
