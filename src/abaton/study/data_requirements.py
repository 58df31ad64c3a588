"""What the study needs to know: resource types, which of them, and what of them.

The values that only a study document has: how often, and where a research centre is.
"""

from __future__ import annotations

from datetime import date
from difflib import get_close_matches
from typing import Annotated, Self

from pydantic import Field, model_validator

from abaton.deid.settings import Code, CodeFilter, DateFilter, Function, Want
from abaton.documents.fields import Day, End, Match, Part, Span, Start, Term, Text, before, fault
from abaton.errors import SettingsError
from abaton.fhir.elements import children, resources, table


class Frequency(Part):
    """How often something is asked for: ``times`` per ``every`` units, ``count`` times, or ``on`` days."""

    times: int | None = Field(None, ge=1)
    every: float | None = Field(None, gt=0)
    unit: Annotated[str, Field(pattern="^(s|min|h|d|wk|mo|a)$")] | None = None
    count: int | None = Field(None, ge=1)
    on: tuple[Day, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not (self.on or self.count) and self.every is None:
            raise fault(
                "the frequency says nothing", "write for example { times = 2, every = 1, unit = 'mo' }"
            )
        if (self.every is None) != (self.unit is None):
            raise fault("'every' and 'unit' belong together", "write for example every = 1, unit = 'wk'")
        return self


class Telecom(Part):
    """A way to reach somebody."""

    system: Annotated[str, Field(pattern="^(phone|fax|email|pager|url|sms|other)$")]
    value: Text
    use: Annotated[str, Field(pattern="^(home|work|temp|old|mobile)$")] | None = None


class Address(Part):
    """Where the research centre is."""

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
    def _somewhere(self) -> Self:
        if not (self.lines or self.city or self.country or self.text):
            raise fault("the address names no place", "give at least a city or a country")
        return self


def has_element(resource_type: str, path: str) -> bool:
    """Whether R4 gives a resource type the element with which a path begins.

    >>> has_element("Observation", "value"), has_element("Observation", "birthDate")
    (True, False)
    """
    return bool(children(table()[resource_type], path.partition(".")[0]))


class CodeRule(Part):
    """The element at ``path`` must carry any of the codes (or one of a value set)."""

    path: Text
    any: tuple[Term, ...] = ()
    value_set: Text | None = None

    @model_validator(mode="after")
    def _some_codes(self) -> Self:
        if not self.any and not self.value_set:
            raise fault("the filter names no codes", "write any = [{ system = '...', code = '...' }]")
        return self


class DateRule(Part):
    """The element at ``path`` must lie on a day, in a period, or within the last span of time."""

    path: Text
    on: Day | None = None
    start: Start | None = None
    end: End | None = None
    last: Span | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = (
            (self.on is not None) + (self.last is not None) + (self.start is not None or self.end is not None)
        )
        if ways != 1:
            raise fault(
                "a date filter needs one way to say when", "use 'on', or 'start' and 'end', or 'last'"
            )
        if self.start and self.end and self.start > self.end:
            raise fault("the date filter ends before it starts", "swap start and end")
        return self

    def plain(self, today: date) -> DateFilter:
        """The filter as the de-identifier takes it; ``last`` is counted back from today."""
        if self.last is not None:
            return DateFilter(self.path, before(today, self.last).isoformat(), today.isoformat())
        days = [self.on or self.start, self.on or self.end]
        return DateFilter(self.path, *(day.isoformat() if day else "" for day in days))


class Requirement(Part):
    """One line of what the study needs to know. Filters are joined by *and*, codes inside one by *or*."""

    type: Annotated[str, Field(pattern="^[A-Z][A-Za-z]{1,63}$")]
    function: Function = Function.DATA
    elements: tuple[Text, ...] = ()
    codes: tuple[CodeRule, ...] = ()
    dates: tuple[DateRule, ...] = ()
    frequency: Frequency | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.type not in resources():
            close = get_close_matches(self.type, resources(), n=1)
            guess = f"did you mean '{close[0]}'?" if close else "use an R4 resource type"
            raise fault(f"R4 has no resource type '{self.type}'", guess)
        for name in self.elements:
            if not has_element(self.type, name):
                known = {element.stem for element in table()[self.type].values()}
                close = get_close_matches(name, known, n=1)
                guess = f"did you mean '{close[0]}'?" if close else f"use an element of {self.type}"
                raise fault(f"{self.type} has no element '{name}'", guess)
        return self

    @model_validator(mode="after")
    def _parameters(self) -> Self:
        # The constraints extIEHR-1 to extIEHR-5 of the FunctionExtension.
        wanted = {Function.ELEMENT: len(self.elements) > 0, Function.AGE_FROM_DATE: len(self.elements) == 2}
        if not wanted.get(self.function, not self.elements):
            raise fault(
                f"'elements' does not fit the function '{self.function.value}'",
                "'element' names what to keep, 'ageFromDate' the subject and the date, others nothing",
            )
        return self

    def plain(self, today: date) -> Want:
        """The line as the de-identifier takes it.

        Raises:
            SettingsError: The line narrows its data in a way that cannot be evaluated at a site.
        """
        for rule in self.codes:
            if not rule.any:
                raise SettingsError(
                    f"a filter on {self.type}.{rule.path} names a value set",
                    where="data requirements",
                    remedy="list its codes under 'any', one by one or by how they begin",
                )
        aged = self.function is Function.AGE_FROM_DATE
        return Want(
            self.type,
            self.function,
            self.elements[1:] if aged else self.elements,
            tuple(CodeFilter(rule.path, tuple(_code(term) for term in rule.any)) for rule in self.codes),
            tuple(rule.plain(today) for rule in self.dates),
        )


def _code(term: Term) -> Code:
    """A term as the de-identifier takes it."""
    return Code(term.system, term.code, begins=term.match is Match.STARTS_WITH)
