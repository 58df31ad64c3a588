"""De-identification on a real Ray: the same bytes and the same tally as on one machine."""

from __future__ import annotations

import json

import pytest
from tests.deid.record_examples import KEY, LEGAL_BASIS
from tests.engines.ray.unusual_models import die_once, fail

from abaton.deid import DataRequest, DeidentificationSettings, Mechanism
from abaton.errors import AbatonError, SettingsError
from abaton.fhir.file_reader import find_files
from abaton.records.export import ExportJob, export_records
from abaton.records.export_state import STATE

PATIENT = {"resourceType": "Patient", "name": [{"family": "Smith"}], "birthDate": "1980-02-03"}


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "in"
    inside.mkdir()
    for part in range(4):
        text = "".join(json.dumps({**PATIENT, "id": f"{part}-{i}"}) + "\n" for i in range(50))
        (inside / f"Patient.00{part}.ndjson").write_text(text)
    (inside / "Patient.009.ndjson").write_text('{"resourceType":"Patient","id":"1","id":"Smith"}\n')
    return inside


def job(**more):
    return ExportJob(
        DataRequest("heart", (), DeidentificationSettings(mechanism=Mechanism.PSEUDONYMISE)),
        KEY,
        2026,
        LEGAL_BASIS,
        **more,
    )


def contents(out):
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != STATE}


def outcome_rows(outcomes):
    return sorted(
        (o.source, o.out, json.dumps(o.transform_counts.row()), bool(o.error), o.exit_code) for o in outcomes
    )


@pytest.mark.slow
@pytest.mark.network
def test_a_cluster_does_not_change_the_bytes_or_the_tally(folder, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    from abaton.engines.ray import ray_pool

    monkeypatch.setattr("abaton.records.export._MIN_CHUNK_BYTES", 1000)  # several stretches of each file
    monkeypatch.chdir(tmp_path)
    alone = export_records(find_files(["in"]), tmp_path / "one", job(mapping="one.map"))
    with ray_pool() as pool:
        many = export_records(find_files(["in"]), tmp_path / "many", job(mapping="many.map"), pool=pool)
    assert outcome_rows(many) == outcome_rows(alone)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")
    assert len(contents(tmp_path / "one")) == 4
    assert not any("Smith" in outcome.error for outcome in many)


@pytest.mark.slow
@pytest.mark.network
def test_a_lost_worker_is_replaced_and_errors_contain_no_record(tmp_path):
    pytest.importorskip("ray", reason="Ray is missing: install abaton[ray]")
    from abaton.engines.ray import ray_pool

    with ray_pool() as pool:
        assert pool.submit(die_once, str(tmp_path / "died")).result(60) == "done"
        with pytest.raises(AbatonError, match="a task failed on a worker") as failed:
            pool.submit(fail).result(60)
    assert "Zanzibar" not in str(failed.value)
    assert failed.value.__cause__ is None


def test_standard_input_is_refused(tmp_path):
    class UnavailablePool:
        size = 1

        def submit(self, *_: object):
            raise AssertionError

    with pytest.raises(SettingsError, match="standard input"):
        export_records(find_files(["-"]), tmp_path / "out", job(), pool=UnavailablePool())
