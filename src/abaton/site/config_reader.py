"""Reader of ``site.toml``, its comparison with a study, and a template.

A setting that is weaker than the study's, or a plugin of the study that the site does not allow by name and version, is
refused with its key and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from abaton.deid.settings import DateHandling
from abaton.disclosure.levels import DisclosureLevel, strictest_level
from abaton.documents.line_numbers import KeyPath, key_lines, nearest_line
from abaton.documents.problems import DocumentError, DocumentHelp, DocumentProblem, format_key_path
from abaton.documents.toml_reader import decode_text, read_document, validate_toml
from abaton.errors import SettingsError
from abaton.plugins import find_plugins, is_same_package, missing_packages
from abaton.site.config import SiteConfig
from abaton.study import Study

SITE_HELP = DocumentHelp("abaton site new", "docs/site.md")
_STRICTNESS = (DateHandling.SHIFT, DateHandling.YEAR, DateHandling.REMOVE)


class SiteConfigError(DocumentError):
    """Invalid site configuration, with every problem."""


@dataclass(frozen=True, slots=True)
class LoadedSiteConfig:
    """Site configuration with its folder, to which its paths are relative."""

    config: SiteConfig
    folder: Path
    name: str
    text: str

    def path(self, relative: str) -> Path:
        """Return the absolute path of a path in the loaded site configuration."""
        return self.folder / relative

    def check_against(self, study: Study) -> None:
        """Refuse a site configuration weaker than the study's settings, and plugins that it does not allow.

        Raises:
            SiteConfigError: With every such setting, its line and its remedy.
        """
        lines = key_lines(self.text)
        problems = [
            DocumentProblem(self.name, format_key_path(keys), what, remedy, nearest_line(lines, keys))
            for keys, what, remedy in (
                *weaker_settings(self.config, study),
                *disallowed_plugins(self.config, study),
            )
        ]
        if problems:
            raise SiteConfigError(problems)


def load_site(file: Path) -> LoadedSiteConfig:
    """Read and validate a site configuration.

    Raises:
        SiteConfigError: With every problem, its line and its remedy.
    """
    text = decode_text(read_document(file, SiteConfigError), str(file), SiteConfigError)
    return LoadedSiteConfig(site_from_toml(text, str(file)), file.parent, str(file), text)


def site_from_toml(text: str, file: str = "site.toml") -> SiteConfig:
    """Validate the text of a site configuration.

    Raises:
        SiteConfigError: With every problem and its line.
    """
    return validate_toml(text, file, SiteConfig, SITE_HELP, SiteConfigError)


def min_cell_count(site: SiteConfig, study: Study) -> int:
    """Return the larger minimum cell count of the loaded site configuration and the study; the default is 5."""
    return max(site.rules.min_cell_count or 5, study.privacy.min_cell_count)


def disclosure_level(site: SiteConfig, study: Study) -> DisclosureLevel:
    """Return the disclosure level that applies: the stricter of the site configuration's and the study's."""
    return strictest_level([study.privacy.disclosure, site.policy.disclosure or study.privacy.disclosure])


def weaker_settings(site: SiteConfig, study: Study) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield key, problem and remedy of every site configuration rule that is weaker than the study's."""
    rules, study_dates = site.rules, study.deidentification.dates
    anonymity, study_count = study.privacy.anonymity, study.privacy.min_cell_count
    if rules.k is not None and anonymity is not None and rules.k < anonymity.k:
        yield (
            ("rules", "k"),
            f"rules.k = {rules.k} is weaker than the study's k = {anonymity.k}",
            "raise it, or remove it",
        )
    if rules.k is not None and anonymity is None:
        yield (
            ("rules", "k"),
            f"rules.k = {rules.k} cannot be applied: the study has no quasi-identifiers",
            "request [privacy.anonymity] in the study, or remove it",
        )
    if rules.min_cell_count is not None and rules.min_cell_count < study_count:
        yield (
            ("rules", "min_cell_count"),
            f"rules.min_cell_count = {rules.min_cell_count} is weaker than the study's {study_count}",
            "raise it, or remove it",
        )
    if rules.dates is not None and _STRICTNESS.index(rules.dates) < _STRICTNESS.index(study_dates):
        yield (
            ("rules", "dates"),
            f"rules.dates = '{rules.dates.value}' is weaker than the study's '{study_dates.value}'",
            "use a stricter value, or remove it",
        )


