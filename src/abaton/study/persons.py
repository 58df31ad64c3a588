"""How people may take part with their own records, on the citizen's page."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from abaton.documents.fields import Part, Text

Origin = Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$")]
# Records come over lines that nobody reads along; plain ones lead to the same device alone, for trials.
_SAFE = r"(https://[A-Za-z0-9.-]{1,253}|http://(127\.0\.0\.1|localhost))(:[0-9]{1,5})?"
Source = Annotated[str, Field(pattern=f"^{_SAFE}$")]


class Hospital(Part):
    """A hospital at which people may sign in and fetch their own records themselves (SMART on FHIR).

    ``fhir`` is the address of its FHIR server, ``client`` the name under which the hospital knows the page.
    """

    name: Text
    fhir: Annotated[str, Field(pattern=f"^{_SAFE}(/[A-Za-z0-9._~-]{{1,64}}){{0,8}}$")]
    client: Annotated[str, Field(pattern=r"^[A-Za-z0-9._~:/-]{1,200}$")]


class Persons(Part):
    """How people may take part with their own records.

    ``admission`` is ``code`` (whoever has a one-time code from a hospital or a letter) or ``open`` (anybody). ``most``
    is the largest number of people. ``origins`` are the web addresses from which the page may be used; none named
    means that of the centre's endpoint alone. ``hospitals`` are those at which people may fetch their records, and
    ``sources`` are further web addresses from which the page may fetch them: of SMART Health Links, and of a
    hospital's sign-in if it is not at its FHIR server.
    """

    admission: Literal["code", "open"] = "code"
    most: int = Field(10_000, ge=1, le=10_000_000)
    origins: tuple[Origin, ...] = ()
    sources: tuple[Source, ...] = ()
    hospitals: tuple[Hospital, ...] = ()

    @property
    def reached(self) -> tuple[str, ...]:
        """Every web address besides its own that the page may talk to.

        >>> Persons(hospitals=[Hospital(name="A", fhir="https://fhir.example.org/r4", client="abaton")]).reached
        ('https://fhir.example.org',)
        """
        addresses = (*self.sources, *(hospital.fhir for hospital in self.hospitals))
        return tuple(sorted({"{0.scheme}://{0.netloc}".format(urlsplit(each)) for each in addresses}))
