"""Redaction of free text: names and numbers of the document's persons, and contact details, are removed.

This is the weakest method, since a text may name a neighbour or a village. It is not part of any preset; a study
must configure it.

Names are folded with a versioned table (``text_folding.txt``) instead of `unicodedata`, so that browser and server
redact the same words under different Python versions. The table removes accents, ligatures, wide forms, capitals and
invisible characters, writes all digits as 0 to 9, and folds look-alikes to one letter: a Cyrillic а is an a.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from abaton.deid.context import ElementPosition, Handler, TransformContext
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.deid.methods import Settings


_HANGUL, _SYLLABLES = 0xAC00, 11_172
_L, _V, _T = 0x1100, 0x1161, 0x11A7


class _Folding(dict[int, str]):
    """Folded form of each character; Hangul syllables are decomposed by the rule of the Unicode standard."""

    def __missing__(self, point: int) -> str:
        syllable = point - _HANGUL
        if not 0 <= syllable < _SYLLABLES:
            return chr(point)
        last = syllable % 28
        folded = chr(_L + syllable // 588) + chr(_V + syllable % 588 // 28)
        return folded + chr(_T + last) if last else folded


@cache
def _table() -> tuple[str, frozenset[str], str, _Folding]:
    text = files("abaton.deid").joinpath("text_folding.txt").read_text(encoding="ascii")
    version, invisible, separators, *groups = (line.partition(" ") for line in text.splitlines())
    folding = _Folding()
    for code_points, _, points in groups:
        folded = (
            ""
            if code_points == "-"
            else "".join(chr(int(code_point, 16)) for code_point in code_points.split("."))
        )
        folding.update(dict.fromkeys(_points(points), folded))
    invisible_characters = frozenset(chr(point) for point in _points(invisible[2]))
    return version[2], invisible_characters, _character_class(separators[2]), folding


def _points(ranges: str) -> list[int]:
    points: list[int] = []
    for range_text in ranges.split():
        first, _, last = range_text.partition("-")
        points += range(int(first, 16), int(last or first, 16) + 1)
    return points


def _character_class(ranges: str) -> str:
    """Return ranges of characters as a character class of a regular expression, to search free text."""
    pairs = (range_text.partition("-") for range_text in ranges.split())
    return "".join(f"\\U{int(first, 16):08x}-\\U{int(last or first, 16):08x}" for first, _, last in pairs)


def version() -> str:
    """Return the version of the folding table of free text (names, look-alike characters).

    >>> version()
    '14.0.0 look-alikes 1'
    """
    return _table()[0]


def fold(text: str) -> str:
    """Return a free text folded as names are compared: without case and accents.

    >>> fold("MÜLLER") == fold("mu\u0308ller") == fold("Mu\u00adller") == fold("Мüller")
    True
    """
    return text.translate(_table()[3])


def fold_with_positions(text: str) -> tuple[str, list[int]]:
    """Return the folded free text, and for each of its characters the position of the original one.

    >>> fold_with_positions("Ｊß!")
    ('jss!', [0, 1, 1, 2])
    """
    folding, folded_characters, positions = _table()[3], [], []
    for position, character in enumerate(text):
        folded = folding[ord(character)]
        folded_characters.append(folded)
        positions += [position] * len(folded)
    return "".join(folded_characters), positions


def without_invisible(text: str) -> str:
    """Return a free text without invisible characters, which could encode other text.

    >>> without_invisible("a\u200bb")
    'ab'
    """
    invisible = _table()[1]
    return "".join(sign for sign in text if sign not in invisible)


@cache
def word_pattern() -> re.Pattern[str]:
    """Return the pattern of the words of a folded free text; a word may contain an apostrophe or a hyphen.

    >>> word_pattern().findall("o'neill, 47 smith-jones")
    ["o'neill", '47', 'smith-jones']
    """
    one = f"[^{_table()[2]}]+"
    return re.compile(f"{one}(?:['’-]{one})*")


REDACTION_MARK = "[…]"
# On folded text: no capitals, and all digits are 0 to 9.
_PATTERNS = re.compile(
    r"[^\s@<>(),;:]+@[^\s@<>(),;:]+\.[^\s@<>(),;:.]+"  # mail
    r"|(?:https?|ftp)://\S+|www\.\S+|urn:\S+"  # addresses
    r"|\S*%[0-9a-f]{2}\S*"  # percent-encoded text
    r"|(?<![0-9a-z])[0-9]{4}-[0-9]{2}(?:-[0-9]{2})?(?:t[0-9:.]+(?:z|[+-][0-9]{2}:?[0-9]{2})?)?"  # dates
    r"|(?<![0-9a-z])[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}(?![0-9a-z])"
    r"|\+?\(?[0-9](?:[\s()./-]?[0-9]){5,}"  # telephone, insurance and record numbers
    r"|(?<![0-9a-z])[a-z0-9+/]{24,}={0,2}"  # encoded content
)
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{6,}={0,2}")
_IDENTIFYING_ELEMENTS = ("name", "telecom", "address", "identifier", "birthDate", "contact", "id")
_NAME_VALUES = ("valueString", "valueAddress", "valueHumanName", "valueContactPoint", "valueIdentifier")
_JOINT = re.compile(r"['’-]")
_MIN_TERM, _MIN_PREFIX = 2, 4
# Look-alikes that remain after folding: I or 1 for l, 0 for o.
_LOOKALIKES = str.maketrans("l10", "iio")
_PERSON_TYPES = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})


def person_terms(document: dict[str, Any]) -> frozenset[str]:
    """Return the folded words and numbers that identify a document's persons, to redact in free text."""
    terms: set[str] = set()
    for text in _texts_about_people(document):
        for word in word_pattern().findall(fold(text)):
            parts = [word, *(part for part in _JOINT.split(word) if len(part) > _MIN_TERM)]
            terms.update(part for part in parts if len(part) >= _MIN_TERM)
            terms.update(_fold_lookalikes(part) for part in parts if len(part) >= _MIN_PREFIX)
    return frozenset(terms)


