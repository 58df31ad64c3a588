"""Scrubbing free text: the subject's own names and numbers are blacked out, and ways to reach one.

This is the weakest method: a text may name a neighbour or a village. It is never a default; a study must
ask for it.

Letters as names are compared, from a table of our own, so that every computer and every Python gives the same.

The table (``letters.txt``) names its version of Unicode. It takes accents, ligatures, wide forms, capitals and
invisible signs away, writes all digits as 0 to 9, and makes one letter of those that look alike: a Cyrillic а is an a.
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

from abaton.deid.context import Handler, Node, Scope
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.deid.methods import Settings


_HANGUL, _SYLLABLES = 0xAC00, 11_172
_L, _V, _T = 0x1100, 0x1161, 0x11A7


class _Folding(dict[int, str]):
    """What becomes of each sign; Hangul is taken apart by the rule of the standard."""

    def __missing__(self, point: int) -> str:
        place = point - _HANGUL
        if not 0 <= place < _SYLLABLES:
            return chr(point)
        last = place % 28
        made = chr(_L + place // 588) + chr(_V + place % 588 // 28)
        return made + chr(_T + last) if last else made


@cache
def _table() -> tuple[str, frozenset[str], str, _Folding]:
    text = files("abaton.deid").joinpath("text_folding.txt").read_text(encoding="ascii")
    version, invisible, parting, *groups = (line.partition(" ") for line in text.splitlines())
    folding = _Folding()
    for made, _, points in groups:
        sign = "" if made == "-" else "".join(chr(int(each, 16)) for each in made.split("."))
        folding.update(dict.fromkeys(_points(points), sign))
    hidden = frozenset(chr(point) for point in _points(invisible[2]))
    return version[2], hidden, _class(parting[2]), folding


def _points(ranges: str) -> list[int]:
    made: list[int] = []
    for each in ranges.split():
        first, _, last = each.partition("-")
        made += range(int(first, 16), int(last or first, 16) + 1)
    return made


def _class(ranges: str) -> str:
    """Ranges as a class of a pattern."""
    pairs = (each.partition("-") for each in ranges.split())
    return "".join(f"\\U{int(first, 16):08x}-\\U{int(last or first, 16):08x}" for first, _, last in pairs)


def version() -> str:
    """Which tables these are.

    >>> version()
    '14.0.0 look-alikes 1'
    """
    return _table()[0]


def folded(text: str) -> str:
    """A text as names are compared.

    >>> folded("MÜLLER") == folded("mu\u0308ller") == folded("Mu\u00adller") == folded("Мüller")
    True
    """
    return text.translate(_table()[3])


def placed(text: str) -> tuple[str, list[int]]:
    """A text as names are compared, and for each of its signs the place of the one it was made of.

    >>> placed("Ｊß!")
    ('jss!', [0, 1, 1, 2])
    """
    folding, made, places = _table()[3], [], []
    for place, sign in enumerate(text):
        plain = folding[ord(sign)]
        made.append(plain)
        places += [place] * len(plain)
    return "".join(made), places


def without_invisible(text: str) -> str:
    """A text without the signs that nobody sees, in which anything could be written.

    >>> without_invisible("a\u200bb")
    'ab'
    """
    hidden = _table()[1]
    return "".join(sign for sign in text if sign not in hidden)


@cache
def words() -> re.Pattern[str]:
    """Finds the words of a folded text; a word may have an apostrophe or a hyphen in it.

    >>> words().findall("o'neill, 47 smith-jones")
    ["o'neill", '47', 'smith-jones']
    """
    one = f"[^{_table()[2]}]+"
    return re.compile(f"{one}(?:['’-]{one})*")


BLACK = "[…]"
# On folded text: no capitals, and all digits are 0 to 9.
_PATTERNS = re.compile(
    r"[^\s@<>(),;:]+@[^\s@<>(),;:]+\.[^\s@<>(),;:.]+"  # mail
    r"|(?:https?|ftp)://\S+|www\.\S+|urn:\S+"  # addresses
    r"|\S*%[0-9a-f]{2}\S*"  # what is written as in an address
    r"|(?<![0-9a-z])[0-9]{4}-[0-9]{2}(?:-[0-9]{2})?(?:t[0-9:.]+(?:z|[+-][0-9]{2}:?[0-9]{2})?)?"  # dates
    r"|(?<![0-9a-z])[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{2,4}(?![0-9a-z])"
    r"|\+?\(?[0-9](?:[\s()./-]?[0-9]){5,}"  # telephone, insurance and record numbers
    r"|(?<![0-9a-z])[a-z0-9+/]{24,}={0,2}"  # encoded content
)
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{6,}={0,2}")
_NAMED = ("name", "telecom", "address", "identifier", "birthDate", "contact", "id")
_TOLD = ("valueString", "valueAddress", "valueHumanName", "valueContactPoint", "valueIdentifier")
_JOINT = re.compile(r"['’-]")
_SHORTEST, _LONG = 2, 4
# Once capitals are gone, an I for an l, a 1 for either and a 0 for an o are still to be seen through.
_TWINS = str.maketrans("l10", "iio")
_PERSONS = frozenset({"Patient", "RelatedPerson", "Person", "Practitioner"})


def words_of(document: dict[str, Any]) -> frozenset[str]:
    """Every word and number that the persons of a document are known by, folded."""
    found: set[str] = set()
    for text in _texts_about_people(document):
        for word in words().findall(folded(text)):
            parts = [word, *(part for part in _JOINT.split(word) if len(part) > _SHORTEST)]
            found.update(part for part in parts if len(part) >= _SHORTEST)
            found.update(_twin(part) for part in parts if len(part) >= _LONG)
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


def black_out(text: str, known: frozenset[str]) -> str:
    """A text without the given words and without anything that looks like an address or a number of a person.

    >>> black_out("Mr Smith, call 050 315 3711", frozenset({"smith"}))
    'Mr […], call […]'
    """
    plain = without_invisible(html.unescape(text))
    seen, places = placed(plain)
    spans = [
        (places[match.start()], places[match.end() - 1] + 1)
        for match in _PATTERNS.finditer(seen)
        if match.end() > match.start()
    ]
    spans += [match.span() for match in _ENCODED.finditer(plain) if _hides(match[0], known)]
    spans += [
        (places[match.start()], places[match.end() - 1] + 1)
        for match in words().finditer(seen)
        if _known(match[0], known)
    ]
    return _blacked(plain, sorted(spans))


def _blacked(text: str, spans: list[tuple[int, int]]) -> str:
    made, done = [], 0
    for start, end in spans:
        if start >= done:
            made += [text[done:start], BLACK]
        if end > done:
            # An accent that is written as a sign of its own belongs to the letter before it.
            done = end
            while done < len(text) and not folded(text[done]):
                done += 1
    return "".join(made) + text[done:]


def _twin(word: str) -> str:
    """A word as it looks at a glance; a number stays one."""
    return word if word.isascii() and word.isdecimal() else word.translate(_TWINS)


def _known(word: str, known: frozenset[str]) -> bool:
    parts = [word, *_JOINT.split(word)]
    parts += [_twin(part) for part in parts if len(part) >= _LONG]
    if any(part in known for part in parts):
        return True
    # Smiths, Smithsche: a name with an ending. Better a word too many than a name.
    return any(part[:n] in known for part in parts for n in range(_LONG, len(part)))


def _hides(text: str, known: frozenset[str]) -> bool:
    """Whether a text is a known word in base64."""
    body = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        inner = base64.b64decode(body + "=" * (-len(body) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return False
    return any(_known(word, known) for word in words().findall(folded(inner)))


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
        known = scope.document.words(scope)
        if not known:
            return scope.drop(node, "scrub without a known person")
        return black_out(value, known)

    return run
