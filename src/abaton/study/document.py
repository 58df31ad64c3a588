"""The study document: what a research centre asks, of whom, for how long, and how people are protected.

Invariants:
(1) a :class:`Study` is complete and checked; there is no half-valid one;
(2) it is the same whether it was read from ``study.toml`` or from an InteropEHRate Bundle;
(3) its :attr:`Study.hash` depends on its content alone; a consent is pinned to it;
(4) it never grows weaker by being read: what a Bundle narrows and we cannot express is refused.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.canonical_json import digest
from abaton.deid.settings import Deidentification, Mechanism, Need
from abaton.documents.fields import Day, Part, Period, Span, Term, Text, days, fault, faults, without_empty
from abaton.errors import SettingsError
from abaton.features.specification import Features, Plan
from abaton.study.consistency import misfits
from abaton.study.criteria import Eligibility
from abaton.study.data_requirements import Address, Frequency, Requirement, Telecom
from abaton.study.learning import Learning
from abaton.study.sections import (
    WORDING,
    Consent,
    Persons,
    Privacy,
    Protection,
    Statement,
    ViewTable,
    to_be_told,
)

FORMAT = "abaton-study/1"


class Purpose(StrEnum):
    """What a study is mainly for (HL7's research study primary purpose)."""

    TREATMENT = "treatment"
    PREVENTION = "prevention"
    DIAGNOSTIC = "diagnostic"
    SUPPORTIVE_CARE = "supportive-care"
    SCREENING = "screening"
    HEALTH_SERVICES_RESEARCH = "health-services-research"
    BASIC_SCIENCE = "basic-science"
    DEVICE_FEASIBILITY = "device-feasibility"


class Status(StrEnum):
    """Where a study stands (the codes of a FHIR ResearchStudy)."""

    ACTIVE = "active"
    ADMINISTRATIVELY_COMPLETED = "administratively-completed"
    APPROVED = "approved"
    CLOSED_TO_ACCRUAL = "closed-to-accrual"
    CLOSED_TO_ACCRUAL_AND_INTERVENTION = "closed-to-accrual-and-intervention"
    COMPLETED = "completed"
    DISAPPROVED = "disapproved"
    IN_REVIEW = "in-review"
    TEMPORARILY_CLOSED = "temporarily-closed-to-accrual"
    TEMPORARILY_CLOSED_WITH_INTERVENTION = "temporarily-closed-to-accrual-and-intervention"
    WITHDRAWN = "withdrawn"


class Shares(StrEnum):
    """What leaves a site: sealed de-identified records, updates of a model, or both."""

    RECORDS = "records"
    UPDATES = "updates"


class Identification(Part):
    """The study itself: its name, question, purpose, times and legal ground."""

    id: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    system: Text | None = None
    version: Text = "1"
    title: Text
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = "en"
    status: Status = Status.ACTIVE
    purpose: Purpose
    question: Text | None = None
    legal_basis: Text | None = None
    shares: tuple[Shares, ...] = (Shares.RECORDS,)
    regions: tuple[Term, ...] = Field(min_length=1)
    conditions: tuple[Term, ...] = ()
    period: Period
    enrolment: Period
    retention: Span | None = None

    @model_validator(mode="after")
    def _in_time(self) -> Self:
        if not self.shares or len(set(self.shares)) < len(self.shares):
            raise fault("'shares' is empty or repeats itself", "name 'records', 'updates' or both, once each")
        if self.period.end and self.enrolment.start and self.enrolment.start > self.period.end:
            raise fault("enrolment starts after the study has ended", "correct 'enrolment' or 'period'")
        return self


class Contact(Part):
    """Whom to ask about the study."""

    name: Text | None = None
    telecom: tuple[Telecom, ...] = ()

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if not (self.name or self.telecom):
            raise fault(
                "nobody can be reached through this contact", "give a name, a phone or an e-mail address"
            )
        return self


class Endpoint(Part):
    """The address of the research centre's service."""

    url: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$")]
    name: Text | None = None
    status: Annotated[str, Field(pattern="^(active|suspended|error|off|entered-in-error|test)$")] = "active"
    connection: Term = Term(
        system="http://terminology.hl7.org/CodeSystem/endpoint-connection-type", code="hl7-fhir-rest"
    )
    payloads: tuple[Term, ...] = (
        Term(system="http://terminology.hl7.org/CodeSystem/endpoint-payload-type", code="any"),
    )


class Centre(Part):
    """The research centre that answers for the study and receives what is sent."""

    name: Text
    id: Text | None = None
    system: Text | None = None
    kinds: tuple[Term, ...] = Field(min_length=1)
    telecom: tuple[Telecom, ...] = Field(min_length=1)
    address: Address
    endpoint: Endpoint


class Document(Part):
    """A paper that belongs to the study, such as its protocol."""

    title: Text | None = None
    content_type: Text
    language: Text | None = None
    created: Day | None = None
    url: Text | None = None
    data: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if (self.url is None) == (self.data is None):
            raise fault(
                "a document is either inside ('data', base64) or elsewhere ('url')", "give one of them"
            )
        return self


class Questionnaire(Part):
    """Questions for the subject, with the day they are due and how often to remind."""

    reference: Annotated[str, Field(pattern=r"^Questionnaire/[A-Za-z0-9\-.]{1,64}$")]
    deadline: Day
    reminder: Frequency
    resource: Annotated[dict[str, Any], AfterValidator(without_empty)] | None = None

    @model_validator(mode="after")
    def _same(self) -> Self:
        if self.resource is not None:
            found = f"{self.resource.get('resourceType')}/{self.resource.get('id')}"
            if found != self.reference:
                raise fault(
                    "'resource' is not the questionnaire that 'reference' names", "correct one of them"
                )
        return self


class Study(Part):
    """One study, complete and checked: the Research Definition Document."""

    study: Identification
    centre: Centre
    contacts: tuple[Contact, ...] = Field(min_length=1)
    eligibility: Eligibility
    data: tuple[Requirement, ...] = Field(min_length=1)
    deidentification: Protection = Field(default_factory=Deidentification)
    privacy: Privacy = Privacy()
    views: tuple[ViewTable, ...] = ()
    features: Features | None = None
    learning: Learning | None = None
    consent: Consent | None = None
    persons: Persons | None = None
    documents: tuple[Document, ...] = ()
    questionnaires: tuple[Questionnaire, ...] = ()

    @model_validator(mode="after")
    def _told(self) -> Self:
        if self.consent and (missing := [s for s in self.statements if s not in self.consent.statements]):
            first = missing[0]
            raise fault(
                f"the consent text does not say what it must: statement '{first.value}' is missing",
                f'add under [consent.statements]: {first.value} = "{WORDING[first]}"',
            )
        if not self.study.question and not any(d.content_type == "application/pdf" for d in self.documents):
            raise fault("the study describes itself nowhere", "write 'question' under [study], or add a PDF")
        if self.persons and (Shares.RECORDS not in self.study.shares or self.consent is None):
            raise fault(
                "[persons] needs a study that takes records and has a consent text",
                "add 'records' to study.shares and write [consent], or remove [persons]",
            )
        if wrong := misfits(self):
            raise faults(wrong)
        return self._fingerprinted()

    def _fingerprinted(self) -> Self:
        """A study that has no exact form in JSON could not be pinned by a consent."""
        try:
            assert self.hash
        except SettingsError as error:
            raise fault(error.what, error.remedy) from None
        return self

    @property
    def statements(self) -> tuple[Statement, ...]:
        """What people must be told, given what leaves the sites and how it is protected."""
        shares, wish = self.study.shares, self.deidentification
        return to_be_told(
            records=Shares.RECORDS in shares,
            updates=Shares.UPDATES in shares,
            anonymised=wish.mechanism is Mechanism.ANONYMISE,
        )

    def content(self) -> dict[str, Any]:
        """The document as plain values, without what is absent or empty."""
        pruned: dict[str, Any] = without_empty(self.model_dump(mode="json"))
        return pruned

    @cached_property
    def hash(self) -> str:
        """The fingerprint that consents are pinned to: SHA-256 of the canonical content and its format."""
        return digest({"format": FORMAT, **self.content()})

    @property
    def ends(self) -> datetime | None:
        """The first moment after the study; nothing if its period is open."""
        end = self.study.period.end
        return None if end is None else datetime(end.year, end.month, end.day, tzinfo=UTC) + timedelta(days=1)

    @property
    def keep_until(self) -> datetime | None:
        """When everything of the study has to be gone: after its retention, or at its end if it states none."""
        kept = timedelta(days=days(self.study.retention)) if self.study.retention else timedelta()
        return None if self.ends is None else self.ends + kept

    def need(self, today: date) -> Need:
        """All that the de-identifier has to know of this study, on a given day."""
        wants = tuple(requirement.plain(today) for requirement in self.data)
        return Need(self.study.id, wants, self.deidentification)

    def plan(self) -> Plan:
        """The feature plan: from the columns of the views to a site's table.

        Raises:
            SettingsError: The document has no features.
        """
        if self.features is None:
            raise SettingsError(
                "the study has no features", where="[features]", remedy="say what a model is made of"
            )
        views = {view.name: view.definition() for view in self.views}
        return Plan(**dict(self.features), views=views, floor=self.deidentification.count_floor)
