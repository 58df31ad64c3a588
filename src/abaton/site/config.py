"""Site configuration, ``site.toml``: record source, rules beyond the study, consent, keys, policy and limits.

Invariants:
(1) a site can only restrict a study: its rules remove or generalise, and its thresholds are at least the study's;
(2) the file contains no secrets: keys are given by the paths of their files;
(3) on conflict between site and study, the site wins.
"""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime, time
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.deid.rule_compiler import CompiledRules
from abaton.deid.settings import DateHandling, DeidentificationRule
from abaton.disclosure.levels import DisclosureLevel, NoiseSettings
from abaton.documents.fields import Section, Text, field_error
from abaton.errors import RefusedError, SettingsError
from abaton.site.config_fields import (
    HostName,
    PathText,
    ResourceType,
    SchemaName,
    Url,
    check_no_password,
    check_time_zone,
)
from abaton.site.consent_config import SiteConsentSection
from abaton.study.components import Packages

Fingerprint = Annotated[str, Field(pattern=r"^ed25519:[A-Z2-7]{26}$")]
_NOISE = NoiseSettings()


class SitePolicySection(Section):
    """``[policy]``: limits on the requests of a centre; the defaults are strict.

    Attributes:
        min_batch_size: Minimum number of rows per training batch, and of rows that remain for training.
        min_rows: Minimum number of rows per update. A smaller site takes part only in synchronous rounds, without
            scores, under a privacy budget.
        max_model_shift_ratio: Maximum distance between consecutive models, in norms of the site's largest update.
        max_scored_models: Maximum number of scored models of other learners beyond one per version.
        max_test_evaluations: Maximum number of versions evaluated on the test set after a run.
        trusted_signers: Fingerprints of other sites' signing keys by site id; if given, only their models are scored.
        disclosure: Disclosure level of the site; the stricter of this and the study's applies. By default the study's.
        table_sd, primary_multiplier, multiplier, interpretability_multiplier, score_sd, threshold, epoch_days,
            study_budget, yearly_budget: As in `abaton.disclosure.levels.NoiseSettings`.
    """

    min_batch_size: int = Field(8, ge=1)
    min_rows: int = Field(50, ge=1)
    max_model_shift_ratio: float = Field(10.0, ge=1)
    max_scored_models: int = Field(64, ge=0)
    max_test_evaluations: int = Field(64, ge=1)
    trusted_signers: dict[str, Fingerprint] = Field(default_factory=dict)
    disclosure: DisclosureLevel | None = None
    table_sd: float = Field(_NOISE.table_sd, ge=1, le=1000)
    primary_multiplier: float = Field(_NOISE.primary_multiplier, ge=0.5, le=1000)
    multiplier: float = Field(_NOISE.multiplier, ge=0.5, le=1000)
    interpretability_multiplier: float = Field(_NOISE.interpretability_multiplier, ge=0.5, le=1000)
    score_sd: float = Field(_NOISE.score_sd, ge=1, le=1000)
    threshold: int = Field(_NOISE.threshold, ge=1)
    epoch_days: int = Field(_NOISE.epoch_days, ge=1, le=366)
    study_budget: float = Field(_NOISE.study_budget, ge=0, le=1000)
    yearly_budget: float = Field(_NOISE.yearly_budget, ge=0, le=1000)

    def noise_settings(self) -> NoiseSettings:
        """Return the sizes of the noise and the privacy budgets of the site configuration."""
        return NoiseSettings(**{field.name: getattr(self, field.name) for field in fields(NoiseSettings)})


_FILE_KEYS = frozenset({"paths"})
_SERVER_KEYS = frozenset({"url", "work_dir", "page_size", "timeout", "retries", "hosts", "ca_file", "smart"})
_BULK_KEYS = frozenset({"export_level", "group", "since", "max_wait_hours"})
_OMOP_KEYS = frozenset({"database", "paths", "cdm_schema", "vocabulary_schema", "timezone"})


