"""Outputs are valid R4, keep their links, and do not change in a second run."""

from __future__ import annotations

import json
import warnings

import pytest
from tests.deid.record_examples import maker, run

from abaton.deid import DateHandling, Mechanism
from abaton.fhir.validation import validate_resource

pytestmark = pytest.mark.shared


def accepts(record):
    from fhir.resources.R4B import get_fhir_model_class

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            get_fhir_model_class(record["resourceType"]).model_validate(record)
        except Exception:
            return False
    return True


def examples(shared, *folders):
    for folder in folders:
        for path in sorted((shared / "data" / "fhir" / folder).glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8-sig"))
            if isinstance(record, dict) and "resourceType" in record:
                yield path.name, record


@pytest.mark.parametrize(
    "settings",
    [{}, {"dates": DateHandling.SHIFT, "mechanism": Mechanism.PSEUDONYMISE}],
    ids=["year", "shift"],
)
def test_valid_examples_stay_valid_in_repeated_runs(shared, settings):
    make, valid = maker(**settings), 0
    for name, record in examples(shared, "hl7-r4-examples", "iehr-examples", "synthea-bundles"):
        deidentified = run(make, record)
        if accepts(record):
            assert accepts(deidentified), name
            valid += 1
        before = {problem.rule for problem in validate_resource(record)}
        assert {problem.rule for problem in validate_resource(deidentified)} <= before, name
        assert run(make, deidentified) == deidentified, name
    assert valid > 600


def pointers(node):
    if isinstance(node, dict):
        if isinstance(node.get("reference"), str):
            yield node["reference"]
        for child in node.values():
            yield from pointers(child)
    elif isinstance(node, list):
        for child in node:
            yield from pointers(child)


def subject(resource):
    for name in ("subject", "patient", "beneficiary"):
        if isinstance(resource.get(name), dict) and "reference" in resource[name]:
            return resource[name]["reference"]
    return None


def test_in_every_bundle_references_lead_to_the_same_entries(shared):
    seen = 0
    for name, record in examples(
        shared, "synthea-bundles", "iehr-examples", "hl7-r4-examples", "miracum-fixtures"
    ):
        if record["resourceType"] != "Bundle" or not record.get("entry"):
            continue
        entries = [entry for entry in record["entry"] if "resource" in entry]
        if not entries:
            continue
        deidentified = run(maker(mechanism=Mechanism.PSEUDONYMISE), record)
        assert len(deidentified["entry"]) == len(entries), name
        old = {entry.get("fullUrl"): i for i, entry in enumerate(entries) if "fullUrl" in entry}
        new = {entry["fullUrl"]: i for i, entry in enumerate(deidentified["entry"]) if "fullUrl" in entry}
        for before, after in zip(entries, deidentified["entry"], strict=True):
            assert before["resource"]["resourceType"] == after["resource"]["resourceType"]
            was, now = subject(before["resource"]), subject(after["resource"])
            if was in old and now is not None:
                assert new[now] == old[was], name
                seen += 1
            inside = set(pointers(after["resource"]))
            assert all(
                address in new for address in inside if address.startswith("urn:uuid:") and was in old
            ), name
    assert seen > 1000
