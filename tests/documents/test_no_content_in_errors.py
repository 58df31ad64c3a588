"""No error, log line or JSON output contains a text that was read from a document.

A canary is planted in turn at every location of every kind of document. A key of a document may be shown (shortened and
escaped), and a declared name (of an input, view or column) in the list of known names; no other text may.
"""

from __future__ import annotations

import copy
import json
import logging
import tomllib
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests.cli_runner import abaton
from tests.governance.test_consent_forms import FORMS, resources
from tests.site.sources.tabular.test_tabular_source import LONG_MAPPING, PATIENT_MAPPING
from tests.site.test_site_config import FORM, GOOD, PERMIT
from tests.study.test_hostile_studies import changed, key_paths

from abaton.anonymity import settings_from
from abaton.citizen.uploads import read_upload
from abaton.documents.toml_reader import _json_form, _toml_value
from abaton.engines.base import CodedFailureError
from abaton.engines.flower.flower_messages import Message
from abaton.errors import AbatonError, SettingsError
from abaton.fhir.validation import validate_resource
from abaton.governance import ConsentQuery
from abaton.governance.consent import evaluate_consent, make_consent
from abaton.governance.consent_forms import read_form
from abaton.governance.external_consent import consent_query
from abaton.governance.timestamps import parse_timestamp
from abaton.site import site_from_toml
from abaton.site.sources.base import FileSource
from abaton.site.sources.tabular.mapping import compile_mapping, mapping_from_toml
from abaton.study import study_from_json, study_from_toml, write_bundle
from abaton.study_run.messages import check_fields, check_request, make_message, message_body
from abaton.views import load_view

FOLDER = Path(__file__).resolve().parents[1] / "study"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
MARK = "anary7f3a"
CANARIES = [
    "Canary7f3a",
    "Zoe canary7f3a (b. 1950)",
    "canary7f3a://host/x|y",
    "\x1b[31mcanary7f3a\n",
    "canary7f3a " * 40,
]
# Places that declare a name, or whose text is a key of the document.
NAMES = {"name", "url"}
QUICK = pytest.param(29, id="some locations")
ALL = pytest.param(1, id="all locations", marks=pytest.mark.slow)


