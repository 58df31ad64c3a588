"""The consent registry: who was told, who said yes to what, and who took it back.

Its verbs are those of InteropEHRate's protocol: opt in, publish, enrol, retrieve, withdraw, opt out, monitor.
People are known by tags alone. Every verb is one transaction with its audit entry. A consent is never overwritten:
what was said before stays as an older version until the study's retention removes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sql

from abaton.errors import SettingsError
from abaton.governance import schema
from abaton.governance.allowed import Allowed, OptedOut
from abaton.governance.audit import Entry, append_in, append_many
from abaton.governance.consents import Action, Ask, Json, Reason, ended, judge, make_consent
from abaton.governance.refusals import Denied, RefusalCode
from abaton.governance.standing import (
    Published,
    about,
    any_out,
    consent_text,
    hold_all,
    in_chunks,
    judged_in,
    newest_in,
    newest_of,
    read_consent,
    reason_in,
    refused_in,
    stand,
    study_in,
    subject_lock,
    withdraw_in,
    write_consent,
    write_consents,
)
from abaton.governance.tags import is_digest, is_name, is_tag
from abaton.governance.times import stamp
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
        self._out = OptedOut()

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

    def opt_in(self, subject: str, when: datetime, until: datetime | None = None) -> None:
        """A person wishes to be told of studies."""
        self._say(Ask(subject), make_consent(Ask(subject), when, until), "subject-opted-in", when)

    def enrol(
        self,
        subject: str,
        study: str,
        document: str,
        when: datetime,
        *,
        until: datetime | None = None,
        actions: Iterable[Action] = tuple(Action),
        except_kinds: Iterable[str] = (),
    ) -> None:
        """A person who has opted in says yes to a study's current document."""
        ask = Ask(subject, study, document)
        consent = make_consent(ask, when, until, actions=actions, except_kinds=except_kinds)

        def work(connection: sql.Connection) -> None:
            if not judged_in(connection, Ask(subject), when).allows:
                raise no(Reason.NOT_OPTED_IN)
            self._enrol(connection, [(ask, json.dumps(consent, sort_keys=True))], when)

        self._about(subject, work)

    def enrol_many(
        self, people: Mapping[str, datetime | None], study: str, document: str, when: datetime
    ) -> None:
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
        write_consents(connection, said, when)
        stand(connection, people, study, "on-study", when)
        detail = {"document": document}
        told = (Entry("subject-enrolled", about=who, study=study, detail=detail) for who in people)
        append_many(connection, told, when)

    def withdraw(self, subject: str, study: str, when: datetime) -> None:
        """A person takes the yes to a study back; from this moment nothing more is done. Doing it twice is once."""
        self._about(subject, lambda connection: withdraw_in(connection, subject, study, when))

    def opt_out(self, subject: str, when: datetime) -> list[str]:
        """A person leaves all studies and is told of none any more; the studies that must be withdrawn from."""

        def work(connection: sql.Connection) -> list[str]:
            consent = newest_in(connection, subject, "")
            if consent is not None and consent.get("status") == "active":
                write_consent(connection, Ask(subject), ended(consent, when), when)
                append_in(connection, Entry("subject-opted-out", about=subject), when)
            table = schema.consents
            chosen = (
                sql.select(table.c.study).where(table.c.subject == subject, table.c.study != "").distinct()
            )
            return sorted(connection.scalars(chosen))

        studies = self._about(subject, work)
        for study in studies:
            self.withdraw(subject, study, when)
        return studies

    # questions

    def reason(self, ask: Ask, when: datetime) -> Reason:
        """Whether something may be done now, or why not."""
        return self.database.read(lambda connection: reason_in(connection, ask, when))

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
        """The study's document and everybody whose consent is in force; see :mod:`abaton.governance.allowed`."""
        return self.database.read(lambda connection: self.who_may_in(connection, study, action, when))

    def who_may_in(
        self, connection: sql.Connection, study: str, action: Action, when: datetime
    ) -> tuple[str, frozenset[str]]:
        """The same inside a transaction."""
        return self._allowed(study, action).at(connection, when)

    def who_is_out(self) -> frozenset[str]:
        """Everybody on the opt-out list."""
        return self.database.read(self._out.at)

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

    def receive(self, consent: Any, ask: Ask, when: datetime) -> None:
        """Keep a Consent resource that came from elsewhere; it counts for what it says, and no more."""
        if judge(consent, ask, when) is Reason.MALFORMED or not isinstance(consent, dict):
            raise Denied(
                RefusalCode.MALFORMED, "this is not a Consent that can be understood", where="consent"
            )
        self._say(ask, consent, "consent-received", when)

    def _say(self, ask: Ask, consent: Json, action: str, when: datetime) -> None:
        def work(connection: sql.Connection) -> None:
            write_consent(connection, ask, consent, when)
            append_in(connection, Entry(action, about=ask.subject, study=ask.study), when)

        self._about(ask.subject, work)

    def _about(self, subject: str, work: Callable[[sql.Connection], T]) -> T:
        check_tag(subject)
        return self.database.write(work, lock=subject_lock(subject))


def check_tag(subject: str) -> None:
    """Refuse a person's name where a tag is expected."""
    if not is_tag(subject):
        raise SettingsError("a person is named by a tag here", remedy="make one with governance.tags.tag")


def no(reason: Reason) -> Denied:
    """The refusal for a reason."""
    return Denied(
        RefusalCode.NO_CONSENT, f"there is no consent in force: {reason.value}", reason=reason.value
    )
