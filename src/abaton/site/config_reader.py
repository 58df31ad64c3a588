"""A first ``site.toml``, with a comment on every section, for a hospital to change.

Parts of a study's own at a site: what the site's document does not allow by name and version does not run there.

Reading ``site.toml``, and holding it against a study: a weaker rule is refused with its name and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template

from abaton.deid.settings import Dates
from abaton.documents.line_numbers import KeyPath, line_numbers, nearest_line
from abaton.documents.line_numbers import KeyPath as Keys
from abaton.documents.problems import DocumentError, Guide, Problem, dotted
from abaton.documents.toml_reader import checked_toml, read_document, text_of
from abaton.errors import SettingsError
from abaton.plugins import absent, registered, same_package
from abaton.site.config import SiteDocument
from abaton.study import Study

KINDS = {
    "ndjson": """\
kind = "ndjson"                 # files of lines, as a Bulk Data export gives them; also .ndjson.gz
paths = ["records"]             # files and folders""",
    "directory": """\
kind = "directory"              # any FHIR JSON: single resources, Bundles, NDJSON
paths = ["records"]""",
    "csv": """\
kind = "csv"                    # tables of rows, from a spreadsheet or a database
paths = ["tables"]              # files and folders
mapping = "mapping.toml"        # what the columns mean: abaton site map tables -o mapping.toml""",
    "omop": """\
kind = "omop"                   # OMOP CDM 5.3 or 5.4
database = "postgresql+psycopg://reader@db.hospital.example/omop"   # or duckdb:///file, sqlite:///file
# paths = ["omop"]              # instead of a database: a folder of CSV or Parquet, a file for each table
# cdm = "cdm"                   # the schema of the clinical tables
# vocabulary = "vocabulary"     # that of the vocabulary, if it is another
# timezone = "Europe/Athens"    # in which times of day are told""",
    "fhir": """\
kind = "fhir"                   # a FHIR server, by search
url = "https://fhir.hospital.example/r4"
# page = 200                    # records asked for at a time
# work = "work"                 # pages are kept here until read, then removed
# timeout = 60                  # seconds without an answer
# retries = 5""",
    "bulk": """\
kind = "bulk"                   # a FHIR server, by Bulk Data export
url = "https://fhir.hospital.example/r4"
# level = "group"               # "patient", "system", or "group" with its id
# group = "cohort-7"
# hosts = ["files.hospital.example"]   # where exported files may lie besides the server itself
# wait = 24                     # hours that the server may prepare the export""",
}
"""Every kind of source, as it stands in a first document."""

_TEMPLATE = Template("""\
# What a site says about itself. Every key is explained in docs/site.md.
# Check it against a study:  abaton site check study.toml --site $file
# Paths are meant from the folder of this file. No secret stands here: keys are named by their files.

[site]
id = "$id"                    # enters every pseudonym: do not change it during a study
name = "University Hospital"

# Where the records are. One of six kinds:
[records]
$records

# How the site shows the server that it may read (SMART Backend Services).
# [records.smart]
# client = "abaton-at-hospital"
# key = "keys/smart.pem"        # P-384 for ES384, RSA for RS384; chmod 600
# key_id = "2026-1"
# algorithm = "ES384"

# What the site asks beyond the study. Everything here may only be stricter; a weaker rule is refused.
[rules]
# k = 10                        # everybody hides among at least so many
# smallest_count = 10           # smaller numbers of people are not printed
# dates = "remove"              # "year" or "remove"
never = ["Media", "Binary"]     # types that are never given, whatever a study asks
# [[rules.deidentification]]    # applied to what the study's rules let through
# path = "Observation.valueQuantity"
# method = "generalise"         # or "redact"
# settings = { to = "bins", width = 5 }

# Why records may be used: a ground, a permit, or everybody's own consent (then only 'registry').
[consent]
ground = "Ethics committee of the hospital, vote 7/2026"   # the site answers for it, for everybody
# registry = "governance.db"    # consents, opt-outs and the audit chain
# [consent.permit]              # of a health data access body, for one study document
# number = "HDAB-2026-17"
# authority = "Health Data Access Body"
# start = 2026-01-01
# end = 2028-12-31
# purposes = ["diagnostic"]
# document = "..."              # the hash: abaton study check study.toml
# allows = ["train"]            # or ["send"], or both
# [consent.opt_outs]            # always wins
# file = "opt-outs.txt"         # one Patient id in each line; or url, or fhir
# [[consent.forms]]             # consents signed elsewhere: docs/site.md has examples

[keys]
study = "study.key"             # abaton records key study.key
# tags = "tags.key"             # under which people are known in the registry
# ring = "keys.json"            # the site's own keys: abaton keys new

# The research centre that sealed records are sent to, and the mapping table.
# [centre]
# url = "https://intake.centre.example"
# keys = "centre.pub"           # the centre's public keys, compared with what it reads out
# outbox = "outbox"             # sealed envelopes wait here for their receipts
# [vault]
# rows = "vault.db"
# keys = "row-keys.db"          # another place, kept out of the backups of the rows
# controller = "controller.pub" # the data controller's public keys

# What a study's centre may ask of the site: 'abaton site policy --explain' says it in words. Strict as it is.
[policy]
# fewest_rows = 50              # an update rests on at least so many
# smallest_batch = 8            # and each step of training
# reach = 10.0                  # how far a model may lie from the one before it, in steps of the site's own
# scored = 64                   # models of others that are scored, beyond one a version
# judged = 64                   # versions that are judged after a run
# [policy.peers]                # only models that these sites have signed are scored: 'abaton site policy' shows a key
# other-site = "ed25519:..."    # read out by that site itself, by telephone, not through the centre

[limits]
threads = 1
memory = 2048                   # MiB
# batch = 64
# hours = { start = "20:00", end = "06:00" }
""")


