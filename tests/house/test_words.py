"""Check that names and prose use the field's words: the lists are in docs/glossary.toml.

Run as a script, it lists the findings of some files: `python tests/house/test_words.py src/abaton/codecs`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = tomllib.loads((ROOT / "docs" / "glossary.toml").read_text())
IDENTIFIERS, PROSE = LISTS["identifiers"], LISTS["prose"]
BANNED = frozenset(IDENTIFIERS["banned"])
VARIABLES = frozenset(IDENTIFIERS["variables"])
BUILT = {"node_modules", "built", "__pycache__"}
PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z]|\d|_|$)|[A-Z]?[a-z]+|[A-Z]+")
PHRASES = re.compile(rf"\b(?:{'|'.join(map(re.escape, PROSE['banned']))})\b", re.I)


def files(*folders: str) -> list[Path]:
    """Return the tracked kinds of text files below some folders, without what a build makes."""
    paths = [
        path
        for folder in folders
        for path in ([ROOT / folder] if (ROOT / folder).is_file() else sorted((ROOT / folder).rglob("*")))
        if path.is_file() and BUILT.isdisjoint(path.parts)
    ]
    return [
        path
        for path in paths
        if path.suffix in {".py", ".md", ".toml", ".html", ".js", ".mjs", ".css", ".txt"}
    ]


def words_of(identifier: str) -> list[str]:
    """Return the words of an identifier.

    >>> words_of("_SmallRing_told2")
    ['small', 'ring', 'told']
    """
    return [part.lower() for part in PARTS.findall(identifier)]


def identifier_problems(identifier: str) -> list[str]:
    """Return the banned words of an identifier."""
    problems = [
        word
        for word in words_of(identifier)
        if word in BANNED and not re.fullmatch(IDENTIFIERS["allowed"].get(word, "(?!)"), identifier)
    ]
    bare = identifier.strip("_").lower()
    return [*problems, bare] if bare in VARIABLES else problems


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every identifier of a program with its line: names, arguments, attributes, keywords, imports."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield line, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield line, name
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield line, name
            case ast.alias(name=name, asname=alias):
                yield line, alias or name.rpartition(".")[2]
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from ((line, name) for name in names)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def identifier_findings(paths: list[Path]) -> list[str]:
    """Return where identifiers or file names hold private words."""
    findings = []
    for path in paths:
        where = str(path.relative_to(ROOT))
        findings += [
            f"{where}: file name '{word}'" for word in identifier_problems(path.stem.replace("-", "_"))
        ]
        if path.suffix == ".py":
            findings += [
                f"{where}:{line}: {name}"
                for line, name in identifiers(parsed(path))
                if identifier_problems(name)
            ]
    return findings


def comments(text: str) -> str:
    """Return the comments of a program."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file with its line: the strings and comments of a program, all of any other file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(re.split(r"\n\s*\n", text), 1)
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    yield 0, comments(text)


def prose_findings(paths: list[Path]) -> list[str]:
    """Return where prose holds a banned phrase, with what to write instead."""
    findings = []
    for path in paths:
        for line, text in prose(path):
            flat = re.sub(r"\s+(?:#\s+)?", " ", text)
            for hit in PHRASES.finditer(flat):
                phrase = hit[0].lower()
                context = flat[max(0, hit.start() - 30) : hit.end() + 30]
                if not re.search(PROSE["allowed"].get(phrase, "(?!)"), context, re.I):
                    instead = PROSE["banned"][phrase]
                    findings.append(f"{path.relative_to(ROOT)}:{line}: '{context}': write '{instead}'")
    return findings


def test_identifiers_use_the_words_of_the_field():
    assert identifier_findings(files("src", "benchmarks", "tools", "docs/extensions", "examples")) == []


def test_identifiers_of_tests_use_the_words_of_the_field():
    assert identifier_findings(files("tests")) == []


def test_prose_uses_the_words_of_the_field():
    pages = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    paths = files("src", "docs", "benchmarks", "tools", "examples", *pages)
    lists = ROOT / "docs" / "glossary.toml", ROOT / "docs" / "glossary.md"
    assert prose_findings([path for path in paths if path not in lists]) == []


def test_every_word_of_the_glossary_is_in_the_source():
    source = joined(" ".join(f"{path} {path.read_text()}" for path in files("src") if path.suffix == ".py"))
    assert [word for word in LISTS["required"]["words"] if joined(word) not in source] == []


def joined(text: str) -> str:
    """Return a text in lower case without underscores, hyphens and spaces: `label_skew` is also `LabelSkew`."""
    return re.sub(r"[\s_-]+", "", text).lower()


def test_the_check_finds_private_words():
    assert identifier_problems("_held_told") == ["told"]
    assert identifier_problems("SmallRing") == ["ring"]
    assert identifier_problems("string") == []
    assert identifier_problems("held") == ["held"]
    assert PHRASES.search("who is left out of it")


if __name__ == "__main__":
    selected = files(*(str(Path(name).resolve().relative_to(ROOT)) for name in sys.argv[1:]))
    print("\n".join([*identifier_findings(selected), *prose_findings(selected)]))  # noqa: T201
