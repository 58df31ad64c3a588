"""``abaton demo``, ``run`` and ``report``, and refusals with their exit codes."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
from tests import cli_runner as typed


@pytest.fixture
def abaton(tmp_path):
    """Run a command in the folder of the test."""
    return partial(typed.abaton, folder=tmp_path, **{"ABATON_STORE": str(tmp_path / "store")})


@pytest.mark.slow
def test_the_demonstration_its_report_and_a_run_of_the_same_sites(abaton, tmp_path):
    done = abaton("demo", "--small", "--json", "-o", "demo.html")
    assert done.returncode == 0, done.stderr
    demo = json.loads(done.stdout)
    assert demo["status"] == "finished"
    assert {line["model"] for line in demo["rows"]} >= {"community", "all data pooled", "kos (local only)"}
    assert demo["withdrawal"]["rounds"]
    page = (tmp_path / "demo.html").read_text()
    assert "Privacy" in page
    assert "Evaluation" in page
    # The same hospitals from their configurations, after the withdrawal.
    folder = tmp_path / "store" / "demo"
    sites = [str(folder / name / "site.toml") for name in ("athens", "kos", "pergamon", "trikala")]
    shutil.rmtree(folder / "kos" / "nothing", ignore_errors=True)
    (folder / "kos" / "Patient.ndjson").write_text("")
    done = abaton("run", str(folder / "study.toml"), "--sites", *sites, "--engine", "virtual", "--json")
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert list(run["excluded_sites"]) == ["kos"]
    assert set(run["tables"]) == {"athens", "pergamon", "trikala"}
    done = abaton("report", run["run"], "-o", "report.html", "--json")
    report = json.loads(done.stdout)
    assert report["provenance"]["study_hash"] == run["study"]["hash"]
    assert report["figures"]["timeline"]["data"]
    assert "steps" not in json.dumps(report["figures"])
    assert 'data-figure="timeline"' in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert "finished already" in abaton("resume", run["run"]).stderr
    done = abaton("run", str(folder / "study.toml"), "--sites", sites[0], sites[1])
    assert done.returncode == 3
    assert "1 of 2 sites can take part" in done.stderr


def test_wrong_use_is_exit_2(abaton, tmp_path):
    assert abaton("run", "nothing.toml", "--sites", "site.toml").returncode == 2
    assert abaton("report", "missing", "-o", "report.html").returncode == 2
    done = abaton("report", "missing")
    assert done.returncode == 2
    assert "-o FILE.html" in done.stderr
