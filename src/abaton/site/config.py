"""The site's document, ``site.toml``: where a hospital's records are, and what it asks beyond the study.

Invariants:
(1) it can only take away: its rules may remove or coarsen, its numbers may only be stricter than the study's;
(2) it holds no secret: keys are named by the path of their file;
(3) on conflict between site and study, the site wins.

What a site lets a study's centre do: the part ``[policy]`` of ``site.toml``, strict if it says nothing.
"""

from __future__ import annotations

import re
from datetime import datetime, time
from enum import StrEnum
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from abaton.deid.rule_compiler import Plan
from abaton.deid.settings import Dates, Rule
from abaton.documents.fields import Day, Part, Text, fault
from abaton.errors import Refused, SettingsError
from abaton.fhir.elements import resources
from abaton.fhir.partial_dates import zone_of
from abaton.governance.consent import Action, Permit
from abaton.governance.consent_forms import RESEARCH, Form
from abaton.study import Purpose
from abaton.study.components import Packages

Fingerprint = Annotated[str, Field(pattern=r"^ed25519:[A-Z2-7]{26}$")]


class PolicyPart(Part):
    """Bounds that the site keeps whatever the centre asks; the study document is the contract for everything else.

    Attributes:
        smallest_batch: The fewest rows that one step of training rests on, and that a model leaves to learn from.
        fewest_rows: The fewest rows that an update rests on; with fewer a site takes part only under a privacy budget,
            in a study with rounds and without scores.
        reach: How many times further than the site's own updates a model may lie from the one before it.
        scored: How many models of others the site scores for each version of the community model.
        judged: How many versions of the community model the site judges after a run.
        peers: The fingerprints of other sites' signing keys, by the site's id: then only their models are scored.
    """

    smallest_batch: int = Field(8, ge=1)
    fewest_rows: int = Field(50, ge=1)
    reach: float = Field(10.0, ge=1)
    scored: int = Field(64, ge=0)
    judged: int = Field(64, ge=1)
    peers: dict[str, Fingerprint] = Field(default_factory=dict)


