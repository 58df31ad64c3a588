"""Check that the documentation is true: commands with help and transcript, modules, files, all parts of the papers."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import abaton
from abaton.lab.paper_figures import PLANS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAPERS = (DOCS / "papers.md").read_text()


def script():
    """Load the script that writes the pages of commands."""
    path = DOCS / "extensions" / "transcripts.py"
    spec = importlib.util.spec_from_file_location("transcripts", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["transcripts"] = module
    spec.loader.exec_module(module)
    return module


TRANSCRIPTS = script()
COMMANDS = TRANSCRIPTS.commands()
PAGES = "".join(page.read_text() for page in sorted((DOCS / "commands").glob("*.md")))
SECTIONS = dict(re.findall(r"^## abaton (.*?)\n(.*?)(?=^## |\Z)", PAGES, re.M | re.S))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_its_help_and_a_transcript(command):
    remedy = (
        "run 'python docs/extensions/transcripts.py'; a new command needs a line in scenario/scenario.txt"
    )
    section = SECTIONS.get(" ".join(command), "")
    assert f"```text\n{COMMANDS[command]}\n```" in section, remedy
    shown = [line[2:] for line in section.splitlines() if line.startswith("$ ")]
    assert any(TRANSCRIPTS.command_of(line, COMMANDS) == command for line in shown), remedy


def test_no_removed_command_is_documented():
    assert set(SECTIONS) == {" ".join(command) for command in COMMANDS}


def test_no_transcript_holds_a_name_or_a_path_of_a_machine():
    assert not re.search(r"/(tmp|home|root|work)/", PAGES + (DOCS / "tutorial.md").read_text())
    assert "Traceback" not in PAGES


@pytest.mark.slow
def test_the_tutorial_can_be_followed(tmp_path):
    page = (DOCS / "tutorial.md").read_text()
    commands = TRANSCRIPTS.typed(page)
    assert len(commands) >= 10
    shown = TRANSCRIPTS.play("\n".join(f"$ {command}" for command in commands), tmp_path)
    assert [transcript.command for transcript in shown] == commands
    output = "\n".join(transcript.printed for transcript in shown)
    for phrase in (
        "community",
        "held-out test set",
        "settings that differ",
        "interrupted",
    ):
        assert phrase in output, phrase
    assert (tmp_path / "demo.html").stat().st_size > 1_000_000
    assert (tmp_path / "compare.html").stat().st_size > 1_000_000


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    decisions = {page for page in pages if re.match(r"adr/\d", page)}
    assert sorted(named) == sorted(pages - decisions)


def test_decisions_are_in_their_index_and_not_in_the_search():
    index = (DOCS / "adr" / "index.md").read_text()
    decisions = sorted((DOCS / "adr").glob("0*.md"))
    assert 40 <= len(decisions) <= 60
    for page in decisions:
        text = page.read_text()
        title = re.search(r"^# (.+)$", text, re.M)[1]
        status, date, area = (
            re.search(rf"^- {key}: (.+)$", text, re.M)[1] for key in ("Status", "Date", "Area")
        )
        assert f"|{page.name[:4]}|[{title}]({page.name})|{area}|{date}|{status}|" in index, page.name
        assert text.startswith("---\nsearch:\n  exclude: true\n---\n"), page.name
        assert re.findall(r"^## (.+)$", text, re.M) == [
            "Context",
            "Decision",
            "Consequences",
            "Alternatives",
        ], page.name


def test_the_documentation_is_short():
    assert sum(len(page.read_text().split()) for page in DOCS.rglob("*.md")) <= 65_000
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60


def test_the_reference_covers_every_package():
    documented = set(re.findall(r"^::: (\S+)", (DOCS / "reference.md").read_text(), re.M))
    assert all(importlib.util.find_spec(name) for name in documented)
    packages = {m.name for m in pkgutil.iter_modules(abaton.__path__, "abaton.") if m.ispkg}
    assert packages - {"abaton.cli", "abaton.benchmarks"} <= documented


def code_spans(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", page)


@pytest.mark.parametrize(
    "page",
    ["papers.md", "weighting.md", "engines.md", *(f"howto/{p.name}" for p in (DOCS / "howto").glob("*.md"))],
)
def test_modules_commands_and_files_that_are_named_exist(page):
    text = (DOCS / page).read_text()
    blocks = re.findall(r"```text\n(.*?)```", text, re.S)
    typed = [line for block in blocks for line in block.splitlines() if line.startswith("abaton ")]
    for word in [*code_spans(text), *typed]:
        if word.startswith("abaton "):
            check_command(word)
        elif re.fullmatch(r"abaton(\.\w+)+", word):
            check_name(word)
        elif re.match(r"(benchmarks|tests|src|docs|examples)/", word):
            assert (ROOT / word).exists(), word


def check_command(line: str) -> None:
    command = TRANSCRIPTS.command_of(line, COMMANDS)
    assert command is not None, line
    rest = line.split()[1 + len(command) :]
    if command == ("lab", "reproduce"):
        assert rest[0] in {*PLANS, "list"}, line
    if command == ("bench",) and rest[0].islower():
        assert (ROOT / "benchmarks" / f"{rest[0]}.py").exists(), line


def check_name(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


PARTS = {
    "Metis": [
        *(f"Section {n}" for n in ("I", "II", "III", "IV", "V", "VI", "VII")),
        *(f"Equation {n}" for n in (1, 2, 3)), "Algorithm 1", *(f"Figure {n}" for n in range(1, 10)),
        *(f"Table {n}" for n in ("I", "II", "III")),
    ],
    "Structured": [
        *(f"Section {n}" for n in ("I", "II", "III", "III-A", "IV", "IV-A", "V", "V-A", "V-B", "VI")),
        "Equation 1", "Equation 2", "Algorithm 1", "Figure 1", "Figure 2", "Figure 3a", "Figure 3b", "Figure 3c",
        "Table I",
    ],
    "QUIC-FL": [
        *(f"Section {n}" for n in ("1", "2", "3", "3.1", "3.2", "4", "5", "5.1", "5.2", "6", "7", "7.1", "7.2", "8",
                                   "8.1", "8.2", "9")),
        *(f"Definition {n}" for n in range(1, 6)), "Lemma 1", "Corollary 3.1",
        *(f"Theorem {n}" for n in ("3.2", "4.1", "6.1")), *(f"Algorithm {n}" for n in range(1, 5)),
        *(f"Figure {n}" for n in range(1, 4)), "Table 1", "Table 2",
    ],
    "Mobile": [
        *(f"Section {n}" for n in ("I", "II", "II-A", "II-B", "II-C", "III", "III-A", "III-B", "IV", "IV-A", "IV-B",
                                   "IV-C", "V")),
        *(f"Snippet {n}" for n in (1, 2, 3)), "Table I",
    ],
}  # fmt: skip


@pytest.mark.parametrize("paper", PARTS)
def test_every_part_of_a_paper_is_mapped_to_code(paper):
    chapter = next(part for part in PAPERS.split("\n## ") if part.startswith(paper))
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \| (.+?) \|$", chapter, re.M)
    mapped = {part for part, _, here in rows if here.strip()}
    assert set(PARTS[paper]) <= mapped, set(PARTS[paper]) - mapped


def test_every_equation_of_the_quantisers_is_mapped():
    chapter = next(part for part in PAPERS.split("\n## ") if part.startswith("QUIC-FL"))
    equations: set[int] = set()
    for first, last in re.findall(r"^\| Equations? (\d+)(?: to (\d+))? \|", chapter, re.M):
        equations |= set(range(int(first), int(last or first) + 1))
    assert equations == set(range(1, 25))


def test_every_measured_line_names_its_command_and_the_page_its_processor_and_dates():
    text = (DOCS / "measured.md").read_text()
    assert re.search(r"\d{4}-\d\d-\d\d.* on two virtual cores of", text.split("\n## ")[0])
    lines = [line for line in text.splitlines() if re.match(r"\|[^-]", line)]
    rows = [line for line in lines if not line.endswith("|`abaton bench`|")]
    assert len(rows) > 50
    for row in rows:
        name = row.strip("|").split("|")[-1].strip()
        assert re.fullmatch(r"\w+", name), row
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), row
