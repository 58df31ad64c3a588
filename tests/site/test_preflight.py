"""The preflight and, at level `exact`, the cohort report of a run show implausible values."""

from __future__ import annotations

import json

import pytest

from abaton.lab.demo import NOW, make_demo
from abaton.site import check_site, load_site
from abaton.site.factory import build_site
from abaton.study_run.ingest import ingest_sites


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (1, "systolic: most values implausible"),
        (5, "systolic: implausible value, "),
        (40, "systolic: implausible value, <5; correct sentinels"),
    ],
)
def test_implausible_values_are_shown(tmp_path, every, expected):
    demo = make_demo(tmp_path / "hospitals", 3, 0.25)
    site = next(path for path in demo.sites if path.parent.name == "kos")
    path, count = site.parent / "Observation.ndjson", 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if any(coding["code"] == "8480-6" for coding in record["code"]["coding"]):
            count += 1
            if count % every == 0:
                record["valueQuantity"]["value"] = 999
    path.write_text("\n".join(map(json.dumps, records)))
    file = load_site(site)
    result = check_site(build_site(file, demo.study, NOW))
    (remark,) = [text for text in result.remarks if "implausible" in text]
    assert remark.startswith(expected)
    (ingest,) = ingest_sites(demo.study, [file], NOW)
    assert remark in ingest.cohort.remarks  # at level exact stored with the run, and shown by its report
