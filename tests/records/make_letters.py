"""Makes src/abaton/deid/text_folding.txt, by which names are compared, from one version of Unicode: run it."""

from __future__ import annotations

import unicodedata
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "src" / "abaton" / "deid" / "text_folding.txt"
UNICODE = "14.0.0"

# Letters of other scripts that look like a Latin one, capitals first: what looks alike to a reader is one letter.
LOOK_ALIKE = {
    "a": "аαɑ", "ae": "æӕ", "b": "вβƀ", "c": "сϲƈ", "d": "ԁđðɖ", "e": "еεɛҽ", "f": "ƒϝ", "g": "ɡցɢ", "h": "һнηհħ",
    "i": "іιɩıɪ", "j": "јյϳ", "k": "кκƙ", "l": "ӏłɭǀƚ", "m": "мμ", "n": "νոɴƞ", "o": "оοօøɔө", "oe": "œ",
    "p": "рρƥ", "q": "ԛզ", "r": "ɍʀɼ", "s": "ѕʂ", "t": "тτŧʈ", "th": "þ", "u": "սʋʉ", "v": "ѵⱱ", "w": "ԝѡ", "x": "хχ",
    "y": "уυүʏɏ", "z": "ζƶʐ",
}  # fmt: skip


def folded(sign: str) -> str:
    """A sign as names are compared: no accent, no ligature, no wide form, no capital, plain digits, no look-alike."""
    number = unicodedata.decimal(sign, None)
    if number is not None:
        return str(number)
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", sign).casefold())
    plain = "".join(part for part in parts if unicodedata.category(part) not in ("Mn", "Cf"))
    return "".join(_ALIKE.get(part, part) for part in plain)


_ALIKE = {sign: letter for letter, signs in LOOK_ALIKE.items() for sign in signs}


def letters() -> str:
    """The table: what becomes of signs, which are invisible, and which part words."""
    assert unicodedata.unidata_version == UNICODE, "make it with the version it names"
    groups: dict[str, list[int]] = {}
    invisible: list[int] = []
    parting: list[int] = []
    for point in range(0x110000):
        sign, kind = chr(point), unicodedata.category(chr(point))
        if kind in ("Cs", "Co", "Cn") or 0xAC00 <= point <= 0xD7A3:
            continue  # not assigned, private, or Hangul, which is taken apart by a rule
        if kind == "Cf":
            invisible.append(point)
        elif kind[0] in "ZPSC" and not unicodedata.normalize("NFKD", sign)[0].isalnum():
            parting.append(point)
        made = folded(sign)
        if made != sign:
            groups.setdefault(made, []).append(point)
    lines = [
        f"unicode {UNICODE} look-alikes 1",
        f"invisible {_ranges(invisible)}",
        f"parting {_ranges(parting)}",
    ]
    for made, points in sorted(groups.items()):
        lines.append(f"{'.'.join(f'{ord(sign):x}' for sign in made) or '-'} {_ranges(points)}")
    return "\n".join(lines) + "\n"


def _ranges(points: list[int]) -> str:
    made: list[list[int]] = []
    for point in points:
        if made and point == made[-1][1] + 1:
            made[-1][1] = point
        else:
            made.append([point, point])
    return " ".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in made)


if __name__ == "__main__":
    TABLE.write_text(letters(), encoding="ascii")
