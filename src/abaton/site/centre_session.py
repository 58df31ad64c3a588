"""Session of a site with its registry and the research centre: enrolment, transfer, withdrawal, retention.

Registry, outbox and vault are opened with the session; keys and the connection to the centre are opened when first
needed.

A subject may withdraw at the site, on a consent form that the site imports, or through an opt-out list. If records of
the subject were sent, or may have been, a withdrawal case is opened; carrying it out requires the site's keys.
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

from abaton.errors import RefusedError, SettingsError
from abaton.governance import (
    CentreWithdrawal,
    ConsentRegistry,
    KeySet,
    Outbox,
    RetentionTargets,
    SiteWithdrawal,
    Statement,
    Vault,
    WithdrawalCascade,
    WithdrawalCase,
    open_case,
    schema,
    site_steps,
    vault_pseudonym,
    verifier,
)
from abaton.governance.key_files import read_public
from abaton.records.export import pseudonyms_for
from abaton.site.centre_client import (
    CentreClient,
    CentreUnavailableError,
    ProgressCallback,
    RecordSender,
    TransferReport,
)
from abaton.site.config_reader import LoadedSiteConfig
from abaton.site.consent_gate import publish, subject_pseudonym
from abaton.site.factory import build_site, open_registry, registry_key, study_key
from abaton.site.sources.fhir_server.download_cache import clear_work_dir
from abaton.site.sources.fhir_server.http_client import FhirHttpClient
from abaton.site.sources.fhir_server.retry import RetryPolicy
from abaton.store import Database
from abaton.study import SharedData, Study


def vault_row_pseudonym(file: LoadedSiteConfig, study: Study, patient: str, timestamp: datetime) -> str:
    """Return the pseudonym of a subject's row in the vault of the site's session; empty without a vault."""
    if file.config.vault is None:
        return ""
    request = study.data_request(timestamp.date())
    return vault_pseudonym(pseudonyms_for(request, study_key(file, request), file.config.site.id), patient)


def subjects_sent(registry: ConsentRegistry, study: Study) -> frozenset[str]:
    """Return the subjects with envelopes in the site's outbox for the centre, sent or not."""
    table = schema.outbox
    statement = sql.select(table.c.subject).where(table.c.study == study.study.id).distinct()
    return frozenset(registry.database.read(lambda connection: list(connection.scalars(statement))))


def is_known_to_centre(file: LoadedSiteConfig, registry: ConsentRegistry, study: Study, subject: str) -> bool:
    """Return whether the centre may have records of a subject."""
    shares_records = SharedData.RECORDS in study.study.shared_data and file.config.centre is not None
    return shares_records or subject in subjects_sent(registry, study)


def open_withdrawals(
    file: LoadedSiteConfig,
    registry: ConsentRegistry,
    key: bytes,
    study: Study,
    timestamp: datetime,
    *,
    withdrawn: Iterable[str],
    opted_out: Iterable[str],
) -> int:
    """Open withdrawal cases at the site, with a deletion at the centre if needed; return their number.

    Args:
        file: The site configuration.
        registry: Registry of the consents.
        key: Key of the registry pseudonyms.
        study: The study.
        timestamp: Current time.
        withdrawn: Patient ids of subjects whose form revokes a consent.
        opted_out: Patient ids on the opt-out list; a case is opened only if records were sent.
    """
    sent = subjects_sent(registry, study)
    cases = {
        patient: is_known_to_centre(file, registry, study, subject_pseudonym(key, patient))
        for patient in withdrawn
    }
    cases |= {patient: True for patient in opted_out if subject_pseudonym(key, patient) in sent}
    for patient, is_sent in sorted(cases.items()):
        row, subject = vault_row_pseudonym(file, study, patient, timestamp), subject_pseudonym(key, patient)
        open_case(registry.database, study.study.id, subject, row, timestamp, sent=is_sent)
    return len(cases)


