"""What people have agreed to elsewhere, taken over into the site's registry: their forms, and their opt-outs.

Invariants:
(1) what a form or a list says counts from the moment it is read; reading the same again changes nothing;
(2) a place at which nothing is found is an error, never "nobody has agreed" or "nobody has opted out";
(3) whoever is told of here is told by counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from abaton.documents.problems import Guide
from abaton.documents.toml_reader import checked_toml
from abaton.errors import Refused, SettingsError
from abaton.governance import Permit, Registry, TakenOver, ground_noted, keep_terms, set_opt_outs
from abaton.governance.consent_forms import Reading, is_clear, read, said_no, together
from abaton.site.centre_session import open_cases
from abaton.site.config import OptOutsPart, PermitPart
from abaton.site.config_reader import SiteError, SiteFile
from abaton.site.consent_gate import list_digest, publish, subject_tag
from abaton.site.factory import open_registry, tags_key
from abaton.site.sources.base import FileSource
from abaton.site.sources.fhir_server.http_client import FHIR_JSON, Web, document
from abaton.study import Study

_MOST_LIST, _MOST_PAGES = 1 << 26, 10_000


@dataclass(slots=True)
class Agreements:
    """What was read and what it changed: numbers only.

    Attributes:
        resources: How many Consent resources were read.
        people: How many people they are about.
        taken: What they changed in the registry.
        doubts: How many Consents say nothing, by why.
        listed: How many have opted out; nothing if the site names no list.
        new_opt_outs, lifted: How many came onto the list, and left it.
        leaving: How many withdrawals were opened, or are open, for those who said no after something was sent.
        out: The Patients who have taken their yes back on a form; never leaves the site.
    """

    resources: int = 0
    people: int = 0
    taken: TakenOver = field(default_factory=TakenOver)
    doubts: Counter[str] = field(default_factory=Counter)
    listed: int | None = None
    new_opt_outs: int = 0
    lifted: int = 0
    leaving: int = 0
    out: tuple[str, ...] = field(default=(), repr=False)


def read_agreements(file: SiteFile, study: Study, when: datetime) -> Agreements:
    """Read the forms and the opt-out list that a site's document names, and take over what they say.

    Args:
        file: The site's document.
        study: The study for which the forms are read: consents are pinned to its hash.
        when: The time now.

    Raises:
        SettingsError: The document names neither forms nor a list, or nothing is found where it says.
    """
    consent, done = file.document.consent, Agreements()
    if not consent.forms and consent.opt_outs is None:
        raise SettingsError(
            "the site's document names no forms and no opt-out list",
            where=file.name,
            remedy="write [[consent.forms]] or [consent.opt_outs]",
        )
    listed = None if consent.opt_outs is None else opted_out(file, consent.opt_outs, when)
    registry, key = open_registry(file), tags_key(file)
    with registry.database:
        publish(registry, study, when)
        if listed is not None:
            done.listed = len(listed)
            tags = {subject_tag(key, patient) for patient in listed}
            done.new_opt_outs, done.lifted = set_opt_outs(registry, tags, when)
            read = list_digest(tags)  # which list it was, bound to the study's document
            ground_noted(registry, study.study.id, study.hash, "opt-outs-read", read, when)
        if consent.forms:
            _read_forms(file, study, registry, key, when, done)
        done.leaving = open_cases(
            file, registry, key, study, when, said_no=done.out, listed=listed or frozenset()
        )
    return done


def read_permit(file: Path) -> Permit:
    """A data permit from a file of its own, which has the keys of ``[consent.permit]``."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise SettingsError(
            "the permit cannot be read", where=str(file), remedy="check the path; it is a text in UTF-8"
        ) from None
    return checked_toml(
        text, str(file), PermitPart, Guide("abaton site new", "docs/site.md"), SiteError
    ).plain()


