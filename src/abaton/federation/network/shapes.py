"""The form of what a site tells of its cohort: whatever has another form is refused before it is used or shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from abaton.federation.network.wording import PEOPLE, text, unreadable
from abaton.records.anonymity.federated import Histogram

Line = Annotated[str, AfterValidator(text)]
Number = Annotated[int, Field(ge=0, le=PEOPLE)]
_MOST = 1000


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Reason(_Form):
    reason: Line
    subjects: Line


class _Stage(_Form):
    stage: Line
    subjects: Line
    left_out: list[_Reason] = Field(max_length=_MOST)


class _Aside(_Form):
    reason: Line
    count: Line | Number
    places: list[Line] = Field(max_length=0)


class _Cohort(_Form):
    funnel: list[_Stage] = Field(max_length=20)
    records: dict[Line, Line | Number] = Field(max_length=_MOST)
    set_aside: list[_Aside] = Field(max_length=_MOST)
    kept_back: dict[Line, Line | Number] = Field(max_length=_MOST)
    remarks: list[Line] = Field(max_length=_MOST)
    smallest_count: Number
    usable: bool


def cohort_told(said: object) -> Mapping[str, Any]:
    """What a site tells of its cohort; nothing if it tells nothing.

    >>> cohort_told({})
    {}
    """
    if said == {}:
        return {}
    try:
        return _Cohort.model_validate(said).model_dump()
    except ValidationError:
        raise unreadable() from None


class _Sensitive(_Form):
    values: list[Line | None]
    triples: list[tuple[Number, Number, Number]]
    unsure: list[Number]
    whole: list[Number]


class _Histogram(_Form):
    base: list[Number]
    chains: list[list[tuple[list[Line | None], Number]]]
    cells: list[list[Number]]
    counts: list[Number]
    people: list[Number]
    sensitive: list[_Sensitive]
    hidden: Number


def histogram_told(said: object) -> Histogram:
    """How many people of a site share each combination, with no number that could not be one of people."""
    try:
        _Histogram.model_validate_json(json.dumps(said))
    except (TypeError, ValueError):
        raise unreadable() from None
    assert isinstance(said, dict)
    return Histogram.from_row(said)
