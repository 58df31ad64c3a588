"""How people may take part with their own records, on the citizen's page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from abaton.documents.values import Part

Origin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$")]


class Persons(Part):
    """How people may take part with their own records.

    ``admission`` is ``code`` (whoever has a one-time code from a hospital or a letter) or ``open`` (anybody). ``most``
    is the largest number of people. ``origins`` are the web addresses from which the page may be used; none named
    means that of the centre's endpoint alone.
    """

    admission: Literal["code", "open"] = "code"
    most: int = Field(10_000, ge=1, le=10_000_000)
    origins: tuple[Origin, ...] = ()