_FILES = frozenset({"paths"})
_WEB = frozenset({"url", "work", "page", "timeout", "retries", "hosts", "ca", "smart"})
_BULK = frozenset({"level", "group", "since", "wait"})
_OMOP = frozenset({"database", "paths", "cdm", "vocabulary", "timezone"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _place(text: str) -> str:
    """A path, never what should be in the file."""
    if "\n" in text or "-----BEGIN" in text or len(text) > 1000 or text != text.strip() or not text:
        raise fault("this is not the path of a file", "write the path here, and the key into its own file")
    return text


def _resource_type(name: str) -> str:
    if name not in resources():
        raise fault(f"R4 has no resource type '{name[:64]}'", "use an R4 resource type")
    return name


def _address(url: str) -> str:
    """An address that may be asked: https, or http on this machine; nothing hidden in it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in ("https", "http") or parts.query or parts.fragment:
        raise fault("this is not the address of a server", "write it as https://host/path")
    if parts.username is not None or parts.password is not None:
        raise fault("the address holds a name or a password", "use [records.smart]; no secret stands here")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise fault("records would travel unencrypted", "use https; http is for this machine alone")
    return url.rstrip("/")


def _without_password(place: str) -> str:
    if "://" in place and re.search(r"//[^/@]*:[^/@]+@", place):
        raise fault("the address holds a password", "use a .pgpass file; no secret stands here")
    return place


def _zone(name: str) -> str:
    if zone_of(name) is None:
        raise fault("there is no such time zone", "write +02:00, Z, or a name such as Europe/Athens")
    return name


Place = Annotated[str, AfterValidator(_place)]
Schema = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]
Address = Annotated[str, AfterValidator(_address)]
ResourceType = Annotated[str, AfterValidator(_resource_type)]
Token = Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
Host = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$")]


class Identity(Part):
    """Who the site is. The id enters every pseudonym, so it must not change during a study."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    name: Text


class Kind(StrEnum):
    """Where records come from."""

    DIRECTORY = "directory"
    NDJSON = "ndjson"
    FHIR = "fhir"
    BULK = "bulk"
    CSV = "csv"
    OMOP = "omop"


class Smart(Part):
    """How the site shows a FHIR server that it may read: SMART Backend Services, a signed assertion."""

    client: Annotated[str, Field(pattern=r"^[!-~]{1,500}$")]
    key: Place
    key_id: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    algorithm: Literal["ES384", "RS384"] = "ES384"
    token_url: Address | None = None
    scopes: tuple[Annotated[str, Field(pattern=r"^[!-~]{1,200}$")], ...] = ()


class RecordsPart(Part):
    """Where the records are, and how they are read."""

    kind: Kind
    paths: tuple[Place, ...] = ()
    url: Address | None = None
    work: Place = "work"
    page: int = Field(200, ge=1, le=10_000)
    timeout: float = Field(60, ge=0.05, le=3600)
    retries: int = Field(5, ge=0, le=20)
    hosts: tuple[Host, ...] = ()
    ca: Place | None = None
    smart: Smart | None = None
    level: Literal["system", "patient", "group"] = "patient"
    group: Annotated[str, Field(pattern=r"^[A-Za-z0-9\-.]{1,64}$")] | None = None
    since: datetime | None = None
    wait: float = Field(24, gt=0, le=24 * 14)
    mapping: Place | None = None
    database: Annotated[Place, AfterValidator(_without_password)] | None = None
    cdm: Schema | None = None
    vocabulary: Schema | None = None
    timezone: Annotated[str, AfterValidator(_zone)] = "Z"

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        allowed = {"kind"} | {
            Kind.DIRECTORY: _FILES,
            Kind.NDJSON: _FILES,
            Kind.FHIR: _WEB,
            Kind.BULK: _WEB | _BULK,
            Kind.CSV: _FILES | {"mapping"},
            Kind.OMOP: _OMOP,
        }[self.kind]
        if strange := sorted(self.model_fields_set - allowed):
            raise fault(
                f"'{strange[0]}' does not belong to kind = '{self.kind.value}'",
                f"this kind has {', '.join(sorted(allowed - {'kind'}))}",
            )
        if self.kind is Kind.OMOP:
            if (self.database is None) == (len(self.paths) != 1):
                raise fault(
                    "it is not clear where the OMOP tables are",
                    "write database = 'postgresql+psycopg://host/name', or paths = ['folder of CSV or Parquet']",
                )
        elif "paths" in allowed and not self.paths:
            raise fault("it is not said where the records are", "write paths = ['records']")
        if self.kind is Kind.CSV and self.mapping is None:
            raise fault(
                "it is not said what the columns mean",
                "run 'abaton site map' and write mapping = 'mapping.toml'",
            )
        if "url" in allowed and self.url is None:
            raise fault("it is not said which server is asked", "write url = 'https://host/fhir'")
        if (self.level == "group") != (self.group is not None):
            raise fault("'group' and level = 'group' belong together", "give both, or neither")
        if self.since is not None and self.since.tzinfo is None:
            raise fault("'since' has no time zone", "write it as 2026-01-31T00:00:00Z")
        return self


class SiteRule(Part):
    """One rule of the site, applied to what the study's rules let through: it removes or coarsens."""

    path: Text
    method: str
    settings: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _only_stricter(self) -> Self:
        name = f"{self.method} {self.path}"
        if self.method not in ("redact", "generalise"):
            raise fault(
                f"the site's rule '{name}' could be weaker than the study's",
                "a site's rule may only 'redact' or 'generalise'",
            )
        try:
            Plan((self.plain(),))
        except SettingsError as error:
            raise fault(f"the site's rule '{name}' is not understood: {error.what}", error.remedy) from None
        return self

    def plain(self) -> Rule:
        """The rule as the de-identifier takes it."""
        return Rule(
            self.path, self.method, tuple((key, _word(value)) for key, value in self.settings.items())
        )


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


class SiteRules(Part):
    """What the site asks beyond the study. Everything here may only be stricter."""

    k: int | None = Field(None, ge=2)
    smallest_count: int | None = Field(None, ge=1)
    dates: Dates | None = None
    never: tuple[ResourceType, ...] = ()
    deidentification: tuple[SiteRule, ...] = ()


class FormActions(Part):
    """Which codes of a form stand for which of our actions; what none stands for is not allowed."""

    collect: tuple[Token, ...] = ()
    send: tuple[Token, ...] = ()
    train: tuple[Token, ...] = ()


class FormPart(Part):
    """A form that people sign elsewhere, told by FHIR Consent resources: where they are and what their codes mean."""

    name: Text
    resources: tuple[Place, ...] = Field(min_length=1)
    policies: tuple[Token, ...] = Field(min_length=1)
    scopes: tuple[Annotated[str, Field(pattern=r"^[a-z-]{1,40}$")], ...] = ("research",)
    purposes: tuple[Token, ...] = RESEARCH
    recipients: tuple[Token, ...] = ()
    actions: FormActions

    def plain(self) -> Form:
        """The form as governance reads it."""
        codes = {
            Action.COLLECT: self.actions.collect,
            Action.SEND: self.actions.send,
            Action.TRAIN: self.actions.train,
        }
        return Form(
            self.name,
            frozenset(self.policies),
            {action: frozenset(named) for action, named in codes.items()},
            frozenset(self.scopes),
            frozenset(self.purposes),
            frozenset(self.recipients),
        )


class PermitPart(Part):
    """A data permit of a health data access body, as it stands on the permit (EHDS, Article 68)."""

    number: Text
    authority: Text
    start: Day
    end: Day
    purposes: tuple[Purpose, ...] = Field(min_length=1)
    document: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    allows: tuple[Literal["train", "send"], ...] = Field(("train",), min_length=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end < self.start:
            raise fault("the permit ends before it begins", "write its first day as start, its last as end")
        return self

    def plain(self) -> Permit:
        """The permit as governance knows it."""
        purposes = tuple(sorted(purpose.value for purpose in self.purposes))
        named = {"train": Action.TRAIN, "send": Action.SEND}
        actions = (Action.COLLECT, *sorted({named[each] for each in self.allows}))
        return Permit(self.number, self.authority, self.start, self.end, purposes, self.document, actions)


class OptOutsPart(Part):
    """Where the list is of those who have opted out of any use for research (EHDS, Article 71)."""

    file: Place | None = None
    url: Address | None = None
    fhir: Address | None = None
    ca: Place | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(place is not None for place in (self.file, self.url, self.fhir)) != 1:
            raise fault(
                "it is not clear where the opt-out list is",
                "give 'file' (a list of Patient ids), 'url' (the same on a server) or 'fhir' (a server)",
            )
        return self


class ConsentPart(Part):
    """Why records may be used: each person's consent, a data permit, or a lawful ground that the site answers for."""

    registry: Annotated[Place, AfterValidator(_without_password)] | None = None
    ground: Text | None = None
    permit: PermitPart | None = None
    forms: tuple[FormPart, ...] = ()
    opt_outs: OptOutsPart | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.ground is not None and self.permit is not None:
            raise fault(
                "two grounds are given", "give 'ground' (a sentence) or [consent.permit], one of them"
            )
        if self.registry is None and self.ground is None and self.permit is None:
            raise fault(
                "nothing may be used without a consent in force, a permit or a stated ground",
                "give 'registry' (a path), [consent.permit] or 'ground' (a sentence)",
            )
        if self.forms and not self.by_person:
            raise fault("forms are read, but not asked for", "leave out the ground, the permit, or the forms")
        return self

    @property
    def by_person(self) -> bool:
        """Whether everybody needs a consent of their own."""
        return self.ground is None and self.permit is None

    @property
    def sends(self) -> bool:
        """Whether records may be sent at all: with each person's consent, or on a permit that says so."""
        return self.by_person or (self.permit is not None and "send" in self.permit.allows)

    @property
    def place(self) -> str:
        """Where the registry is; a ground or a permit is written into its audit chain, too."""
        return self.registry or "governance.db"

    @property
    def knows_people(self) -> bool:
        """Whether people are known by tags: for their consents, or for their opt-outs."""
        return self.sends or self.opt_outs is not None


class Keys(Part):
    """The files that hold the site's keys; never the keys themselves."""

    study: Place | None = None
    tags: Place | None = None
    ring: Place | None = None


class CentrePart(Part):
    """The research centre that records are sent to: where it is, and by which keys it is known."""

    url: Address
    keys: Place
    ca: Place | None = None
    outbox: Place = "outbox"
    part: int = Field(1 << 19, ge=1, le=1 << 26, description="bytes")
    retries: int = Field(5, ge=0, le=20)


class VaultPart(Part):
    """The mapping table: its rows, their keys in a place of their own, and whose key they are sealed to."""

    rows: Annotated[Place, AfterValidator(_without_password)]
    keys: Annotated[Place, AfterValidator(_without_password)]
    controller: Place

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.rows == self.keys:
            raise fault("rows and their keys lie in one place", "keep them in two databases")
        return self


class Hours(Part):
    """The time of day in which the site's machine may work, in the site's local time; it may run past midnight.

    >>> Hours(start="20:00", end="06:00").open_at(time(23, 30))
    True
    """

    start: str
    end: str

    @model_validator(mode="after")
    def _times(self) -> Self:
        pattern = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
        if not pattern.fullmatch(self.start) or not pattern.fullmatch(self.end) or self.start == self.end:
            raise fault("this is not a stretch of the day", "write { start = '20:00', end = '06:00' }")
        return self

    def open_at(self, moment: time) -> bool:
        """Whether work may be done at a time of day."""
        now = moment.strftime("%H:%M")
        if self.start < self.end:
            return self.start <= now < self.end
        return now >= self.start or now < self.end


class Limits(Part):
    """How much of the site's machine a study may use."""

    threads: int = Field(1, ge=1, le=1024)
    memory: int = Field(2048, ge=64, description="MiB")
    batch: int | None = Field(None, ge=1)
    hours: Hours | None = None
    explanations: int | None = Field(
        None, ge=0, description="how often a run may ask a model of all test subjects to explain it"
    )
    personalise: bool = Field(True, description="whether a run may make the model the site's own")

    def check_hours(self, moment: datetime) -> None:
        """Refuse work at a moment outside the hours, by the local time of the machine.

        >>> Limits(hours=Hours(start="20:00", end="06:00")).check_hours(datetime(2026, 1, 1, 23, 0))
        """
        if self.hours is not None and not self.hours.open_at(moment.astimezone().time()):
            raise Refused(
                f"the site's machine works from {self.hours.start} to {self.hours.end} only",
                where="limits.hours",
                remedy="start the run within these hours, or change them",
            )


class SiteDocument(Part):
    """One site, complete and checked: what ``site.toml`` says."""

    site: Identity
    records: RecordsPart
    rules: SiteRules = SiteRules()
    consent: ConsentPart
    keys: Keys = Keys()
    centre: CentrePart | None = None
    vault: VaultPart | None = None
    limits: Limits = Limits()
    policy: PolicyPart = PolicyPart()
    parts: Packages = Field(
        default_factory=dict, description="packages whose codecs and networks may run here"
    )

    @model_validator(mode="after")
    def _known_by_tags(self) -> Self:
        if self.consent.knows_people and self.keys.tags is None:
            raise fault(
                "consents and opt-outs know people by tags, and no key for them is named",
                "write tags = 'tags.key' under [keys]",
            )
        return self

    @model_validator(mode="after")
    def _apart(self) -> Self:
        inside = [PurePath(place) for place in (self.keys.study, self.keys.tags, self.keys.ring) if place]
        for place in inside:
            if PurePath(self.records.work) in place.parents:
                raise fault(
                    "a key lies in the folder that is emptied after use", "keep keys outside records.work"
                )
        return self
