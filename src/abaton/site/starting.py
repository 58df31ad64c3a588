"""A first ``site.toml``, with a comment on every section, for a hospital to change."""

from __future__ import annotations

import json
import re
from string import Template

from abaton.errors import SettingsError

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
