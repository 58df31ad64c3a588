"""Signatures of trained models: a site signs its model, and evaluates others only with a trusted signature.

The signed content is a fixed prefix and the canonical JSON of the study hash, the run, the site's id, the version of
the community model that training started from, and the digest of the trained model. The public key and the Ed25519
signature are sent as hexadecimal digits. The key file is beside the site's configuration, readable by its account only;
its fingerprint is compared over a second channel. The key is separate from the governance key set: an unattended worker
has no passphrase, and this key must not sign orders or receipts.

Invariants:
(1) a site signs when an update is first released, and repeats the same bytes afterwards, whatever the request contains;
(2) a model is evaluated only if its author's key has signed it: the one in ``[policy.trusted_signers]``, or, if the
    site lists none, the first one seen under that name in the study;
(3) a signature is not valid for another study, run, site or version.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from abaton.atomic_files import map_os_errors, temporary_name
from abaton.canonical_json import to_canonical_json
from abaton.codecs import CodecKey, CodecPipeline
from abaton.controller.aggregation import local_model
from abaton.engines import TrainTask
from abaton.errors import AbatonError, PayloadError, RefusedError
from abaton.governance.keys import KeyKind, PrivateKey, PublicKey
from abaton.layout import Layout, Vector
from abaton.learners import Learner, SignedModel
from abaton.site import LoadedSiteConfig, ReleaseLog
from abaton.site.factory import read_private_file
from abaton.store import model_digest
from abaton.training import round_key

_PREFIX = b"abaton-model-1\0"  # frozen: part of the bytes
_KEY_DIGITS = 64  # hexadecimal digits of the public key
_SIGNATURE_DIGITS = 192  # of key and signature together


class SignedContent(NamedTuple):
    """Signed content; the field names are part of the signed bytes.

    Attributes:
        study: The hash of the study document.
        run: The run's name.
        site: The site that trained the model.
        version: The version of the community model that training started from.
        model: The digest of the trained model.
    """

    study: str
    run: str
    site: str
    version: int
    model: str

    def sign(self, key: PrivateKey) -> str:
        """Return the public key and the signature of a trained model."""
        return (key.public.raw + key.sign(self._bytes())).hex()

    def signer(self, signature: str) -> str:
        """Return the fingerprint of the key that has signed a model; empty without a valid signature.

        >>> content, key = SignedContent("study", "run", "kos", 3, "model"), PrivateKey.of(KeyKind.SIGN, bytes(32), "")
        >>> content.signer(content.sign(key)) == key.id, content._replace(version=4).signer(content.sign(key))
        (True, '')
        """
        try:
            raw = bytes.fromhex(signature) if len(signature) == _SIGNATURE_DIGITS else b""
            key = PublicKey(KeyKind.SIGN, raw[: _KEY_DIGITS // 2], "")
            return key.id if key.verify(raw[_KEY_DIGITS // 2 :], self._bytes()) else ""
        except (AbatonError, ValueError):  # no hexadecimal digits, no key, or text that is not valid in JSON
            return ""

    def _bytes(self) -> bytes:
        return _PREFIX + to_canonical_json(self._asdict())  # frozen: part of the bytes


class SiteSigner:
    """Signer of a site's models in a run, which also checks those of other sites.

    Args:
        key: The site's own key.
        site: Its id.
        study: The hash of the study document.
        run: The run's name.
        trusted_signers: Fingerprints of other sites' keys by id; if empty, the first key seen counts.
        release_log: Records which key was seen first.
    """

    def __init__(
        self,
        key: PrivateKey,
        site: str,
        study: str,
        run: str,
        trusted_signers: Mapping[str, str],
        release_log: ReleaseLog,
    ) -> None:
        self._key, self._site, self._study, self._run = key, site, study, run
        self._trusted_signers, self._release_log = trusted_signers, release_log

    def sign(self, learner: Learner, version: int, start: Vector, payload: bytes) -> str:
        """Return the site's signature of the model that results from an update of a version."""
        model = learned_model(
            learner.codec, learner.model.layout, learner.seed, self._site, version, start, payload
        )
        return SignedContent(self._study, self._run, self._site, version, model_digest(model)).sign(self._key)

    def check(self, model: Vector, signed_model: SignedModel | None) -> None:
        """Refuse a model without the signature of a trusted site in this run.

        Raises:
            RefusedError: The signature is missing, invalid, or of another key.
        """
        if signed_model is None:
            raise _policy_error("the model has no signature")
        content = SignedContent(
            self._study, self._run, signed_model.trained_by, signed_model.version, model_digest(model)
        )
        signer = content.signer(signed_model.signature)
        if not signer:
            raise _policy_error("the model differs from the one that its author signed in this run")
        if not self._is_trusted(signed_model.trained_by, signer):
            raise _policy_error("the model's signing key is not its author's, or its author is not listed")

    def _is_trusted(self, author: str, signer: str) -> bool:
        if author == self._site:
            return signer == self._key.id
        if self._trusted_signers:
            return self._trusted_signers.get(author) == signer
        return self._release_log.is_first_value(f"signers/{self._study}", author, signer)


