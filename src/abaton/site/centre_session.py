"""A site's dealings with people's consents and the centre, put together from ``site.toml``.

Registry, outbox and vault are opened at once; keys and the line to the centre when something is sent there.

Who leaves a study at a site: what is known of them there, and whose no has to reach the centre.

A person may say no to the site itself, on a form that is kept elsewhere, or on an opt-out list. Where something of them
was sent, or may have been, a case is opened for each of these: it is carried out by whoever holds the site's keys.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

import sqlalchemy as sql

from abaton.errors import Refused, SettingsError
from abaton.governance import (
    Cascade,
    Case,
    Holdings,
    Outbox,
    Registry,
    Ring,
    Statement,
    ToCentre,
    Vault,
    open_case,
    row_tag,
    schema,
    site_actions,
    verifier,
)
from abaton.governance import LeavingSite as Leaving
from abaton.governance.keys import read_public
from abaton.records.export import pseudonyms_for
from abaton.site.centre_client import CentreAway, CentreClient, Sending, SiteSender, Step
from abaton.site.config_reader import SiteFile
from abaton.site.consent_gate import publish, subject_tag
from abaton.site.factory import open_registry, open_site, study_key, tags_key
from abaton.site.sources.fhir_server.download_cache import clear_work
from abaton.site.sources.fhir_server.http_client import Web
from abaton.site.sources.fhir_server.retry import Patience
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


class Line:
    """The line to the centre, made when it is first needed: whoever sends nothing needs no keys for it.

    Args:
        file: The site's document.
        ring: Gives the site's keys.
    """

    def __init__(self, file: SiteFile, ring: Callable[[], Ring]) -> None:
        self.file, self._ring, self._web = file, ring, contextlib.ExitStack()

    @cached_property
    def client(self) -> CentreClient:
        """The research centre.

        Raises:
            SettingsError: The site names none, or nothing on which records may be sent.
        """
        document = self.file.document
        centre = document.centre
        if centre is None or not document.consent.sends:
            raise SettingsError(
                "the site names no centre, or nothing on which records may be sent",
                where=self.file.name,
                remedy="write [centre] with url and keys, and registry under [consent] or a permit that allows 'send'",
            )
        ring, public = self._ring(), read_public(self.file.path(centre.keys))
        ca = str(self.file.path(centre.ca)) if centre.ca else None
        web = Web(centre.url, patience=Patience(retries=centre.retries), ca=ca, keeps_line=True)
        self._web.callback(web.close)
        return CentreClient(web, public, ring.signing, part=centre.part)

    def close(self) -> None:
        """Hang up."""
        self._web.close()


Forget = Callable[[Callable[[str], bool]], None]
"""Removes people from what lies elsewhere at the site; told whether a person leaves, by the Patient's id."""


