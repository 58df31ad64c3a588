"""Builders of a site's components from its configuration: keys, source, consent gate, pipeline, release log."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from abaton.atomic_files import atomic_write, map_os_errors
from abaton.deid.mapping_table import MappingSink
from abaton.deid.pseudonyms import check_key
from abaton.deid.settings import DataRequest, Mechanism
from abaton.disclosure.levels import DisclosureLevel
from abaton.disclosure.release_gate import ReleaseGate
from abaton.disclosure.release_log import ReleaseLog
from abaton.disclosure.release_register import ReleaseRegister
from abaton.errors import SettingsError
from abaton.fhir.partial_dates import parse_time_zone
from abaton.governance import ConsentRegistry, metadata, record_legal_basis, record_permit
from abaton.records.export import pseudonyms_for
from abaton.site.config import SourceKind
from abaton.site.config_reader import LoadedSiteConfig, disclosure_level, min_cell_count
from abaton.site.consent_gate import (
    ConsentGate,
    OptOutGate,
    PermittedUse,
    RegistryGate,
    StatedLegalBasis,
    subject_pseudonym,
)
from abaton.site.record_pipeline import SitePipeline
from abaton.site.sources.base import FileSource, RecordSource
from abaton.site.sources.fhir_server.bulk_export import BulkExportRequest, BulkExportSource
from abaton.site.sources.fhir_server.http_client import FhirHttpClient
from abaton.site.sources.fhir_server.retry import RetryClock, RetryPolicy
from abaton.site.sources.fhir_server.search import SearchSource
from abaton.site.sources.fhir_server.smart_auth import SmartTokens
from abaton.site.sources.queries import build_fhir_queries, required_types, source_types
from abaton.store import Database
from abaton.study import Study

ProgressCallback = Callable[[str], None]


def build_site(
    file: LoadedSiteConfig,
    study: Study,
    now: datetime,
    *,
    gate: ConsentGate | None = None,
    sink: MappingSink | None = None,
    on_progress: ProgressCallback = lambda text: None,
) -> SitePipeline:
    """Build the record pipeline of a site for a study; refuse settings that are weaker than the study's.

    Args:
        file: The site configuration.
        study: The study.
        now: Time for consents and ages.
        gate: Consent gate; by default that of the configuration.
        sink: Mapping table; None for a preflight, which stores nothing.
        on_progress: Called with texts that contain no data of records.
    """
    file.check_against(study)
    request = study.data_request(now.date())
    pseudonyms = pseudonyms_for(request, study_key(file, request), file.config.site.id, sink)
    return SitePipeline(
        file.config,
        study,
        open_source(file, study, request, on_progress),
        gate or build_consent_gate(file, study, now),
        pseudonyms,
        now,
    )


def build_consent_gate(file: LoadedSiteConfig, study: Study, now: datetime | None = None) -> ConsentGate:
    """Build the configured consent gate: the registry of consents, a data permit, or a stated legal basis.

    A permit or a legal basis is recorded in the audit log before any record is used.
    """
    consent, study_id = file.config.consent, study.study.id
    registry = open_registry(file, must_exist=consent.is_per_subject)
    key = registry_key(file) if file.config.keys.registry is not None else b""
    if consent.is_per_subject:
        return RegistryGate(registry, key, study_id, study.hash)
    opt_outs = OptOutGate(registry, key, study_id, has_list=consent.opt_outs is not None) if key else None
    timestamp = now or datetime.now(UTC)
    if consent.permit is not None:
        permit, purpose = consent.permit.to_permit(), study.study.purpose.value
        basis = record_permit(registry, study_id, purpose, permit, timestamp)
        return PermittedUse(permit, purpose, study.hash, basis, opt_outs)
    assert consent.legal_basis is not None
    site = file.config.site.id
    basis = record_legal_basis(registry, study_id, study.hash, site, consent.legal_basis, timestamp)
    return StatedLegalBasis(basis, opt_outs)


def open_registry(file: LoadedSiteConfig, *, must_exist: bool = False) -> ConsentRegistry:
    """Build the registry of a site from its configuration: consents, opt-outs and the audit log."""
    address = file.config.consent.registry_path
    if "://" in address:
        return ConsentRegistry(Database(address, metadata))
    path = file.path(address)
    if must_exist and not path.is_file():
        hint = "run 'abaton site import-consents study.toml', or " if file.config.consent.forms else ""
        raise SettingsError(
            "the registry of consents does not exist",
            where=str(path),
            remedy=f"{hint}correct consent.registry",
        )
    return ConsentRegistry(Database(path, metadata))


def registry_key(file: LoadedSiteConfig) -> bytes:
    """Return the key of the registry pseudonyms from the file in the site's configuration."""
    assert file.config.keys.registry is not None
    return check_key(read_private_file(file.path(file.config.keys.registry)))


def study_key(file: LoadedSiteConfig, request: DataRequest) -> bytes:
    """Return the study key from the site's configured file; for an anonymising study, a random unstored key."""
    if request.deidentification.mechanism is Mechanism.ANONYMISE:
        return secrets.token_bytes(32)
    if file.config.keys.study is None:
        raise SettingsError(
            "keys.study is missing, and the study pseudonymises",
            where=file.name,
            remedy="run 'abaton records key study.key' and add study = 'study.key' under [keys]",
        )
    return check_key(read_private_file(file.path(file.config.keys.study)))


def read_private_file(path: Path) -> bytes:
    """Return the content of a configured key file of the site; refuse one that other users can read."""
    try:
        if path.stat().st_mode & 0o077:
            raise SettingsError(
                "other users can read the key", where=str(path), remedy=f"run 'chmod 600 {path.name}'"
            )
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"the key cannot be read: {error.strerror or type(error).__name__}",
            where=str(path),
            remedy="check the path under [keys]",
        ) from None


