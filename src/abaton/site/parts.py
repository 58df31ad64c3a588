"""Parts of a study's own at a site: what the site's document does not allow by name and version does not run there."""

from __future__ import annotations

from collections.abc import Iterator

from abaton.documents.line_numbers import KeyPath
from abaton.plugins import absent, registered, same_package
from abaton.site.document import SiteDocument
from abaton.study import Study


def not_allowed(site: SiteDocument, study: Study) -> Iterator[tuple[KeyPath, str, str]]:
    """Every part of the study's own that would run here and may not: where, what, what to do.

    Only the packages' metadata are read: nothing of theirs is run to find out.
    """
    learning = study.learning
    if learning is None or not learning.parts:
        return
    for kind, name in learning.own_parts:
        part = registered(learning.parts, kind, {}).get(name)
        if part is None:
            missing = [remedy for _, _, remedy in absent(learning.parts)]
            yield (
                ("parts",),
                f"the study's {kind} '{name}' comes from a package that is not installed here",
                "; ".join(missing) or "ask the centre which package it is from",
            )
        elif not _allows(site, part.package, part.version):
            yield (
                ("parts", part.package),
                f"the study's {kind} '{name}' comes from the package {part.package} {part.version}, "
                "which the site's document does not allow",
                f'write {part.package} = "{part.version}" under [parts] if it may run here',
            )


def _allows(site: SiteDocument, package: str, version: str) -> bool:
    return any(same_package(name, package) and allowed == version for name, allowed in site.parts.items())
