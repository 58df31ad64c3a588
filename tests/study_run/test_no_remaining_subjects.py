"""A subject takes part, withdraws, consents again and withdraws again: then only the pseudonym remains in any file.

The study uses records and updates at four hospitals and a research centre, with runs on two engines, one of them
interrupted, and the files of a site's node. The hospital's own records are excluded; all other files that Abaton wrote
are searched byte by byte, including SQLite's free pages and logs.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sql
from tests.governance.intake.conftest import served

from abaton.controller import UpdateReceived
from abaton.governance import (
    CascadeStep,
    ConsentRegistry,
    DenialReason,
    Inbox,
    KeySet,
    SenderRegistry,
    SenderRole,
    Vault,
    metadata,
    vault_pseudonym,
)
from abaton.governance.consent import ConsentQuery
from abaton.governance.intake import IntakeService
from abaton.governance.key_files import write_public
from abaton.governance.timestamps import to_timestamp
from abaton.records.export import pseudonyms_for
from abaton.site import load_site, open_centre_session, publish, subject_pseudonym
from abaton.store import Database, Store
from abaton.study import SharedData, Study, load_study, write_toml
from abaton.study_run import StudyOptions, run_study
from abaton.study_run.ingest import ingest_sites
from abaton.study_run.preparation import prepare_sites
from abaton.study_run.preparation_state import PreparationState
from abaton.study_run.site_run_state import PendingTable, SiteRunFolder, StoredPreparation, delete_subject

pytestmark = [pytest.mark.slow, pytest.mark.network]

SITE = """
[centre]
url = "{url}"
public_keys = "centre.pub"
[vault]
rows_database = "vault.db"
keys_database = "row-keys.db"
data_controller_key = "controller.pub"
"""
OPTIONS = StudyOptions(seed=5, bootstrap_resamples=0)


class PowerCut(BaseException):
    """Simulated end of the process."""


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class World:
    """Athens with its registry, vault, outbox and node, three other hospitals, a research centre, and a store."""

    folder: Path
    study: Study
    sites: tuple[Path, ...]
    key_sets: dict[str, KeySet]
    url: str = ""

    @property
    def athens(self) -> Path:
        return self.folder / "hospitals" / "athens"

    @contextmanager
    def centre(self) -> Iterator[Inbox]:
        with Database(self.folder / "centre" / "centre.db", metadata) as database:
            key_set = self.key_sets["centre"]
            inbox = Inbox(self.folder / "centre" / "inbox", database, key_set.public, key_set.signing_key)
            with served(IntakeService(inbox)) as self.url:
                text = (self.athens / "site.toml").read_text().partition("\n[centre]")[0]
                (self.athens / "site.toml").write_text(text + SITE.format(url=self.url))
                yield inbox

    @contextmanager
    def centre_session(self):
        file = load_site(self.athens / "site.toml")

        def delete(is_deleted) -> None:
            delete_subject(self.athens / "join" / "runs", file, is_deleted)

        with open_centre_session(file, lambda: self.key_sets["site"], now, delete) as session:
            yield session

    def find_bytes(self, canaries: dict[str, bytes]) -> dict[str, list[str]]:
        """Return the files in which each byte string occurs, in any encoding."""
        matches: dict[str, list[str]] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.suffix != ".ndjson":
                content = path.read_bytes()
                for name, secret in canaries.items():
                    forms = (secret, secret.hex().encode(), base64.b64encode(secret))
                    if any(form in content for form in forms):
                        matches.setdefault(name, []).append(str(path.relative_to(self.folder)))
        return matches


@pytest.fixture
def world(four, tmp_path) -> World:
    file = tmp_path / "hospitals" / "study.toml"
    header = four.study.study.model_copy(update={"shared_data": (SharedData.RECORDS, SharedData.UPDATES)})
    text = write_toml(four.study.model_copy(update={"study": header}))
    file.write_text(text.replace("rounds = 16", 'rounds = 3\nstrategy = "SyncDVW"'))
    study = load_study(file)
    key_sets = {
        name: KeySet.new(name, os.urandom, to_timestamp(now())) for name in ("site", "centre", "controller")
    }
    world = World(tmp_path, study, four.sites, key_sets)
    for name in ("centre", "controller"):
        write_public(world.athens / f"{name}.pub", key_sets[name].public)
    (tmp_path / "centre").mkdir()
    with Database(tmp_path / "centre" / "centre.db", metadata) as centre_database:
        SenderRegistry(centre_database).register(key_sets["site"].public, SenderRole.SITE, now())
        publish(ConsentRegistry(centre_database), study, now())
    for site in four.sites:  # all patients consent to this document
        with Database(site.parent / "consents.db", metadata) as site_database:
            registry, key = ConsentRegistry(site_database), (site.parent / "registry.key").read_bytes()
            publish(registry, study, now())
            ids = [line.partition('"id":"')[2].partition('"')[0] for line in _patients(site.parent)]
            registry.enrol(
                {subject_pseudonym(key, patient): None for patient in ids}, study.study.id, study.hash, now()
            )
    return world


def _patients(folder: Path) -> list[str]:
    return (folder / "Patient.ndjson").read_text(encoding="utf-8").splitlines()


def test_after_two_withdrawals_only_the_pseudonym_remains(world):
    study, store = world.study, Store(world.folder / "store")
    with world.centre() as inbox:
        canaries, pseudonym, patient = take_part(world, store)
        expected = {"patient's id", "pseudonym", "vault row's pseudonym", "envelope", "row", "scaled row"}
        assert expected <= set(world.find_bytes(canaries)), "they occur everywhere before the withdrawal"

        for turn in range(2):
            with world.centre_session() as session:
                case = session.withdraw(study, patient)
                assert case.step is CascadeStep.DONE
                assert case.evidence["receipt"]["body"]["records"] == 1
                assert (
                    inbox.registry.decision(ConsentQuery(pseudonym, study.study.id, study.hash), now())
                    is DenialReason.WITHDRAWN
                )
                matches = world.find_bytes(canaries)
                assert matches.pop("row's digest") == [
                    "store/states/cut/prepared.json"
                ]  # until that run ends
                assert matches == {}
                if turn == 0:  # the subject consents again
                    session.enrol(study, [patient])
                    assert session.send(study).sent == 1
                    assert {"pseudonym", "vault row's pseudonym"} <= set(world.find_bytes(canaries))

        # The interrupted run is resumed without the subject, and a new run does not contain it.
        for name, engine in (("cut", "local"), ("after", "virtual")):
            run = run_study(study, world.sites, store, OPTIONS, name=name, engine=engine)
            assert run.status == "finished"
        assert world.find_bytes(canaries) == {}
        files = world.find_bytes({"tag": pseudonym.encode()})["tag"]
        assert {file.partition("-wal")[0] for file in files} == {
            "centre/centre.db", "hospitals/athens/consents.db", "hospitals/athens/athens.releases",
        }  # fmt: skip
        # All other subjects are unchanged.
        with world.centre_session() as session:
            report = session.send(study)
            assert (report.sent, report.queued, report.refused) == (0, 0, {})
            assert report.unchanged == len(inbox.received(study.study.id)) > 20
    store.close()


def take_part(world: World, store: Store):
    """Send records, run on two engines, store a prepared site; return the byte strings to search for."""
    study = world.study
    with world.centre_session() as session:
        assert session.send(study).refused == {}
    updates = []

    def cutting(_state, event) -> None:
        updates.extend([event] if isinstance(event, UpdateReceived) else [])
        if len(updates) == 6:
            raise PowerCut

    run_study(study, world.sites, store, OPTIONS, name="whole", engine="virtual")
    with pytest.raises(PowerCut):
        run_study(study, world.sites, store, OPTIONS, name="cut", engine="local", watch=cutting)

    ingests = [
        replace(item, key=b"k" * 32)
        for item in ingest_sites(study, [load_site(s) for s in world.sites], now())
    ]
    prepared_sites = prepare_sites(study, ingests, OPTIONS.seed)
    (ingest,) = [item for item in ingests if item.name == "athens"]
    (site,) = [item for item in prepared_sites.sites if item.name == "athens"]
    runs, label = world.athens / "join" / "runs", prepared_sites.label
    SiteRunFolder(runs / "waits").store_table(PendingTable(ingest.table, ingest.patient_ids))
    SiteRunFolder(runs / "trains").store_preparation(
        StoredPreparation(site, prepared_sites.classes, label, 5, b"s" * 32, "")
    )

    ids = "\n".join(ingest.patient_ids.values())  # a test subject whose id is not part of another id
    test_index, subject = next(
        (i, s) for i, s in enumerate(site.test.subjects) if ids.count(ingest.patient_ids[s]) == 1
    )
    patient, pseudonym = ingest.patient_ids[subject], ingest.pseudonym_for_subject(subject)
    pseudonyms = pseudonyms_for(
        study.data_request(now().date()), (world.athens / "study.key").read_bytes(), "athens"
    )
    row, index = vault_pseudonym(pseudonyms, patient), ingest.table.subjects.index(subject)
    controller = world.key_sets["controller"].public.sealing_key
    vault = Vault(world.athens / "vault.db", world.athens / "row-keys.db", controller, os.urandom)
    sealed = vault.row(study.study.id, row)
    with vault.keys.transaction(write=False) as connection:
        wrapped = connection.scalar(
            sql.text("SELECT wrapped FROM vault_row_keys WHERE key = :key"), {"key": sealed.key}
        )
    vault.close()
    preparation = PreparationState.read(store.folder / "states" / "cut" / "prepared.json")
    (assignment,) = [item for item in preparation.splits["athens"] if item.subject_pseudonym == pseudonym]
    (record,) = [line for line in _patients(world.athens) if f'"id":"{patient}"' in line]
    identifiers = [part.partition('"')[0] for part in record.split('"value":"')[1:]]
    (envelope,) = envelopes(world, pseudonym)
    canaries = {
        "patient's id": patient.encode(), "number": identifiers[0].encode(), "telephone": identifiers[1].encode(),
        "pseudonym": sealed.pseudonym.encode(), "vault row's pseudonym": row.encode(), "sealed row": sealed.sealed,
        "row key": sealed.key.encode(), "wrapped key": bytes(wrapped), "envelope": envelope[-200:],
        "row": ingest.table.x[index].tobytes(), "scaled row": site.test.x[test_index].tobytes(),
        "row's digest": bytes.fromhex(assignment.digest),
    }  # fmt: skip
    return canaries, pseudonym, patient


def envelopes(world: World, pseudonym: str) -> list[bytes]:
    with Database(world.folder / "centre" / "centre.db", metadata) as database:
        key_set = world.key_sets["centre"]
        inbox = Inbox(world.folder / "centre" / "inbox", database, key_set.public, key_set.signing_key)
        received = inbox.received(world.study.study.id)
        return [
            inbox.path(envelope.digest).read_bytes() for envelope in received if envelope.subject == pseudonym
        ]
