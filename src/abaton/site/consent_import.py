"""Import of consent forms and opt-out lists into the site's registry.

Invariants:
(1) a statement counts from the time of its import; importing the same content again changes nothing;
(2) a location without any content is an error, not an empty list of consents or opt-outs;
(3) results are counts; they do not identify a subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from abaton.documents.toml_reader import validate_toml
from abaton.errors import RefusedError, SettingsError
from abaton.governance import (
    ConsentImportResult,
    ConsentRegistry,
    DataPermit,
    import_consents,
    record_basis_once,
    set_opt_outs,
)
from abaton.governance.consent_forms import (
    FormReading,
    combine_consents,
    is_unambiguous,
    read_form,
    refusing_patient,
)
from abaton.site.centre_session import open_withdrawals
from abaton.site.config_reader import SITE_HELP, LoadedSiteConfig, SiteConfigError
from abaton.site.consent_config import OptOutsSection, PermitSection
from abaton.site.consent_gate import list_digest, publish, subject_pseudonym
from abaton.site.factory import open_registry, registry_key
from abaton.site.sources.base import FileSource
from abaton.site.sources.fhir_server.http_client import FHIR_JSON, FhirHttpClient, parse_response
from abaton.study import Study

_MAX_LIST_BYTES, _MAX_PAGES = 1 << 26, 10_000


@dataclass(slots=True)
class ImportedConsents:
    """Counts of what was read and changed.

    Attributes:
        resources: Number of Consent resources.
        subjects: Number of their subjects.
        changes: Changes in the registry.
        issues: Number of Consents without effect, by reason.
        opted_out: Number of subjects on the opt-out list; None if the site names no list.
        new_opt_outs, removed_opt_outs: Numbers of subjects added to the list and removed from it.
        withdrawals: Number of open withdrawals of subjects whose records were sent.
        withdrawn: Patient ids of subjects whose form revokes a consent; stays at the site.
    """

    resources: int = 0
    subjects: int = 0
    changes: ConsentImportResult = field(default_factory=ConsentImportResult)
    issues: Counter[str] = field(default_factory=Counter)
    opted_out: int | None = None
    new_opt_outs: int = 0
    removed_opt_outs: int = 0
    withdrawals: int = 0
    withdrawn: tuple[str, ...] = field(default=(), repr=False)


def import_site_consents(file: LoadedSiteConfig, study: Study, timestamp: datetime) -> ImportedConsents:
    """Import the consent forms and the opt-out list of a site configuration into the registry.

    Args:
        file: The site configuration.
        study: The study; consents refer to the hash of its document.
        timestamp: Current time.

    Raises:
        SettingsError: The configuration names neither forms nor a list, or a location cannot be read.
    """
    consent, imported = file.config.consent, ImportedConsents()
    if not consent.forms and consent.opt_outs is None:
        raise SettingsError(
            "neither consent forms nor an opt-out list are configured",
            where=file.name,
            remedy="add [[consent.forms]] or [consent.opt_outs]",
        )
    opt_outs = None if consent.opt_outs is None else read_opt_outs(file, consent.opt_outs, timestamp)
    registry, key = open_registry(file), registry_key(file)
    with registry.database:
        publish(registry, study, timestamp)
        if opt_outs is not None:
            imported.opted_out = len(opt_outs)
            pseudonyms = {subject_pseudonym(key, patient) for patient in opt_outs}
            imported.new_opt_outs, imported.removed_opt_outs = set_opt_outs(registry, pseudonyms, timestamp)
            # The digest of the list is recorded together with the hash of the study document.
            list_hash = list_digest(pseudonyms)
            record_basis_once(registry, study.study.id, study.hash, "opt-outs-read", list_hash, timestamp)
        if consent.forms:
            _import_forms(file, study, registry, key, timestamp, imported)
        imported.withdrawals = open_withdrawals(
            file,
            registry,
            key,
            study,
            timestamp,
            withdrawn=imported.withdrawn,
            opted_out=opt_outs or frozenset(),
        )
    return imported


def read_permit(file: Path) -> DataPermit:
    """Import a data permit from its own file, which has the keys of ``[consent.permit]``."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise SettingsError(
            "the permit is not a readable UTF-8 file",
            where=str(file),
            remedy="check the path and the encoding",
        ) from None
    return validate_toml(text, str(file), PermitSection, SITE_HELP, SiteConfigError).to_permit()


