"""The code of README, page and notebook runs and prints what it says."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from abaton.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PYTHON = (ROOT / "docs" / "python.md").read_text()
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def blocks(page: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, and what each is said to print."""
    return re.findall(r"```python\n(.*?)```\n+(?:It prints[^\n]*\n+```text\n(.*?)```)?", page, re.S)


def run(code: str, names: dict) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), names)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABATON_STORE", str(tmp_path))


@pytest.mark.parametrize("page", [README, PYTHON], ids=["README", "docs/python.md"])
def test_python_blocks_run_one_after_the_other_and_print_what_is_shown(page):
    names: dict = {"__name__": "page"}
    found = blocks(page)
    assert found
    for code, printed in found:
        assert run(code, names).split() == printed.split()


def test_the_first_example_is_short_and_leaves_a_run_that_is_listed():
    code, _ = blocks(README)[0]
    assert len(code.splitlines()) <= 8
    run(code, {"__name__": "page"})
    (line,) = json.loads(CliRunner().invoke(app, ["runs", "--json"]).stdout)
    assert (line["run"], line["status"]) == ("first", "finished")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_run_and_print_what_they_show(notebook):
    names: dict = {"__name__": "notebook"}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    for cell in cells:
        last = ast.parse("".join(cell["source"])).body[-1]
        printed = run("".join(cell["source"]), names)
        shown = "".join(text for out in cell["outputs"] for text in out.get("text", ()))
        assert printed.split() == shown.split()
        if isinstance(last, ast.Expr) and any("data" in out for out in cell["outputs"]):
            value = eval(ast.unparse(last), names)
            assert value._repr_html_().startswith("<table>")


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
