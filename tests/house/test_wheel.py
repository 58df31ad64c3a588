"""Check that the wheel builds, installs in a new environment and runs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_installs_and_runs_outside_the_checkout(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True, capture_output=True, cwd=tmp_path,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "abaton/py.typed" in names
    assert "abaton/benchmarks/engine.py" in names
    assert "abaton/dashboard/static/dashboard.js" in names
    assert {"abaton/report/templates/run.html", "abaton/report/static/abaton.css"} <= set(names)
    assert "abaton/dashboard/templates/base.html" in names
    assert not [name for name in names if name.startswith("tests")]

    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=False)
    python = tmp_path / "venv" / "bin" / "python"
    lock = ["-c", str(ROOT / "requirements.lock")]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *lock]
    subprocess.run([*pip, str(wheel)], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "ABATON_STORE": str(tmp_path / "store")
    }
    run = {"cwd": tmp_path, "env": environment, "check": True, "capture_output": True, "text": True}
    done = subprocess.run([str(python.with_name("abaton")), "demo", "--small"], **run)
    assert "community" in done.stdout
    assert (
        '"holds"'
        in subprocess.run([str(python.with_name("abaton")), "bench", "engine", "--json"], **run).stdout
    )
