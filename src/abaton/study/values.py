"""The values that only a study document has: how often, and where a research centre is."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from abaton.documents.fields import Day, Part, Text, fault


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
