from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading

import pytest
import sqlalchemy as sql
from fhir.resources.R4B.auditevent import AuditEvent
from tests.governance.conftest import DAY, NOW, STUDY, pseudonym

from abaton.errors import SettingsError
from abaton.governance import (
    AuditedLegalBasis,
    AuditEntry,
    AuditLog,
    ConsentRegistry,
    DeniedError,
    metadata,
    record_legal_basis,
    schema,
    verifier,
    verify,
)
from abaton.governance.audit_log import audit_event, chain_hash
from abaton.record_types import ConsentedBatch, ConsentedRecord, Record
from abaton.store import Database


def append_entries(audit: AuditLog, count: int = 10) -> AuditLog:
    for i in range(count):
        audit.append(
            AuditEntry("data-retrieved", subject=pseudonym("ann"), study=STUDY, detail={"number": i}), NOW
        )
    return audit


def change(database: Database, text: str, **values) -> None:
    database.write(lambda connection: connection.execute(sql.text(text), values))


def test_an_intact_audit_log_verifies(audit, centre):
    append_entries(audit)
    checkpoint = json.loads(json.dumps(audit.checkpoint(centre.signing_key, NOW)))
    append_entries(audit, 3)
    assert checkpoint["body"]["length"] == 10
    assert verify(audit.rows(), [checkpoint], verifier([centre.public.signing_key])) == []
    assert [entry["detail"]["number"] for entry in audit.entries()] == [*range(10), *range(3)]


@pytest.mark.parametrize(
    ("damage", "sequence", "problem"),
    [
        ("DELETE FROM audit WHERE sequence = 4", 4, "missing"),
        ("DELETE FROM audit WHERE sequence = 0", 0, "missing"),
        ("DELETE FROM audit WHERE sequence IN (3, 4, 5)", 3, "entries 3 to 5 are missing"),
        ("UPDATE audit SET body = replace(body, 'data-retrieved', 'data-forgotten') WHERE sequence = 6", 6, "changed"),
        ("UPDATE audit SET body = 'x' WHERE sequence = 6", 6, "damaged"),
        ("UPDATE audit SET hash = 'x' WHERE sequence = 6", 6, "changed"),
        ("DELETE FROM audit WHERE sequence >= 8", 8, "ends before its checkpoint"),
        ("DELETE FROM audit", 0, "ends before its checkpoint"),
    ],
)  # fmt: skip
def test_every_kind_of_damage_is_located(audit, centre, damage, sequence, problem):
    append_entries(audit)
    checkpoint = audit.checkpoint(centre.signing_key, NOW)
    change(audit.database, damage)
    faults = verify(audit.rows(), [checkpoint], verifier([centre.public.signing_key]))
    assert any(fault.sequence == sequence and problem in fault.problem for fault in faults), faults


def test_exchanged_entries_are_found(audit):
    append_entries(audit)
    rows = list(audit.rows())
    for a, b in ((2, 7), (7, 2)):
        change(
            audit.database, "UPDATE audit SET body = :body, hash = :hash WHERE sequence = :n",
            n=a, body=rows[b][1], hash=rows[b][2],
        )  # fmt: skip
    moved = {fault.sequence for fault in verify(audit.rows()) if "moved" in fault.problem}
    assert moved == {2, 7}


def test_a_rewritten_audit_log_is_detected_by_its_checkpoint(audit, centre):
    append_entries(audit)
    checkpoint = audit.checkpoint(centre.signing_key, NOW)
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
    (fault,) = verify(audit.rows(), [checkpoint], verifier([centre.public.signing_key]))
    assert "differs from its checkpoint at 10" in fault.problem


def test_a_checkpoint_must_be_signed_by_a_known_key(audit, centre, site):
    append_entries(audit, 2)
    with pytest.raises(DeniedError):
        verify(audit.rows(), [audit.checkpoint(centre.signing_key, NOW)], verifier([site.public.signing_key]))


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "Peter Chalmers"},
        {"action": "x", "actor": "Peter"},
        {"action": "x", "subject": "Patient/4711"},
        {"action": "x", "study": "a b"},
        {"action": "x", "detail": {"name": "Chalmers"}},
        {"action": "x", "detail": {"Name": 1}},
        {"action": "x", "detail": {"n": 1.5}},
        {"action": "x", "detail": {"n": 2**53}},
        {"action": "x", "outcome": "no such person: Peter"},
    ],
)
def test_names_are_refused_in_an_entry(fields):
    with pytest.raises(SettingsError):
        AuditEntry(**fields)


