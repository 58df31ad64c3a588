"""A site joins a study on a network: its invitation and its node's key, its programs, and what would leave it.

An invitation names the centre's address, the authority that its certificate is checked against, and the study, by its
document and its digest. The site makes its own key and sends its public half; both sides compare a fingerprint, and
nothing secret is in either file.

What would leave is found by asking the site's own desk every question of a run, with nobody else there. Records are
read, rows made and a model trained once, in a folder that is removed afterwards; nothing is sent, and nothing is noted
in the registry of consents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from abaton.anonymity.federated_recoding import Choice, Histogram, choose
from abaton.atomic_files import replacing
from abaton.canonical_json import digest
from abaton.engines.flower import Parcel
from abaton.engines.flower.flower_messages import encode, model_name
from abaton.engines.flower.site_processes import Membership
from abaton.engines.flower.site_worker import Place
from abaton.errors import Refused, SettingsError
from abaton.features import columns
from abaton.governance.keys import PrivateKey
from abaton.kernels import Vector
from abaton.site import Ledger, SiteFile, smallest_count
from abaton.site.factory import ledger_places
from abaton.store import digest_of
from abaton.study import Study, load_study, study_from_toml, write_toml
from abaton.study_run.consent_roster import Roll
from abaton.study_run.messages import body_of, fields_of, sums_from, worded, words_for
from abaton.study_run.model_signatures import key_place, learned_model, new_key
from abaton.study_run.preparation import scale_of
from abaton.study_run.site_service import DESK, StudyDesk


@dataclass(frozen=True, slots=True)
class Accounts:
    """Whose rights a site's programs have, if not those of whoever starts them; only root can give them others.

    Attributes:
        desks: the account that reads records and trains.
        node: the account that talks to the network.
    """

    desks: str = ""
    node: str = ""


OWN = Accounts()


def membership(
    file: SiteFile,
    study: Study,
    document: Path,
    centre: str,
    authority: Path,
    folder: Path,
    accounts: Accounts = OWN,
) -> Membership:
    """What a site's programs are started with."""
    more = {"document": str(Path(file.name).resolve()), "protocol": str(document.resolve())}
    return Membership(
        file.document.site.id,
        centre,
        authority.resolve(),
        DESK,
        folder.resolve(),
        study.hash,
        more,
        private_files(file),
        accounts.desks,
        accounts.node,
    )


def private_files(file: SiteFile) -> tuple[Path, ...]:
    """What a site's node has no business with: records, keys, registry, ledger and vault; where they are files."""
    document = file.document
    keys, vault = document.keys, document.vault
    places = [*document.records.paths, document.records.work, keys.study, keys.tags, keys.ring]
    places += [document.consent.registry] if document.consent.registry else []
    places += [vault.rows, vault.keys, vault.controller] if vault else []
    smart = document.records.smart
    places += [smart.key] if smart else []
    named = (file.path(place) for place in places if place and "://" not in place)
    return tuple(path.resolve() for path in (*named, *ledger_places(file), key_place(file)))


def agreed_study(invitation: Invitation, own: Path | None) -> Study:
    """The study that a site joins: its own copy if it has one, otherwise the invitation's; the digest must be right.

    Raises:
        Refused: The document is not the one that the centre names.
    """
    study = (
        load_study(own) if own else study_from_toml(invitation.document, "the invitation's study document")
    )
    if study.hash != invitation.study:
        raise Refused(
            f"the study document has the digest {study.hash[:12]}, the invitation is to {invitation.study[:12]}",
            where=str(own or "invitation"),
            remedy="ask the centre which document is meant",
        )
    return study


def check_invited(invitation: Invitation, file: SiteFile, study: Study) -> None:
    """Refuse an invitation to somebody else, and a site's document that is weaker than the study.

    Raises:
        Refused: The invitation names another site.
        SiteError: With every weaker setting.
    """
    if invitation.site != file.document.site.id:
        raise Refused(
            f"the invitation is for '{invitation.site}', this is '{file.document.site.id}'",
            where=file.name,
            remedy="ask the centre for an invitation of your own, or correct [site] id",
        )
    file.against(study)


def prepare(
    invitation: Invitation, file: SiteFile, study: Study, folder: Path, accounts: Accounts = OWN
) -> Membership:
    """Write down what a site's programs need, in its own folder."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, document = folder / "ca.pem", folder / "study.toml"
    for path, text in ((authority, invitation.authority), (document, write_toml(study))):
        with replacing(path) as begun:
            begun.write_text(text)
    return membership(file, study, document, invitation.centre, authority, folder, accounts)


def unit(command: str, folders: Sequence[Path], account: str) -> str:
    """A systemd unit that keeps a site's programs running.

    A unit of root's is for programs that have accounts of their own: then it may do no more than start them.

    >>> "Restart=always" in unit("/opt/abaton/bin/abaton site join a", [Path("/var/lib/abaton")], "abaton")
    True
    """
    rights = "CapabilityBoundingSet="
    if account == "root":
        rights += "CAP_SETUID CAP_SETGID CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_KILL"
    return f"""[Unit]
