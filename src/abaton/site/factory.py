"""Opening a site: its document, its keys, its source and its gate put together."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from abaton.atomic_files import replacing, writing
from abaton.deid.mapping_table import MappingSink
from abaton.deid.pseudonyms import check_key
from abaton.deid.settings import Mechanism, Need
from abaton.disclosure.release_log import Ledger
from abaton.errors import SettingsError
from abaton.fhir.partial_dates import zone_of
from abaton.governance import Registry, metadata, note_permit, state_ground
from abaton.records.export import pseudonyms_for
from abaton.site.config import Kind
from abaton.site.config_reader import SiteFile
from abaton.site.consent_gate import (
    ConsentGate,
    OptOuts,
    PermittedUse,
    RegisteredConsents,
    StatedGround,
    subject_tag,
)
from abaton.site.record_pipeline import Site
from abaton.site.sources.base import FileSource, Source
from abaton.site.sources.fhir_server.bulk_export import BulkSource, Wanted
from abaton.site.sources.fhir_server.http_client import Web
from abaton.site.sources.fhir_server.retry import Clock, Patience
from abaton.site.sources.fhir_server.search import RestSource
from abaton.site.sources.fhir_server.smart_auth import Tokens
from abaton.site.sources.queries import queries, read_for, types_of
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
    key = tags_key(file) if file.document.keys.tags is not None else b""
    if consent.by_person:
        return RegisteredConsents(registry, key, study.study.id, study.hash)
    out = OptOuts(registry, key, study.study.id, has_list=consent.opt_outs is not None) if key else None
    when = now or datetime.now(UTC)
    if consent.permit is not None:
        permit = consent.permit.plain()
        held = note_permit(registry, study.study.id, study.study.purpose.value, permit, when)
        return PermittedUse(permit, study.study.purpose.value, study.hash, held, out)
    assert consent.ground is not None
    site = file.document.site.id
    return StatedGround(state_ground(registry, study.study.id, study.hash, site, consent.ground, when), out)


def open_registry(file: SiteFile, *, must_exist: bool = False) -> Registry:
    """The registry of a site: its consents, its opt-outs and its audit chain."""
    named = file.document.consent.place
    if "://" in named:
        return Registry(Database(named, metadata))
    place = file.path(named)
    if must_exist and not place.is_file():
        first = "run 'abaton site consents study.toml' first, or " if file.document.consent.forms else ""
        raise SettingsError(
            "the registry of consents is not there",
            where=str(place),
            remedy=f"{first}correct consent.registry",
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
    file: SiteFile,
    study: Study | None,
    need: Need,
    step: Step = lambda words: None,
    clock: Clock | None = None,
) -> Source:
    """The source of records that the document names; a server is asked for what a study needs, the others need none."""
    part = file.document.records
    if part.kind in (Kind.DIRECTORY, Kind.NDJSON):
        return FileSource([file.path(place) for place in part.paths], lines_only=part.kind is Kind.NDJSON)
    if part.kind is Kind.CSV:
        return _tables(file, study, need)
    if part.kind is Kind.OMOP:
        return _omop(file, study, need)
    if study is None:
        raise SettingsError(
            "a server is asked for what a study needs, and no study is named",
            where=file.name,
            remedy="add --study study.toml",
        )
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


def _tables(file: SiteFile, study: Study | None, need: Need) -> Source:
    """The tables of a site, by its mapping."""
    from abaton.site.sources.tabular.mapping import TYPES, load_mapping
    from abaton.site.sources.tabular.tabular_source import TableSource

    part = file.document.records
    assert part.mapping is not None
    paths = [file.path(place) for place in part.paths]
    types = read_for(need, study.eligibility if study else None, TYPES.values())
    return TableSource(paths, load_mapping(file.path(part.mapping)), types)


def _omop(file: SiteFile, study: Study | None, need: Need) -> Source:
    """The OMOP instance of a site: a database, or a folder of files."""
    from abaton.site.sources.omop.omop_source import OmopSource

    part, zone = file.document.records, zone_of(file.document.records.timezone)
    assert zone is not None  # the document was checked
    place: str | Path = file.path(part.paths[0]) if part.database is None else _from_here(file, part.database)
    schemas = {"cdm": part.cdm or "", "vocabulary": part.vocabulary or ""}
    return OmopSource(place, need, study.eligibility if study else None, zone, **schemas)


def _from_here(file: SiteFile, address: str) -> str:
    """The address of a database; a file in it is meant from the folder of the site's document."""
    kind, sign, place = address.partition(":///")
    if not sign or kind.split("+")[0] not in ("sqlite", "duckdb") or not place:
        return address
    return f"{kind}:///{file.path(place)}"


def open_ledger(file: SiteFile, floor: int) -> Ledger:
    """The ledger of a site, beside its document; people are known by the site's tags, or under a key of its own."""
    path, own = ledger_places(file)
    key = tags_key(file) if file.document.keys.tags else _own_key(own)
    return Ledger(path, lambda patient: subject_tag(key, patient), floor)


def ledger_places(file: SiteFile) -> tuple[Path, Path]:
    """Where a site's ledger lies, and the key of its own that it has if the site has none for tags."""
    name = file.document.site.id
    return file.path(f"{name}.ledger"), file.path(f"{name}.ledger.key")


def _own_key(path: Path) -> bytes:
    if not path.exists():
        with writing(path.parent), replacing(path, mode=0o600) as begun:
            begun.write_bytes(secrets.token_bytes(32))
    return private_bytes(path)
