from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sql
from fhir.resources.R4B.auditevent import AuditEvent
from tests.governance.conftest import DAY, NOW, STUDY, person

from abaton.errors import SettingsError
from abaton.governance import (
    Audit,
    Denied,
    Entry,
    Held,
    Registry,
    metadata,
    schema,
    state_ground,
    verifier,
    verify,
)
from abaton.governance.audit_log import audit_event, chain_hash
from abaton.records import Consented, Record
from abaton.record_types import ConsentedLot
from abaton.store import Database


def filled(audit: Audit, count: int = 10) -> Audit:
    for i in range(count):
        audit.append(Entry("data-retrieved", about=person("ann"), study=STUDY, detail={"number": i}), NOW)
    return audit


def change(database: Database, text: str, **values) -> None:
    database.write(lambda connection: connection.execute(sql.text(text), values))


def test_a_sound_chain_verifies(audit, centre):
    filled(audit)
    checkpoint = json.loads(json.dumps(audit.checkpoint(centre.signing, NOW)))
    filled(audit, 3)
    assert checkpoint["body"]["length"] == 10
    assert verify(audit.rows(), [checkpoint], verifier([centre.public.signing])) == []
    assert [entry["detail"]["number"] for entry in audit.entries()] == [*range(10), *range(3)]


@pytest.mark.parametrize(
    ("damage", "where", "what"),
    [
        ("DELETE FROM audit WHERE sequence = 4", 4, "gone"),
        ("DELETE FROM audit WHERE sequence = 0", 0, "gone"),
        ("DELETE FROM audit WHERE sequence IN (3, 4, 5)", 3, "entries 3 to 5 are gone"),
        ("UPDATE audit SET body = replace(body, 'data-retrieved', 'data-forgotten') WHERE sequence = 6", 6, "changed"),
        ("UPDATE audit SET body = 'x' WHERE sequence = 6", 6, "damaged"),
        ("UPDATE audit SET hash = 'x' WHERE sequence = 6", 6, "changed"),
        ("DELETE FROM audit WHERE sequence >= 8", 8, "ends before its checkpoint"),
        ("DELETE FROM audit", 0, "ends before its checkpoint"),
    ],
)  # fmt: skip
def test_every_kind_of_damage_is_found_and_placed(audit, centre, damage, where, what):
    filled(audit)
    checkpoint = audit.checkpoint(centre.signing, NOW)
    change(audit.database, damage)
    faults = verify(audit.rows(), [checkpoint], verifier([centre.public.signing]))
    assert any(fault.sequence == where and what in fault.what for fault in faults), faults


def test_exchanged_entries_are_found(audit):
    filled(audit)
    rows = list(audit.rows())
    for a, b in ((2, 7), (7, 2)):
        change(
            audit.database, "UPDATE audit SET body = :body, hash = :hash WHERE sequence = :n",
            n=a, body=rows[b][1], hash=rows[b][2],
        )  # fmt: skip
    moved = {fault.sequence for fault in verify(audit.rows()) if "moved" in fault.what}
    assert moved == {2, 7}


def test_a_chain_that_is_written_anew_is_found_by_its_checkpoint(audit, centre):
    filled(audit)
    checkpoint = audit.checkpoint(centre.signing, NOW)
    rows = list(audit.rows())
    before = rows[3][2]
    for sequence, body, _ in rows[4:]:
        forged = body.replace("data-retrieved", "data-forgotten")
        before = chain_hash(before, forged.encode())
        change(
            audit.database, "UPDATE audit SET body = :body, hash = :hash WHERE sequence = :n",
            n=sequence, body=forged, hash=before,
        )  # fmt: skip
    assert verify(audit.rows()) == []  # consistent in itself
    (fault,) = verify(audit.rows(), [checkpoint], verifier([centre.public.signing]))
    assert "not the one of its checkpoint at 10" in fault.what


def test_a_checkpoint_must_be_signed_by_somebody_known(audit, centre, site):
    filled(audit, 2)
    with pytest.raises(Denied):
        verify(audit.rows(), [audit.checkpoint(centre.signing, NOW)], verifier([site.public.signing]))