class CentreConnection:
    """Connection to the centre, opened when it is first needed, so that other commands need no keys.

    Args:
        file: The site configuration.
        load_key_set: Loads the site's keys.
    """

    def __init__(self, file: LoadedSiteConfig, load_key_set: Callable[[], KeySet]) -> None:
        self.file, self._load_key_set, self._exit_stack = file, load_key_set, contextlib.ExitStack()

    @cached_property
    def client(self) -> CentreClient:
        """Client of the research centre in the site's session, connected when first needed.

        Raises:
            SettingsError: The configuration has no centre, or no legal basis for sending.
        """
        config = self.file.config
        centre = config.centre
        if centre is None or not config.consent.may_send:
            raise SettingsError(
                "[centre] is missing" if centre is None else "no legal basis for sending is configured",
                where=self.file.name,
                remedy="add [centre] and either consent.registry or a permit with actions = ['send']",
            )
        key_set, public_keys = self._load_key_set(), read_public(self.file.path(centre.public_keys))
        http_client = FhirHttpClient(
            centre.url,
            retry_policy=RetryPolicy(retries=centre.retries),
            ca_file=str(self.file.path(centre.ca_file)) if centre.ca_file else None,
            keep_alive=True,
        )
        self._exit_stack.callback(http_client.close)
        return CentreClient(http_client, public_keys, key_set.signing_key, chunk_bytes=centre.chunk_bytes)

    def close(self) -> None:
        """Close the session's connection to the research centre."""
        self._exit_stack.close()


SubjectDeletion = Callable[[Callable[[str], bool]], None]
"""Deletes subjects from other data of the site; called with a predicate of Patient ids."""


@dataclass(frozen=True, slots=True)
class CentreSession:
    """Registry, outbox, vault and centre connection of a site.

    Args:
        file: The site configuration.
        registry: Registry of the consents.
        outbox: Outbox of sealed envelopes; None without a centre.
        vault: Mapping table, if the site has one.
        connection: Connection to the centre.
        key: Key of the registry pseudonyms.
        now: Returns the current time.
        delete_subjects: Deletes subjects from the data of runs at the site.
    """

    file: LoadedSiteConfig
    registry: ConsentRegistry
    outbox: Outbox | None
    vault: Vault | None
    connection: CentreConnection
    key: bytes = field(repr=False)
    now: Callable[[], datetime]
    delete_subjects: SubjectDeletion = lambda is_withdrawn: None

    def pseudonym_of(self, patient: str) -> str:
        """Return the registry pseudonym of a Patient id in the site's session with the centre."""
        return subject_pseudonym(self.key, patient)

    def enrol(self, study: Study, patients: Iterable[str], until: datetime | None = None) -> None:
        """Record in the site's session that patients agree to studies and consent to this one; all of them, or none."""
        timestamp, subjects = self.now(), {self.pseudonym_of(patient): until for patient in patients}
        publish(self.registry, study, timestamp)
        self.registry.enrol(subjects, study.study.id, study.hash, timestamp)

    def send(
        self, study: Study, on_progress: ProgressCallback = lambda text: None, *, collect: bool = True
    ) -> TransferReport:
        """Run a transfer session: de-identify, seal and send all consented subjects' records; it can resume.

        Withdrawals are sent first, so that the centre receives a withdrawal before a later consent.
        """
        if SharedData.RECORDS not in study.study.shared_data:
            raise RefusedError(
                "the study does not request records",
                where=study.study.id,
                remedy="add 'records' to study.shared_data, or do not send",
            )
        client, report = self.connection.client, TransferReport()
        assert self.outbox is not None
        publish(self.registry, study, self.now())
        self.cascade().advance_all(self.now())
        sender = RecordSender(self.registry, self.outbox, client.signer, client, self.now, self.pseudonym_of)
        self.outbox.sweep()
        if collect:
            site = build_site(self.file, study, self.now(), sink=self.vault, on_progress=on_progress)
            sender.queue(site, report)
        sender.send(report, on_progress)
        return report

    def withdraw(self, study: Study, patient: str) -> WithdrawalCase:
        """Withdraw a subject from a study at the site and the centre, as far as possible in this session.

        The centre is involved only if records of the subject are sent in this study, or were.
        """
        timestamp, subject, cascade = self.now(), self.pseudonym_of(patient), self.cascade()
        row = vault_row_pseudonym(self.file, study, patient, timestamp)
        is_sent = is_known_to_centre(self.file, self.registry, study, subject)
        case = cascade.open(study.study.id, subject, row, timestamp, sent=is_sent)
        return cascade.advance(case, timestamp)

    def cascade(self) -> WithdrawalCascade:
        """Return the withdrawal cascade of the site's session with the centre."""
        centre = None if self.file.config.centre is None else self._centre_withdrawal
        site = SiteWithdrawal(self.registry, self.outbox, self.vault, centre, self._delete_subject)
        return WithdrawalCascade(self.registry.database, site_steps(site))

    def _centre_withdrawal(self) -> CentreWithdrawal:
        client = self.connection.client
        return CentreWithdrawal(client.signer, self._send_order, verifier([client.key_set.signing_key]))

    def _send_order(self, order: Statement) -> Statement | None:
        try:
            return self.connection.client.delete(order)
        except CentreUnavailableError:
            return None

    def _delete_subject(self, study: str, subject: str) -> None:
        """Delete a withdrawn subject at the site: files of an interrupted download, and from the data of runs."""
        clear_work_dir(self.file.path(self.file.config.records.work_dir))
        self.delete_subjects(lambda patient: self.pseudonym_of(patient) == subject)


