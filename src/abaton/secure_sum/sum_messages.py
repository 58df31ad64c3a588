"""Messages of secure sums: typed values with a byte form that is validated when read.

Advertisements, directories and contexts are canonical JSON. Masked inputs and shares are binary, because hexadecimal
digits would double them. Reading refuses anything but the bytes that writing gives, and no error has content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from abaton.canonical_json import to_canonical_json
from abaton.errors import AbatonError, PayloadError, SettingsError
from abaton.governance.keys import KeyKind, PrivateKey, PublicKey
from abaton.secure_sum.modular_vectors import Values, payload_bytes
from abaton.secure_sum.sum_keys import SHARE_BYTES, SHARE_DIGEST_BYTES, hash_parts

_KEY_PREFIX = b"abaton-sum-key-1\0"  # frozen: part of the signed bytes
_INPUT_PREFIX = b"abaton-sum-in-1\0"
_CONTEXT = b"abaton-sum-1"
_DIGEST_BYTES, _SIGNATURE_BYTES = 32, 64
CHECK_SEGMENT = "contributors"
"""Name of the first segment of every sum: each site contributes 1, so it opens to the number of contributors."""

_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
_HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Key = Annotated[bytes, Field(min_length=32, max_length=32)]
_Count = Annotated[int, Field(ge=0, le=1 << 40)]


class SiteFaultError(AbatonError):
    """A site sent something that breaks the protocol.

    Args:
        site: The site at fault; empty if it is not known which of the contributors.
        reason: What it did.
    """

    def __init__(self, site: str, reason: str) -> None:
        subject = f"site '{site}'" if site else "one of the contributors"
        super().__init__(
            f"{subject} {reason}", where="secure sum", remedy="ask the site, and continue without it"
        )
        self.site, self.reason = site, reason


class JsonMessage(BaseModel):
    """Immutable message with canonical JSON as its byte form."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,
        ser_json_bytes="hex",
        val_json_bytes="hex",
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy with changes, without digests computed for the original."""
        return type(self)(
            **{name: getattr(self, name) for name in type(self).model_fields} | dict(update or {})
        )

    def to_bytes(self) -> bytes:
        """Return the message as canonical JSON."""
        return to_canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the message of canonical JSON.

        Raises:
            PayloadError: The bytes are not such a message, or not in canonical form.
        """
        try:
            message = cls.model_validate_json(raw)
            is_canonical = message.to_bytes() == raw
        except (ValidationError, SettingsError):
            raise _malformed() from None
        if not is_canonical:
            raise _malformed()
        return message


def _malformed() -> PayloadError:
    return PayloadError("the message is malformed", where="secure sum", remedy="request it again")


class KeyAdvertisement(JsonMessage):
    """Key of a site for one run, signed with the site's signing key.

    Attributes:
        study: Hash of the study document.
        run: Name of the run.
        site: The site.
        exchange_key: X25519 public key of this run.
        subjects: Lower bound of the site's subjects.
        signing_key: Ed25519 public key, which the study document lists by fingerprint.
        signature: Signature of all other fields.
    """

    study: _Name
    run: _Name
    site: _Name
    exchange_key: _Key
    subjects: _Count
    signing_key: _Key
    signature: Annotated[bytes, Field(max_length=_SIGNATURE_BYTES)] = b""

    def _signed_bytes(self) -> bytes:
        return _KEY_PREFIX + to_canonical_json(self.model_dump(mode="json", exclude={"signature"}))

    def sign(self, key: PrivateKey) -> Self:
        """Return the advertisement with a signature."""
        return self.model_copy(update={"signature": key.sign(self._signed_bytes())})

    def signer(self) -> str:
        """Return the fingerprint of the key that signed the advertisement; empty without a valid signature."""
        return _signer(self.signing_key, self.signature, self._signed_bytes())


def _signer(raw: bytes, signature: bytes, signed: bytes) -> str:
    try:
        key = PublicKey(KeyKind.SIGN, raw, "")
        return key.id if key.verify(signature, signed) else ""
    except (AbatonError, ValueError):
        return ""


