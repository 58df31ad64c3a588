"""Units of measure: whether a text is a unit of UCUM and nothing else.

A unit may be a product or quotient of prefixed units with exponents (``mg/dL``, ``10*3/uL``). An annotation
in braces is free text, so only a few well-known ones pass.
"""

from __future__ import annotations

import re
from functools import lru_cache

_PREFIXES = ("da", *"YZEPTGMkhdcmunpfazy")
_METRIC = frozenset(
    [
        "m",
        "s",
        "g",
        "K",
        "C",
        "cd",
        "rad",
        "sr",
        "mol",
        "Hz",
        "N",
        "Pa",
        "J",
        "W",
        "A",
        "V",
        "F",
        "Ohm",
        "S",
        "Wb",
        "T",
        "H",
        "lm",
        "lx",
        "Bq",
        "Gy",
        "Sv",
        "L",
        "l",
        "eq",
        "osm",
        "U",
        "kat",
        "IU",
        "iU",
        "t",
        "bar",
        "u",
        "eV",
        "cal",
        "Cal",
        "Ci",
        "R",
        "RAD",
        "REM",
        "B",
        "Np",
        "Cel",
        "[IU]",
        "[iU]",
        "[lb_av]",
        "st",
        "ar",
        "Bd",
        "bit",
        "By",
        "dyn",
        "erg",
        "P",
        "St",
        "Mx",
        "G",
        "Oe",
        "Gb",
        "sb",
        "Lmb",
        "ph",
        "pc",
        "m[H2O]",
        "m[Hg]",
        "[degF]",
        "tex",
    ]
)
_OTHER = frozenset(
    [
        "%",
        "%o",
        "min",
        "h",
        "d",
        "wk",
        "mo",
        "a",
        "mo_j",
        "a_j",
        "deg",
        "'",
        "''",
        "[pH]",
        "[ppth]",
        "[ppm]",
        "[ppb]",
        "[pptr]",
        "10*",
        "10^",
        "[in_i]",
        "[ft_i]",
        "[yd_i]",
        "[mi_i]",
        "[oz_av]",
        "[degF]",
        "[gal_us]",
        "[qt_us]",
        "[pt_us]",
        "[foz_us]",
        "[cup_us]",
        "[tsp_us]",
        "[tbs_us]",
        "[drp]",
        "[diop]",
        "[APL'U]",
        "[GPL'U]",
        "[MPL'U]",
        "[arb'U]",
        "[CFU]",
        "[FFU]",
        "[PFU]",
        "[beth'U]",
        "[HPF]",
        "[LPF]",
        "[hnsf'U]",
        "[kn_i]",
        "[nmi_i]",
        "[MET]",
        "[Ch]",
        "[in_i'H2O]",
        "[in_i'Hg]",
        "[EID_50]",
        "[TCID_50]",
        "[CCID_50]",
        "[knk'U]",
        "[mclg'U]",
        "[smoot]",
        "[todd'U]",
        "[USP'U]",
        "[dye'U]",
        "[AU]",
        "[acr_us]",
    ]
)
_ANNOTATIONS = frozenset(
    [
        "{score}",
        "{INR}",
        "{cells}",
        "{cell}",
        "{count}",
        "{ratio}",
        "{titer}",
        "{copies}",
        "{beats}",
        "{breaths}",
        "{#}",
        "{nominal}",
        "{index}",
        "{Rh'titr}",
        "{genomes}",
        "{events}",
        "{tbl}",
        "{tablet}",
        "{capsule}",
        "{puff}",
        "{dose}",
        "{drop}",
        "{unit}",
        "{mm3}",
        "{creat}",
        "{total}",
        "{RBC}",
        "{WBC}",
        "{HPF}",
        "{LPF}",
        "{bpm}",
        "{steps}",
        "{step}",
    ]
)
_TERM = re.compile(
    r"(10[*^])(-?\d{1,2})?|((?:\[[^\[\]{}]{1,12}\]|[A-Za-z%'_])+)([+-]?\d{1,2})?|(\d\d?|10{2,6})"
)
_SPLIT = re.compile(r"[./]")
_MOST_DIGITS, _MOST_TERMS = 3, 5


@lru_cache(maxsize=4096)
def is_unit(text: str) -> bool:
    """Whether a text is a unit of UCUM.

    >>> [is_unit(u) for u in ("mg/dL", "10*3/uL", "mm[Hg]", "{score}", "kg/m2", "Smith", "{Smith}")]
    [True, True, True, True, True, False, False]
    """
    if not text or len(text) > 40:
        return False
    terms = _SPLIT.split(text.removeprefix("/"))
    # A date or a telephone number is a product of numbers, too: at most three digits may stand in a unit, beside tens.
    few = sum(map(str.isdigit, text.replace("10*", "").replace("0", ""))) <= _MOST_DIGITS
    return few and len(terms) <= _MOST_TERMS and all(_is_term(term) for term in terms)


def _is_term(term: str) -> bool:
    bare, brace, note = term.partition("{")
    if brace and "{" + note not in _ANNOTATIONS:
        return False
    if not bare:
        return bool(brace)
    match = _TERM.fullmatch(bare)
    if match is None:
        return False
    return match[3] is None or _is_atom(match[3])


def _is_atom(atom: str) -> bool:
    if atom in _METRIC or atom in _OTHER:
        return True
    return any(atom.startswith(p) and atom[len(p) :] in _METRIC for p in _PREFIXES)
