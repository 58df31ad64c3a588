"""Data requirements of a study document, with frequencies, contact points and addresses."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Self

from pydantic import Field, model_validator

from abaton.deid.settings import CodeFilter, CodePattern, DataRequirement, DateFilter, RequirementPurpose
from abaton.documents.fields import (
    CodePrefix,
    Coding,
    DateField,
    Duration,
    EndDate,
    Section,
    StartDate,
    Text,
    field_error,
    subtract_duration,
)
from abaton.errors import SettingsError, did_you_mean
from abaton.fhir.elements import child_elements, element_table, resource_types


class Frequency(Section):
    """Frequency of data collection: ``times`` per ``every`` units, at most ``count`` times, or ``on`` dates."""

    times: int | None = Field(None, ge=1)
    every: float | None = Field(None, gt=0)
    unit: Annotated[str, Field(pattern="^(s|min|h|d|wk|mo|a)$")] | None = None
    count: int | None = Field(None, ge=1)
    on: tuple[DateField, ...] = ()

    @model_validator(mode="after")
    def _check_frequency(self) -> Self:
        if not (self.on or self.count) and self.every is None:
            raise field_error(
                "the frequency is empty", "write for example { times = 2, every = 1, unit = 'mo' }"
            )
        if (self.every is None) != (self.unit is None):
            raise field_error(
                "one of 'every' and 'unit' is missing", "write for example every = 1, unit = 'wk'"
            )
        return self


class Telecom(Section):
    """Contact point: phone number, e-mail address or URL."""

    system: Annotated[str, Field(pattern="^(phone|fax|email|pager|url|sms|other)$")]
    value: Text
    use: Annotated[str, Field(pattern="^(home|work|temp|old|mobile)$")] | None = None


class PostalAddress(Section):
    """Postal address of the research centre."""

    lines: tuple[Text, ...] = ()
    city: Text | None = None
    district: Text | None = None
    state: Text | None = None
    postcode: Text | None = None
    country: Text | None = None
    text: Text | None = None
    use: Annotated[str, Field(pattern="^(home|work|temp|old|billing)$")] | None = None
    kind: Annotated[str, Field(pattern="^(postal|physical|both)$")] | None = None

    @model_validator(mode="after")
    def _check_address(self) -> Self:
        if not (self.lines or self.city or self.country or self.text):
            raise field_error("the address is empty", "give at least a city or a country")
        return self


def has_element(resource_type: str, path: str) -> bool:
    """Return whether a data requirement's R4 resource type has the element with which a path begins.

    >>> has_element("Observation", "value"), has_element("Observation", "birthDate")
    (True, False)
    """
    return bool(child_elements(element_table()[resource_type], path.partition(".")[0]))


class CodeRequirement(Section):
    """Filter: the element at ``path`` must have any of the codes, or one of a value set."""

    path: Text
    any_of: tuple[Coding, ...] = ()
    value_set: Text | None = None

    def to_filter(self) -> CodeFilter:
        """Return the code filter of a study's data requirement for de-identification."""
        patterns = (
            CodePattern(coding.system, coding.code, is_prefix=coding.match is CodePrefix.STARTS_WITH)
            for coding in self.any_of
        )
        return CodeFilter(self.path, tuple(patterns))

    @model_validator(mode="after")
    def _check_codes(self) -> Self:
        if not self.any_of and not self.value_set:
            raise field_error(
                "the filter names no codes", "write any_of = [{ system = '...', code = '...' }]"
            )
        return self


class DateRequirement(Section):
    """Filter: the element at ``path`` must be on a date, in a period, or within the last duration."""

    path: Text
    on: DateField | None = None
    start: StartDate | None = None
    end: EndDate | None = None
    last: Duration | None = None

    @model_validator(mode="after")
    def _check_dates(self) -> Self:
        has_period = self.start is not None or self.end is not None
        if (self.on is not None) + (self.last is not None) + has_period != 1:
            raise field_error(
                "a date filter has none or several of 'on', 'start'/'end' and 'last'", "use one of them"
            )
        if self.start and self.end and self.start > self.end:
            raise field_error("the date filter ends before it starts", "swap start and end")
        return self

    def to_filter(self, today: date) -> DateFilter:
        """Return the date filter of a study's data requirement; ``last`` is counted back from `today`."""
        if self.last is not None:
            return DateFilter(self.path, subtract_duration(today, self.last).isoformat(), today.isoformat())
        days = [self.on or self.start, self.on or self.end]
        return DateFilter(self.path, *(day.isoformat() if day else "" for day in days))


class RequirementSection(Section):
    """Data requirement; filters are joined by *and*, codes inside one by *or*."""

    type: Annotated[str, Field(pattern="^[A-Z][A-Za-z]{1,63}$")]
    purpose: RequirementPurpose = RequirementPurpose.DATA
    elements: tuple[Text, ...] = ()
    codes: tuple[CodeRequirement, ...] = ()
    dates: tuple[DateRequirement, ...] = ()
    frequency: Frequency | None = None

    @model_validator(mode="after")
    def _check_type_and_elements(self) -> Self:
        if self.type not in resource_types():
            raise field_error(
                "this is not an R4 resource type",
                did_you_mean(self.type, resource_types(), "use an R4 resource type"),
            )
        for name in self.elements:
            if not has_element(self.type, name):
                known = {element.stem for element in element_table()[self.type].values()}
                raise field_error(
                    f"one of 'elements' is not an element of {self.type}",
                    did_you_mean(name, known, f"use an element of {self.type}"),
                )
        return self

    @model_validator(mode="after")
    def _check_purpose(self) -> Self:
        # The constraints extIEHR-1 to extIEHR-5 of the FunctionExtension.
        is_valid = {
            RequirementPurpose.ELEMENT: len(self.elements) > 0,
            RequirementPurpose.AGE_FROM_DATE: len(self.elements) == 2,
        }
        if not is_valid.get(self.purpose, not self.elements):
            raise field_error(
                f"'elements' does not fit the purpose '{self.purpose.value}'",
                "list the elements to keep for 'element', subject and date for 'ageFromDate', and none for others",
            )
        return self

    def to_requirement(self, today: date | None = None) -> DataRequirement:
        """Return the ``[[data]]`` section of a study as data requirement for de-identification.

        Args:
            today: The date from which durations are counted back; None omits all filters.

        Raises:
            SettingsError: A filter names a value set, which a site cannot evaluate.
        """
        is_age = self.purpose is RequirementPurpose.AGE_FROM_DATE
        elements = self.elements[1:] if is_age else self.elements
        if today is None:
            return DataRequirement(self.type, self.purpose, elements)
        for requirement in self.codes:
            if not requirement.any_of:
                raise SettingsError(
                    f"a filter on {self.type} names a value set",
                    where="data requirements",
                    remedy="list its codes under 'any_of', exactly or by prefix",
                )
        return DataRequirement(
            self.type,
            self.purpose,
            elements,
            tuple(requirement.to_filter() for requirement in self.codes),
            tuple(requirement.to_filter(today) for requirement in self.dates),
        )