def disallowed_plugins(site: SiteConfig, study: Study) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield key, problem and remedy of every plugin of the study that the site configuration does not allow.

    Only the metadata of packages are read; no code of a plugin is executed.
    """
    learning = study.learning
    if learning is None or not learning.plugins:
        return
    for kind, name in learning.site_plugins:
        plugin = find_plugins(learning.plugins, kind, {}).get(name)
        if plugin is None:
            missing = [remedy for _, _, remedy in missing_packages(learning.plugins)]
            yield (
                ("plugins",),
                f"the package of the study's {kind} '{name}' is not installed",
                "; ".join(missing) or "ask the centre for the name of the package",
            )
        elif not _is_allowed(site, plugin.package, plugin.version):
            yield (
                ("plugins", plugin.package),
                f"the package {plugin.package} {plugin.version} of the study's {kind} '{name}' is not allowed",
                f'add {plugin.package} = "{plugin.version}" under [plugins] to allow it',
            )


def _is_allowed(site: SiteConfig, package: str, version: str) -> bool:
    return any(
        is_same_package(name, package) and allowed == version for name, allowed in site.plugins.items()
    )


def site_template(
    file: str, *, identifier: str = "my-site", source: str = "ndjson", location: str = ""
) -> str:
    """Return the text of a valid site configuration with comments.

    Args:
        file: Name of the file, for the comments.
        identifier: Id of the site.
        source: Kind of source; the other kinds follow as comments.
        location: Location of the records: a folder, a file, or the URL of a server or database.
    """
    if source not in SOURCE_TEMPLATES:
        raise SettingsError(
            f"'{source}' is not a kind of source",
            where="--source",
            remedy=f"use {', '.join(SOURCE_TEMPLATES)}",
        )
    others = [_comment(text) for name, text in SOURCE_TEMPLATES.items() if name != source]
    records = "\n\n".join([_with_location(source, location), *others])
    return _TEMPLATE.substitute(file=file, id=identifier, records=records)


def _with_location(source: str, location: str) -> str:
    text = SOURCE_TEMPLATES[source]
    if not location:
        return text
    key, value = ("paths", [location]) if "\npaths = " in text else ("url", location)
    if source == "omop":
        key, value = ("database", location) if "://" in location else ("paths", [location])
        text = re.sub(r"^# paths .*\n", "", text, flags=re.MULTILINE)
        return re.sub(r"^database = .*$", lambda _: f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)
    return re.sub(rf"^{key} = .*$", lambda _: f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)


def _comment(text: str) -> str:
    return "\n".join(line if line.startswith("#") else f"# {line}" for line in text.splitlines())


SOURCE_TEMPLATES = {
    "ndjson": """\
source = "ndjson"               # NDJSON files, as from a Bulk Data export; also .ndjson.gz
paths = ["records"]             # files and folders""",
    "directory": """\
source = "directory"            # any FHIR JSON: single resources, Bundles, NDJSON
paths = ["records"]""",
    "csv": """\
source = "csv"                  # tables, from a spreadsheet or a database
paths = ["tables"]              # files and folders
mapping = "mapping.toml"        # abaton site suggest-mapping tables -o mapping.toml""",
    "omop": """\
source = "omop"                 # OMOP CDM 5.3 or 5.4
database = "postgresql+psycopg://reader@db.hospital.example/omop"   # or duckdb:///file, sqlite:///file
# paths = ["omop"]              # instead of a database: a folder of CSV or Parquet, one file per table
# cdm_schema = "cdm"            # schema of the clinical tables
# vocabulary_schema = "vocabulary"   # schema of the vocabulary tables, if different
# timezone = "Europe/Athens"    # time zone of the tables""",
    "fhir": """\
source = "fhir"                 # FHIR server, by search
url = "https://fhir.hospital.example/r4"
# page_size = 200               # records per page
# work_dir = "work"             # download folder, removed after reading
# timeout = 60                  # seconds without data
# retries = 5""",
    "bulk": """\
source = "bulk"                 # FHIR server, by Bulk Data export
url = "https://fhir.hospital.example/r4"
# export_level = "group"        # "patient", "system", or "group" with its id
# group = "cohort-7"
# hosts = ["files.hospital.example"]   # further hosts of exported files
# max_wait_hours = 24           # time for the export""",
}
"""``[records]`` of the template by kind of source."""