class SiteIdentity(Section):
    """``[site]``: id and display name. The id enters every pseudonym and must not change during a study."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    name: Text


class SourceKind(StrEnum):
    """Kind of record source."""

    DIRECTORY = "directory"
    NDJSON = "ndjson"
    FHIR = "fhir"
    BULK = "bulk"
    CSV = "csv"
    OMOP = "omop"


class SmartSection(Section):
    """``[records.smart]``: credentials for SMART Backend Services."""

    client: Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
    key: PathText
    key_id: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    algorithm: Literal["ES384", "RS384"] = "ES384"
    token_url: Url | None = None
    scopes: tuple[Annotated[str, Field(pattern=r"^[!-~]{1,200}$")], ...] = ()


class RecordsSection(Section):
    """``[records]``: location and format of the records."""

    source: SourceKind
    paths: tuple[PathText, ...] = ()
    url: Url | None = None
    work_dir: PathText = "work"
    page_size: int = Field(200, ge=1, le=10_000)
    timeout: float = Field(60, ge=0.05, le=3600)
    retries: int = Field(5, ge=0, le=20)
    hosts: tuple[HostName, ...] = ()
    ca_file: PathText | None = None
    smart: SmartSection | None = None
    export_level: Literal["system", "patient", "group"] = "patient"
    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9\-.]{1,64}$")] | None = None
    since: datetime | None = None
    max_wait_hours: float = Field(24, gt=0, le=24 * 14)
    mapping: PathText | None = None
    database: Annotated[PathText, AfterValidator(check_no_password)] | None = None
    cdm_schema: SchemaName | None = None
    vocabulary_schema: SchemaName | None = None
    timezone: Annotated[str, AfterValidator(check_time_zone)] = "Z"

    @model_validator(mode="after")
    def _check_keys_of_source(self) -> Self:
        allowed = {"source"} | {
            SourceKind.DIRECTORY: _FILE_KEYS,
            SourceKind.NDJSON: _FILE_KEYS,
            SourceKind.FHIR: _SERVER_KEYS,
            SourceKind.BULK: _SERVER_KEYS | _BULK_KEYS,
            SourceKind.CSV: _FILE_KEYS | {"mapping"},
            SourceKind.OMOP: _OMOP_KEYS,
        }[self.source]
        if unexpected := sorted(self.model_fields_set - allowed):
            raise field_error(
                f"'{unexpected[0]}' does not apply to source = '{self.source.value}'",
                f"use {', '.join(sorted(allowed - {'source'}))}",
            )
        if self.source is SourceKind.OMOP:
            if (self.database is None) == (len(self.paths) != 1):
                raise field_error(
                    "either 'database' or one folder in 'paths' is required for source = 'omop'",
                    "add database = 'postgresql+psycopg://host/name', or paths = ['folder of CSV or Parquet']",
                )
        elif "paths" in allowed and not self.paths:
            raise field_error("'paths' is missing", "add paths = ['records']")
        if self.source is SourceKind.CSV and self.mapping is None:
            raise field_error(
                "'mapping' is missing for source = 'csv'",
                "run 'abaton site suggest-mapping' and add mapping = 'mapping.toml'",
            )
        if "url" in allowed and self.url is None:
            raise field_error("'url' is missing", "add url = 'https://host/fhir'")
        if (self.export_level == "group") != (self.group is not None):
            raise field_error("'group' and export_level = 'group' require each other", "set both, or neither")
        if self.since is not None and self.since.tzinfo is None:
            raise field_error("'since' has no time zone", "write 2026-01-31T00:00:00Z")
        return self


class SiteDeidentificationRule(Section):
    """``[[rules.deidentification]]``: rule that is applied after the study's rules; it redacts or generalises."""

    path: Text
    method: str
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_stricter(self) -> Self:
        if self.method not in ("redact", "generalise"):
            raise field_error(
                "the rule could be weaker than the study's", "use method 'redact' or 'generalise'"
            )
        try:
            CompiledRules((self.to_rule(),))
        except SettingsError as error:
            raise field_error(f"the rule is invalid: {error.what}", error.remedy) from None
        return self

    def to_rule(self) -> DeidentificationRule:
        """Return a de-identification rule of the site configuration in the de-identifier's form."""
        return DeidentificationRule(
            self.path,
            self.method,
            tuple((key, _format_setting(value)) for key, value in self.settings.items()),
        )


