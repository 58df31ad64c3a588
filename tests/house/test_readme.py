"""Check that the code of README, page and notebook runs and prints what it shows."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
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
    page_blocks = blocks(page)
    assert page_blocks
    for code, printed in page_blocks:
        assert run(code, names).split() == printed.split()


def test_the_first_example_is_short_and_leaves_a_run_that_is_listed():
    (code,) = (code for code, _ in blocks(README) if "Federation" in code)
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


@pytest.mark.parametrize("target", re.findall(r"^(?:\$ )?make ([a-z-]+)", README, re.M))
def test_make_targets_that_are_named_exist(target):
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0


def test_the_readme_fits_on_one_screen():
    assert len(README.splitlines()) <= 120
    assert len(blocks(README)) == 2
    assert README.count("![") == 1


def typed(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page's blocks of kind `console`, each with the lines that are shown of its output."""
    commands: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page, re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:].split("#")[0].strip(), []))
            elif line.strip():
                commands[-1][1].append(line)
    return commands


@pytest.mark.slow
def test_commands_typed_in_order_in_a_fresh_clone_print_what_is_shown(tmp_path):
    """A clone of what is committed, in the environment of these tests: what `make` would install is there already."""
    clone, bin_ = tmp_path / "clone", tmp_path / "bin"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    bin_.mkdir()
    for name, program in {
        "abaton": f"#!{sys.executable}\nfrom abaton.cli import main\n\nmain()\n",
        "python": "#!/bin/sh\nexit 0\n",  # `make test` would run this test, too
    }.items():
        (bin_ / name).write_text(program)
        (bin_ / name).chmod(0o755)
    (tmp_path / "installed").touch()
    environment = {
        **os.environ,
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "PYTHONPATH": str(clone / "src"),
        "ABATON_STORE": str(tmp_path / "store"),
        "MAKEFLAGS": f"BIN={bin_} STAMP={tmp_path / 'installed'}",
    }
    commands = typed((clone / "README.md").read_text())
    assert len(commands) >= 5
    for command, shown in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=clone, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        printed = {" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines()}
        for line in shown:
            cells = " ".join(line.split())
            # Without a terminal a table has more columns.
            assert any(
                output_line.startswith(cells.removesuffix(" │").removesuffix(" ┃")) for output_line in printed
            ), line


def test_links_to_files_are_not_dead():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in link and not link.startswith("mailto:"):
                assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"


def test_no_machine_path_or_registry_host_is_tracked():
    """Check that no tracked text has a path of a machine or the host of a package registry."""
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
