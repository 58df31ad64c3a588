"""The README's code runs and prints what it says."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```\n+(?:It prints[^\n]*\n+```text\n(.*?)```)?", README, re.S)


def test_there_is_code_to_run():
    assert BLOCKS


@pytest.mark.parametrize(("code", "printed"), BLOCKS)
def test_python_blocks_run_and_print_what_is_shown(code, printed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABATON_STORE", str(tmp_path))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    if printed:
        assert out.getvalue().split() == printed.split()


@pytest.mark.parametrize("target", re.findall(r"^make ([a-z-]+)", README, re.M))
def test_make_targets_that_are_named_exist(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0


def test_abaton_commands_that_are_named_exist():
    named = set(re.findall(r"^(?:\$ )?abaton ([a-z]+)", README, re.M))
    done = subprocess.run(
        [sys.executable, "-c", "from abaton.cli import main; main()", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert named
    assert all(name in done.stdout for name in named)


def test_links_to_files_are_not_dead():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in link and not link.startswith("mailto:"):
                assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"


def test_the_project_speaks_of_itself_alone():
    """No path of somebody's machine and no package registry's host in any tracked text."""
    foreign = re.compile(r"/(root|home|Users|work)/\w|files\.pythonhosted|pypi\.org/simple")
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    for name in names:
        path = ROOT / name
        if (
            path.is_file()
            and path.suffix in {".py", ".md", ".toml", ".yml", ".lock", ".cff", ""}
            and path != Path(__file__)
        ):
            assert not foreign.search(path.read_text(errors="ignore")), name
