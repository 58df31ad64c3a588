"""Study document (research definition document, RDD) and its hash.

Invariants:
(1) a :class:`Study` is complete and valid;
(2) it is the same whether it was read from ``study.toml`` or from an InteropEHRate Bundle;
(3) its :attr:`Study.hash` depends on its content only; consents refer to it;
(4) reading never weakens it: restrictions of a Bundle that the document cannot express are refused.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from abaton.canonical_json import canonical_digest
from abaton.deid.settings import DataRequest, DeidentificationSettings, Mechanism
from abaton.documents.fields import (
    Coding,
    DateField,
    DatePeriod,
    Duration,
    Section,
    Text,
    duration_days,
    field_error,
    field_errors,
    without_empty,
)
from abaton.errors import SettingsError
from abaton.features.specification import FeatureSpec, ResolvedFeatureSpec
from abaton.study.consistency import consistency_errors
from abaton.study.criteria import Eligibility
from abaton.study.data_requirements import Frequency, PostalAddress, RequirementSection, Telecom
from abaton.study.learning import LearningSection
from abaton.study.sections import (
    DEFAULT_STATEMENTS,
    CitizenSection,
    ConsentSection,
    ConsentStatement,
    DeidentificationField,
    PrivacySection,
    ViewSection,
    required_statements,
)

FORMAT = "abaton-study/1"


class Purpose(StrEnum):
    """Primary purpose of a study (HL7 research-study-prim-purp-type)."""

    TREATMENT = "treatment"
    PREVENTION = "prevention"
    DIAGNOSTIC = "diagnostic"
    SUPPORTIVE_CARE = "supportive-care"
    SCREENING = "screening"
    HEALTH_SERVICES_RESEARCH = "health-services-research"
    BASIC_SCIENCE = "basic-science"
    DEVICE_FEASIBILITY = "device-feasibility"


class StudyStatus(StrEnum):
    """Status of a study (codes of FHIR ResearchStudy)."""

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


class SharedData(StrEnum):
    """Data that leave a site: sealed de-identified records, model updates, or both."""

    RECORDS = "records"
    UPDATES = "updates"


class Identification(Section):
    """Section ``[study]``: name, question, purpose, dates and legal basis."""

    id: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")]
    system: Text | None = None
    version: Text = "1"
    title: Text
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] = "en"
    status: StudyStatus = StudyStatus.ACTIVE
    purpose: Purpose
    question: Text | None = None
    legal_basis: Text | None = None
    shared_data: tuple[SharedData, ...] = (SharedData.RECORDS,)
    regions: tuple[Coding, ...] = Field(min_length=1)
    conditions: tuple[Coding, ...] = ()
    period: DatePeriod
    enrolment: DatePeriod
    retention: Duration | None = None

    @model_validator(mode="after")
    def _check_shared_data_and_dates(self) -> Self:
        if not self.shared_data or len(set(self.shared_data)) < len(self.shared_data):
            raise field_error(
                "'shared_data' is empty or has duplicates", "list 'records', 'updates' or both, once each"
            )
        if self.period.end and self.enrolment.start and self.enrolment.start > self.period.end:
            raise field_error(
                "enrolment starts after the end of the study", "correct 'enrolment' or 'period'"
            )
        return self


class Contact(Section):
    """Contact for questions about the study."""

    name: Text | None = None
    telecom: tuple[Telecom, ...] = ()

    @model_validator(mode="after")
    def _check_contact(self) -> Self:
        if not (self.name or self.telecom):
            raise field_error(
                "the contact has neither name nor telecom", "give a name, a phone number or an e-mail address"
            )
        return self


class Endpoint(Section):
    """Endpoint of the research centre's service."""

    url: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$")]
    name: Text | None = None
    status: Annotated[str, Field(pattern="^(active|suspended|error|off|entered-in-error|test)$")] = "active"
    connection: Coding = Coding(
        system="http://terminology.hl7.org/CodeSystem/endpoint-connection-type", code="hl7-fhir-rest"
    )
    payloads: tuple[Coding, ...] = (
        Coding(system="http://terminology.hl7.org/CodeSystem/endpoint-payload-type", code="any"),
    )


class ResearchCentre(Section):
    """Research centre that is responsible for the study and receives what sites share."""

    name: Text
    id: Text | None = None
    system: Text | None = None
    types: tuple[Coding, ...] = Field(min_length=1)
    telecom: tuple[Telecom, ...] = Field(min_length=1)
    address: PostalAddress
    endpoint: Endpoint