@pytest.mark.parametrize(
    "made",
    [
        {"action": "Peter Chalmers"},
        {"action": "x", "actor": "Peter"},
        {"action": "x", "about": "Patient/4711"},
        {"action": "x", "study": "a b"},
        {"action": "x", "detail": {"name": "Chalmers"}},
        {"action": "x", "detail": {"Name": 1}},
        {"action": "x", "detail": {"n": 1.5}},
        {"action": "x", "detail": {"n": 2**53}},
        {"action": "x", "outcome": "no such person: Peter"},
    ],
)
def test_names_cannot_get_into_an_entry(made):
    with pytest.raises(SettingsError):
        Entry(**made)


def test_entries_are_valid_audit_events(audit, centre):
    audit.append(Entry("subject-enrolled", actor=centre.signing.id, about=person("ann"), study=STUDY), NOW)
    audit.append(Entry("envelope-refused", "forged", detail={"size": 3}), NOW + DAY)
    audit.append(Entry("audit-verified"), NOW)
    for entry in audit.entries():
        event = audit_event(entry, "centre")
        AuditEvent.model_validate(event)
        assert event["outcome"] == ("0" if entry["outcome"] == "done" else "4")


def test_many_threads_write_one_chain(audit):
    threads = [threading.Thread(target=filled, args=(audit, 10)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(audit.rows())) == 80
    assert verify(audit.rows()) == []


WRITER = """
import sys
from datetime import UTC, datetime
from abaton.governance import Audit, Entry, metadata
from abaton.store import Database
audit = Audit(Database(sys.argv[1], metadata))
for i in range(25):
    audit.append(Entry("data-retrieved", detail={"number": i}), datetime(2026, 1, 1, tzinfo=UTC))
"""


@pytest.mark.slow
def test_many_processes_write_one_chain(database_url):
    started = [subprocess.Popen([sys.executable, "-c", WRITER, database_url]) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    with Database(database_url, metadata) as database:
        rows = list(Audit(database).rows())
        assert len(rows) == 100
        assert verify(rows) == []


def test_an_entry_and_what_it_tells_of_are_one(audit):
    from abaton.governance.audit_log import append_in

    def work(connection):
        append_in(connection, Entry("data-retrieved"), NOW)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        audit.database.write(work)
    assert list(audit.rows()) == []
    assert schema.audit.name == "audit"


def test_a_ground_is_made_from_the_chain_alone(database, audit):
    with pytest.raises(TypeError):
        Held("vote 7/2026", "ab" * 32)
    registry = Registry(database)
    with pytest.raises(SettingsError, match="holds no ground"):
        registry.held("consent")  # an empty chain holds nothing
    for words in ("", "  "):
        with pytest.raises(SettingsError, match="no ground is stated"):
            state_ground(registry, "heart", "ab" * 32, "north", words, NOW)
    held = state_ground(registry, "heart", "ab" * 32, "north", "vote 7/2026 of Dr Chalmers", NOW)
    again = state_ground(registry, "heart", "ab" * 32, "north", "vote 7/2026 of Dr Chalmers", NOW)
    ((_, body, end),) = audit.rows()
    assert held == again
    assert held.chain == end
    assert "Chalmers" not in body  # the chain has the fingerprint of the words
    assert json.loads(body)["action"] == "ground-stated"


@pytest.mark.parametrize(
    "ground", ["vote 7/2026", "", None, b"ab" * 32], ids=["words", "empty", "none", "bytes"]
)
def test_no_record_is_consented_on_mere_words(ground):
    for made in (lambda: Consented(Record({}), ground), lambda: ConsentedLot([{}], ground)):
        with pytest.raises(TypeError, match="audit chain"):
            made()


def test_a_record_is_consented_on_a_ground_that_the_chain_holds(database):
    held = state_ground(Registry(database), "heart", "ab" * 32, "north", "vote 7/2026", NOW)
    assert Consented(Record({}), held).ground.words == "vote 7/2026"
    assert pickle.loads(pickle.dumps(held)) == held