def test_entries_are_valid_audit_events(audit, centre):
    audit.append(
        AuditEntry("subject-enrolled", actor=centre.signing_key.id, subject=pseudonym("ann"), study=STUDY),
        NOW,
    )
    audit.append(AuditEntry("envelope-refused", "forged", detail={"size": 3}), NOW + DAY)
    audit.append(AuditEntry("audit-verified"), NOW)
    for entry in audit.entries():
        event = audit_event(entry, "centre")
        AuditEvent.model_validate(event)
        assert event["outcome"] == ("0" if entry["outcome"] == "done" else "4")


def test_concurrent_threads_write_one_audit_log(audit):
    threads = [threading.Thread(target=append_entries, args=(audit, 10)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(audit.rows())) == 80
    assert verify(audit.rows()) == []


WRITER = """
import sys
from datetime import UTC, datetime
from abaton.governance import AuditEntry, AuditLog, metadata
from abaton.store import Database
audit = AuditLog(Database(sys.argv[1], metadata))
for i in range(25):
    audit.append(AuditEntry("data-retrieved", detail={"number": i}), datetime(2026, 1, 1, tzinfo=UTC))
"""


@pytest.mark.slow
def test_concurrent_processes_write_one_audit_log(database_url):
    started = [subprocess.Popen([sys.executable, "-c", WRITER, database_url]) for _ in range(4)]
    assert [process.wait() for process in started] == [0] * 4
    with Database(database_url, metadata) as database:
        rows = list(AuditLog(database).rows())
        assert len(rows) == 100
        assert verify(rows) == []


def test_an_entry_and_its_action_are_one_transaction(audit):
    from abaton.governance.audit_log import append_in

    def work(connection):
        append_in(connection, AuditEntry("data-retrieved"), NOW)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        audit.database.write(work)
    assert list(audit.rows()) == []
    assert schema.audit.name == "audit"


def test_an_audited_legal_basis_is_created_from_the_audit_log_only(database, audit):
    with pytest.raises(TypeError):
        AuditedLegalBasis("vote 7/2026", "ab" * 32)
    registry = ConsentRegistry(database)
    with pytest.raises(SettingsError, match="records no legal basis"):
        registry.audited_basis("consent")  # the audit log is empty
    for text in ("", "  "):
        with pytest.raises(SettingsError, match="legal basis is empty"):
            record_legal_basis(registry, "heart", "ab" * 32, "north", text, NOW)
    basis = record_legal_basis(registry, "heart", "ab" * 32, "north", "vote 7/2026 of Dr Chalmers", NOW)
    repeated = record_legal_basis(registry, "heart", "ab" * 32, "north", "vote 7/2026 of Dr Chalmers", NOW)
    ((_, body, end),) = audit.rows()
    assert basis == repeated
    assert basis.audit_hash == end
    assert "Chalmers" not in body  # the log contains the digest of the text
    assert json.loads(body)["action"] == "legal-basis-stated"


@pytest.mark.parametrize(
    "legal_basis", ["vote 7/2026", "", None, b"ab" * 32], ids=["text", "empty", "none", "bytes"]
)
def test_text_is_no_legal_basis_for_a_consented_record(legal_basis):
    for create in (
        lambda: ConsentedRecord(Record({}), legal_basis),
        lambda: ConsentedBatch([{}], legal_basis),
    ):
        with pytest.raises(TypeError, match="audit log"):
            create()


def test_a_consented_record_has_an_audited_legal_basis(database):
    basis = record_legal_basis(ConsentRegistry(database), "heart", "ab" * 32, "north", "vote 7/2026", NOW)
    assert ConsentedRecord(Record({}), basis).legal_basis.text == "vote 7/2026"
    assert pickle.loads(pickle.dumps(basis)) == basis