def _texts_about_people(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if _is_person(node.get("resourceType")):
            for name in _IDENTIFYING_ELEMENTS:
                yield from _texts(node.get(name))
            yield from _extension_values(node.get("extension"))
        elif _points_at_person(node):
            yield from _texts(node.get("display"))
        for child in node.values():
            yield from _texts_about_people(child)
    elif isinstance(node, list):
        for child in node:
            yield from _texts_about_people(child)


def _is_person(resource_type: Any) -> bool:
    return isinstance(resource_type, str) and resource_type in _PERSON_TYPES


def _points_at_person(node: dict[str, Any]) -> bool:
    if "display" not in node:
        return False
    reference = node.get("reference")
    path_parts = re.split(r"[/?]", reference) if isinstance(reference, str) else []
    return _is_person(node.get("type")) or any(_is_person(part) for part in path_parts)


def _extension_values(extensions: Any) -> Iterator[str]:
    """Yield names in extensions, to redact in free text: a mother's maiden name, a place of birth."""
    for extension in extensions if isinstance(extensions, list) else ():
        if isinstance(extension, dict):
            for name in _NAME_VALUES:
                yield from _texts(extension.get(name))
            yield from _extension_values(extension.get("extension"))


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


def redact_text(text: str, known: frozenset[str]) -> str:
    """Redact a free text: remove the given words and what looks like an address or a personal number.

    >>> redact_text("Mr Smith, call 050 315 3711", frozenset({"smith"}))
    'Mr […], call […]'
    """
    unescaped = without_invisible(html.unescape(text))
    folded_text, positions = fold_with_positions(unescaped)
    spans = [
        (positions[match.start()], positions[match.end() - 1] + 1)
        for match in _PATTERNS.finditer(folded_text)
        if match.end() > match.start()
    ]
    spans += [match.span() for match in _ENCODED.finditer(unescaped) if _is_encoded_term(match[0], known)]
    spans += [
        (positions[match.start()], positions[match.end() - 1] + 1)
        for match in word_pattern().finditer(folded_text)
        if _is_known(match[0], known)
    ]
    return _apply_redactions(unescaped, sorted(spans))


def _apply_redactions(text: str, spans: list[tuple[int, int]]) -> str:
    pieces, done = [], 0
    for start, end in spans:
        if start >= done:
            pieces += [text[done:start], REDACTION_MARK]
        if end > done:
            # A combining accent belongs to the letter before it.
            done = end
            while done < len(text) and not fold(text[done]):
                done += 1
    return "".join(pieces) + text[done:]


def _fold_lookalikes(word: str) -> str:
    """Return a word of free text with folded look-alike characters; numbers do not change."""
    return word if word.isascii() and word.isdecimal() else word.translate(_LOOKALIKES)


def _is_known(word: str, known: frozenset[str]) -> bool:
    parts = [word, *_JOINT.split(word)]
    parts += [_fold_lookalikes(part) for part in parts if len(part) >= _MIN_PREFIX]
    if any(part in known for part in parts):
        return True
    # Smiths, Smithsche: a name with an ending. Redacting too much is preferred.
    return any(part[:n] in known for part in parts for n in range(_MIN_PREFIX, len(part)))


def _is_encoded_term(text: str, known: frozenset[str]) -> bool:
    """Return whether a part of a free text is a known word in base64."""
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        inner = base64.b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return False
    return any(_is_known(word, known) for word in word_pattern().findall(fold(inner)))


def scrub(_: Settings, node: ElementPosition) -> Handler:
    """Keep a free text with the persons' names and numbers redacted; drop it if no person is known."""
    if node.type not in ("string", "markdown"):
        raise SettingsError(
            f"the method 'scrub' does not apply to {node.path}, which is not a text",
            remedy="correct the rule",
        )

    def run(value: Any, context: TransformContext) -> Any:
        if value.__class__ is not str:
            return context.drop(node, "malformed")
        if context.is_deidentified:
            return value
        known = context.document.person_terms(context)
        if not known:
            return context.drop(node, "scrub without a known person")
        return redact_text(value, known)

    return run