@contextlib.contextmanager
def open_centre_session(
    file: LoadedSiteConfig,
    load_key_set: Callable[[], KeySet],
    now: Callable[[], datetime],
    delete_subjects: SubjectDeletion = lambda is_withdrawn: None,
) -> Iterator[CentreSession]:
    """Open the session of a site with the centre: registry, outbox and vault of its configuration.

    Args:
        file: The site configuration.
        load_key_set: Loads the site's keys, when something is signed.
        now: Returns the current time.
        delete_subjects: Deletes subjects from the data of runs at the site.
    """
    if file.config.keys.registry is None:
        raise SettingsError(
            "keys.registry, the key of the registry pseudonyms, is missing",
            where=file.name,
            remedy="add registry = 'registry.key' under [keys]",
        )
    with contextlib.ExitStack() as stack:
        connection = CentreConnection(file, load_key_set)
        stack.callback(connection.close)
        registry = open_registry(file)
        stack.callback(registry.database.close)
        vault = _open_vault(file)
        if vault is not None:
            stack.callback(vault.close)
        outbox = _open_outbox(file, registry.database)
        yield CentreSession(
            file, registry, outbox, vault, connection, registry_key(file), now, delete_subjects
        )


@contextlib.contextmanager
def retention_targets(file: LoadedSiteConfig) -> Iterator[RetentionTargets]:
    """Open registry, outbox and mapping table of a site's session for :func:`abaton.governance.enforce`."""
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(open_registry(file).database)
        vault = _open_vault(file)
        if vault is not None:
            stack.callback(vault.close)
        yield RetentionTargets(database, outbox=_open_outbox(file, database), vault=vault)


def _open_outbox(file: LoadedSiteConfig, database: Database) -> Outbox | None:
    centre = file.config.centre
    return None if centre is None else Outbox(file.path(centre.outbox), database)


def _open_vault(file: LoadedSiteConfig) -> Vault | None:
    section = file.config.vault
    if section is None:
        return None
    return Vault(
        _database_address(file, section.rows_database),
        _database_address(file, section.keys_database),
        read_public(file.path(section.data_controller_key)).sealing_key,
        secrets.token_bytes,
    )


def _database_address(file: LoadedSiteConfig, address: str) -> str | Path:
    return address if "://" in address else file.path(address)
