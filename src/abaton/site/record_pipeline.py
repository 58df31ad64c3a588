"""A site at work: read, eligible, consented, kept, as a stream that counts why people drop out.

Invariants:
(1) nothing leaves the pipeline but :class:`~abaton.record_types.Deidentified` records, of consented subjects;
(2) every subject that is read is counted at every stage it reaches, and once where it stops, with a reason;
(3) memory is bounded by the records of one subject; temporary files are removed when the stream ends;
(4) no reason and no count ever holds a value of a record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from abaton.anonymity import AnonymitySettings
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import Need
from abaton.deid.transform_counts import Tally
from abaton.disclosure.attrition import Funnel, Stage
from abaton.errors import Refused
from abaton.features import Featurised, featurise_people
from abaton.fhir.bundles import apart
from abaton.record_types import Consented, Deidentified, Record
from abaton.site.config import SiteDocument
from abaton.site.config_reader import smallest_count, weaker
from abaton.site.consent_gate import ConsentGate, Permission
from abaton.site.sources.base import Faults, Source
from abaton.site.sources.queries import types_of
from abaton.site.subject_grouper import Grouping, Subject, together
from abaton.study import Study, judge

_TOO_LARGE = "has more records than limits.memory allows"
_NOTHING = "has no record that the study needs"


@dataclass(frozen=True, slots=True)
class KeptSubject:
    """A consented subject's de-identified records.

    ``subject`` is the Patient's id at the site, to ask for consent again at every round; it never leaves the
    site. ``identity`` is the new one, under which the records speak of the person.
    """

    subject: str
    identity: str
    records: tuple[Deidentified, ...]

    @property
    def key(self) -> str:
        """How the records, and so the rows of views and tables, name the person."""
        return f"Patient/{self.identity}"

    def __repr__(self) -> str:
        return f"KeptSubject({self.identity})"


@dataclass
class Site:
    """One site in one study.

    Args:
        document: What ``site.toml`` says.
        study: The study.
        source: Where the records come from.
        gate: Who knows the consents.
        names: The study's pseudonyms at this site.
        now: The moment for which consents are asked and ages counted.
        scratch: Where the temporary file is made.
    """

    document: SiteDocument
    study: Study
    source: Source
    gate: ConsentGate
    names: Pseudonyms
    now: datetime
    scratch: Path | None = None
    funnel: Funnel = field(default_factory=Funnel, init=False)
    read: Counter[str] = field(default_factory=Counter, init=False)
    left_out: Counter[str] = field(default_factory=Counter, init=False)
    tally: Tally = field(default_factory=Tally, init=False)
    refused: set[str] = field(default_factory=set, init=False, repr=False)
    """Who was read and has not agreed, by the Patient's id; it never leaves the site."""
    people: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """Of everybody who was kept: how rows name them, and the Patient's id; it never leaves the site."""

    def __post_init__(self) -> None:
        if found := next(weaker(self.document, self.study), None):
            raise Refused(found[1], where="the site's rules", remedy=found[2])

    @property
    def faults(self) -> Faults:
        """What could not be read, or belongs to nobody."""
        return self.source.faults

    @property
    def need(self) -> Need:
        """What the study needs, today."""
        return self.study.need(self.now.date())

    @property
    def anonymity(self) -> AnonymitySettings | None:
        """What is asked of the whole table: the study's settings, with the site's k where that is larger."""
        asked = self.study.privacy.anonymity
        return None if asked is None else replace(asked, k=max(asked.k, self.document.rules.k or 0))

    def kept(self) -> Iterator[KeptSubject]:
        """Every subject that is read, eligible and consented, with what is kept of their records."""
        self.funnel, self.read, self.left_out, self.tally = Funnel(), Counter(), Counter(), Tally()
        self.faults.clear()
        self.people, self.refused = {}, set()
        cleaner = _Cleaner(self)
        for subject in self._subjects():
            self.funnel.reach(Stage.READ)
            if reason := self._not_eligible(subject):
                self.funnel.stop(Stage.ELIGIBLE, reason)
                continue
            self.funnel.reach(Stage.ELIGIBLE)
            permission = self.gate(subject.id, self.now, kinds=cleaner.kinds(subject))
            if not permission.allowed:
                self.funnel.stop(Stage.CONSENTED, permission.reason)
                self.refused.add(subject.id)
                continue
            self.funnel.reach(Stage.CONSENTED)
            try:
                records = cleaner(subject, permission)
            except Refused as error:
                self.funnel.stop(Stage.KEPT, f"refused: {error.what}")
                continue
            if not records:
                self.funnel.stop(Stage.KEPT, _NOTHING)
                continue
            self.funnel.reach(Stage.KEPT)
            kept = KeptSubject(subject.id, self.names.identity("Patient", subject.id), records)
            self.people[kept.key] = subject.id
            yield kept
        self.tally = cleaner.tally()

    def records(self) -> Iterator[Deidentified]:
        """All records that are kept, subject by subject."""
        for subject in self.kept():
            yield from subject.records

    def table(self) -> Featurised:
        """The study's table of this site: one row for every kept subject that has what the study needs.

        Raises:
            SettingsError: The study has no features.
            Refused: A view makes rows of people who are not kept, such as the holder of somebody's insurance.
        """
        plan = self.study.plan().model_copy(update={"floor": smallest_count(self.document, self.study)})
        made = featurise_people(plan, (subject.records for subject in self.kept()))
        named = set(made.table.subjects) if made.table is not None else set()
        if named - self.people.keys() or made.rows + made.lost.total() > len(self.people):
            raise Refused(
                "a view of the study makes rows of people who have not agreed",
                where="[[views]]",
                remedy="let the column 'subject' be the person that a record is about",
            )
        self.funnel = self.funnel.with_rows(made.rows, made.lost)
        return made

    def _subjects(self) -> Iterator[Subject]:
        wanted = types_of(self.need, self.study.eligibility)
        if self.source.by_subject:
            for record in self.source.records():
                yield together(record, wanted, self.read, self.document.limits.memory)
            self.source.close()
            return
        with closing(Grouping(wanted, self.faults, self.scratch, self.document.limits.memory)) as grouping:
            for record in self.source.records():
                grouping.add(record)
            self.read = grouping.read
            yield from grouping.subjects()
        self.source.close()

    def _not_eligible(self, subject: Subject) -> str:
        if subject.too_large:
            return _TOO_LARGE
        contents = [record.content for record in subject.records]
        reasons = judge(self.study.eligibility, contents, self.now.date()).reasons
        return reasons[0] if reasons else ""


