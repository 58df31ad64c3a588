"""The form of what a site tells of its cohort: whatever has another form is refused before it is kept or shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from abaton.federation.network.wording import unreadable

Line = Annotated[str, Field(max_length=400, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$")]
Number = Annotated[int, Field(ge=0)]
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