_TEMPLATE = Template("""\
# Site configuration. Every key is explained in docs/site.md.
# Check it against a study:  abaton site check study.toml --site $file
# Paths are relative to the folder of this file. The file contains no secrets: keys are files.

[site]
id = "$id"                    # enters every pseudonym: do not change it during a study
name = "University Hospital"

# Location of the records, with one of six kinds of source:
[records]
$records

# Credentials for a FHIR server (SMART Backend Services).
# [records.smart]
# client = "abaton-at-hospital"
# key = "keys/smart.pem"        # P-384 for ES384, RSA for RS384; chmod 600
# key_id = "2026-1"
# algorithm = "ES384"

# Requirements beyond the study. They may only be stricter; weaker ones are refused.
[rules]
# k = 10                        # minimum size of an equivalence class
# min_cell_count = 10           # smaller counts of subjects are suppressed
# dates = "remove"              # "year" or "remove"
excluded_types = ["Media", "Binary"]   # resource types that no study receives
# [[rules.deidentification]]    # applied after the study's rules
# path = "Observation.valueQuantity"
# method = "generalise"         # or "redact"
# settings = { to = "bins", width = 5 }

# Legal basis: a statement, a permit, or the consent of every subject (then only 'registry').
[consent]
legal_basis = "Ethics committee of the hospital, vote 7/2026"   # the site's statement for all records
# registry = "governance.db"    # consents, opt-outs and the audit log
# [consent.permit]              # of a health data access body, for one study document
# number = "HDAB-2026-17"
# authority = "Health Data Access Body"
# start = 2026-01-01
# end = 2028-12-31
# purposes = ["diagnostic"]
# document = "..."              # the hash: abaton study check study.toml
# actions = ["train"]           # or ["send"], or both
# [consent.opt_outs]            # override every legal basis
# file = "opt-outs.txt"         # one Patient id per line; or url, or fhir
# [[consent.forms]]             # consent forms of the site: docs/site.md has examples

[keys]
study = "study.key"             # abaton records key study.key
# registry = "registry.key"     # key of the pseudonyms in the registry
# key_set = "keys.json"         # signing and sealing keys of the site: abaton keys new

# Research centre that sealed records are sent to, and the mapping table.
# [centre]
# url = "https://intake.centre.example"
# public_keys = "centre.pub"    # confirm the fingerprints over a second channel
# outbox = "outbox"             # sealed envelopes that await receipts
# [vault]
# rows_database = "vault.db"
# keys_database = "row-keys.db" # another database, with separate backups
# data_controller_key = "data-controller.pub"   # public keys of the data controller

# What a centre may request: 'abaton site policy --explain' prints it. The defaults are strict.
[policy]
# min_rows = 50                 # rows per update
# min_batch_size = 8            # rows per batch
# max_model_shift_ratio = 10.0  # distance between consecutive models, in norms of the site's largest update
# max_scored_models = 64        # scored models of other learners beyond one per version
# max_test_evaluations = 64     # versions evaluated after a run
# disclosure = "noisy"          # "noisy", "summed" or "exact"; the stricter of this and the study's applies
# table_sd = 3.0                # noise of each released count
# primary_multiplier = 1.0      # noise of the primary metric, in units of the largest change by one subject
# multiplier = 2.0              # noise of every other metric
# interpretability_multiplier = 10.0   # noise of explanations
# score_sd = 5.0                # noise of the counts behind a score of another site's model
# threshold = 10                # smaller counts are not shown
# epoch_days = 30               # days during which an answer is repeated
# study_budget = 1.0            # privacy budget of one study
# yearly_budget = 2.0           # privacy budget of all studies in a calendar year
# [policy.trusted_signers]      # only models signed by these sites are scored: 'abaton site policy' shows a key
# other-site = "ed25519:..."    # confirmed by that site over a second channel, not through the centre

[limits]
threads = 1
memory_mib = 2048
# max_batch_size = 64
# working_hours = { start = "20:00", end = "06:00" }
""")