def open_source(
    file: LoadedSiteConfig,
    study: Study | None,
    request: DataRequest,
    on_progress: ProgressCallback = lambda text: None,
    clock: RetryClock | None = None,
) -> RecordSource:
    """Build the configured record source of a site; a server requires a study, whose data are requested."""
    section = file.config.records
    if section.source in (SourceKind.DIRECTORY, SourceKind.NDJSON):
        paths = [file.path(path) for path in section.paths]
        return FileSource(paths, lines_only=section.source is SourceKind.NDJSON)
    if section.source is SourceKind.CSV:
        return _open_tables(file, study, request)
    if section.source is SourceKind.OMOP:
        return _open_omop(file, study, request)
    if study is None:
        raise SettingsError(
            f"source = '{section.source.value}' requires a study",
            where=file.name,
            remedy="add --study study.toml",
        )
    assert section.url is not None
    retry_policy = RetryPolicy(section.timeout, section.retries)
    ca_file = str(file.path(section.ca_file)) if section.ca_file else None
    http_client = FhirHttpClient(section.url, section.hosts, retry_policy, ca_file, clock or RetryClock())
    types = tuple(sorted(required_types(request, study.eligibility)))
    smart = section.smart
    tokens = SmartTokens(http_client, smart, file.path(smart.key), types) if smart else None
    work_dir = file.path(section.work_dir)
    if section.source is SourceKind.BULK:
        return BulkExportSource(
            http_client,
            tokens,
            BulkExportRequest(section.export_level, section.group, types, section.since),
            work_dir,
            max_wait_seconds=section.max_wait_hours * 3600,
            on_progress=on_progress,
        )
    return SearchSource(
        http_client,
        tokens,
        build_fhir_queries(request, study.eligibility),
        work_dir,
        page_size=section.page_size,
        on_progress=lambda pages: on_progress(f"page {pages}"),
    )


def _open_tables(file: LoadedSiteConfig, study: Study | None, request: DataRequest) -> RecordSource:
    from abaton.site.sources.tabular.mapping import TYPES, load_mapping
    from abaton.site.sources.tabular.tabular_source import TabularSource

    section = file.config.records
    assert section.mapping is not None
    paths = [file.path(path) for path in section.paths]
    types = source_types(request, study.eligibility if study else None, TYPES.values())
    return TabularSource(paths, load_mapping(file.path(section.mapping)), types)


def _open_omop(file: LoadedSiteConfig, study: Study | None, request: DataRequest) -> RecordSource:
    from abaton.site.sources.omop.omop_source import OmopSource

    section, zone = file.config.records, parse_time_zone(file.config.records.timezone)
    assert zone is not None  # the configuration was validated
    return OmopSource(
        file.path(section.paths[0])
        if section.database is None
        else _resolve_database_url(file, section.database),
        request,
        study.eligibility if study else None,
        zone,
        cdm_schema=section.cdm_schema or "",
        vocabulary_schema=section.vocabulary_schema or "",
    )


def _resolve_database_url(file: LoadedSiteConfig, url: str) -> str:
    """Return a site's database URL with the file path relative to the folder of the site's configuration."""
    scheme, separator, path = url.partition(":///")
    if not separator or scheme.split("+")[0] not in ("sqlite", "duckdb") or not path:
        return url
    return f"{scheme}:///{file.path(path)}"


def open_release_log(file: LoadedSiteConfig, min_cell_count: int) -> ReleaseLog:
    """Build the release log of a site, with its registry key, or with a separate key if it has none."""
    path, key_path = release_log_paths(file)
    key = registry_key(file) if file.config.keys.registry else _load_or_create_key(key_path)
    return ReleaseLog(path, lambda patient: subject_pseudonym(key, patient), min_cell_count)


def release_log_paths(file: LoadedSiteConfig) -> tuple[Path, Path]:
    """Return the configured path of a site's release log, and of the key that is used without keys.registry."""
    name = file.config.site.id
    return file.path(f"{name}.releases"), file.path(f"{name}.releases.key")


def open_release_gate(
    file: LoadedSiteConfig, study: Study, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> ReleaseGate:
    """Build the release gate of a site for a study, at the stricter of both disclosure levels.

    Without noise the threshold is the minimum cell count; with noise it is the larger of both.
    """
    return _make_gate(file, study, ReleaseRegister(*release_register_paths(file)), clock)


def preview_release_gate(file: LoadedSiteConfig, study: Study, folder: Path) -> ReleaseGate:
    """Build a release gate as configured, with an empty register and another secret: a preview charges nothing."""
    register = ReleaseRegister(folder / "release-register", folder / "release-register.key")
    return _make_gate(file, study, register, lambda: datetime.now(UTC))


def _make_gate(
    file: LoadedSiteConfig, study: Study, register: ReleaseRegister, clock: Callable[[], datetime]
) -> ReleaseGate:
    settings, level = file.config.policy.noise_settings(), disclosure_level(file.config, study)
    cell_count = min_cell_count(file.config, study)
    threshold = cell_count if level is DisclosureLevel.EXACT else max(settings.threshold, cell_count)
    return ReleaseGate(register, level, replace(settings, threshold=threshold), clock)


def release_register_paths(file: LoadedSiteConfig) -> tuple[Path, Path]:
    """Return the configured paths of a site's release register and of its key file."""
    name = file.config.site.id
    return file.path(f"{name}.release-register"), file.path(f"{name}.release-register.key")


def _load_or_create_key(path: Path) -> bytes:
    if not path.exists():
        with map_os_errors(path.parent), atomic_write(path, mode=0o600) as temporary_path:
            temporary_path.write_bytes(secrets.token_bytes(32))
    return read_private_file(path)
