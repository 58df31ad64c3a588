"""Write src/abaton/deid/text_folding.txt, the folding table of names, from one version of Unicode when run."""

from __future__ import annotations

import unicodedata
from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "src" / "abaton" / "deid" / "text_folding.txt"
UNICODE = "14.0.0"

# Letters of other scripts that look like a Latin letter; all of them are folded to it.
LOOK_ALIKE = {
    "a": "аαɑ", "ae": "æӕ", "b": "вβƀ", "c": "сϲƈ", "d": "ԁđðɖ", "e": "еεɛҽ", "f": "ƒϝ", "g": "ɡցɢ", "h": "һнηհħ",
    "i": "іιɩıɪ", "j": "јյϳ", "k": "кκƙ", "l": "ӏłɭǀƚ", "m": "мμ", "n": "νոɴƞ", "o": "оοօøɔө", "oe": "œ",
    "p": "рρƥ", "q": "ԛզ", "r": "ɍʀɼ", "s": "ѕʂ", "t": "тτŧʈ", "th": "þ", "u": "սʋʉ", "v": "ѵⱱ", "w": "ԝѡ", "x": "хχ",
    "y": "уυүʏɏ", "z": "ζƶʐ",
}  # fmt: skip


def fold_character(sign: str) -> str:
    """Return the folded form of a character: without accents, ligatures, wide forms, capitals and look-alikes."""
    number = unicodedata.decimal(sign, None)
    if number is not None:
        return str(number)
    characters = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", sign).casefold())
    base_characters = "".join(
        character for character in characters if unicodedata.category(character) not in ("Mn", "Cf")
    )
    return "".join(_LOOK_ALIKES.get(character, character) for character in base_characters)


_LOOK_ALIKES = {sign: character for character, signs in LOOK_ALIKE.items() for sign in signs}


def folding_table() -> str:
    """Return the table: folded characters, invisible characters, and separators of words."""
    assert unicodedata.unidata_version == UNICODE, "run it with this version of Unicode"
    groups: dict[str, list[int]] = {}
    invisible: list[int] = []
    separators: list[int] = []
    for point in range(0x110000):
        sign, category = chr(point), unicodedata.category(chr(point))
        if category in ("Cs", "Co", "Cn") or 0xAC00 <= point <= 0xD7A3:
            continue  # unassigned, private, or Hangul, which is decomposed by a rule
        if category == "Cf":
            invisible.append(point)
        elif category[0] in "ZPSC" and not unicodedata.normalize("NFKD", sign)[0].isalnum():
            separators.append(point)
        folded = fold_character(sign)
        if folded != sign:
            groups.setdefault(folded, []).append(point)
    lines = [
        f"unicode {UNICODE} look-alikes 1",
        f"invisible {_ranges(invisible)}",
        f"parting {_ranges(separators)}",
    ]
    for folded, points in sorted(groups.items()):
        lines.append(f"{'.'.join(f'{ord(sign):x}' for sign in folded) or '-'} {_ranges(points)}")
    return "\n".join(lines) + "\n"


def _ranges(points: list[int]) -> str:
    ranges: list[list[int]] = []
    for point in points:
        if ranges and point == ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return " ".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in ranges)


if __name__ == "__main__":
    TABLE.write_text(folding_table(), encoding="ascii")
