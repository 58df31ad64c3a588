"""Scrubbing free text: the subject's own names and numbers are blacked out, and ways to reach one.

This is the weakest method: a text may name a neighbour or a village. It is never a default; a study must
ask for it.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import unicodedata
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
    r"|\S*%[0-9A-Fa-f]{2}\S*"  # what is written as in an address
    r"|\b\d{4}-\d{2}(?:-\d{2})?(?:T[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?"  # dates
    r"|\b\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b"
    r"|\+?\(?\d(?:[\s()./-]?\d){5,}"  # telephone, insurance and record numbers
    r"|\b[A-Za-z0-9+/]{24,}={0,2}"  # encoded content
)
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{6,}={0,2}")
_NAMED = ("name", "telecom", "address", "identifier", "birthDate", "contact", "id")
_TOLD = ("valueString", "valueAddress", "valueHumanName", "valueContactPoint", "valueIdentifier")
_WORD = re.compile(r"(?:[^\W_][\u0300-\u036f]*)+(?:['’-](?:[^\W_][\u0300-\u036f]*)+)*")
_JOINT = re.compile(r"['’-]")
_SHORTEST, _LONG = 2, 4
_PERSONS = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})


def folded(text: str) -> str:
    """A text as names are compared: without accents, ligatures, wide forms, invisible signs and capitals.

    >>> folded("MÜLLER") == folded("mu\u0308ller") == folded("Mu\u00adller")
    True
    """
    parts = unicodedata.normalize("NFKD", text)
    kept = "".join(sign for sign in parts if unicodedata.category(sign) not in ("Mn", "Cf"))
    return unicodedata.normalize("NFKC", kept.casefold())


def words_of(document: dict[str, Any]) -> frozenset[str]:
    """Every word and number that the persons of a document are known by, folded."""
    found: set[str] = set()
    for text in _texts_about_people(document):
        for word in _WORD.findall(unicodedata.normalize("NFKC", text)):
            parts = [word, *(part for part in _JOINT.split(word) if len(part) > _SHORTEST)]
            found.update(folded(part) for part in parts if len(part) >= _SHORTEST)
    return frozenset(found)


def _texts_about_people(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if _is_person(node.get("resourceType")):
            for name in _NAMED:
                yield from _texts(node.get(name))
            yield from _told(node.get("extension"))
        elif _points_at_person(node):
            yield from _texts(node.get("display"))
        for child in node.values():
            yield from _texts_about_people(child)
    elif isinstance(node, list):
        for child in node:
            yield from _texts_about_people(child)


def _is_person(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _PERSONS


def _points_at_person(node: dict[str, Any]) -> bool:
    if "display" not in node:
        return False
    reference = node.get("reference")
    kinds = re.split(r"[/?]", reference) if isinstance(reference, str) else []
    return _is_person(node.get("type")) or any(_is_person(kind) for kind in kinds)


def _told(extensions: Any) -> Iterator[str]:
    """Names in extensions: a mother's maiden name, a place of birth."""
    for each in extensions if isinstance(extensions, list) else ():
        if isinstance(each, dict):
            for name in _TOLD:
                yield from _texts(each.get(name))
            yield from _told(each.get("extension"))


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
    plain = unicodedata.normalize("NFKC", html.unescape(text))
    plain = "".join(sign for sign in plain if unicodedata.category(sign) != "Cf")
    plain = _PATTERNS.sub(BLACK, plain)
    plain = _ENCODED.sub(lambda match: BLACK if _hides(match[0], words) else match[0], plain)
    return _WORD.sub(lambda match: BLACK if _known(folded(match[0]), words) else match[0], plain)


def _known(word: str, words: frozenset[str]) -> bool:
    parts = (word, *_JOINT.split(word))
    if any(part in words for part in parts):
        return True
    # Smiths, Smithsche: a name with an ending. Better a word too many than a name.
    return any(part[:n] in words for part in parts for n in range(_LONG, len(part)))


def _hides(text: str, words: frozenset[str]) -> bool:
    """Whether a text is a known word in base64."""
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        inner = base64.b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return False
    return any(_known(folded(word), words) for word in _WORD.findall(inner))


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
        words = scope.document.words(scope)
        if not words:
            return scope.drop(node, "scrub without a known person")
        return black_out(value, words)

    return run