class TrustedSigners:
    """Check of the signatures of updates at the centre: each site keeps its first key of the run.

    Evaluators refuse an unsigned model. Without this check a site could prevent the evaluation of its models by other
    sites, so that only its own evaluation counts.

    Args:
        study: The hash of the study document.
        run: The run's name.
        seed: The run's seed.
        codec: Encodes updates.
        layout: The model's layout.
        signatures: Sites with their accepted signatures from before a restart of the controller.
    """

    def __init__(
        self,
        study: str,
        run: str,
        seed: int,
        codec: CodecPipeline,
        layout: Layout,
        signatures: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._study, self._run, self._seed = study, run, seed
        self._codec, self._layout = codec, layout
        self._keys: dict[str, str] = {}
        for site, signature in signatures:
            self._keys.setdefault(site, signature[:_KEY_DIGITS])

    def __call__(self, task: TrainTask, payload: bytes, signature: str) -> None:
        """Accept an update at the centre if its site has signed the resulting model.

        Raises:
            PayloadError: The signature is invalid, or the key differs from the site's first key.
        """
        site, version = task.learner, task.version
        model = learned_model(self._codec, self._layout, self._seed, site, version, task.model, payload)
        content = SignedContent(self._study, self._run, site, version, model_digest(model))
        known = self._keys.get(site, signature[:_KEY_DIGITS])
        if not content.signer(signature) or signature[:_KEY_DIGITS] != known:
            raise PayloadError("the update has no valid signature of its site", where="network")
        self._keys[site] = known


def learned_model(
    codec: CodecPipeline, layout: Layout, seed: int, site: str, version: int, start: Vector, payload: bytes
) -> Vector:
    """Return the model to sign after a site's update of a version, bit-identical at the site and at the centre."""
    return local_model(codec, layout, start, payload, CodecKey(round_key(seed, version), site))


def signing_key_path(file: LoadedSiteConfig) -> Path:
    """Return the path of the key with which a site signs models, beside its configuration."""
    return file.path(f"{file.config.site.id}.signing.key")


def signing_key(file: LoadedSiteConfig) -> PrivateKey:
    """Return the key with which a site signs models; create it on first use.

    Raises:
        AbatonError: The file is not readable or cannot be created, or other accounts can read it.
    """
    path = signing_key_path(file)
    if not path.exists():
        _create_key_file(path)
    return PrivateKey.of(KeyKind.SIGN, read_private_file(path), "")


def new_key() -> PrivateKey:
    """Return a new key for model signatures that is not stored."""
    return PrivateKey.new(KeyKind.SIGN, secrets.token_bytes, "")


def _create_key_file(path: Path) -> None:
    with map_os_errors(path.parent):
        temporary_path = path.with_name(temporary_name(secrets.token_hex(8)))
        temporary_path.touch(mode=0o600)
        temporary_path.write_bytes(new_key().secret)
        if os.geteuid() == 0:  # workers may run under another account, which owns the folder
            owner = path.parent.stat()
            os.chown(temporary_path, owner.st_uid, owner.st_gid)
        with suppress(FileExistsError):  # another worker has created the key at the same time
            path.hardlink_to(temporary_path)
        temporary_path.unlink()


def _policy_error(what: str) -> RefusedError:
    return RefusedError(what, where="policy", remedy="see 'abaton site policy --explain'")
