"""Parts of the learning that a study names: ours by their names, and those of packages that the study names too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from abaton.documents.fields import Part, fault
from abaton.errors import SettingsError
from abaton.plugins import absent, registered, whose
from abaton.specs import Value, find, make, read_part

CODEC, NETWORK, PACING = "codec", "network", "pacing"
ROBUST, SERVER, WEIGHTING = "robust mixing", "server optimiser", "weighting"

Packages = dict[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")],
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}$")],
]
"""Names of installed packages, and the version of each."""


def _plain(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise fault("a setting is a number, a word, true or false", "write it as one of them")
    return value


class NamedPart(Part):
    """A part by its name, with its settings beside it."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_plain)]] = Field(init=False)

    @property
    def settings(self) -> dict[str, Value]:
        """Its settings by their names."""
        return dict(self.__pydantic_extra__)

    @property
    def words(self) -> str:
        """The part as one line.

        >>> NamedPart(name="adam", rate=0.5).words
        'adam(rate=0.5)'
        """
        told = ", ".join(f"{key}={value}" for key, value in self.settings.items())
        return f"{self.name}({told})" if told else self.name


def _from_line(value: Any) -> Any:
    """A line such as ``adam(rate=0.5)`` as the table that it stands for."""
    if not isinstance(value, str):
        return value
    try:
        read = read_part(value)
    except SettingsError as error:
        raise fault(error.what, error.remedy or "write it as adam(rate=0.5)") from None
    if read.numbers or "name" in read.settings:
        raise fault("a setting has no name of its own", "write it as adam(rate=0.5)")
    return {"name": read.name, **read.settings}


Chosen = Annotated[NamedPart, BeforeValidator(_from_line)]
"""A part as a table, or as the line that stands for it."""


def chosen(line: str) -> NamedPart:
    """The part that a line names.

    >>> chosen("krum(liars=1)").settings
    {'liars': 1}
    """
    read = read_part(line)
    if read.numbers:
        raise SettingsError(f"{read.name} has a setting without a name", remedy="write it as adam(rate=0.5)")
    return NamedPart(name=read.name, **read.settings)


def ours(kind: str) -> Mapping[str, Callable[..., Any]]:
    """The parts of a kind that ship with Abaton, by their names."""
    if kind == CODEC:
        from abaton.codecs.registry import CODECS, STEPS

        return {**STEPS, **CODECS}
    from abaton import controller

    known: Mapping[str, Mapping[str, Callable[..., Any]]] = {
        PACING: {},  # ours are those of the policies
        ROBUST: {
            "median": controller.Median,
            "trimmed": controller.Trimmed,
            "krum": controller.Krum,
            "norm_bound": controller.NormBound,
        },
        SERVER: {"plain": controller.Plain, "momentum": controller.Momentum, "adam": controller.Adam},
        WEIGHTING: {
            "examples": controller.ByExamples,
            "validation": controller.ByValidation,
            "staleness": controller.ByStaleness,
        },
    }
    return known[kind]


def own(kind: str, name: str, packages: Mapping[str, str], known: Mapping[str, Any]) -> Callable[..., Any]:
    """A part that one of the study's packages registers; its code is loaded here.

    Raises:
        SettingsError: No package has it, or one is not there as the study names it.
    """
    found = registered(packages, kind, known)
    if name not in found:
        for _, what, remedy in absent(packages):
            raise SettingsError(f"there is no {kind} '{name}' here: {what}", remedy=remedy)
        try:
            find(kind, name, {**known, **found})
        except SettingsError as error:
            raise SettingsError(error.what, remedy=f"{error.remedy}; {whose(kind, name)}") from None
    loaded: Callable[..., Any] = found[name].load()
    return loaded


def made(kind: str, part: NamedPart, packages: Mapping[str, str] | None = None) -> Any:
    """The part that a study, or a line of the lab, names, ready for the rules."""
    known = ours(kind)
    maker = known[part.name] if part.name in known else own(kind, part.name, packages or {}, known)
    return make(part.name, maker, part.settings)