class KeyDirectory(JsonMessage):
    """Advertisements of the sites of a run, sorted by site; fixed for the run."""

    advertisements: tuple[KeyAdvertisement, ...]

    @cached_property
    def digest(self) -> str:
        """Digest that every context of the run contains."""
        return hash_parts(b"directory", self.to_bytes()).hex()

    @cached_property
    def by_site(self) -> dict[str, KeyAdvertisement]:
        """Advertisements by site."""
        return {advertisement.site: advertisement for advertisement in self.advertisements}

    @cached_property
    def holders(self) -> dict[str, int]:
        """Number of each site as a holder of shares, from 1."""
        return {advertisement.site: index for index, advertisement in enumerate(self.advertisements, 1)}


class Contributor(JsonMessage):
    """One contribution to a sum: the site, its task, and the version that the task started from."""

    site: _Name
    task: _Name
    version: _Count
    version_digest: _HexDigest

    @property
    def key(self) -> tuple[str, str]:
        """Site and task: what may be opened once."""
        return self.site, self.task


class SumSegment(JsonMessage):
    """Part of the summed vector: `size` values of `bits` bits each; 256 bits are floats, summed exactly."""

    name: _Name
    size: Annotated[int, Field(ge=1, le=1 << 32)]
    bits: Annotated[int, Field(ge=2, le=256)]


_CHECK = SumSegment(name=CHECK_SEGMENT, size=1, bits=64)


class SumContext(JsonMessage):
    """Everything that determines a sum. Masks are bound to its digest.

    Attributes:
        study: Hash of the study document.
        run: Name of the run.
        directory: Digest of the key directory.
        threshold: Number of sites that must help to open the sum.
        purpose: What is summed, such as `train`; a site contributes once to each purpose and version.
        contributors: Contributions, sorted by site.
        settings: Codec settings: spec, seeds, steps as hexadecimal floats.
        segments: Segments after the check segment.
    """

    study: _Name
    run: _Name
    directory: _HexDigest
    threshold: Annotated[int, Field(ge=2, le=50)]
    purpose: _Name
    contributors: Annotated[tuple[Contributor, ...], Field(max_length=50)]
    settings: dict[_Name, Annotated[str, Field(max_length=1 << 16)]] = {}
    segments: Annotated[tuple[SumSegment, ...], Field(min_length=1, max_length=1000)]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 digest of the context, to which masks, shares and signatures are bound."""
        return hash_parts(_CONTEXT, self.to_bytes())

    @property
    def all_segments(self) -> tuple[SumSegment, ...]:
        """Segments of the payload, the check segment first."""
        return (_CHECK, *self.segments)

    @cached_property
    def payload_bytes(self) -> int:
        """Size of every payload of the sum."""
        return payload_bytes(self.all_segments)


@dataclass(frozen=True, slots=True)
class MaskRequest:
    """Request of the centre to one site: mask the contribution of this context."""

    site: str
    context: SumContext


@dataclass(frozen=True, slots=True)
class MaskedInput:
    """Masked contribution of a site, with the shares of its self mask's seed.

    Attributes:
        site: The site.
        context_digest: Digest of the context.
        commitment: Hash of the seed of the self mask.
        sealed_shares: One share of the seed for each site of the directory, encrypted to it.
        share_digests: Digest of each share, against which the centre checks what the holder reveals.
        payload: Masked vector.
        signature: The site's signature of all other fields.
    """

    site: str
    context_digest: bytes
    commitment: bytes
    sealed_shares: tuple[bytes, ...]
    share_digests: tuple[bytes, ...]
    payload: bytes
    signature: bytes = b""

    def signed_bytes(self, payload_digest: bytes) -> bytes:
        """Return what the site signs; `payload_digest` is the SHA-256 digest of the payload."""
        return _INPUT_PREFIX + hash_parts(
            self.context_digest,
            self.site.encode(),
            payload_digest,
            self.commitment,
            *self.sealed_shares,
            *self.share_digests,
        )

    def is_signed_by(self, signing_key: bytes, payload_digest: bytes) -> bool:
        """Return whether the signature is that of a key."""
        return bool(_signer(signing_key, self.signature, self.signed_bytes(payload_digest)))

    def head_bytes(self) -> bytes:
        """Return all fields but the payload as bytes."""
        if len(self.sealed_shares) != len(self.share_digests) or len(self.signature) != _SIGNATURE_BYTES:
            raise _malformed()
        return b"".join(
            (
                _short(self.site),
                bytes([len(self.sealed_shares)]),
                self.context_digest,
                self.commitment,
                self.signature,
                *self.sealed_shares,
                *self.share_digests,
            )
        )

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return self.head_bytes() + self.payload

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the message of bytes; raise `PayloadError` if they are too short."""
        reader = _Reader(raw)
        site, count = reader.name(), reader.take(1)[0]
        context_digest, commitment = reader.take(_DIGEST_BYTES), reader.take(_DIGEST_BYTES)
        signature = reader.take(_SIGNATURE_BYTES)
        sealed = tuple(reader.take(SHARE_BYTES) for _ in range(count))
        digests = tuple(reader.take(SHARE_DIGEST_BYTES) for _ in range(count))
        return cls(site, context_digest, commitment, sealed, digests, reader.rest(), signature)


