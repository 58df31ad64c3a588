"""Plain English: phrases that make a reader stop, and words that the design replaces, are nowhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BANNED = {
    "lived through": "replayed",
    "lives through": "replays",
    "told again": "replayed, or repeated",
    "gone on with": "resumed",
    "gives way": "is replaced by, or turns into",
    "give way": "change, or are replaced",
    "for ever": "forever, or leave it out",
    "hangs on": "depends on",
    "stands behind": "is behind",
    "so manieth": "one in so many",
    "by half": "only half",
    "yardstick": "measure",
    "in no time": "at once",
    "pays from": "is worth it from",
    "gets hold of": "has",
    "one's own": "your own",
    "from there on": "from then on",
    "what came of": "the result of",
    "in lots": "in batches",
    "in one pile": "pooled",
    "as the paper has it": "as in the paper",
    "as if by": "say how",
    "hereby": "leave it out",
    "thereof": "of it",
    "global model": "community model",
    "global weights": "community model",
    "parameter server": "controller",
    "federated client": "learner, or site",
}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
SOURCES = [
    path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in {".py", ".toml", ".html", ".js"}
]


def flat(text: str) -> str:
    """A text as one line, without what begins lines of comments."""
    return re.sub(r"\s+(?:#\s+)?", " ", text)


@pytest.mark.parametrize("phrase", BANNED)
def test_a_phrase_that_hinders_a_reader_is_nowhere(phrase):
    found = re.compile(rf"\b{re.escape(phrase)}\b", re.I)
    where = [str(path.relative_to(ROOT)) for path in (*PAGES, *SOURCES) if found.search(TEXTS[path])]
    assert where == [], f"write '{BANNED[phrase]}' instead of '{phrase}'"


TEXTS = {path: flat(path.read_text(encoding="utf-8")) for path in (*PAGES, *SOURCES)}


def test_the_search_finds_phrases_over_the_end_of_a_line():
    assert re.search(r"\bgone on with\b", flat("the run is gone on\n    # with again"))
    assert len(TEXTS) > 400