def starter(file: str, *, identifier: str = "my-site", kind: str = "ndjson", place: str = "") -> str:
    """The text of a first site document, which passes the check.

    Args:
        file: How the file will be called, for the comments.
        identifier: The site's id.
        kind: The kind of source; the others stand below it as comments.
        place: Where the records are: a folder, a file, or the address of a server or database.
    """
    if kind not in KINDS:
        raise SettingsError(f"there is no kind '{kind}'", where="--kind", remedy=f"use {', '.join(KINDS)}")
    others = [_comment(text) for name, text in KINDS.items() if name != kind]
    records = "\n\n".join([_placed(kind, place), *others])
    return _TEMPLATE.substitute(file=file, id=identifier, records=records)


def _placed(kind: str, place: str) -> str:
    text = KINDS[kind]
    if not place:
        return text
    key, value = ("paths", [place]) if "\npaths = " in text else ("url", place)
    if kind == "omop":
        key, value = ("database", place) if "://" in place else ("paths", [place])
        text = re.sub(r"^# paths .*\n", "", text, flags=re.MULTILINE)
        return re.sub(r"^database = .*$", lambda _: f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)
    return re.sub(rf"^{key} = .*$", lambda _: f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)


def _comment(text: str) -> str:
    return "\n".join(line if line.startswith("#") else f"# {line}" for line in text.splitlines())


def not_allowed(site: SiteDocument, study: Study) -> Iterator[tuple[KeyPath, str, str]]:
    """Every part of the study's own that would run here and may not: where, what, what to do.

    Only the packages' metadata are read: nothing of theirs is run to find out.
    """
    learning = study.learning
    if learning is None or not learning.parts:
        return
    for kind, name in learning.own_parts:
        part = registered(learning.parts, kind, {}).get(name)
        if part is None:
            missing = [remedy for _, _, remedy in absent(learning.parts)]
            yield (
                ("parts",),
                f"the study's {kind} '{name}' comes from a package that is not installed here",
                "; ".join(missing) or "ask the centre which package it is from",
            )
        elif not _allows(site, part.package, part.version):
            yield (
                ("parts", part.package),
                f"the study's {kind} '{name}' comes from the package {part.package} {part.version}, "
                "which the site's document does not allow",
                f'write {part.package} = "{part.version}" under [parts] if it may run here',
            )


def _allows(site: SiteDocument, package: str, version: str) -> bool:
    return any(same_package(name, package) and allowed == version for name, allowed in site.parts.items())


_GUIDE = Guide("abaton site new", "docs/site.md")
_STRICTNESS = (Dates.SHIFT, Dates.YEAR, Dates.REMOVE)


class SiteError(DocumentError):
    """A site's document that cannot be used, with every problem found in it."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A site's document, and the folder it lies in: its paths are meant from there."""

    document: SiteDocument
    folder: Path
    name: str
    text: str

    def path(self, place: str) -> Path:
        """The file that the document means by a path."""
        return self.folder / place

    def against(self, study: Study) -> None:
        """Refuse whatever in the site's document is weaker than the study, and parts that it does not allow.

        Raises:
            SiteError: With every such setting, its line and its remedy.
        """
        lines = line_numbers(self.text)
        found = [
            Problem(self.name, dotted(keys), what, remedy, nearest_line(lines, keys))
            for keys, what, remedy in (*weaker(self.document, study), *not_allowed(self.document, study))
        ]
        if found:
            raise SiteError(found)


def load_site(file: Path) -> SiteFile:
    """Read and check a site's document.

    Raises:
        SiteError: With every problem that was found, each with its line and its remedy.
    """
    text = text_of(read_document(file, SiteError), str(file), SiteError)
    return SiteFile(site_from_toml(text, str(file)), file.parent, str(file), text)


def site_from_toml(text: str, file: str = "site.toml") -> SiteDocument:
    """Check the text of a ``site.toml``.

    Raises:
        SiteError: With every problem that was found, each with its line.
    """
    return checked_toml(text, file, SiteDocument, _GUIDE, SiteError)


def weaker(site: SiteDocument, study: Study) -> Iterator[tuple[Keys, str, str]]:
    """Every setting of the site that is weaker than the study's, or cannot be kept: where, what, what to do."""
    rules, wish = site.rules, study.deidentification
    asked = study.privacy.anonymity
    if rules.k is not None and asked is not None and rules.k < asked.k:
        yield (
            ("rules", "k"),
            f"the site's rule k = {rules.k} is weaker than the study's k = {asked.k}",
            "raise it, or leave it out",
        )
    if rules.k is not None and asked is None:
        yield (
            ("rules", "k"),
            f"the site's rule k = {rules.k} cannot be kept: the study does not say by what people are recognised",
            "ask for [privacy.anonymity] in the study, or leave it out",
        )
    if rules.smallest_count is not None and rules.smallest_count < wish.count_floor:
        yield (
            ("rules", "smallest_count"),
            f"the site's rule smallest_count = {rules.smallest_count} is weaker than the study's "
            f"count_floor = {wish.count_floor}",
            "raise it, or leave it out",
        )
    if rules.dates is not None and _STRICTNESS.index(rules.dates) < _STRICTNESS.index(wish.dates):
        yield (
            ("rules", "dates"),
            f"the site's rule dates = '{rules.dates.value}' is weaker than the study's '{wish.dates.value}'",
            "choose a coarser one, or leave it out",
        )


def smallest_count(site: SiteDocument, study: Study) -> int:
    """The smallest number of people that may be told: the larger of the site's, 5 by default, and the study's."""
    return max(site.rules.smallest_count or 5, study.deidentification.count_floor)
