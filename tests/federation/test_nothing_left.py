"""Somebody takes part in everything, leaves, comes back, and leaves again: then a scan of every byte finds a tag.

A study that asks for records and for updates, at four hospitals, a research centre that listens, runs on two engines,
one of them cut off in the middle, and what a site's node keeps of a run. What the hospital's own records hold is the
hospital's; everything else that Abaton has written is looked through, SQLite's free pages and logs included.
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
from tests.governance.service.conftest import served

from abaton.controller import Arrived
from abaton.federation import StudyOptions, run_study
from abaton.study_run.preparation import federate
from abaton.study_run.site_service import Folder, Kept, Waiting, forget_person
from abaton.study_run.preparation_state import Prepared
from abaton.study_run.ingest import read_sites
from abaton.governance import (
    CascadeStep,
    Inbox,
    Reason,
    Registry,
    Ring,
    SenderRole,
    Senders,
    Vault,
    metadata,
    row_tag,
)
from abaton.governance.consent import Ask
from abaton.governance.keys import write_public
from abaton.governance.intake import Centre
from abaton.governance.identifiers import stamp
from abaton.records.export import pseudonyms_for
from abaton.site import deal, load_site, publish, subject_tag
from abaton.store import Database, Store
from abaton.study import Shares, Study, load_study, write_toml

pytestmark = [pytest.mark.slow, pytest.mark.network]

SITE = """
[centre]
url = "{url}"
keys = "centre.pub"
[vault]
rows = "vault.db"
keys = "row-keys.db"
controller = "controller.pub"
"""
OPTIONS = StudyOptions(seed=5, resamples=0)


class Cut(BaseException):
    """The process dies here."""


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class World:
    """Athens with its registry, vault, outbox and node, three other hospitals, a research centre, and a store."""

    folder: Path
    study: Study
    sites: tuple[Path, ...]
    rings: dict[str, Ring]
    url: str = ""

    @property
    def athens(self) -> Path:
        return self.folder / "hospitals" / "athens"

    @contextmanager
    def centre(self) -> Iterator[Inbox]:
        with Database(self.folder / "centre" / "centre.db", metadata) as database:
            ring = self.rings["centre"]
            inbox = Inbox(self.folder / "centre" / "inbox", database, ring.public, ring.signing)
            with served(Centre(inbox)) as self.url:
                text = (self.athens / "site.toml").read_text().partition("\n[centre]")[0]
                (self.athens / "site.toml").write_text(text + SITE.format(url=self.url))
                yield inbox

    @contextmanager
    def dealings(self):
        file = load_site(self.athens / "site.toml")

        def forget(leaves) -> None:
            forget_person(self.athens / "member" / "runs", file, leaves)

        with deal(file, lambda: self.rings["site"], now, forget) as found:
            yield found

    def found(self, canaries: dict[str, bytes]) -> dict[str, list[str]]:
        """Which of some bytes are found, in any form, in which files."""
        found: dict[str, list[str]] = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.suffix != ".ndjson":
                content = path.read_bytes()
                for name, secret in canaries.items():
                    forms = (secret, secret.hex().encode(), base64.b64encode(secret))
                    if any(form in content for form in forms):
                        found.setdefault(name, []).append(str(path.relative_to(self.folder)))
        return found


@pytest.fixture
def world(four, tmp_path) -> World:
    file = tmp_path / "hospitals" / "study.toml"
    said = four.study.study.model_copy(update={"shares": (Shares.RECORDS, Shares.UPDATES)})
    text = write_toml(four.study.model_copy(update={"study": said}))
    file.write_text(text.replace("rounds = 16", 'rounds = 3\npolicy = "SyncDVW"'))
    study = load_study(file)
    rings = {name: Ring.new(name, os.urandom, stamp(now())) for name in ("site", "centre", "controller")}
    made = World(tmp_path, study, four.sites, rings)
    for name in ("centre", "controller"):
        write_public(made.athens / f"{name}.pub", rings[name].public)
    (tmp_path / "centre").mkdir()
    with Database(tmp_path / "centre" / "centre.db", metadata) as far:
        Senders(far).enter(rings["site"].public, SenderRole.SITE, now())
        publish(Registry(far), study, now())
    for site in four.sites:  # everybody says yes to this document
        with Database(site.parent / "consents.db", metadata) as near:
            registry, key = Registry(near), (site.parent / "tags.key").read_bytes()
            publish(registry, study, now())
            ids = [line.partition('"id":"')[2].partition('"')[0] for line in _patients(site.parent)]
            registry.enrol({subject_tag(key, each): None for each in ids}, study.study.id, study.hash, now())
    return made


def _patients(place: Path) -> list[str]:
    return (place / "Patient.ndjson").read_text(encoding="utf-8").splitlines()


def test_after_leaving_twice_nothing_is_left_but_the_tag(world):
    study, store = world.study, Store(world.folder / "store")
    with world.centre() as inbox:
        canaries, tag, patient = take_part(world, store)
        left = {"patient's id", "pseudonym", "vault row's tag", "envelope", "row", "scaled row"}
        assert left <= set(world.found(canaries)), "they are everywhere before they leave"

        for turn in range(2):
            with world.dealings() as dealings:
                case = dealings.withdraw(study, patient)
                assert case.step is CascadeStep.DONE
                assert case.evidence["receipt"]["body"]["records"] == 1
                assert inbox.registry.reason(Ask(tag, study.study.id, study.hash), now()) is Reason.WITHDRAWN
                found = world.found(canaries)
                assert found.pop("row's digest") == ["store/states/cut/prepared.json"]  # until that run ends
                assert found == {}
                if turn == 0:  # they change their mind, and everything is there again
                    dealings.enrol(study, [patient])
                    assert dealings.send(study).sent == 1
                    assert {"pseudonym", "vault row's tag"} <= set(world.found(canaries))

        # The run that was cut off goes on without them, and a new one does not know them.
        for name, engine in (("cut", "local"), ("after", "virtual")):
            run = run_study(study, world.sites, store, OPTIONS, name=name, engine=engine)
            assert run.status == "finished"
        assert world.found(canaries) == {}
        known = world.found({"tag": tag.encode()})["tag"]
        assert {place.partition("-wal")[0] for place in known} == {
            "centre/centre.db", "hospitals/athens/consents.db", "hospitals/athens/athens.ledger",
        }  # fmt: skip
        # Everybody else is where they were.
        with world.dealings() as dealings:
            again = dealings.send(study)
            assert (again.sent, again.queued, again.refused) == (0, 0, {})
            assert again.unchanged == len(inbox.received(study.study.id)) > 20
    store.close()


def take_part(world: World, store: Store):
    """Send records, run on two engines, keep a member's rows: who is looked for, and by which bytes."""
    study = world.study
    with world.dealings() as dealings:
        assert dealings.send(study).refused == {}
    arrived = []

    def cutting(_state, event) -> None:
        arrived.extend([event] if isinstance(event, Arrived) else [])
        if len(arrived) == 6:
            raise Cut

    run_study(study, world.sites, store, OPTIONS, name="whole", engine="virtual")
    with pytest.raises(Cut):
        run_study(study, world.sites, store, OPTIONS, name="cut", engine="local", watch=cutting)

    readings = [
        replace(each, key=b"k" * 32) for each in read_sites(study, [load_site(s) for s in world.sites], now())
    ]
    members = federate(study, readings, OPTIONS.seed)
    (reading,) = [each for each in readings if each.name == "athens"]
    (member,) = [each for each in members.each if each.name == "athens"]
    runs, label = world.athens / "member" / "runs", members.label
    Folder(runs / "waits").wait(Waiting(reading.table, reading.people))
    Folder(runs / "trains").keep(Kept(member, members.classes, label, 5, b"s" * 32, ""))

    ids = "\n".join(
        reading.people.values()
    )  # somebody whom nobody trains on, and whose id is not in another one
    at, subject = next(
        (i, s) for i, s in enumerate(member.test.subjects) if ids.count(reading.people[s]) == 1
    )
    patient, tag = reading.people[subject], reading.tag(subject)
    names = pseudonyms_for(study.need(now().date()), (world.athens / "study.key").read_bytes(), "athens")
    row, place = row_tag(names, patient), reading.table.subjects.index(subject)
    controller = world.rings["controller"].public.sealing
    vault = Vault(world.athens / "vault.db", world.athens / "row-keys.db", controller, os.urandom)
    sealed = vault.row(study.study.id, row)
    with vault.keys.transaction(write=False) as connection:
        wrapped = connection.scalar(
            sql.text("SELECT wrapped FROM vault_row_keys WHERE key = :key"), {"key": sealed.key}
        )
    vault.close()
    prepared = Prepared.read(store.folder / "states" / "cut" / "prepared.json")
    (entry,) = [each for each in prepared.deals["athens"] if each.tag == tag]
    (person,) = [line for line in _patients(world.athens) if f'"id":"{patient}"' in line]
    said = [part.partition('"')[0] for part in person.split('"value":"')[1:]]
    (envelope,) = envelopes(world, tag)
    canaries = {
        "patient's id": patient.encode(), "number": said[0].encode(), "telephone": said[1].encode(),
        "pseudonym": sealed.pseudonym.encode(), "vault row's tag": row.encode(), "sealed row": sealed.sealed,
        "row key": sealed.key.encode(), "wrapped key": bytes(wrapped), "envelope": envelope[-200:],
        "row": reading.table.x[place].tobytes(), "scaled row": member.test.x[at].tobytes(),
        "row's digest": bytes.fromhex(entry.digest),
    }  # fmt: skip
    return canaries, tag, patient


def envelopes(world: World, tag: str) -> list[bytes]:
    with Database(world.folder / "centre" / "centre.db", metadata) as far:
        ring = world.rings["centre"]
        inbox = Inbox(world.folder / "centre" / "inbox", far, ring.public, ring.signing)
        listed = inbox.received(world.study.study.id)
        return [inbox.path(each.digest).read_bytes() for each in listed if each.subject == tag]
