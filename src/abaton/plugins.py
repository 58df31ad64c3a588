"""Plugins: components that installed packages register as entry points, to be named in a study document.

A study lists the packages of its plugins with their versions; other installed packages are ignored. Resolving a name
reads only package metadata; the code of a plugin is loaded by `PluginInfo.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any

from abaton.errors import SettingsError

ENTRY_POINT_GROUPS: Mapping[str, str] = {
    "codec": "abaton.codecs",
    "model": "abaton.models",
    "scheduler": "abaton.schedulers",
    "robust aggregation": "abaton.robust_aggregators",
    "server optimiser": "abaton.server_optimisers",
    "weighting": "abaton.weightings",
}
"""Entry point group of each kind of component that a package may register."""

SITE_KINDS = frozenset({"codec", "model"})
"""Kinds of components that run at the sites and so need the permission of each site."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """Component that an installed package registers."""

    kind: str
    name: str
    package: str
    version: str
    entry_point: EntryPoint

    def load(self) -> Any:
        """Load the plugin's class or function; this executes code of its package.

        Raises:
            SettingsError: It cannot be loaded.
        """
        try:
            return self.entry_point.load()
        except (ImportError, AttributeError) as error:
            raise SettingsError(
                f"the {self.kind} '{self.name}' of {self.package} {self.version} cannot be loaded",
                where=self.entry_point.value,
                remedy=f"repair the package, or install another version ({type(error).__name__})",
            ) from error


def is_same_package(first: str, second: str) -> bool:
    """Return whether two spellings name the same plugin package.

    >>> is_same_package("My_Codecs", "my-codecs")
    True
    """
    return _normalise(first) == _normalise(second)


def find_plugins(
    packages: Mapping[str, str], kind: str, built_in: Mapping[str, Any]
) -> dict[str, PluginInfo]:
    """Return the plugins of a kind in these packages by name; packages in another version have none.

    Args:
        packages: Versions of a study's packages by name.
        kind: Key of `ENTRY_POINT_GROUPS`.
        built_in: Built-in components, whose names are reserved.

    Raises:
        SettingsError: A name is used twice.
    """
    plugins: dict[str, PluginInfo] = {}
    for package, version in packages.items():
        for plugin in _plugins_of(package, version, kind):
            if plugin.name in built_in or plugin.name in plugins:
                owner = "Abaton" if plugin.name in built_in else plugins[plugin.name].package
                raise SettingsError(
                    f"the package {package} registers a {kind} '{plugin.name}', which {owner} also has",
                    where="plugins",
                    remedy="rename it in the package",
                )
            plugins[plugin.name] = plugin
    return plugins


def plugin_hint(kind: str, name: str) -> str:
    """Return a remedy for a name that no plugin of the study has: the installed package that has it, if any."""
    for entry in entry_points(group=ENTRY_POINT_GROUPS[kind], name=name):
        if entry.dist is not None:
            package = entry.dist.metadata["Name"]
            return f'{package} has one: write {package} = "{entry.dist.version}" under [learning.plugins]'
    group = ENTRY_POINT_GROUPS[kind]
    return f"or install a package that registers it under {group}, and add it to [learning.plugins]"


def missing_packages(packages: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield package, problem and remedy for plugin packages that are not installed in the named version."""
    for package, version in packages.items():
        installed = _find_distribution(package)
        remedy = f"install it: pip install {package}=={version}"
        if installed is None:
            yield package, f"the package {package} {version} is not installed", remedy
        elif installed.version != version:
            text = f"the package {package} is installed in version {installed.version}, the study names {version}"
            yield package, text, remedy


def _find_distribution(package: str) -> Distribution | None:
    try:
        return distribution(package)
    except PackageNotFoundError:
        return None


def _plugins_of(package: str, version: str, kind: str) -> Iterator[PluginInfo]:
    installed = _find_distribution(package)
    if installed is None or installed.version != version:
        return
    for entry in installed.entry_points:
        if entry.group == ENTRY_POINT_GROUPS[kind]:
            yield PluginInfo(kind, entry.name, package, version, entry)


def _normalise(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
