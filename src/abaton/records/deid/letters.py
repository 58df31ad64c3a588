"""Letters as names are compared, from a table of our own, so that every computer and every Python gives the same.

The table (``letters.txt``) names its version of Unicode. It takes accents, ligatures, wide forms, capitals and
invisible signs away, writes all digits as 0 to 9, and makes one letter of those that look alike: a Cyrillic а is an a.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

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