class AttachedDocument(Section):
    """Attached document, such as the study protocol."""

    title: Text | None = None
    content_type: Text
    language: Text | None = None
    created: DateField | None = None
    url: Text | None = None
    data: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+={0,2}$")] | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if (self.url is None) == (self.data is None):
            raise field_error(
                "a document has both or neither of 'data' (base64) and 'url'", "give one of them"
            )
        return self


class Questionnaire(Section):
    """Questionnaire for subjects, with deadline and reminder frequency."""

    reference: Annotated[str, Field(pattern=r"^Questionnaire/[A-Za-z0-9\-.]{1,64}$")]
    deadline: DateField
    reminder: Frequency
    resource: Annotated[dict[str, Any], AfterValidator(without_empty)] | None = None

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.resource is not None:
            resource_name = f"{self.resource.get('resourceType')}/{self.resource.get('id')}"
            if resource_name != self.reference:
                raise field_error(
                    "'resource' and 'reference' are different questionnaires", "correct one of them"
                )
        return self


class Study(Section):
    """Complete and valid study document."""

    study: Identification
    centre: ResearchCentre
    contacts: tuple[Contact, ...] = Field(min_length=1)
    eligibility: Eligibility
    data: tuple[RequirementSection, ...] = Field(min_length=1)
    deidentification: DeidentificationField = Field(default_factory=DeidentificationSettings)
    privacy: PrivacySection = PrivacySection()
    views: tuple[ViewSection, ...] = ()
    features: FeatureSpec | None = None
    learning: LearningSection | None = None
    consent: ConsentSection | None = None
    citizens: CitizenSection | None = None
    documents: tuple[AttachedDocument, ...] = ()
    questionnaires: tuple[Questionnaire, ...] = ()

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        if self.consent and (
            missing := [s for s in self.required_statements if s not in self.consent.statements]
        ):
            first = missing[0]
            raise field_error(
                f"the required consent statement '{first.value}' is missing",
                f'add under [consent.statements]: {first.value} = "{DEFAULT_STATEMENTS[first]}"',
            )
        if not self.study.question and not any(d.content_type == "application/pdf" for d in self.documents):
            raise field_error(
                "the study has neither a question nor a PDF", "write 'question' under [study], or add a PDF"
            )
        if self.citizens and (SharedData.RECORDS not in self.study.shared_data or self.consent is None):
            raise field_error(
                "[citizens] requires shared records and a consent text",
                "add 'records' to study.shared_data and write [consent], or remove [citizens]",
            )
        if errors := consistency_errors(self):
            raise field_errors(errors)
        return self._check_hash()

    def _check_hash(self) -> Self:
        """Refuse a study document that has no canonical JSON form and so no hash."""
        try:
            assert self.hash
        except SettingsError as error:
            raise field_error(error.what, error.remedy) from None
        return self

    @property
    def required_statements(self) -> tuple[ConsentStatement, ...]:
        """Return the consent statements that the study document requires, by what leaves the sites and how."""
        shared_data, settings = self.study.shared_data, self.deidentification
        return required_statements(
            records=SharedData.RECORDS in shared_data,
            updates=SharedData.UPDATES in shared_data,
            anonymised=settings.mechanism is Mechanism.ANONYMISE,
        )

    def content(self) -> dict[str, Any]:
        """Return the study document as JSON values, without absent or empty ones."""
        pruned: dict[str, Any] = without_empty(self.model_dump(mode="json"))
        return pruned

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the study document's canonical content and format; consents refer to it."""
        return canonical_digest({"format": FORMAT, **self.content()})

    @property
    def end(self) -> datetime | None:
        """Return the first timestamp after the study document's period, or None if it is open."""
        end = self.study.period.end
        return None if end is None else datetime(end.year, end.month, end.day, tzinfo=UTC) + timedelta(days=1)

    @property
    def keep_until(self) -> datetime | None:
        """Return when the study document requires deletion of all data: the retention period after its end."""
        retention = (
            timedelta(days=duration_days(self.study.retention)) if self.study.retention else timedelta()
        )
        return None if self.end is None else self.end + retention

    def data_request(self, today: date) -> DataRequest:
        """Return the data request of the study document for de-identification on a given date."""
        requirements = tuple(requirement.to_requirement(today) for requirement in self.data)
        return DataRequest(self.study.id, requirements, self.deidentification, self.privacy.min_cell_count)

    def feature_spec(self) -> ResolvedFeatureSpec:
        """Return the feature specification of the study document with the views it reads.

        Raises:
            SettingsError: The document has no features.
        """
        if self.features is None:
            raise SettingsError(
                "the study has no features",
                where="[features]",
                remedy="add [features] with inputs and a label",
            )
        views = {view.name: view.definition() for view in self.views}
        return ResolvedFeatureSpec(
            **dict(self.features), views=views, min_cell_count=self.privacy.min_cell_count
        )