@dataclass(frozen=True, slots=True)
class Dealings:
    """What a site does with people's consents and with the centre.

    Args:
        file: The site's document.
        registry: The consents.
        outbox: What waits to be sent; nothing at a site that names no centre.
        vault: The mapping table, if the site has one.
        line: The way to the centre.
        tags: The key under which people are known.
        now: The time.
        forget: Removes people from what other programs of the site keep.
    """

    file: SiteFile
    registry: Registry
    outbox: Outbox | None
    vault: Vault | None
    line: Line
    tags: bytes = field(repr=False)
    now: Callable[[], datetime]
    forget: Forget = lambda leaves: None

    def tag_of(self, patient: str) -> str:
        """How a person is known in the registry."""
        return subject_tag(self.tags, patient)

    def enrol(self, study: Study, patients: Iterable[str], until: datetime | None = None) -> None:
        """Note that people wish to be told of studies and say yes to this one: all of them, or none."""
        when, people = self.now(), {self.tag_of(patient): until for patient in patients}
        publish(self.registry, study, when)
        self.registry.enrol(people, study.study.id, study.hash, when)

    def send(self, study: Study, step: Step = lambda words: None, *, collect: bool = True) -> Sending:
        """Collect, de-identify, seal and send everybody who agreed; goes on where it was stopped.

        Withdrawals go first, so that the centre hears of a no before a yes that came after it.
        """
        if Shares.RECORDS not in study.study.shares:
            raise Refused(
                "the study does not ask for records", where=study.study.id, remedy="nothing needs to be sent"
            )
        client, done = self.line.client, Sending()
        assert self.outbox is not None
        publish(self.registry, study, self.now())
        self.cascade().advance_all(self.now())
        sender = SiteSender(self.registry, self.outbox, client.signer, client, self.now, self.tag_of)
        self.outbox.sweep()
        if collect:
            site = open_site(self.file, study, self.now(), sink=self.vault, step=step)
            sender.queue(site, done)
        sender.send(done, step)
        return done

    def withdraw(self, study: Study, patient: str) -> Case:
        """Take a person out of a study, as far as it can be done now.

        The centre is asked for only if records are sent in this study, or were: what shares nothing but updates can be
        left without it.
        """
        when, subject, cascade = self.now(), self.tag_of(patient), self.cascade()
        row, sent = row_of(self.file, study, patient, when), is_sent(self.file, self.registry, study, subject)
        return cascade.advance(cascade.begin(study.study.id, subject, row, when, sent=sent), when)

    def cascade(self) -> Cascade:
        """The withdrawals of this site."""
        centre = None if self.file.document.centre is None else self._centre
        site = Leaving(self.registry, self.outbox, self.vault, centre, self._forget)
        return Cascade(self.registry.database, site_actions(site))

    def _centre(self) -> ToCentre:
        client = self.line.client
        return ToCentre(client.signer, self._bring, verifier([client.ring.signing]))

    def _bring(self, order: Statement) -> Statement | None:
        try:
            return self.line.client.delete(order)
        except CentreAway:
            return None

    def _forget(self, study: str, subject: str) -> None:
        """Remove what an interrupted fetch has left, and whoever leaves from what other programs keep."""
        clear_work(self.file.path(self.file.document.records.work))
        self.forget(lambda patient: self.tag_of(patient) == subject)


@contextlib.contextmanager
def deal(
    file: SiteFile,
    ring: Callable[[], Ring],
    now: Callable[[], datetime],
    forget: Forget = lambda leaves: None,
) -> Iterator[Dealings]:
    """Open what ``site.toml`` names for people's consents and for dealing with the centre.

    Args:
        file: The site's document.
        ring: Gives the site's keys, when something is signed.
        now: The time.
        forget: Removes people from what other programs of the site keep.
    """
    if file.document.keys.tags is None:
        raise SettingsError(
            "the site knows nobody: it names no key for people's tags",
            where=file.name,
            remedy="write tags = 'tags.key' under [keys]",
        )
    with contextlib.ExitStack() as stack:
        line = Line(file, ring)
        stack.callback(line.close)
        registry = open_registry(file)
        stack.callback(registry.database.close)
        vault = _vault(file)
        if vault is not None:
            stack.callback(vault.close)
        centre = file.document.centre
        outbox = None if centre is None else Outbox(file.path(centre.outbox), registry.database)
        yield Dealings(file, registry, outbox, vault, line, tags_key(file), now, forget)


@contextlib.contextmanager
def site_holdings(file: SiteFile) -> Iterator[Holdings]:
    """What a site keeps of its studies, for :func:`abaton.governance.enforce`: registry, outbox and mapping table."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(open_registry(file).database)
        vault = _vault(file)
        if vault is not None:
            stack.callback(vault.close)
        centre = file.document.centre
        outbox = None if centre is None else Outbox(file.path(centre.outbox), database)
        yield Holdings(database, outbox=outbox, vault=vault)


def _vault(file: SiteFile) -> Vault | None:
    part = file.document.vault
    if part is None:
        return None
    controller = read_public(file.path(part.controller)).sealing
    return Vault(_database(file, part.rows), _database(file, part.keys), controller, secrets.token_bytes)


def _database(file: SiteFile, place: str) -> str | Path:
    return place if "://" in place else file.path(place)