def _import_forms(
    file: LoadedSiteConfig,
    study: Study,
    registry: ConsentRegistry,
    key: bytes,
    timestamp: datetime,
    imported: ImportedConsents,
) -> None:
    sections = file.config.consent.forms
    forms = [section.to_form() for section in sections]
    paths = dict.fromkeys(path for section in sections for path in section.resources)
    source = FileSource([file.path(path) for path in paths])
    readings = dict[str, list[FormReading]]()
    for record in source.records():
        for resource in _consents(record.content):
            reading = read_form(resource, forms)
            imported.resources += 1
            if reading.issue is not None:
                imported.issues[reading.issue.value] += 1
            if reading.patient:
                readings.setdefault(reading.patient, []).append(reading)
    imported.issues.update(source.errors.reasons)
    if not imported.resources:
        raise RefusedError(
            "no Consent resource was read; nothing was changed",
            where=file.name,
            remedy="check consent.forms.resources",
        )
    imported.subjects = len(readings)
    # A subject whose newest form is ambiguous is treated like one without a form, and excluded until it is clear.
    patients = {
        subject_pseudonym(key, patient): patient
        for patient, patient_forms in readings.items()
        if is_unambiguous(patient_forms)
    }
    terms = {pseudonym: combine_consents(readings[patient]) for pseudonym, patient in patients.items()}
    imported.changes = import_consents(registry, terms, study.study.id, study.hash, timestamp)
    imported.withdrawn = tuple(patients[pseudonym] for pseudonym in imported.changes.withdrawn)


def _consents(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the Consent resources of a document to import, which is a Consent or a Bundle."""
    if content.get("resourceType") == "Consent":
        yield content
    elif content.get("resourceType") == "Bundle":
        for entry in content.get("entry", []):
            resource = entry.get("resource") if isinstance(entry, dict) else None
            if isinstance(resource, dict) and resource.get("resourceType") == "Consent":
                yield resource


def read_opt_outs(file: LoadedSiteConfig, section: OptOutsSection, timestamp: datetime) -> set[str]:
    """Return the Patient ids on the opt-out list to import."""
    if section.fhir is not None:
        return _refusals_on_server(section.fhir, _list_client(file, section, section.fhir), timestamp)
    if section.url is not None:
        response = _list_client(file, section, section.url).request(
            section.url, lambda: {"accept": "text/plain"}
        )
        return _parse_list(response.body, section.url)
    assert section.file is not None
    path = file.path(section.file)
    try:
        if path.stat().st_size > _MAX_LIST_BYTES:
            raise SettingsError(
                f"the opt-out list is larger than {_MAX_LIST_BYTES >> 20} MiB",
                where=str(path),
                remedy="remove what is not a list of ids",
            )
        raw = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"the opt-out list cannot be read: {error.strerror or type(error).__name__}",
            where=str(path),
            remedy="check consent.opt_outs.file",
        ) from None
    return _parse_list(raw, str(path))


def _list_client(file: LoadedSiteConfig, section: OptOutsSection, url: str) -> FhirHttpClient:
    return FhirHttpClient(url, ca_file=str(file.path(section.ca_file)) if section.ca_file else None)


def _parse_list(raw: bytes, where: str) -> set[str]:
    """Parse an opt-out list to import, with one id per line and comments after #."""
    try:
        lines = [line.partition("#")[0].strip() for line in raw.decode("utf-8").splitlines()]
    except UnicodeDecodeError:
        raise SettingsError("the opt-out list is not UTF-8", where=where, remedy="save it as UTF-8") from None
    if invalid := [number for number, line in enumerate(lines, 1) if not _is_patient_id(line)]:
        raise SettingsError(
            f"line {invalid[0]} of the opt-out list is not a Patient id",
            where=where,
            remedy="write one Patient id per line",
        )
    return {line for line in lines if line}


def _is_patient_id(line: str) -> bool:
    return len(line) <= 64 and all(character.isalnum() or character in "-." for character in line)


def _refusals_on_server(base: str, http_client: FhirHttpClient, timestamp: datetime) -> set[str]:
    """Return the Patients to import as opt-outs: their Consents on a FHIR server refuse every use."""
    patients: set[str] = set()
    url = f"{base}/Consent?scope=research&_count=200"
    for _ in range(_MAX_PAGES):
        page = parse_response(http_client.request(url, lambda: {"accept": FHIR_JSON[0]}), url)
        patients |= {
            patient for consent in _consents(page) if (patient := refusing_patient(consent, timestamp))
        }
        links = {link.get("relation"): link.get("url") for link in page.get("link", [])}
        if not links.get("next"):
            return patients
        url = urljoin(url, str(links["next"]))
    raise RefusedError(
        f"the opt-out list has more than {_MAX_PAGES:,} pages",
        where=base,
        remedy="contact the operator of the server",
    )
