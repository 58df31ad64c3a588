"""Opening a site: its document, its keys, its source and its gate put together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from abaton.canonical import digest
from abaton.errors import SettingsError
from abaton.governance import Registry, ground_noted, metadata, note_permit
from abaton.records.deid.need import Mechanism, Need
from abaton.records.deid.pseudonyms import MappingSink, check_key
from abaton.records.exporting import pseudonyms_for
from abaton.site.bulk import BulkSource, Wanted
from abaton.site.consent import ConsentGate, OptOuts, PermittedUse, RegisteredConsents, StatedGround
from abaton.site.document import Kind
from abaton.site.patience import Clock, Patience
from abaton.site.queries import queries, types_of
from abaton.site.reading import SiteFile
from abaton.site.rest import RestSource
from abaton.site.site import Site
from abaton.site.smart import Tokens
from abaton.site.sources import FileSource, Source
from abaton.site.web import Web
from abaton.store import Database
from abaton.study import Study

Step = Callable[[str], None]


def open_site(
    file: SiteFile,
    study: Study,
    now: datetime,
    *,
    gate: ConsentGate | None = None,
    sink: MappingSink | None = None,
    step: Step = lambda words: None,
) -> Site:
    """Put a site together for a study; whatever in its document is weaker than the study is refused.

    Args:
        file: The site's document.
        study: The study.
        now: The moment for which consents are asked and ages counted.
        gate: Who knows the consents; by default what the document says.
        sink: The mapping table; none for a check, which keeps nothing.
        step: Told of progress, in words without content.
    """
    file.against(study)
    need = study.need(now.date())
    names = pseudonyms_for(need, study_key(file, need), file.document.site.id, sink)
    return Site(
        file.document,
        study,
        open_source(file, study, need, step),
        gate or gate_of(file, study, now),
        names,
        now,
    )


def gate_of(file: SiteFile, study: Study, now: datetime | None = None) -> ConsentGate:
    """The gate that the document names: the registry of consents, a data permit, or a stated ground.

    A permit and a ground are written into the audit chain before anything is used on them.
    """
    consent = file.document.consent
    registry = open_registry(file, must_exist=consent.by_person)
    key = tags_key(file) if consent.knows_people else b""
    if consent.by_person:
        return RegisteredConsents(registry, key, study.study.id, study.hash)
    when, out = now or datetime.now(UTC), OptOuts(registry, key) if consent.opt_outs else None
    if consent.permit is not None:
        permit = consent.permit.plain()
        note_permit(registry, study.study.id, permit, when)
        return PermittedUse(permit, study.study.purpose.value, study.hash, out)
    assert consent.ground is not None
    stated = digest({"site": file.document.site.id, "ground": consent.ground})
    ground_noted(registry, study.study.id, study.hash, "ground-stated", stated, when)
    return StatedGround(consent.ground, out)


def open_registry(file: SiteFile, *, must_exist: bool = False) -> Registry:
    """The registry of a site: its consents, its opt-outs and its audit chain."""
    named = file.document.consent.place
    if "://" in named:
        return Registry(Database(named, metadata))
    place = file.path(named)
    if must_exist and not place.is_file():
        raise SettingsError(
            "the registry of consents is not there", where=str(place), remedy="correct consent.registry"
        )
    return Registry(Database(place, metadata))


def tags_key(file: SiteFile) -> bytes:
    """The key under which people are known in the registry."""
    assert file.document.keys.tags is not None
    return check_key(private_bytes(file.path(file.document.keys.tags)))


def study_key(file: SiteFile, need: Need) -> bytes:
    """The study key from its file; an anonymising study draws one and forgets it."""
    if need.deidentification.mechanism is Mechanism.ANONYMISE:
        return secrets.token_bytes(32)
    if file.document.keys.study is None:
        raise SettingsError(
            "the study pseudonymises and the site names no key",
            where=file.name,
            remedy="make one with 'abaton records key study.key' and write study = 'study.key' under [keys]",
        )
    return check_key(private_bytes(file.path(file.document.keys.study)))


def private_bytes(path: Path) -> bytes:
    """The content of a key file that nobody else can read."""
    try:
        if path.stat().st_mode & 0o077:
            raise SettingsError(
                "others can read the key", where=str(path), remedy=f"run 'chmod 600 {path.name}'"
            )
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            "the key cannot be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None


def open_source(
    file: SiteFile, study: Study, need: Need, step: Step = lambda words: None, clock: Clock | None = None
) -> Source:
    """The source of records that the document names."""
    part = file.document.records
    if part.kind in (Kind.DIRECTORY, Kind.NDJSON):
        return FileSource([file.path(place) for place in part.paths], lines_only=part.kind is Kind.NDJSON)
    assert part.url is not None
    patience = Patience(part.timeout, part.retries)
    ca = str(file.path(part.ca)) if part.ca else None
    web = Web(part.url, part.hosts, patience, ca, clock or Clock())
    types = tuple(sorted(types_of(need, study.eligibility)))
    tokens = Tokens(web, part.smart, file.path(part.smart.key), types) if part.smart else None
    work = file.path(part.work)
    if part.kind is Kind.BULK:
        wanted = Wanted(part.level, part.group, types, part.since)
        return BulkSource(web, tokens, wanted, work, wait=part.wait * 3600, step=step)
    asked = queries(need, study.eligibility)
    return RestSource(web, tokens, asked, work, page=part.page, step=lambda pages: step(f"page {pages}"))