@dataclass(frozen=True, slots=True)
class RevealRequest:
    """Request of the centre to a holder: reveal its shares of all contributors' seeds, in the order of the context."""

    site: str
    context: SumContext
    sealed_shares: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        context = self.context.to_bytes()
        return b"".join((_short(self.site), len(context).to_bytes(4, "big"), context, *self.sealed_shares))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the message of bytes; raise `PayloadError` if they are malformed."""
        reader = _Reader(raw)
        site = reader.name()
        context = SumContext.from_bytes(reader.take(int.from_bytes(reader.take(4), "big")))
        return cls(site, context, _shares(reader.rest()))


@dataclass(frozen=True, slots=True)
class RevealedShares:
    """Shares that a holder reveals, in the order of the context's contributors."""

    site: str
    context_digest: bytes
    shares: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the message as bytes."""
        return b"".join((_short(self.site), self.context_digest, *self.shares))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Return the message of bytes; raise `PayloadError` if they are malformed."""
        reader = _Reader(raw)
        return cls(reader.name(), reader.take(_DIGEST_BYTES), _shares(reader.rest()))


Request: TypeAlias = MaskRequest | RevealRequest
"""What the centre asks a site."""


@dataclass(frozen=True, slots=True)
class SumResult:
    """Opened sum.

    Attributes:
        context: What was summed.
        values: Sums by segment: int64, and float64 for segments of 256 bits.
        mismatches: Pairs of contributor and holder whose share did not match; one of the two is at fault.
    """

    context: SumContext
    values: Values
    mismatches: tuple[tuple[str, str], ...] = ()


class _Reader:
    """Reader of binary messages that refuses missing bytes."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._start = raw, 0

    def take(self, count: int) -> bytes:
        part = self._raw[self._start : self._start + count]
        if len(part) < count:
            raise _malformed()
        self._start += count
        return part

    def name(self) -> str:
        try:
            return self.take(self.take(1)[0]).decode("ascii")
        except UnicodeDecodeError:
            raise _malformed() from None

    def rest(self) -> bytes:
        return self._raw[self._start :]


def _short(name: str) -> bytes:
    raw = name.encode("ascii")
    return bytes([len(raw)]) + raw


def _shares(raw: bytes) -> tuple[bytes, ...]:
    if len(raw) % SHARE_BYTES:
        raise _malformed()
    return tuple(_pieces(raw))


def _pieces(raw: bytes) -> Iterable[bytes]:
    return (raw[start : start + SHARE_BYTES] for start in range(0, len(raw), SHARE_BYTES))
