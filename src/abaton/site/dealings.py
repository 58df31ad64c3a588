"""A site's dealings with the centre put together from ``site.toml``: registry, outbox, vault, keys and the line."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from abaton.errors import Refused, SettingsError
from abaton.governance import (
    Cascade,
    Case,
    Holdings,
    Outbox,
    PrivateKey,
    Registry,
    Ring,
    Statement,
    Vault,
    row_tag,
    site_actions,
    verifier,
)
from abaton.governance import LeavingSite as Leaving
from abaton.governance.keys import read_public
from abaton.records.exporting import pseudonyms_for
from abaton.site.centre import CentreAway, CentreClient
from abaton.site.consent import publish, subject_tag
from abaton.site.opening import open_registry, open_site, study_key, tags_key
from abaton.site.patience import Patience
from abaton.site.reading import SiteFile
from abaton.site.sending import Sending, SiteSender, Step
from abaton.study import Shares, Study


@dataclass(frozen=True, slots=True)
class Dealings:
    """What a site does with the centre.

    Args:
        file: The site's document.
        registry: The consents.
        outbox: What waits to be sent.
        vault: The mapping table, if the site has one.
        signer: The site's signing key.
        client: The way to the centre.
        tags: The key under which people are known.
        now: The time.
    """

    file: SiteFile
    registry: Registry
    outbox: Outbox
    vault: Vault | None
    signer: PrivateKey
    client: CentreClient
    tags: bytes
    now: Callable[[], datetime]

    def tag_of(self, patient: str) -> str:
        """How a person is known in the registry."""
        return subject_tag(self.tags, patient)

    def enrol(self, study: Study, patients: Iterable[str], until: datetime | None = None) -> None:
        """Note that people wish to be told of studies and say yes to this one: all of them, or none."""
        when, people = self.now(), {self.tag_of(patient): until for patient in patients}
        publish(self.registry, study, when)
        self.registry.enrol_many(people, study.study.id, study.hash, when)

    def send(self, study: Study, step: Step = lambda words: None, *, collect: bool = True) -> Sending:
        """Collect, de-identify, seal and send everybody who agreed; goes on where it was stopped."""
        if Shares.RECORDS not in study.study.shares:
            raise Refused(
                "the study does not ask for records", where=study.study.id, remedy="nothing needs to be sent"
            )
        done = Sending()
        sender = SiteSender(self.registry, self.outbox, self.signer, self.client, self.now, self.tag_of)
        self.outbox.sweep()
        if collect:
            site = open_site(self.file, study, self.now(), sink=self.vault, step=step)
            sender.queue(site, done)
        sender.send(done, step)
        return done

    def withdraw(self, study: Study, patient: str) -> Case:
        """Take a person out of a study, as far as it can be done now."""
        when = self.now()
        need = study.need(when.date())
        names = pseudonyms_for(need, study_key(self.file, need), self.file.document.site.id)
        cascade = self.cascade()
        return cascade.advance(
            cascade.begin(study.study.id, self.tag_of(patient), row_tag(names, patient), when), when
        )

    def cascade(self) -> Cascade:
        """The withdrawals of this site."""
        site = Leaving(
            self.registry,
            self.outbox,
            self.vault,
            self.signer,
            self._bring,
            verifier([self.client.ring.signing]),
        )
        return Cascade(self.registry.database, site_actions(site))

    def _bring(self, order: Statement) -> Statement | None:
        try:
            return self.client.delete(order)
        except CentreAway:
            return None


@contextlib.contextmanager
def deal(file: SiteFile, ring: Ring, now: Callable[[], datetime]) -> Iterator[Dealings]:
    """Open everything that ``site.toml`` names for dealing with the centre.

    Args:
        file: The site's document.
        ring: The site's keys.
        now: The time.
    """
    document = file.document
    centre = document.centre
    if centre is None or not document.consent.by_person:
        raise SettingsError(
            "the site names no centre, or keeps no registry of consents",
            where=file.name,
            remedy="write [centre] with url and keys, and registry under [consent]",
        )
    client = CentreClient(
        centre.url,
        read_public(file.path(centre.keys)),
        ring.signing,
        patience=Patience(retries=centre.retries),
        ca=file.path(centre.ca) if centre.ca else None,
        part=centre.part,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(client.close)
        registry = open_registry(file)
        stack.callback(registry.database.close)
        vault = _vault(file)
        if vault is not None:
            stack.callback(vault.close)
        outbox = Outbox(file.path(centre.outbox), registry.database)
        yield Dealings(file, registry, outbox, vault, ring.signing, client, tags_key(file), now)


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
