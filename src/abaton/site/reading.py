"""Reading ``site.toml``, and holding it against a study: a weaker rule is refused with its name and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from abaton.documents.line_numbers import KeyPath as Keys
from abaton.documents.line_numbers import line_numbers, nearest_line
from abaton.documents.problems import DocumentError, Guide, Problem, dotted
from abaton.documents.reading import read_document, text_of
from abaton.documents.toml import checked_toml
from abaton.deid.settings import Dates
from abaton.site.document import SiteDocument
from abaton.site.parts import not_allowed
from abaton.study import Study

_GUIDE = Guide("abaton site new", "docs/site.md")
_STRICTNESS = (Dates.SHIFT, Dates.YEAR, Dates.REMOVE)


class SiteError(DocumentError):
    """A site's document that cannot be used, with every problem found in it."""


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A site's document, and the folder it lies in: its paths are meant from there."""

    document: SiteDocument
    folder: Path
    name: str
    text: str

    def path(self, place: str) -> Path:
        """The file that the document means by a path."""
        return self.folder / place

    def against(self, study: Study) -> None:
        """Refuse whatever in the site's document is weaker than the study, and parts that it does not allow.

        Raises:
            SiteError: With every such setting, its line and its remedy.
        """
        lines = line_numbers(self.text)
        found = [
            Problem(self.name, dotted(keys), what, remedy, nearest_line(lines, keys))
            for keys, what, remedy in (*weaker(self.document, study), *not_allowed(self.document, study))
        ]
        if found:
            raise SiteError(found)


def load_site(file: Path) -> SiteFile:
    """Read and check a site's document.

    Raises:
        SiteError: With every problem that was found, each with its line and its remedy.
    """
    text = text_of(read_document(file, SiteError), str(file), SiteError)
    return SiteFile(site_from_toml(text, str(file)), file.parent, str(file), text)


def site_from_toml(text: str, file: str = "site.toml") -> SiteDocument:
    """Check the text of a ``site.toml``.

    Raises:
        SiteError: With every problem that was found, each with its line.
    """
    return checked_toml(text, file, SiteDocument, _GUIDE, SiteError)


def weaker(site: SiteDocument, study: Study) -> Iterator[tuple[Keys, str, str]]:
    """Every setting of the site that is weaker than the study's, or cannot be kept: where, what, what to do."""
    rules, wish = site.rules, study.deidentification
    asked = study.privacy.anonymity
    if rules.k is not None and asked is not None and rules.k < asked.k:
        yield (
            ("rules", "k"),
            f"the site's rule k = {rules.k} is weaker than the study's k = {asked.k}",
            "raise it, or leave it out",
        )
    if rules.k is not None and asked is None:
        yield (
            ("rules", "k"),
            f"the site's rule k = {rules.k} cannot be kept: the study does not say by what people are recognised",
            "ask for [privacy.anonymity] in the study, or leave it out",
        )
    if rules.smallest_count is not None and rules.smallest_count < wish.count_floor:
        yield (
            ("rules", "smallest_count"),
            f"the site's rule smallest_count = {rules.smallest_count} is weaker than the study's "
            f"count_floor = {wish.count_floor}",
            "raise it, or leave it out",
        )
    if rules.dates is not None and _STRICTNESS.index(rules.dates) < _STRICTNESS.index(wish.dates):
        yield (
            ("rules", "dates"),
            f"the site's rule dates = '{rules.dates.value}' is weaker than the study's '{wish.dates.value}'",
            "choose a coarser one, or leave it out",
        )


def smallest_count(site: SiteDocument, study: Study) -> int:
    """The smallest number of people that may be told: the larger of the site's, 5 by default, and the study's."""
    return max(site.rules.smallest_count or 5, study.deidentification.count_floor)