def _read_forms(
    file: SiteFile, study: Study, registry: Registry, key: bytes, when: datetime, done: Agreements
) -> None:
    forms = [part.plain() for part in file.document.consent.forms]
    places = dict.fromkeys(place for part in file.document.consent.forms for place in part.resources)
    source, people = FileSource([file.path(place) for place in places]), dict[str, list[Reading]]()
    for record in source.records():
        for resource in _consents(record.content):
            reading = read(resource, forms)
            done.resources += 1
            if reading.doubt is not None:
                done.doubts[reading.doubt.value] += 1
            if reading.patient:
                people.setdefault(reading.patient, []).append(reading)
    done.doubts.update(source.faults.reasons)
    if not done.resources:
        raise Refused(
            "no Consent was found, so nothing was changed",
            where=file.name,
            remedy="check consent.forms.resources",
        )
    done.people = len(people)
    # Whose newest form cannot be understood is as one whose form is not there: out until it is clear.
    named = {subject_tag(key, patient): patient for patient, said in people.items() if is_clear(said)}
    terms = {tag: together(people[patient]) for tag, patient in named.items()}
    done.taken = keep_terms(registry, terms, study.study.id, study.hash, when)
    done.out = tuple(named[tag] for tag in done.taken.out)


def _consents(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Consent resources in a document, which is one of them or a Bundle."""
    if content.get("resourceType") == "Consent":
        yield content
    elif content.get("resourceType") == "Bundle":
        for entry in content.get("entry", []):
            inner = entry.get("resource") if isinstance(entry, dict) else None
            if isinstance(inner, dict) and inner.get("resourceType") == "Consent":
                yield inner


def opted_out(file: SiteFile, part: OptOutsPart, when: datetime) -> set[str]:
    """The Patients who are on the opt-out list."""
    if part.fhir is not None:
        return _from_server(part.fhir, _web(file, part, part.fhir), when)
    if part.url is not None:
        answer = _web(file, part, part.url).ask(part.url, lambda: {"accept": "text/plain"})
        return _ids(answer.body, part.url)
    assert part.file is not None
    path = file.path(part.file)
    try:
        if path.stat().st_size > _MOST_LIST:
            raise SettingsError("the opt-out list is too large", where=str(path), remedy="64 MB is the limit")
        raw = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            "the opt-out list cannot be read", where=str(path), remedy=error.strerror or "check the path"
        ) from None
    return _ids(raw, str(path))


def _web(file: SiteFile, part: OptOutsPart, url: str) -> Web:
    return Web(url, ca=str(file.path(part.ca)) if part.ca else None)


def _ids(raw: bytes, where: str) -> set[str]:
    """The ids in a list: one in each line; what stands after a # is a remark."""
    try:
        lines = [line.partition("#")[0].strip() for line in raw.decode("utf-8").splitlines()]
    except UnicodeDecodeError:
        raise SettingsError("the opt-out list is not text", where=where, remedy="save it as UTF-8") from None
    if strange := [number for number, line in enumerate(lines, 1) if not _is_id(line)]:
        raise SettingsError(
            f"line {strange[0]} of the opt-out list is not the id of a Patient",
            where=where,
            remedy="write one id in each line, and nothing else",
        )
    return {line for line in lines if line}


def _is_id(line: str) -> bool:
    return len(line) <= 64 and all(letter.isalnum() or letter in "-." for letter in line)


def _from_server(base: str, web: Web, when: datetime) -> set[str]:
    """Those whose active Consents on a FHIR server say no to everything, or who have refused."""
    found: set[str] = set()
    url = f"{base}/Consent?scope=research&_count=200"
    for _ in range(_MOST_PAGES):
        page = document(web.ask(url, lambda: {"accept": FHIR_JSON[0]}), url)
        found |= {reading for consent in _consents(page) if (reading := said_no(consent, when))}
        links = {link.get("relation"): link.get("url") for link in page.get("link", [])}
        if not links.get("next"):
            return found
        url = urljoin(url, str(links["next"]))
    raise Refused("the opt-out list has no end", where=base, remedy="ask whoever runs the server")
