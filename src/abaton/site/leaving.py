"""Who leaves a study at a site: what is known of them there, and whose no has to reach the centre.

A person may say no to the site itself, on a form that is kept elsewhere, or on an opt-out list. Where something of them
was sent, or may have been, a case is opened for each of these: it is carried out by whoever holds the site's keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sql

from abaton.governance import Registry, open_case, row_tag, schema
from abaton.records.export import pseudonyms_for
from abaton.site.consent_gate import subject_tag
from abaton.site.factory import study_key
from abaton.site.reading import SiteFile
from abaton.study import Shares, Study


def row_of(file: SiteFile, study: Study, patient: str, when: datetime) -> str:
    """The tag of a person's row in the vault; nothing if the site has none."""
    if file.document.vault is None:
        return ""
    need = study.need(when.date())
    return row_tag(pseudonyms_for(need, study_key(file, need), file.document.site.id), patient)


def sent_of(registry: Registry, study: Study) -> frozenset[str]:
    """Everybody of whom something is in the outbox for a study, or was sent from it."""
    table = schema.outbox
    chosen = sql.select(table.c.subject).where(table.c.study == study.study.id).distinct()
    return frozenset(registry.database.read(lambda connection: list(connection.scalars(chosen))))


def is_sent(file: SiteFile, registry: Registry, study: Study, subject: str) -> bool:
    """Whether a centre may know a person in a study."""
    asked = Shares.RECORDS in study.study.shares and file.document.centre is not None
    return asked or subject in sent_of(registry, study)


def open_cases(
    file: SiteFile,
    registry: Registry,
    key: bytes,
    study: Study,
    when: datetime,
    *,
    said_no: Iterable[str],
    listed: Iterable[str],
) -> int:
    """Open a case for everybody who has left by a form, or is on the opt-out list after something was sent; how many.

    Args:
        file: The site's document.
        registry: The consents.
        key: The key under which people are known there.
        study: The study.
        when: The time now.
        said_no: The Patients who have taken a yes back.
        listed: The Patients who have opted out of every use.
    """
    sent = sent_of(registry, study)
    leaving = {patient: is_sent(file, registry, study, subject_tag(key, patient)) for patient in said_no}
    leaving |= {patient: True for patient in listed if subject_tag(key, patient) in sent}
    for patient, ordered in sorted(leaving.items()):
        row = row_of(file, study, patient, when)
        open_case(registry.database, study.study.id, subject_tag(key, patient), row, when, sent=ordered)
    return len(leaving)
