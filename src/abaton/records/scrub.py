"""Scrubbing free text: the subject's own names and numbers are blacked out, and ways to reach one.

This is the weakest method: a text may name a neighbour or a village. It is never a default; a study must
ask for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from abaton.errors import SettingsError
from abaton.records.scope import Handler, Node, Scope

if TYPE_CHECKING:
    from abaton.records.methods import Settings

BLACK = "[…]"
_PATTERNS = re.compile(
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"  # mail
    r"|(?:https?|ftp)://\S+|www\.\S+|urn:\S+"  # addresses
    r"|\b\d{4}-\d{2}(?:-\d{2})?(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?"  # dates
    r"|\b\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b"
    r"|\+?\(?\d(?:[\s()./-]?\d){5,}"  # telephone, insurance and record numbers
    r"|\b[A-Za-z0-9+/]{24,}={0,2}"  # encoded content
)
_NAMED = ("name", "telecom", "address", "identifier", "birthDate", "contact", "id")
_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_JOINT = re.compile(r"['’-]")
_SHORTEST = 2
_PERSONS = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})


def words_of(document: dict[str, Any]) -> frozenset[str]:
    """Every word and number that the persons of a document are known by, in small letters."""
    found: set[str] = set()
    for person in _people(document):
        for name in _NAMED:
            for text in _texts(person.get(name)):
                for word in _WORD.findall(text):
                    parts = [word, *(part for part in _JOINT.split(word) if len(part) > _SHORTEST)]
                    found.update(part.lower() for part in parts if len(part) >= _SHORTEST)
    return frozenset(found)


def _people(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("resourceType") in _PERSONS:
            yield node
        for child in node.values():
            yield from _people(child)
    elif isinstance(node, list):
        for child in node:
            yield from _people(child)


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        for key, child in node.items():
            if key not in ("system", "use", "type", "url"):
                yield from _texts(child)
    elif isinstance(node, list):
        for child in node:
            yield from _texts(child)


def black_out(text: str, words: frozenset[str]) -> str:
    """A text without the given words and without anything that looks like an address or a number of a person.

    >>> black_out("Mr Smith, call 050 315 3711", frozenset({"smith"}))
    'Mr […], call […]'
    """
    text = _PATTERNS.sub(BLACK, text)
    return _WORD.sub(lambda match: BLACK if _known(match[0].lower(), words) else match[0], text)


def _known(word: str, words: frozenset[str]) -> bool:
    return word in words or any(part in words for part in _JOINT.split(word))


def scrub(_: Settings, node: Node) -> Handler:
    """Keep a text without the persons' own names and numbers; without known persons, drop it."""
    if node.type not in ("string", "markdown"):
        raise SettingsError(
            f"the method 'scrub' cannot be used on {node.path}: it is not a text", remedy="correct the rule"
        )

    def run(value: Any, scope: Scope) -> Any:
        if value.__class__ is not str:
            return scope.drop(node, "malformed")
        if scope.ours:
            return value
        words = scope.document.words()
        if not words:
            return scope.drop(node, "scrub without a known person")
        return black_out(value, words)

    return run
