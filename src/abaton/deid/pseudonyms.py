"""Pseudonyms: new identities that nobody can compute, list or link without the study key.

A new identity has 16 bytes: 11 that stand for the old identity and 5 that prove it was made here. It is
written as 26 letters and digits (base32) in ``id``, and as a UUID in ``fullUrl``.

* keyed: the 11 bytes are BLAKE2b(study key; site, server, type, old id); the study key is HKDF(key,
study id);
* random (pseudo-identity): the 11 bytes come from a random source and live only in the mapping table.

Invariants:
(1) the same old identity under the same study key gives the same new one, in every document and process;
(2) an identity made under the same key is recognised by its proof and left as it is, so de-identifying twice
changes nothing; the proof depends on the key, so nobody else can write one;
(3) without a key, everything depends on a key drawn for this export and thrown away: nothing can be linked
later.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Callable, Sequence

from abaton.deid.mapping_table import MappingRow, MappingSink
from abaton.errors import SettingsError

KEY_BYTES = 32
_BODY, _PROOF = 11, 5
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_STUDIES = uuid.UUID("6ec1a1e4-3c7b-5d0a-9a39-7b0a0c3f7d52")
_REMEMBERED = 20_000
_LONGEST = (
    64  # of an id of FHIR; a Bundle that is named by all that it holds is met once, and its name is long
)
_AT_ONCE = 256
_MOST_BEGUN = 1_000


def derive(key: bytes, study: str, purpose: str) -> bytes:
    """A key for one study and one purpose (HKDF-SHA-256, RFC 5869).

    >>> derive(b"k" * 32, "heart", "id") != derive(b"k" * 32, "lung", "id")
    True
    """
    extracted = hmac.digest(b"abaton-records-1", key, "sha256")
    return hmac.digest(extracted, f"{purpose}\0{study}\x01".encode(), "sha256")


def check_key(key: bytes) -> bytes:
    """The key itself if it is long enough and not trivial."""
    if len(key) < KEY_BYTES or len(set(key)) < 8:
        raise SettingsError(
            f"the study key is not usable: it needs at least {KEY_BYTES} random bytes",
            remedy="make one with 'head -c 32 /dev/urandom > study.key' and keep it with the data controller",
        )
    return key


def _keyed(key: bytes, size: int, start: bytes) -> hashlib.blake2b:
    """BLAKE2b under a key (RFC 7693), with what all its messages begin with read once.

    >>> whole, begun = _keyed(b"key", 11, b"ab"), _keyed(b"key", 11, b"a")
    >>> begun.update(b"b")
    >>> begun.digest() == whole.digest()
    True
    """
    made = hashlib.blake2b(key=key, digest_size=size)
    made.update(start)
    return made


def _upper(half: int) -> int:
    """Ones where the upper half of every 2 x half groups of five bits lies, in all tokens of one number."""
    ones = (1 << 5 * half) - 1 << 5 * half
    return int.from_bytes(ones.to_bytes(2 * half, "big") * (_AT_ONCE * 16 // half), "big")


# A token gets 32 bytes, so 32 groups of five bits: 26 are its own, six behind them are zero. Of groups that lie
# together the upper half moves up by three bits for each of the lower half, until every group has a byte.
_BEFORE, _BETWEEN, _BEHIND = bytes(12), bytes(16), bytes(4)
_SPREAD = [(3 * half, _upper(half)) for half in (16, 8, 4, 2, 1)]
_LETTERS = _ALPHABET.encode() * 8


_TWO = [
    a + b for a in _ALPHABET for b in _ALPHABET
]  # a table of three would not stay in a processor's own memory


def letters(token: bytes) -> str:
    """16 bytes as 26 letters and digits.

    >>> letters(bytes(range(16)))
    'AAAQEAYEAUDAOCAJBIFQYDIOB4'
    """
    n, of = int.from_bytes(token, "big") << 2, _TWO
    first = (
        f"{of[n >> 120]}{of[n >> 110 & 1023]}{of[n >> 100 & 1023]}{of[n >> 90 & 1023]}{of[n >> 80 & 1023]}"
    )
    then = f"{of[n >> 70 & 1023]}{of[n >> 60 & 1023]}{of[n >> 50 & 1023]}{of[n >> 40 & 1023]}"
    return f"{first}{then}{of[n >> 30 & 1023]}{of[n >> 20 & 1023]}{of[n >> 10 & 1023]}{of[n & 1023]}"


def letters_of(tokens: Sequence[bytes]) -> list[str]:
    """Every 16 bytes as 26 letters and digits, all at once.

    They stand side by side in one large number, so that the few steps that give every five bits a byte of
    their own are done for all of them together.

    >>> letters_of([bytes(16), bytes(range(16))])
    ['AAAAAAAAAAAAAAAAAAAAAAAAAA', 'AAAQEAYEAUDAOCAJBIFQYDIOB4']
    """
    made: list[str] = []
    for start in range(0, len(tokens), _AT_ONCE):
        some = tokens[start : start + _AT_ONCE]
        spread = int.from_bytes(_BEFORE + _BETWEEN.join(some) + _BEHIND, "big")
        for shift, upper in _SPREAD:
            moved = spread & upper
            spread += (moved << shift) - moved
        size = 32 * len(some)
        text = spread.to_bytes(size, "big").translate(_LETTERS).decode("ascii")
        made += [text[i : i + 26] for i in range(0, size, 32)]
    return made


def token_of(text: str) -> bytes | None:
    """The 16 bytes behind 26 letters, or nothing if the text is not of that form."""
    if len(text) != 26:
        return None
    n = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            return None
        n = n << 5 | value
    return (n >> 2).to_bytes(16, "big") if n & 3 == 0 else None


def as_uuid(token: bytes) -> str:
    """16 bytes in the form of a UUID address."""
    text = token.hex()
    return f"urn:uuid:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def addresses_of(tokens: Sequence[bytes]) -> list[str]:
    """Every 16 bytes in the form of a UUID address, all at once.

    >>> addresses_of([bytes(range(16)), bytes(16)])
    ['urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f', 'urn:uuid:00000000-0000-0000-0000-000000000000']
    """
    if not tokens:
        return []
    text = bytearray(b"".join(tokens).hex("-", 2), "ascii")
    # There is a dash behind every second byte, at 4, 9, 14, ... 39 of each 40 signs. The last parts two tokens;
    # a UUID has none at 34, 29 and 4.
    text[39::40] = b"|" * (len(tokens) - 1)
    del text[34::40]
    del text[29::39]
    del text[4::38]
    return f"urn:uuid:{text.decode('ascii').replace('|', '|urn:uuid:')}".split("|")


class Pseudonyms:
    """The new identities of one study at one site.

    Args:
        study: The study's identifier; two studies never share an identity.
        key: The secret from which the study key is derived.
        site: The site's name, which enters every identity but that of a person who is linked with other sites.
        sink: Where mapping rows of subjects go.
        issue: A source of ready-made subject identities; a random one makes pseudo-identities.

    >>> names = Pseudonyms("heart", bytes(range(32)))
    >>> new = names.identity("Patient", "3466")
    >>> len(new), new == names.identity("Patient", new), new == names.identity("Practitioner", "3466")
    (26, True, False)
    """

    def __init__(
        self,
        study: str,
        key: bytes,
        *,
        site: str = "",
        sink: MappingSink | None = None,
        issue: Callable[[], str] | None = None,
    ) -> None:
        check_key(key)
        self.study, self.site = study, site
        self.system = f"urn:uuid:{uuid.uuid5(_STUDIES, study)}"
        self._sink, self._issue = sink, issue
        self._key = derive(key, study, "identity")
        self._proof = _keyed(derive(key, study, "proof"), _PROOF, b"proof\0")
        self._prefix = f"{site}\0".encode()
        self._begun: dict[tuple[str, str], hashlib.blake2b] = {}
        self._known: dict[tuple[str, str, str], str] = {}
        self._addresses: dict[str, str] = {}
        self._issued: set[str] = set()
        self._links: dict[str, str] = {}
        self._linked = _keyed(self._key, _BODY, b"\0\0linked\0")  # no site in it

    def link(self, old: str, value: str) -> None:
        """Know a Patient by an identifier that is the same at every site, instead of by the id at this one.

        >>> here, there = (Pseudonyms("heart", bytes(range(32)), site=name) for name in ("pisa", "bonn"))
        >>> here.link("1", "AOK 47"), there.link("9", "AOK 47")
        (None, None)
        >>> here.identity("Patient", "1") == there.identity("Patient", "9")
        True
        """
        if self._links.get(old) != value:
            self._links[old] = value
            self._known.pop(("Patient", old, ""), None)

    def token(self, kind: str, old: str, server: str = "") -> bytes:
        """The 16 bytes that stand for something old."""
        name = (self._begun.get((kind, server)) or self._begin(kind, server)).copy()
        name.update(old.encode())
        return self._proven(name.digest())

    def _proven(self, body: bytes) -> bytes:
        """A body with its proof."""
        proof = self._proof.copy()
        proof.update(body)
        return body + proof.digest()

    def _begin(self, kind: str, server: str) -> hashlib.blake2b:
        if len(self._begun) >= _MOST_BEGUN:
            self._begun.clear()
        start = self._prefix + f"{server}\0{kind}\0".encode()
        made = self._begun[kind, server] = _keyed(self._key, _BODY, start)
        return made

    def sign(self, body: bytes) -> str:
        """A new identity with a given body (11 random bytes), with its proof."""
        return letters(self._proven(body[:_BODY]))

    def is_ours(self, text: str) -> bool:
        """Whether a text is an identity that was made here."""
        if len(text) != 26:
            return text in self._issued
        token = token_of(text)
        return text in self._issued if token is None else self.proves(token)

    def proves(self, token: bytes) -> bool:
        """Whether 16 bytes carry our proof."""
        return hmac.compare_digest(self._proven(token[:_BODY]), token)

    def identity(self, kind: str, old: str, server: str = "") -> str:
        """The new identity of a resource, or the old one if it was made here."""
        found = self._known.get((kind, old, server))
        if found is not None:
            return found
        if (len(old) == 26 or self._issued) and self.is_ours(old):
            new = old
        elif kind == "Patient":
            new = self._subject(old, server)
        else:
            new = letters(self.token(kind, old, server))
        if len(old) > _LONGEST:
            return new
        if len(self._known) >= _REMEMBERED:
            self.forget()
        self._known[kind, old, server] = new
        return new

    def identities(self, wanted: Sequence[tuple[str, str, str]]) -> list[str]:
        """The same as :meth:`identity` for many that are met once: they are not remembered unless they have to be."""
        tokens, others = self._tokens(wanted)
        made = letters_of(tokens)
        for place, identity in others.items():
            made[place] = identity
        return made

    def pairs(self, wanted: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
        """The same with the ``fullUrl`` that belongs to each."""
        tokens, others = self._tokens(wanted)
        made = list(zip(letters_of(tokens), addresses_of(tokens), strict=True))
        for place, identity in others.items():
            made[place] = (identity, self.address(identity))
        return made

    def _tokens(self, wanted: Sequence[tuple[str, str, str]]) -> tuple[list[bytes], dict[int, str]]:
        """The 16 bytes of each, and by its place what is known or issued otherwise."""
        tokens: list[bytes] = []
        others: dict[int, str] = {}
        begun, proven, issued = self._begun, self._proof, self._issued
        # People are named like anything else, unless a table or an identifier has a say in it.
        apart = self._sink is not None or self._issue is not None or bool(self._links)
        for kind, old, server in wanted:
            if (apart and kind == "Patient") or len(old) == 26 or old in issued:
                others[len(tokens)] = self.identity(kind, old, server)
                tokens.append(_BETWEEN)
                continue
            # token(), without its calls
            name, proof = (begun.get((kind, server)) or self._begin(kind, server)).copy(), proven.copy()
            name.update(old.encode())
            body = name.digest()
            proof.update(body)
            tokens.append(body + proof.digest())
        return tokens, others

    def address(self, identity: str) -> str:
        """The ``fullUrl`` that belongs to an identity."""
        found = self._addresses.get(identity)
        if found is None:
            token = token_of(identity)
            found = as_uuid(token if token is not None else self.token("address", identity))
            if len(self._addresses) >= 2 * _REMEMBERED:
                self._addresses.clear()
            self._addresses[identity] = found
        return found

    def number(self, purpose: str, about: str) -> int:
        """A secret whole number below 2^64, always the same for the same purpose and thing."""
        return int.from_bytes(_keyed(self._key, 8, f"{purpose}\0{about}".encode()).digest(), "big")

    def forget(self) -> None:
        """Drop what was remembered for speed."""
        self._known.clear()
        self._addresses.clear()

    def _subject(self, old: str, server: str) -> str:
        token = self.token("Patient", old, server)
        own = token
        if old in self._links:
            linked = self._linked.copy()
            linked.update(self._links[old].encode())
            own = self._proven(linked.digest())
        if self._sink is None and self._issue is None:
            return letters(own)
        tag = letters(self.token("tag", letters(token)))
        known = None if self._sink is None else self._sink.find(self.study, tag)
        if known is None:
            known = letters(own) if self._issue is None else self._checked(self._issue())
            if self._sink is not None:
                known = self._sink.add(
                    MappingRow(self.study, tag, known, f"{server}/{old}" if server else old)
                )
        if self._issue is not None:
            self._issued.add(known)
        return known

    @staticmethod
    def _checked(issued: str) -> str:
        if not 1 <= len(issued) <= 64 or not all(c.isascii() and (c.isalnum() or c in "-.") for c in issued):
            raise SettingsError(
                "an issued pseudo-identity is not a valid FHIR id",
                remedy="use 1 to 64 letters, digits, hyphens or points",
            )
        return issued