class _Cleaner:
    """From a consented subject's records to de-identified ones: the study's rules first, then the site's."""

    def __init__(self, site: Site) -> None:
        rules, need = site.document.rules, site.need
        self._site, self._leaving = site, need.types | {"Patient"}
        self._first = Deidentifier(need, site.names, year=site.now.year)
        extra = tuple(rule.plain() for rule in rules.deidentification)
        coarser = rules.dates if rules.dates is not need.deidentification.dates else None
        self._second = self._first.stricter(extra, coarser) if extra or coarser else None
        self.tally = self._first.tally

    def kinds(self, subject: Subject) -> frozenset[str]:
        """The types of a subject's records that would leave."""
        return self._leaving & {record.type for record in subject.records}

    def __call__(self, subject: Subject, permission: Permission) -> tuple[Deidentified, ...]:
        """What is kept of a subject: neither what the site never gives, nor what the consent leaves out."""
        held_back = dict.fromkeys(permission.without, "not covered by the consent")
        held_back |= dict.fromkeys(self._site.document.rules.never, "the site never gives this type")
        entries = []
        for url, record in subject.entries:
            if record.type in held_back and record.type in self._leaving:
                self._site.left_out[f"{record.type}: {held_back[record.type]}"] += 1
            else:
                entries.append({"resource": record.content, **({"fullUrl": url} if url else {})})
        bundle = Record({"resourceType": "Bundle", "type": "collection", "entry": entries})
        assert permission.ground is not None  # whoever says yes says why
        made = self._first(Consented(bundle, permission.ground))
        if made is not None and self._second is not None:
            made = self._second(made)
        return () if made is None else tuple(apart(made))
