"""Plain English: phrases that make a reader stop, and words that the design replaces, are nowhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

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
    "foretells": "predicts",
    "what came out": "the results",
    "dealt anew": "divided anew, or shuffled",
    "all one needs": "all you need",
    "albeit": "although",
    "whilst": "while",
    "henceforth": "from now on",
    "thereby": "so",
    "wherein": "in which",
    "utilise": "use",
    "leverage": "use",
    "seamless": "say how",
    "seamlessly": "say how",
    "global model": "community model",
    "global weights": "community model",
    "parameter server": "controller",
    "federated client": "learner, or site",
}
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
OTHERS = {"node_modules", "built"}  # what a build of the citizen's page fetches and makes
SOURCES = [
    path
    for path in sorted((ROOT / "src").rglob("*"))
    if path.suffix in {".py", ".toml", ".html", ".js"} and OTHERS.isdisjoint(path.parts)
]


def flat(text: str) -> str:
    """A text as one line, without what begins lines of comments."""
    return re.sub(r"\s+(?:#\s+)?", " ", text)


@cache
def texts() -> dict[str, str]:
    """Every page and source, read once."""
    return {
        str(path.relative_to(ROOT)): flat(path.read_text(encoding="utf-8")) for path in (*PAGES, *SOURCES)
    }


def test_phrases_that_hinder_a_reader_are_nowhere():
    """One search for all of them: a text is read once, not once for each phrase."""
    banned = re.compile(rf"\b(?:{'|'.join(map(re.escape, BANNED))})\b", re.I)
    found = [
        f"{where}: write '{BANNED[hit[0].lower()]}' instead of '{hit[0]}'"
        for where, text in texts().items()
        for hit in banned.finditer(text)
    ]
    assert found == []
    assert all(banned.search(f"It {phrase} here") for phrase in BANNED)


def test_the_search_finds_phrases_over_the_end_of_a_line():
    assert re.search(r"\bgone on with\b", flat("the run is gone on\n    # with again"))
    assert len(texts()) > 400
