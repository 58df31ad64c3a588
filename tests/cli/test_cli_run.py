"""From the command line: the demonstration, a run of your own, its report, and refusals with their exit codes."""

from __future__ import annotations

import json
import shutil
from functools import partial

import pytest
from tests import typed


@pytest.fixture
def abaton(tmp_path):
    """Type a command in a folder of the test's own."""
    return partial(typed.abaton, folder=tmp_path, **{"ABATON_STORE": str(tmp_path / "store")})


@pytest.mark.slow
def test_the_demonstration_its_report_and_a_run_of_the_same_sites(abaton, tmp_path):
    done = abaton("demo", "--quick", "--json", "-o", "demo.html")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["status"] == "finished"
    assert {line["model"] for line in made["lines"]} >= {"community", "all data pooled", "kos alone"}
    assert made["withdrawal"]["rounds"]
    page = (tmp_path / "demo.html").read_text()
    assert "Privacy" in page
    assert "Results" in page
    # The same hospitals by their documents, after the withdrawal.
    folder = tmp_path / "store" / "demo"
    sites = [str(folder / name / "site.toml") for name in ("athens", "kos", "pergamon", "trikala")]
    shutil.rmtree(folder / "kos" / "nothing", ignore_errors=True)
    (folder / "kos" / "Patient.ndjson").write_text("")
    done = abaton("run", str(folder / "study.toml"), "--sites", *sites, "--engine", "virtual", "--json")
    assert done.returncode == 0, done.stderr
    ran = json.loads(done.stdout)
    assert list(ran["left_out"]) == ["kos"]
    assert set(ran["tables"]) == {"athens", "pergamon", "trikala"}
    done = abaton("report", ran["run"], "-o", "report.html", "--json")
    told = json.loads(done.stdout)
    assert told["reproduce"]["study_hash"] == ran["study"]["hash"]
    assert told["figures"]["timeline"]["data"]
    assert "steps" not in json.dumps(told["figures"])
    assert 'data-figure="timeline"' in (tmp_path / "report.html").read_text()
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert "finished already" in abaton("resume", ran["run"]).stderr
    done = abaton("run", str(folder / "study.toml"), "--sites", sites[0], sites[1])
    assert done.returncode == 3
    assert "1 of 2 sites can take part" in done.stderr


def test_what_cannot_be_meant_is_exit_2(abaton, tmp_path):
    assert abaton("run", "nothing.toml", "--sites", "site.toml").returncode == 2
    assert abaton("report", "nobody", "-o", "report.html").returncode == 2
    done = abaton("report", "nobody")
    assert done.returncode == 2
    assert "-o FILE.html" in done.stderr
