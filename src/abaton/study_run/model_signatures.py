"""Signatures under models: a site signs what it has learned, and scores a model only if it knows who signed it.

What is signed: a fixed prefix and the canonical form of the study document's hash, the run, the site's id, the version
of the community model that it trained from, and the digest of the model that its update makes of that version. What
travels is the site's public key and the Ed25519 signature, in hexadecimal digits. The key lies beside the site's
document, open to its account alone; people compare its fingerprint.

Invariants:
(1) a site signs an update once, when it first leaves; asked again, it sends the same signature, whatever came with the
    question;
(2) a model is scored only if its author's key has signed it: the one in ``[policy.peers]``, or, if the site lists
    none, the first one that it saw of that name in the study;
(3) no signature passes for that of another study, run, site or version.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from abaton.atomic_files import begun_name, writing
from abaton.canonical_json import canonical
from abaton.codecs import Key, Pipeline
from abaton.controller.aggregation import local_model
from abaton.engines import TrainTask
from abaton.errors import AbatonError, PayloadError, Refused
from abaton.governance.keys import Kind, PrivateKey, PublicKey
from abaton.kernels import Layout, Vector
from abaton.learners import Learner, Signed
from abaton.site import Ledger, SiteFile
from abaton.site.factory import private_bytes
from abaton.store import model_digest
from abaton.training import round_key

_PREFIX = b"abaton-model-1\0"
_KEY, _WHOLE = 64, 192  # hexadecimal digits of the public key, and of key and signature together


class Learned(NamedTuple):
    """What a signature is under.

    Attributes:
        study: The hash of the study document.
        run: The run's name.
        site: Who has learned.
        version: The version of the community model that training started from.
        model: The digest of the model that was learned.
    """

    study: str
    run: str
    site: str
    version: int
    model: str

    def signed(self, key: PrivateKey) -> str:
        """The key's public half and its signature."""
        return (key.public.raw + key.sign(self._bytes())).hex()

    def signer(self, signature: str) -> str:
        """The fingerprint of the key that has signed this; empty if none has.

        >>> learned, key = Learned("study", "run", "kos", 3, "model"), PrivateKey.of(Kind.SIGN, bytes(32), "")
        >>> learned.signer(learned.signed(key)) == key.id, learned._replace(version=4).signer(learned.signed(key))
        (True, '')
        """
        try:
            raw = bytes.fromhex(signature) if len(signature) == _WHOLE else b""
            key = PublicKey(Kind.SIGN, raw[: _KEY // 2], "")
            return key.id if key.verify(raw[_KEY // 2 :], self._bytes()) else ""
        except (AbatonError, ValueError):  # no digits, no key, or names that JSON cannot hold
            return ""

    def _bytes(self) -> bytes:
        return _PREFIX + canonical(self._asdict())


class Signing:
    """What a site signs in a run, and whose signatures it takes.

    Args:
        key: The site's own.
        site: Its id.
        study: The hash of the study document.
        run: The run's name.
        peers: The fingerprints of other sites' keys by their id; if there are none, the first that is seen counts.
        ledger: Where the site remembers which it saw first.
    """

    def __init__(
        self, key: PrivateKey, site: str, study: str, run: str, peers: Mapping[str, str], ledger: Ledger
    ) -> None:
        self._key, self._site, self._study, self._run = key, site, study, run
        self._peers, self._ledger = peers, ledger

    def sign(self, learner: Learner, version: int, start: Vector, payload: bytes) -> str:
        """Sign the model that an update makes of the version that it was trained from."""
        made = learned_model(
            learner.codec, learner.model.layout, learner.seed, self._site, version, start, payload
        )
        return Learned(self._study, self._run, self._site, version, model_digest(made)).signed(self._key)

    def check(self, model: Vector, signed: Signed | None) -> None:
        """Refuse a model that no site known here has learned in this run.

        Raises:
            Refused: It bears no signature, not a true one, or that of somebody else.
        """
        if signed is None:
            raise _refused("the model is signed by nobody")
        learned = Learned(self._study, self._run, signed.author, signed.version, model_digest(model))
        signer = learned.signer(signed.signature)
        if not signer:
            raise _refused("the model is not what its author signed in this run")
        if not self._knows(signed.author, signer):
            raise _refused(
                "the model is signed by a key that is not its author's, or of a site that is not listed"
            )

    def _knows(self, author: str, signer: str) -> bool:
        if author == self._site:
            return signer == self._key.id
        if self._peers:
            return self._peers.get(author) == signer
        return self._ledger.first_of(f"signers/{self._study}", author, signer)


class Signatories:
    """Whose signatures the centre takes under updates: of each site the key that it signed with first in the run.

    Evaluators refuse a model that is not signed. A site could otherwise keep others from scoring its models, and be
    believed what it says of them itself.

    Args:
        study: The hash of the study document.
        run: The run's name.
        seed: The run's.
        codec: How updates travel.
        layout: Of the model.
        known: Sites with signatures that were taken before the controller was started again.
    """

    def __init__(
        self,
        study: str,
        run: str,
        seed: int,
        codec: Pipeline,
        layout: Layout,
        known: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._study, self._run, self._seed = study, run, seed
        self._codec, self._layout = codec, layout
        self._keys: dict[str, str] = {}
        for site, signature in known:
            self._keys.setdefault(site, signature[:_KEY])

    def __call__(self, task: TrainTask, payload: bytes, signature: str) -> None:
        """Take an update whose site has signed the model that it makes.

        Raises:
            PayloadError: It has not, or by another key than before.
        """
        site, version = task.learner, task.version
        made = learned_model(self._codec, self._layout, self._seed, site, version, task.model, payload)
        learned = Learned(self._study, self._run, site, version, model_digest(made))
        known = self._keys.get(site, signature[:_KEY])
        if not learned.signer(signature) or signature[:_KEY] != known:
            raise PayloadError("an update is not signed by its site", where="network")
        self._keys[site] = known


def learned_model(
    codec: Pipeline, layout: Layout, seed: int, site: str, version: int, start: Vector, payload: bytes
) -> Vector:
    """The model that a site's update makes of a version, with the same bits at the site and at the centre."""
    return local_model(codec, layout, start, payload, Key(round_key(seed, version), site))


def key_place(file: SiteFile) -> Path:
    """Where a site's signing key lies: beside its document."""
    return file.path(f"{file.document.site.id}.signing.key")


def signing_key(file: SiteFile) -> PrivateKey:
    """The key by which a site signs models, made when it is first asked for.

    Raises:
        AbatonError: It cannot be read or made here, or others can read it.
    """
    path = key_place(file)
    if not path.exists():
        _make(path)
    return PrivateKey.of(Kind.SIGN, private_bytes(path), "")


def new_key() -> PrivateKey:
    """A key that is kept nowhere."""
    return PrivateKey.new(Kind.SIGN, secrets.token_bytes, "")


def _make(path: Path) -> None:
    with writing(path.parent):
        drawn = path.with_name(begun_name(secrets.token_hex(8)))
        drawn.touch(mode=0o600)
        drawn.write_bytes(new_key().secret)
        if os.geteuid() == 0:  # desks may have an account of their own: to that the folder belongs
            owner = path.parent.stat()
            os.chown(drawn, owner.st_uid, owner.st_gid)
        with suppress(FileExistsError):  # two desks begin at once: whoever was first has made it for both
            path.hardlink_to(drawn)
        drawn.unlink()


def _refused(what: str) -> Refused:
    return Refused(what, where="policy", remedy="see 'abaton site policy --explain'")