def _format_setting(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


class SiteRulesSection(Section):
    """``[rules]``: requirements beyond the study; each may only be stricter."""

    k: int | None = Field(None, ge=2)
    min_cell_count: int | None = Field(None, ge=1)
    dates: DateHandling | None = None
    excluded_types: tuple[ResourceType, ...] = ()
    deidentification: tuple[SiteDeidentificationRule, ...] = ()


class KeysSection(Section):
    """``[keys]``: paths of the site's key files."""

    study: PathText | None = None
    registry: PathText | None = None
    key_set: PathText | None = None


class CentreSection(Section):
    """``[centre]``: intake of the research centre and its public keys."""

    url: Url
    public_keys: PathText
    ca_file: PathText | None = None
    outbox: PathText = "outbox"
    chunk_bytes: int = Field(1 << 19, ge=1, le=1 << 26)
    retries: int = Field(5, ge=0, le=20)


class VaultSection(Section):
    """``[vault]``: databases of the mapping table and of its row keys, and the data controller's public keys."""

    rows_database: Annotated[PathText, AfterValidator(check_no_password)]
    keys_database: Annotated[PathText, AfterValidator(check_no_password)]
    data_controller_key: PathText

    @model_validator(mode="after")
    def _check_separate(self) -> Self:
        if self.rows_database == self.keys_database:
            raise field_error(
                "rows_database and keys_database are the same", "use two databases with separate backups"
            )
        return self


class WorkingHours(Section):
    """``working_hours``: time of day in which the site's machine may work, in local time; may pass midnight.

    >>> WorkingHours(start="20:00", end="06:00").is_open_at(time(23, 30))
    True
    """

    start: str
    end: str

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        pattern = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
        if not pattern.fullmatch(self.start) or not pattern.fullmatch(self.end) or self.start == self.end:
            raise field_error(
                "start and end are not two different times", "write { start = '20:00', end = '06:00' }"
            )
        return self

    def is_open_at(self, time_of_day: time) -> bool:
        """Return whether the working hours in the site configuration allow work at a time of day."""
        now = time_of_day.strftime("%H:%M")
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end


class SiteLimits(Section):
    """``[limits]``: resources of the site's machine that a study may use."""

    threads: int = Field(1, ge=1, le=1024)
    memory_mib: int = Field(2048, ge=64)
    max_batch_size: int | None = Field(None, ge=1)
    working_hours: WorkingHours | None = None
    max_interpretability_requests: int | None = Field(
        None, ge=0, description="evaluations of a model on all test subjects for interpretability, per run"
    )
    personalise: bool = Field(True, description="whether a run may create a personal model")

    def check_hours(self, timestamp: datetime) -> None:
        """Refuse work outside the working hours of the site configuration, by the machine's local time.

        >>> hours = WorkingHours(start="20:00", end="06:00")
        >>> SiteLimits(working_hours=hours).check_hours(datetime(2026, 1, 1, 23, 0))
        """
        if self.working_hours is None or self.working_hours.is_open_at(timestamp.astimezone().time()):
            return
        raise RefusedError(
            f"the site works from {self.working_hours.start} to {self.working_hours.end} only",
            where="limits.working_hours",
            remedy="start the run within these hours, or change them",
        )


class SiteConfig(Section):
    """Validated content of ``site.toml``."""

    site: SiteIdentity
    records: RecordsSection
    rules: SiteRulesSection = SiteRulesSection()
    consent: SiteConsentSection
    keys: KeysSection = KeysSection()
    centre: CentreSection | None = None
    vault: VaultSection | None = None
    limits: SiteLimits = SiteLimits()
    policy: SitePolicySection = SitePolicySection()
    plugins: Packages = Field(
        default_factory=dict, description="packages whose codecs and models may run here"
    )

    @model_validator(mode="after")
    def _check_registry_key(self) -> Self:
        if self.consent.needs_registry_key and self.keys.registry is None:
            raise field_error(
                "consents and opt-outs require keys.registry, the key of the registry pseudonyms",
                "add registry = 'registry.key' under [keys]",
            )
        return self

    @model_validator(mode="after")
    def _check_keys_outside_work_dir(self) -> Self:
        keys = [PurePath(path) for path in (self.keys.study, self.keys.registry, self.keys.key_set) if path]
        if any(PurePath(self.records.work_dir) in path.parents for path in keys):
            raise field_error(
                "a key is inside records.work_dir, which is removed after use",
                "move the key out of records.work_dir",
            )
        return self
