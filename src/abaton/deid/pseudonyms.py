"""Pseudonyms, which cannot be computed, enumerated or linked without the study key.

A pseudonym has 16 bytes: 11 bytes derived from the original identity and 5 bytes of proof. It is
written as 26 letters and digits (base32) in ``id``, and as a UUID in ``fullUrl``.

* keyed: the 11 bytes are BLAKE2b(study key; site, server, type, original id); the study key is HKDF(key,
study id);
* random (pseudo-identity): the 11 bytes are random and stored in the mapping table only.

Invariants:
(1) the same original identity and study key give the same pseudonym, in every document and process;
(2) a pseudonym of the same key is recognised by its proof and not changed, so a second de-identification
has no effect; the proof depends on the key and cannot be forged;
(3) without a key, a random key is used for one export and not stored, so its pseudonyms cannot be linked
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
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_STUDIES = uuid.UUID("6ec1a1e4-3c7b-5d0a-9a39-7b0a0c3f7d52")
_MAX_CACHED = 20_000
_MAX_CACHED_LENGTH = 64  # of a FHIR id; longer identities of Bundles without an id occur once
_BATCH = 256
_MAX_STARTED = 1_000


def derive(key: bytes, study: str, purpose: str) -> bytes:
    """Derive the pseudonym key of one study and purpose (HKDF-SHA-256, RFC 5869).

    >>> derive(b"k" * 32, "heart", "id") != derive(b"k" * 32, "lung", "id")
    True
    """
    # frozen: part of the bytes
    extracted = hmac.digest(b"abaton-records-1", key, "sha256")
    return hmac.digest(extracted, f"{purpose}\0{study}\x01".encode(), "sha256")


def check_key(key: bytes) -> bytes:
    """Return the secret key of pseudonyms; raise an error if it is short or trivial."""
    if len(key) < KEY_BYTES or len(set(key)) < 8:
        raise SettingsError(
            f"the study key is not usable: {KEY_BYTES} random bytes are required",
            remedy="create one with 'head -c 32 /dev/urandom > study.key'; the data controller stores it",
        )
    return key


def _keyed_hash(key: bytes, size: int, start: bytes) -> hashlib.blake2b:
    """Return the keyed BLAKE2b (RFC 7693) of pseudonyms that has processed the start of its messages.

    >>> complete, started = _keyed_hash(b"key", 11, b"ab"), _keyed_hash(b"key", 11, b"a")
    >>> started.update(b"b")
    >>> started.digest() == complete.digest()
    True
    """
    mac = hashlib.blake2b(key=key, digest_size=size)
    mac.update(start)
    return mac


def _upper_groups(half: int) -> int:
    """Return the mask, to encode pseudonyms, of the upper half of every 2 x half groups of five bits."""
    ones = (1 << 5 * half) - 1 << 5 * half
    return int.from_bytes(ones.to_bytes(2 * half, "big") * (_BATCH * 16 // half), "big")


# A token has 32 bytes and so 32 groups of five bits: 26 of the token, then six zeros. In each step the upper half of
# adjacent groups is shifted by three bits per group of the lower half, until every group has its own byte.
_LEADING_ZEROS, _SEPARATOR, _TRAILING_ZEROS = bytes(12), bytes(16), bytes(4)
_SHIFTS = [(3 * half, _upper_groups(half)) for half in (16, 8, 4, 2, 1)]
_TRANSLATION = _ALPHABET.encode() * 8


_CHARACTER_PAIRS = [
    a + b for a in _ALPHABET for b in _ALPHABET
]  # a table of triples would not fit into the cache


def encode_base32(token: bytes) -> str:
    """Return a pseudonym of 16 bytes as 26 letters and digits (base32).

    >>> encode_base32(bytes(range(16)))
    'AAAQEAYEAUDAOCAJBIFQYDIOB4'
    """
    n, pairs = int.from_bytes(token, "big") << 2, _CHARACTER_PAIRS
    first = f"{pairs[n >> 120]}{pairs[n >> 110 & 1023]}{pairs[n >> 100 & 1023]}{pairs[n >> 90 & 1023]}"
    second = f"{pairs[n >> 80 & 1023]}{pairs[n >> 70 & 1023]}{pairs[n >> 60 & 1023]}{pairs[n >> 50 & 1023]}"
    third = f"{pairs[n >> 40 & 1023]}{pairs[n >> 30 & 1023]}{pairs[n >> 20 & 1023]}{pairs[n >> 10 & 1023]}"
    return f"{first}{second}{third}{pairs[n & 1023]}"


def encode_base32_batch(tokens: Sequence[bytes]) -> list[str]:
    """Return each pseudonym of 16 bytes as 26 letters and digits (base32).

    A batch of tokens is one large integer, so that each step is done for all of them at once.

    >>> encode_base32_batch([bytes(16), bytes(range(16))])
    ['AAAAAAAAAAAAAAAAAAAAAAAAAA', 'AAAQEAYEAUDAOCAJBIFQYDIOB4']
    """
    encoded: list[str] = []
    for start in range(0, len(tokens), _BATCH):
        batch = tokens[start : start + _BATCH]
        spread = int.from_bytes(_LEADING_ZEROS + _SEPARATOR.join(batch) + _TRAILING_ZEROS, "big")
        for shift, upper in _SHIFTS:
            moved = spread & upper
            spread += (moved << shift) - moved
        size = 32 * len(batch)
        text = spread.to_bytes(size, "big").translate(_TRANSLATION).decode("ascii")
        encoded += [text[i : i + 26] for i in range(0, size, 32)]
    return encoded


def decode_base32(text: str) -> bytes | None:
    """Return the 16 bytes of a pseudonym of 26 letters, or None if the text has another form."""
    if len(text) != 26:
        return None
    n = 0
    for character in text:
        value = _VALUES.get(character)
        if value is None:
            return None
        n = n << 5 | value
    return (n >> 2).to_bytes(16, "big") if n & 3 == 0 else None


def uuid_url(token: bytes) -> str:
    """Return a pseudonym of 16 bytes as a UUID URN."""
    text = token.hex()
    return f"urn:uuid:{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid_urls(tokens: Sequence[bytes]) -> list[str]:
    """Return each pseudonym of 16 bytes as a UUID URN.

    >>> uuid_urls([bytes(range(16)), bytes(16)])
    ['urn:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f', 'urn:uuid:00000000-0000-0000-0000-000000000000']
    """
    if not tokens:
        return []
    text = bytearray(b"".join(tokens).hex("-", 2), "ascii")
    # There is a dash after every second byte, at 4, 9, 14, ... 39 of each 40 characters. The last separates two
    # tokens; a UUID has none at 34, 29 and 4.
    text[39::40] = b"|" * (len(tokens) - 1)
    del text[34::40]
    del text[29::39]
    del text[4::38]
    return f"urn:uuid:{text.decode('ascii').replace('|', '|urn:uuid:')}".split("|")


class Pseudonyms:
    """Pseudonyms of one study at one site.

    Args:
        study: The study's identifier; two studies never share a pseudonym.
        key: Secret from which the study key is derived.
        site: The site's name, part of every pseudonym except those of subjects linked across sites.
        sink: Store of the subjects' mapping rows.
        issue: Source of subject pseudonyms; a random source issues pseudo-identities.

    >>> pseudonyms = Pseudonyms("heart", bytes(range(32)))
    >>> new = pseudonyms.identity("Patient", "3466")
    >>> len(new), new == pseudonyms.identity("Patient", new), new == pseudonyms.identity("Practitioner", "3466")
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
        # frozen: the labels are part of the bytes
        self._key = derive(key, study, "identity")
        self._proof = _keyed_hash(derive(key, study, "proof"), _PROOF, b"proof\0")
        self._prefix = f"{site}\0".encode()
        self._started_macs: dict[tuple[str, str], hashlib.blake2b] = {}
        self._known: dict[tuple[str, str, str], str] = {}
        self._addresses: dict[str, str] = {}
        self._issued: set[str] = set()
        self._links: dict[str, str] = {}
        self._linked = _keyed_hash(self._key, _BODY, b"\0\0linked\0")  # does not contain the site

    def link(self, patient_id: str, value: str) -> None:
        """Derive a Patient's pseudonym from an identifier that is the same at every site, not from the local id.

        >>> here, there = (Pseudonyms("heart", bytes(range(32)), site=name) for name in ("pisa", "bonn"))
        >>> here.link("1", "AOK 47"), there.link("9", "AOK 47")
        (None, None)
        >>> here.identity("Patient", "1") == there.identity("Patient", "9")
        True
        """
        if self._links.get(patient_id) != value:
            self._links[patient_id] = value
            self._known.pop(("Patient", patient_id, ""), None)

    def token(self, namespace: str, old: str, server: str = "") -> bytes:
        """Return the 16 bytes of the pseudonym derived from an original identity."""
        mac = (self._started_macs.get((namespace, server)) or self._start_mac(namespace, server)).copy()
        mac.update(old.encode())
        return self._with_proof(mac.digest())

    def _with_proof(self, body: bytes) -> bytes:
        """Return the body of a pseudonym with its proof."""
        proof = self._proof.copy()
        proof.update(body)
        return body + proof.digest()

    def _start_mac(self, namespace: str, server: str) -> hashlib.blake2b:
        if len(self._started_macs) >= _MAX_STARTED:
            self._started_macs.clear()
        start = self._prefix + f"{server}\0{namespace}\0".encode()
        mac = self._started_macs[namespace, server] = _keyed_hash(self._key, _BODY, start)
        return mac

    def sign(self, body: bytes) -> str:
        """Return a pseudonym of a given body (11 random bytes) with its proof."""
        return encode_base32(self._with_proof(body[:_BODY]))

    def is_own(self, text: str) -> bool:
        """Return whether a text is a pseudonym of this study."""
        if len(text) != 26:
            return text in self._issued
        token = decode_base32(text)
        return text in self._issued if token is None else self.has_valid_proof(token)

    def has_valid_proof(self, token: bytes) -> bool:
        """Return whether 16 bytes are a pseudonym with a valid proof."""
        return hmac.compare_digest(self._with_proof(token[:_BODY]), token)

    def identity(self, namespace: str, old: str, server: str = "") -> str:
        """Return the pseudonym of a resource, or the identity itself if it is a pseudonym of this study."""
        identity = self._known.get((namespace, old, server))
        if identity is not None:
            return identity
        if (len(old) == 26 or self._issued) and self.is_own(old):
            new = old
        elif namespace == "Patient":
            new = self._subject_identity(old, server)
        else:
            new = encode_base32(self.token(namespace, old, server))
        if len(old) > _MAX_CACHED_LENGTH:
            return new
        if len(self._known) >= _MAX_CACHED:
            self.clear_cache()
        self._known[namespace, old, server] = new
        return new

    def identities(self, requests: Sequence[tuple[str, str, str]]) -> list[str]:
        """Return the pseudonyms of many resources, as :meth:`identity`, without caching most of them."""
        tokens, known_identities = self._tokens(requests)
        encoded = encode_base32_batch(tokens)
        for position, identity in known_identities.items():
            encoded[position] = identity
        return encoded

    def identities_with_urls(self, requests: Sequence[tuple[str, str, str]]) -> list[tuple[str, str]]:
        """Return the pseudonyms of many resources with their ``fullUrl``."""
        tokens, known_identities = self._tokens(requests)
        encoded = list(zip(encode_base32_batch(tokens), uuid_urls(tokens), strict=True))
        for position, identity in known_identities.items():
            encoded[position] = (identity, self.full_url(identity))
        return encoded

    def _tokens(self, requests: Sequence[tuple[str, str, str]]) -> tuple[list[bytes], dict[int, str]]:
        """Return the 16 bytes of each pseudonym, and by index those that are cached or issued otherwise."""
        tokens: list[bytes] = []
        known_identities: dict[int, str] = {}
        started_macs, proof_mac, issued = self._started_macs, self._proof, self._issued
        # Subjects are handled like other resources unless there is a mapping table or a linking identifier.
        has_subject_table = self._sink is not None or self._issue is not None or bool(self._links)
        for namespace, old, server in requests:
            if (has_subject_table and namespace == "Patient") or len(old) == 26 or old in issued:
                known_identities[len(tokens)] = self.identity(namespace, old, server)
                tokens.append(_SEPARATOR)
                continue
            # inlined token()
            mac, proof = (
                (started_macs.get((namespace, server)) or self._start_mac(namespace, server)).copy(),
                proof_mac.copy(),
            )
            mac.update(old.encode())
            body = mac.digest()
            proof.update(body)
            tokens.append(body + proof.digest())
        return tokens, known_identities

    def full_url(self, identity: str) -> str:
        """Return the ``fullUrl`` of a pseudonym."""
        cached = self._addresses.get(identity)
        if cached is None:
            token = decode_base32(identity)
            cached = uuid_url(token if token is not None else self.token("address", identity))
            if len(self._addresses) >= 2 * _MAX_CACHED:
                self._addresses.clear()
            self._addresses[identity] = cached
        return cached

    def secret_integer(self, purpose: str, subject: str) -> int:
        """Return a secret integer below 2^64 from the pseudonym key, fixed by purpose and subject."""
        return int.from_bytes(_keyed_hash(self._key, 8, f"{purpose}\0{subject}".encode()).digest(), "big")

    def clear_cache(self) -> None:
        """Clear the caches of pseudonyms."""
        self._known.clear()
        self._addresses.clear()

    def _subject_identity(self, old: str, server: str) -> str:
        token = self.token("Patient", old, server)
        identity_token = token
        if old in self._links:
            linked = self._linked.copy()
            linked.update(self._links[old].encode())
            identity_token = self._with_proof(linked.digest())
        if self._sink is None and self._issue is None:
            return encode_base32(identity_token)
        tag = encode_base32(self.token("tag", encode_base32(token)))  # frozen: part of the bytes
        pseudonym = None if self._sink is None else self._sink.find(self.study, tag)
        if pseudonym is None:
            pseudonym = (
                encode_base32(identity_token) if self._issue is None else self._check_issued(self._issue())
            )
            if self._sink is not None:
                pseudonym = self._sink.add(
                    MappingRow(self.study, tag, pseudonym, f"{server}/{old}" if server else old)
                )
        if self._issue is not None:
            self._issued.add(pseudonym)
        return pseudonym

    @staticmethod
    def _check_issued(issued: str) -> str:
        if not 1 <= len(issued) <= 64 or not all(c.isascii() and (c.isalnum() or c in "-.") for c in issued):
            raise SettingsError(
                "an issued pseudo-identity is not a valid FHIR id",
                remedy="use 1 to 64 letters, digits, hyphens or points",
            )
        return issued
