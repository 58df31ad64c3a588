"""The engine contract test once more, with its learners behind Flower's programs, TLS and node keys."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from tests.engines.flower import contract
from tests.engines.flower.programs import running

pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
pytestmark = [pytest.mark.hosts, pytest.mark.network, pytest.mark.slow]

PROGRAMS = "tests.engines.flower.contract"


def test_the_contract_is_kept_on_a_real_network(tmp_path):
    report = tmp_path / "report.xml"
    with running(tmp_path / "federation", contract.SITES, f"{PROGRAMS}:open_desk") as federation:
        about = {"report": str(report), "centre": str(federation.centre.folder)}
        federation.centre.submit(f"{PROGRAMS}:conduct", json.dumps(about))
        federation.tend(report.with_suffix(".done").exists, patience=1500.0)
    assert report.exists(), report.with_suffix(".log").read_text()
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    assert counts["tests"] >= 15
    assert (counts["failures"], counts["errors"], counts["skipped"]) == (0, 0, 0), [
        case.attrib["name"] for case in suite.iter("testcase") if list(case)
    ]