def planted(document: Any, step: int) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield copies of a document, each with a canary in one location, and the location."""
    locations = list(key_paths(document))
    for number, location in enumerate(locations[:: min(step, max(1, len(locations) // 12))]):
        if location[-1] in NAMES or enclosing(document, location).get("url") == "name":
            continue
        canaries = [CANARIES[number % len(CANARIES)], CANARIES[0]]
        for canary in canaries:
            yield changed(document, location, canary), location
            if isinstance(location[-1], int):
                yield changed(document, location, {"resourceType": canary, "id": canary}), location


def enclosing(document: Any, location: tuple[Any, ...]) -> dict[str, Any]:
    """Return the object of a document that holds a location; empty if it is a list."""
    for key in location[:-1]:
        document = document[key]
    return document if isinstance(document, dict) else {}


def shown(read: Callable[[Any], object], document: Any, caplog: pytest.LogCaptureFixture) -> str:
    """Return everything that a reader shows of a document: its error with the traceback, what it returns, the log."""
    caplog.clear()
    try:
        output = read(document)
    except (AbatonError, CodedFailureError) as error:
        problems = [str(problem) for problem in getattr(error, "problems", ())]
        # Frames of this file show the source line of the call only.
        output = "".join([*traceback.format_exception(error), *problems, repr(error)])
    return f"{output if isinstance(output, str) else ''}{caplog.text}"


def to_toml(table: Any) -> str:
    return tomli_w.dumps(_toml_value(json.loads(json.dumps(table, default=_json_form))))


def read_mapping(text: str) -> None:
    mapping = mapping_from_toml(text)
    for table in mapping.tables:
        for column in table.columns.values():
            compile_mapping(mapping, column)


def read_record(record: Any, folder: Path) -> str:
    (folder / "records.ndjson").write_text(json.dumps(record) + "\n", "utf-8")
    source = FileSource([folder])
    for _ in source.records():
        pass
    return str((source.errors, [str(problem) for problem in validate_resource(record)]))


def read_consent(consent: Any) -> str:
    readings = [read_form(consent, [form]).issue for form in FORMS.values()]
    decision = evaluate_consent(consent, ConsentQuery("A" * 26), NOW)
    try:
        query = repr(bool(consent_query(consent)))
    except AbatonError as error:
        query = "".join(traceback.format_exception(error))
    return f"{readings} {decision!r} {query}"


def read_message(row: Any) -> None:
    message = make_message("train", row["header"], row["body"])
    message = Message.from_bytes(message.to_bytes())
    message_body(message)
    try:
        check_fields("train", message)
    finally:
        check_request(message)


QUESTIONNAIRE_RESPONSE = {
    "resourceType": "QuestionnaireResponse",
    "status": "completed",
    "questionnaire": "Questionnaire/q1",
    "subject": {"reference": "Patient/p1"},
    "item": [
        {"linkId": "1", "text": "How are you?", "answer": [{"valueString": "well"}, {"valueInteger": 3}]}
    ],
}
OBSERVATION = {
    "resourceType": "Observation",
    "id": "o1",
    "status": "final",
    "code": {
        "coding": [{"system": "http://loinc.org", "code": "8480-6", "display": "Systolic"}],
        "text": "bp",
    },
    "subject": {"reference": "Patient/p1"},
    "effectiveDateTime": "2024-01-01",
    "valueQuantity": {"value": 120, "unit": "mmHg", "system": "http://unitsofmeasure.org", "code": "mm[Hg]"},
    "note": [{"text": "seen by Dr. X"}],
}
VIEW = {
    "resourceType": "ViewDefinition",
    "resource": "Observation",
    "status": "active",
    "constant": [{"name": "limit", "valueInteger": 130}],
    "where": [{"path": "status = 'final'"}],
    "select": [
        {"column": [{"name": "high", "path": "value.ofType(Quantity).value > %limit", "type": "boolean"}]}
    ],
}
ANONYMITY = {
    "k": 3,
    "quasi_identifiers": [{"column": "age", "hierarchy": {"bins": [5, 10]}}],
    "sensitive": [],
}
MESSAGE = {
    "header": {
        "run": "r",
        "study_hash": "h",
        "layout": "l",
        "task_id": "t",
        "version": 1,
        "settings": {"epochs": 1},
    },
    "body": {"k": 5, "rows": [1, 2]},
}
SITE = GOOD + "[rules]\nk = 10\nexcluded_types = ['Media']\n[keys]\nstudy = 'study.key'\n"
TOML_DOCUMENTS: dict[str, tuple[str, Callable[[str], object]]] = {
    "study": ((FOLDER / "full.toml").read_text("utf-8"), study_from_toml),
    "study of hospitals": ((FOLDER / "full" / "hospitals.toml").read_text("utf-8"), study_from_toml),
    "site configuration": (SITE, site_from_toml),
    "site with a permit": (GOOD.replace('legal_basis = "vote 7"\n', "") + PERMIT, site_from_toml),
    "site with a consent form": (GOOD.replace('legal_basis = "vote 7"\n', "") + FORM, site_from_toml),
    "mapping of code rows": (LONG_MAPPING, read_mapping),
    "mapping of patients": (PATIENT_MAPPING, read_mapping),
}
JSON_DOCUMENTS: dict[str, tuple[Any, Callable[[Any], object]]] = {
    "view": (VIEW, load_view),
    "anonymity": (ANONYMITY, settings_from),
    "consent": (make_consent(ConsentQuery("A" * 26), NOW, None), read_consent),
    **{f"consent form {name}": (resources(name)[0], read_consent) for name in FORMS},
    "message": (MESSAGE, read_message),
    "upload": (OBSERVATION, lambda record: read_upload(json.dumps(record).encode())),
}


@pytest.mark.parametrize("step", [QUICK, ALL])
@pytest.mark.parametrize("kind", TOML_DOCUMENTS)
def test_toml_documents(kind, step, caplog):
    caplog.set_level(logging.DEBUG)
    text, read = TOML_DOCUMENTS[kind]
    refused = 0
    for document, location in planted(tomllib.loads(text), step):
        output = shown(read, to_toml(document), caplog)
        refused += bool(output)
        assert MARK not in output, (location, output)
    assert refused


@pytest.mark.parametrize("step", [QUICK, ALL])
def test_study_bundles(full, step, caplog):
    caplog.set_level(logging.DEBUG)
    for document, location in planted(write_bundle(full), step * 7 if step > 1 else 1):
        output = shown(lambda item: study_from_json(json.dumps(item)), document, caplog)
        assert MARK not in output, (location, output)


@pytest.mark.parametrize("step", [QUICK, ALL])
@pytest.mark.parametrize("kind", JSON_DOCUMENTS)
def test_json_documents(kind, step, caplog):
    caplog.set_level(logging.DEBUG)
    document, read = JSON_DOCUMENTS[kind]
    for changed_document, location in planted(document, step):
        output = shown(read, changed_document, caplog)
        assert MARK not in output, (location, output)


@pytest.mark.parametrize(
    "record", [OBSERVATION, QUESTIONNAIRE_RESPONSE], ids=lambda record: record["resourceType"]
)
def test_records(record, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    for document, location in planted(record, 1):
        output = shown(lambda item: read_record(item, tmp_path), document, caplog)
        assert MARK not in output, (location, output)


def test_keys_of_records_are_not_shown(tmp_path, caplog):
    for canary in CANARIES:
        record = copy.deepcopy(OBSERVATION)
        record[canary] = 1
        record["code"][canary] = {canary: canary}
        output = shown(lambda item: read_record(item, tmp_path), record, caplog)
        assert MARK not in output, output


def test_a_reader_that_shows_content_would_be_found(caplog):
    def show(document):
        raise SettingsError("invalid", remedy=document)

    def chain(document):
        try:
            raise ValueError(document)
        except ValueError as error:
            raise SettingsError("invalid") from error

    def log(document):
        logging.getLogger("abaton").warning("read %s", document)

    for read in (show, chain, log):
        assert MARK in shown(read, CANARIES[0], caplog)


BROKEN = [
    'x = "{0}"\n[a\n',
    "x = {0}\n",
    '[{0}]\n["{0}"]\n',
    '["{0}"]\n["{0}"]\n',
    'a = {{ "{0}" = 1, "{0}" = 2 }}\n',
    '"{0}" = 1\n"{0}" = 2\n',
    "x = '{0}\n",
    'x = 1 "{0}"\n',
]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("canary", ["Canary7f3a", "Zoe canary7f3a", "canary7f3a " * 10])
def test_broken_toml(text, canary, caplog):
    output = shown(study_from_toml, text.format(canary), caplog)
    assert output
    assert MARK not in output


@pytest.mark.parametrize(
    "text", ['{{"{0}": 1, "{0}": 2}}', '{{"a": "{0}}}', '{{"a": {0}}}', '{{"a": NaN, "b": "{0}"}}', '["{0}"]']
)
def test_broken_json(text, caplog):
    output = shown(study_from_json, text.format("Zoe canary7f3a"), caplog)
    assert output
    assert MARK not in output


def test_stored_times(caplog):
    output = shown(parse_timestamp, "Zoe canary7f3a", caplog)
    assert "a stored time is malformed" in output
    assert MARK not in output


def test_a_key_is_shortened_and_escaped(caplog):
    output = shown(study_from_toml, '"\\u001b[2J' + "k" * 100 + '" = 1', caplog)
    assert "\\x1b[2J" + "k" * 30 in output
    assert "\x1b" not in output
    assert "k" * 41 not in output


@pytest.mark.parametrize("command", [("study", "check"), ("site", "check")])
def test_commands_show_no_content(command, tmp_path, full_text):
    """Also the JSON output, standard error and a hostile configuration of the site."""
    table = tomllib.loads(full_text)
    table["data"][0]["type"] = CANARIES[0]
    table["study"]["status"] = CANARIES[1]
    table["views"][0]["select"][0]["column"][0]["path"] = CANARIES[1]
    (tmp_path / "bad.toml").write_text(to_toml(table))
    (tmp_path / "good.toml").write_text(full_text)
    site = tomllib.loads(SITE)
    site["rules"]["excluded_types"] = [CANARIES[0], CANARIES[1]]
    site["records"]["source"] = CANARIES[2]
    (tmp_path / "site.toml").write_text(to_toml(site))
    for study in ("bad.toml", "good.toml"):
        for option in ([], ["--json"]):
            done = abaton(*command, study, *option, folder=tmp_path)
            assert MARK not in done.stdout + done.stderr
            assert done.returncode == (0 if (command[0], study) == ("study", "good.toml") else 2)
