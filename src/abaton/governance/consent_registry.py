"""The consent registry: which studies there are, who said yes to what, and who took it back.

People are known by tags alone. Every verb is one transaction with its audit entry. A consent is never overwritten:
what was said before stays as an older version until the study's retention removes it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TypeVar

import sqlalchemy as sql

from abaton.errors import SettingsError
from abaton.governance import schema
from abaton.governance.audit_log import Entry, Held, append_in, append_many, held_in
from abaton.governance.consent import Action, Ask, Json, Reason, judge
from abaton.governance.consent_status import (
    Allowed,
    OptedOut,
    Published,
    about,
    any_out,
    consent_text,
    dated_after_no,
    hold_all,
    in_chunks,
    newest_in,
    newest_of,
    read_consent,
    reason_in,
    refused_in,
    sending_in,
    stand,
    study_in,
    subject_lock,
    withdraw_in,
    write_consents,
)
from abaton.governance.identifiers import Denied, RefusalCode, is_digest, is_name, is_tag, stamp
from abaton.store import Database

T = TypeVar("T")


class Registry:
    """The consents of one database.

    Args:
        database: Where governance keeps its tables (:data:`abaton.governance.schema.metadata`).
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._known: dict[tuple[str, Action], Allowed] = {}
        self._out: dict[str, OptedOut] = {}

    # verbs

    def publish(
        self,
        study: str,
        document: str,
        when: datetime,
        *,
        ends: datetime | None,
        keep_until: datetime | None,
        content: Json | None = None,
    ) -> None:
        """Publish a study's document; a new document replaces the one before, and needs new consents.

        Args:
            study: The study.
            document: The fingerprint of its document.
            when: The time now.
            ends: When the study ends, so that retention can close it; nothing only if it has no end.
            keep_until: When everything of it has to be gone; nothing only if it has no end.
            content: The document itself.
        """
        if not is_name(study) or not is_digest(document):
            raise SettingsError("a study needs a name and its document's fingerprint", remedy="give both")
        row = {
            "published": stamp(when),
            "ends": stamp(ends) if ends else "",
            "keep_until": stamp(keep_until) if keep_until else "",
            "content": json.dumps(content or {}, sort_keys=True),
            "closed": "",
        }

        def work(connection: sql.Connection) -> None:
            current = study_in(connection, study)
            if current is not None and current.document == document:
                return
            version = 1 if current is None else current.version + 1
            values = {"study": study, "document": document, "version": version, **row}
            connection.execute(schema.studies.insert().values(**values))
            append_in(connection, Entry("study-published", study=study, detail={"document": document}), when)

        self.database.write(work, lock=f"study/{study}")

    def close(self, study: str, when: datetime) -> None:
        """End a study: from now on nothing is collected or used for it."""

        def work(connection: sql.Connection) -> None:
            table = schema.studies
            chosen = table.update().where(table.c.study == study, table.c.closed == "")
            if connection.execute(chosen.values(closed=stamp(when))).rowcount:
                append_in(connection, Entry("study-closed", study=study), when)

        self.database.write(work, lock=f"study/{study}")

    def enrol(self, people: Mapping[str, datetime | None], study: str, document: str, when: datetime) -> None:
        """Many people wish to be told of studies and say yes to one: all of them in one transaction, or none.

        Args:
            people: Their tags, and until when the yes of each holds; nothing if until it is withdrawn.
            study: The study.
            document: The fingerprint of its current document.
            when: The time now.
        """
        for subject in people:
            check_tag(subject)

        def work(connection: sql.Connection) -> None:
            hold_all(connection, people)
            for some in in_chunks(list(people)):
                self._opt_in(connection, some, when)
                said = [(Ask(subject, study, document), text_until(people[subject])) for subject in some]
                self._enrol(connection, [(ask, about(text, ask.subject)) for ask, text in said], when)

        @cache
        def text_until(until: datetime | None) -> str:
            return consent_text(Ask("", study, document), when, until)

        self.database.write(work)

    def _opt_in(self, connection: sql.Connection, people: Sequence[str], when: datetime) -> None:
        """Note for those who have not said so that they wish to be told of studies."""
        known, text = newest_of(connection, people, ""), consent_text(Ask(""), when, None)
        new = [s for s in people if s not in known or not judge(read_consent(known[s]), Ask(s), when).allows]
        write_consents(connection, [(Ask(subject), about(text, subject)) for subject in new], when)
        append_many(connection, (Entry("subject-opted-in", about=subject) for subject in new), when)

    def _enrol(self, connection: sql.Connection, said: Sequence[tuple[Ask, str]], when: datetime) -> None:
        """Keep what people say to one study, if it may be said at all."""
        people, study, document = [ask.subject for ask, _ in said], said[0][0].study, said[0][0].document
        found = study_in(connection, study)
        if found is None or not found.is_open(when):
            raise no(Reason.STUDY_CLOSED)
        if found.document != document:
            raise Denied(RefusalCode.WRONG_DOCUMENT, "the study has another document now", where="enrolment")
        if any_out(connection, people):
            raise no(Reason.OPTED_OUT)
        write_consents(connection, dated_after_no(connection, said, when), when)
        stand(connection, people, study, "on-study", when)
        detail = {"document": document}
        told = (Entry("subject-enrolled", about=who, study=study, detail=detail) for who in people)
        append_many(connection, told, when)

    def withdraw(self, subject: str, study: str, when: datetime, *, said: datetime | None = None) -> None:
        """A person takes the yes to a study back; from this moment nothing more is done. Doing it twice is once.

        Args:
            subject: The person's tag.
            study: The study.
            when: The time now.
            said: The date of the no, if it is not now: it is later than that of the yes.
        """
        check_tag(subject)
        self.database.write(
            lambda connection: withdraw_in(connection, subject, study, when, said=said),
            lock=subject_lock(subject),
        )

    # questions

    def reason(self, ask: Ask, when: datetime) -> Reason:
        """Whether something may be done now, or why not."""
        return self.database.read(lambda connection: reason_in(connection, ask, when))

    def sending(self, ask: Ask, when: datetime) -> Reason:
        """Whether a person's records may be sent now, by their consent or on a permit, or why not."""
        return self.database.read(lambda connection: sending_in(connection, ask, when))

    def held(self, words: str) -> Held:
        """A ground that was found here, bound to the audit chain that tells of it."""
        return self.database.read(lambda connection: held_in(connection, words))

    def permission(self, ask: Ask, kinds: Collection[str], when: datetime) -> tuple[Reason, frozenset[str]]:
        """Whether something may be done with a person's records now, and with which types of them not."""

        def work(connection: sql.Connection) -> tuple[Reason, frozenset[str]]:
            known = self._allowed(ask.study, ask.action)
            document, inside = known.at(connection, when)
            if ask.subject in inside and ask.document in ("", document):
                every = not known.names_kinds(ask.subject)
                return Reason.IN_FORCE, frozenset() if every else refused_in(connection, ask, kinds, when)
            reason = reason_in(connection, ask, when)
            return reason, refused_in(connection, ask, kinds, when) if reason.allows else frozenset(kinds)

        return self.database.read(work)

    def who_may(self, study: str, action: Action, when: datetime) -> tuple[str, frozenset[str]]:
        """The study's document and everybody whose consent is in force; see :mod:`abaton.governance.consent_status`."""
        return self.database.read(lambda connection: self.who_may_in(connection, study, action, when))

    def who_may_in(
        self, connection: sql.Connection, study: str, action: Action, when: datetime
    ) -> tuple[str, frozenset[str]]:
        """The same inside a transaction."""
        return self._allowed(study, action).at(connection, when)

    def who_is_out(self, study: str = "") -> frozenset[str]:
        """Everybody on the opt-out list, and, of a study, everybody who has left it."""
        return self.database.read(self._out.setdefault(study, OptedOut(study)).at)

    def _allowed(self, study: str, action: Action) -> Allowed:
        return self._known.setdefault((study, action), Allowed(study, action))

    def study(self, study: str) -> Published | None:
        """The current document of a study."""
        return self.database.read(lambda connection: study_in(connection, study))

    def studies(self) -> list[Published]:
        """The current documents of all studies."""
        names = self.database.read(
            lambda connection: sorted(connection.scalars(sql.select(schema.studies.c.study).distinct()))
        )
        return [found for name in names if (found := self.study(name))]

    def subjects(self, study: str) -> list[str]:
        """The tags of everybody who has ever said yes to a study and is still on record."""
        table = schema.consents
        chosen = sql.select(table.c.subject).where(table.c.study == study).distinct()
        return self.database.read(lambda connection: sorted(connection.scalars(chosen)))

    def consent(self, subject: str, study: str = "") -> Json | None:
        """The newest consent of a person."""
        return self.database.read(lambda connection: newest_in(connection, subject, study))


def check_tag(subject: str) -> None:
    """Refuse a person's name where a tag is expected."""
    if not is_tag(subject):
        raise SettingsError("a person is named by a tag here", remedy="make one with governance.tags.tag")


def no(reason: Reason) -> Denied:
    """The refusal for a reason."""
    return Denied(
        RefusalCode.NO_CONSENT, f"there is no consent in force: {reason.value}", reason=reason.value
    )
