"""Parts of your own that an installed package registers as entry points, to be named in a study document.

A study says which packages its own parts come from, and in which version; nothing else that is installed is looked at.
Looking a name up reads the packages' metadata and runs nothing; a part's code is loaded by `Registered.load` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any

from abaton.errors import SettingsError

GROUPS: Mapping[str, str] = {
    "codec": "abaton.codecs",
    "network": "abaton.models",
    "pacing": "abaton.pacing",
    "robust mixing": "abaton.robust",
    "server optimiser": "abaton.server",
    "weighting": "abaton.weighting",
}
"""Every kind of part that a package may register, and the group of entry points for it."""

AT_SITES = frozenset({"codec", "network"})
"""The kinds that run where the records are, and so need the permission of each site."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A part that an installed package registers."""

    kind: str
    name: str
    package: str
    version: str
    entry: EntryPoint

    def load(self) -> Any:
        """The class or function itself; this runs code of the package.

        Raises:
            SettingsError: It cannot be loaded.
        """
        try:
            return self.entry.load()
        except (ImportError, AttributeError) as error:
            raise SettingsError(
                f"the {self.kind} '{self.name}' of {self.package} {self.version} cannot be loaded",
                where=self.entry.value,
                remedy=f"mend the package, or install another version ({type(error).__name__})",
            ) from error


def same_package(one: str, other: str) -> bool:
    """Whether two spellings name one package.

    >>> same_package("My_Codecs", "my-codecs")
    True
    """
    return _spelt(one) == _spelt(other)


def registered(packages: Mapping[str, str], kind: str, ours: Mapping[str, Any]) -> dict[str, Registered]:
    """The parts of a kind that some packages have, by their names; those that are not installed so have none.

    Args:
        packages: The packages that a study names, and the version of each.
        kind: One of `GROUPS`.
        ours: The parts that ship with Abaton: nobody else's may have their names.

    Raises:
        SettingsError: A name is taken.
    """
    found: dict[str, Registered] = {}
    for package, version in packages.items():
        for part in _of(package, version, kind):
            if part.name in ours or part.name in found:
                whose = "Abaton's own" if part.name in ours else f"also one of {found[part.name].package}"
                raise SettingsError(
                    f"the package {package} calls a {kind} '{part.name}', which is {whose}",
                    where="parts",
                    remedy="let the package choose another name",
                )
            found[part.name] = part
    return found


def whose(kind: str, name: str) -> str:
    """A remedy for a name that no named package has: which installed package has it, if one does."""
    for entry in entry_points(group=GROUPS[kind], name=name):
        if entry.dist is not None:
            package = entry.dist.metadata["Name"]
            return f'{package} has one: write {package} = "{entry.dist.version}" under [learning.parts]'
    return f"or install a package that registers it under {GROUPS[kind]}, and name it under [learning.parts]"


def absent(packages: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Packages that are not installed as they are named: which, what is wrong, and what to install."""
    for package, version in packages.items():
        found = _installed(package)
        remedy = f"install it: pip install {package}=={version}"
        if found is None:
            yield package, f"the package {package} {version} is not installed", remedy
        elif found.version != version:
            words = (
                f"the package {package} is installed in version {found.version}, the study names {version}"
            )
            yield package, words, remedy


def _installed(package: str) -> Distribution | None:
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None


def _of(package: str, version: str, kind: str) -> Iterator[Registered]:
    found = _installed(package)
    if found is None or found.version != version:
        return
    for entry in found.entry_points:
        if entry.group == GROUPS[kind]:
            yield Registered(kind, entry.name, package, version, entry)


def _spelt(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