Description=Abaton: the programs of this site
After=network-online.target
Wants=network-online.target

[Service]
User={account}
WorkingDirectory={folders[0]}
ExecStart={command}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=true
{rights}
PrivateTmp=true
PrivateDevices=true
ProtectSystem=strict
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectControlGroups=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=true
LockPersonality=true
ReadWritePaths={" ".join(map(str, folders))}

[Install]
WantedBy=multi-user.target
"""


# ---- invitations --------------------------------------------------------------------------------------------------

FORMAT, KEYS_FORMAT = "abaton-invitation/1", "abaton-node-key/1"
_LARGEST = 1 << 23
_Form = TypeVar("_Form", "Invitation", "NodeKey")
_FORBIDDEN = frozenset("\"'\\=/")


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a site is given.

    Attributes:
        site: the name under which it takes part.
        centre: where the centre is reached, ``host:port``.
        authority: the certificate, as PEM, that the centre's one is signed with.
        study: the digest of the study document.
        document: the study document itself.
    """

    site: str
    centre: str
    authority: str
    study: str = ""
    document: str = ""

    def __post_init__(self) -> None:
        host, _, port = self.centre.rpartition(":")
        if not self.site or _FORBIDDEN & set(self.site + self.study) or not self.site.isprintable():
            raise SettingsError(
                f"the site's name '{self.site}' cannot be used",
                where="invitation",
                remedy="use letters, digits, spaces and dashes",
            )
        if not host or not port.isdecimal():
            raise SettingsError(
                f"'{self.centre}' is no address", where="invitation", remedy="write it as host:port"
            )
        try:
            x509.load_pem_x509_certificate(self.authority.encode())
        except ValueError:
            raise SettingsError(
                "the authority's certificate is not readable", where="invitation", remedy="give it as PEM"
            ) from None

    def write(self, path: Path) -> None:
        """Write the file that is sent to the site."""
        with replacing(path) as begun:
            begun.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class NodeKey:
    """What a site sends back: the public key of its node, in the form that OpenSSH writes.

    Attributes:
        site: whose it is.
        key: the key.
    """

    site: str
    key: str

    def __post_init__(self) -> None:
        try:
            load_ssh_public_key(self.key.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise SettingsError(
                "the key is not readable", where="node key", remedy="ask the site for the file again"
            ) from None

    @property
    def fingerprint(self) -> str:
        """What both sides compare, by a way that both trust."""
        made = digest_of(" ".join(self.key.split()[:2]).encode())
        return "-".join(made[i : i + 4] for i in range(0, 24, 4))

    def write(self, path: Path) -> None:
        """Write the file that is sent to the centre."""
        with replacing(path) as begun:
            begun.write_text(json.dumps({"format": KEYS_FORMAT, **asdict(self)}, indent=2) + "\n")


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file."""
    made = _read(path, FORMAT, Invitation)
    if made is None:
        raise SettingsError(
            "this is not an invitation", where=str(path), remedy="ask the centre for 'abaton keys invite'"
        )
    return made


def read_node_key(path: Path) -> NodeKey:
    """The node's key in a file."""
    made = _read(path, KEYS_FORMAT, NodeKey)
    if made is None:
        raise SettingsError(
            "this is no node's key", where=str(path), remedy="ask the site for what 'abaton site join' wrote"
        )
    return made


def _read(path: Path, form: str, kind: type[_Form]) -> _Form | None:
    try:
        with path.open("rb") as file:
            row = json.loads(file.read(_LARGEST))
        if row.pop("format") != form:
            return None
        return kind(**{name: str(value) for name, value in row.items()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None


# ---- what would leave ---------------------------------------------------------------------------------------------

_RUN, _SEED = "preview", 1990
_SHOWN = 90


@dataclass(frozen=True, slots=True)
class Leaving:
    """A field that would leave.

    Attributes:
        asked: What the centre asks for.
        field: The field of the answer.
        words: What it is.
        value: What this site would send now, cut short.
    """

    asked: str
    field: str
    words: str
    value: str


class _Looking(Roll):
    """A roll that only looks."""

    def taken(self, keys: Any, at: float, version: int | None = None) -> tuple[frozenset[str], str]:
        inside = self.inside(keys, at)
        return inside, digest({"members": sorted(inside)})


def preview(file: SiteFile, study: Study, folder: Path) -> Iterator[Leaving]:
    """Every field that would leave a site, one after the other; ends early if the site cannot take part."""
    for kind, answer in _answers(file, study, folder):
        for name in fields_of(answer):
            yield Leaving(kind, name, words_for(kind, name), _value(name, answer))


def _answers(file: SiteFile, study: Study, folder: Path) -> Iterator[tuple[str, Parcel]]:
    assert study.learning is not None
    key = new_key()
    desks = {role: _desk(file, study, role, folder, key) for role in ("train", "evaluate")}
    about: dict[str, Any] = {"run": _RUN, "terms": study.hash}
    read = desks["train"].answer(worded("read", about, {}))
    yield "read", read
    if read.reason is not None or body_of(read)["problem"]:
        return
    body = {"seed": _SEED, **_choice(study, body_of(read))}
    dealt = desks["train"].answer(worded("deal", about, body))
    yield "deal", dealt
    if dealt.reason is not None or body_of(dealt)["problem"]:
        return
    scale = scale_of(study.learning, [sums_from(body_of(dealt)["sums"])])
    yield "scale", desks["train"].answer(worded("scale", about, {**body, "scale": scale.row()}))
    plan = study.plan()
    model = study.learning.model(features=len(columns(plan)), classes=len(plan.label.names))
    start = model.initial(_SEED)
    about |= {"layout": model.layout.digest, "committed": 0}
    named, data = {"model": model_name(start), "base": None}, encode(start)
    settings = asdict(study.learning.training.plain())
    train = {**about, "key": "task", "version": 0, "settings": settings, **named}
    one = {**about, "tasks": [{"key": "task", **named}]}
    yield "query", desks["train"].answer(Parcel("query", about))
    trained = desks["train"].answer(Parcel("train", train, {"model": data}))
    yield "train", trained
    if trained.reason is None:
        yield "evaluate", desks["evaluate"].answer(_own_model(file, study, about, start, trained))
    yield "judge", desks["train"].answer(Parcel("judge", one, {"model/0": data}))
    if study.learning.personal is None:
        asked = {**one, "epochs": 1, "seed": _SEED, "resamples": 1}
        yield "gain", desks["train"].answer(Parcel("gain", asked, {"model/0": data}))
    if study.learning.explanation is not None:
        yield "explain", desks["train"].answer(Parcel("explain", one, {"model/0": data}))


def _own_model(
    file: SiteFile, study: Study, about: Mapping[str, Any], start: Vector, trained: Parcel
) -> Parcel:
    """The site's own model to be scored: those of others are not there, and no model is scored that nobody signed."""
    assert study.learning is not None
    site, codec = file.document.site.id, study.learning.pipeline()
    layout = study.learning.model(
        features=len(columns(study.plan())), classes=len(study.plan().label.names)
    ).layout
    made = learned_model(codec, layout, _SEED, site, 0, start, trained.blobs["update"])
    one = {"key": "task", "model": model_name(made), "base": None}
    signed = [site, 0, trained.about["signature"]]
    return Parcel("evaluate", {**about, "tasks": [{**one, "signed": signed}]}, {"model/0": encode(made)})


def _desk(file: SiteFile, study: Study, role: str, folder: Path, key: PrivateKey) -> StudyDesk:
    def roll(file: SiteFile, study: Study, run: str, people: Mapping[str, str]) -> Roll:
        return _Looking(file, study, run, people, lambda at: datetime.fromtimestamp(at, UTC))

    nothing = Ledger(folder / "ledger.json", lambda patient: patient, smallest_count(file.document, study))
    return StudyDesk(file, study, Place(role, folder, study.hash), roll, nothing, key)


def _choice(study: Study, read: Mapping[str, Any]) -> dict[str, Any]:
    """The ranges that would be chosen if this were the only site; the finest ones if it cannot hide people alone."""
    asked = study.privacy.anonymity
    if asked is None:
        return {}
    told = Histogram.from_row(read["histogram"])
    try:
        choice = choose([told], asked)
    except Refused:
        finest = frozenset(told.names(cell) for cell in told.cells)
        choice = Choice(told.base, finest, 0.0, 0, sum(told.counts))
    return {"k": read["k"], "choice": choice.row()}


def _value(name: str, answer: Parcel) -> str:
    if name.startswith("body/"):
        value = body_of(answer)[name.removeprefix("body/")]
    elif name in answer.blobs:
        return f"{len(answer.blobs[name])} bytes"
    else:
        value = answer.about[name]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
