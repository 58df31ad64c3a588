"""Settings of secure sums that the study document fixes, and the numbers that follow from them.

With n listed sites of which up to c may work together with the centre, t = floor((n + c) / 2) + 1 sites must help to
open a sum. Then 2t > n + c: two sets of t sites share more than c sites, so at least one honest site is in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from abaton.errors import SettingsError
from abaton.governance.identifiers import is_name
from abaton.secure_sum.sum_keys import hash_parts

MIN_LISTED_SITES, MAX_LISTED_SITES = 3, 50
_LEAST_SUMMED = 3


@dataclass(frozen=True)
class SumSettings:
    """Sites of a study's secure sums and the rules of every sum.

    Args:
        study: Hash of the study document.
        run: Name of the run.
        sites: Fingerprint of the signing key of each listed site, by site.
        colluding: Number of sites that may work together with the centre; 0 only with three sites.
        min_subjects: Fewest subjects of the *other* sites in a sum, for each of its sites.
        fixed_groups: Whether a sum covers only whole groups of :attr:`groups`, against differencing between sums.
        same_version: Whether all contributions of a sum start from one version. Only a buffered scheduler needs False.

    >>> settings = SumSettings("hash", "run", {name: f"key-{name}" for name in ("cos", "kos", "naxos", "rhodes")})
    >>> settings.threshold, settings.min_sites, settings.max_absent, [len(group) for group in settings.groups]
    (3, 3, 1, [4])
    """

    study: str
    run: str
    sites: Mapping[str, str] = field(hash=False)
    colluding: int = 1
    min_subjects: int = 0
    fixed_groups: bool = True
    same_version: bool = True

    def __post_init__(self) -> None:
        count = len(self.sites)
        if not MIN_LISTED_SITES <= count <= MAX_LISTED_SITES:
            raise _error(
                f"{count} sites are listed", f"list {MIN_LISTED_SITES} to {MAX_LISTED_SITES} sites with keys"
            )
        if not all(is_name(name) for name in (self.study, self.run, *self.sites)):
            raise _error("a name has characters that are not visible ASCII", "rename the study, run or site")
        if len(set(self.sites.values())) < count:
            raise _error("two listed sites have the same signing key", "list the key of each site")
        least = 0 if count == MIN_LISTED_SITES else 1
        if not least <= self.colluding <= count - 2:
            raise _error(
                f"colluding = {self.colluding} is not possible with {count} sites",
                f"use {least} to {count - 2}",
            )
        if self.min_subjects < 0:
            raise _error("min_subjects is negative", "use 0 or more")

    @property
    def threshold(self) -> int:
        """Number of sites that must help to open a sum, t."""
        return (len(self.sites) + self.colluding) // 2 + 1

    @property
    def min_sites(self) -> int:
        """Fewest contributors of a sum, m: at least two of them are honest."""
        return max(_LEAST_SUMMED, self.colluding + 2)

    @property
    def max_absent(self) -> int:
        """Number of listed sites without which a sum can still be opened."""
        return len(self.sites) - self.threshold

    @cached_property
    def groups(self) -> tuple[frozenset[str], ...]:
        """Fixed groups of at least `min_sites` listed sites, the same in every run of the study.

        Sites are ordered by a digest of study and site and cut into equal groups, so no run can have other groups.
        """
        order = sorted(self.sites, key=lambda site: hash_parts(b"group", self.study.encode(), site.encode()))
        count = max(1, len(order) // self.min_sites)
        return tuple(frozenset(order[start::count]) for start in range(count))


def _error(what: str, remedy: str) -> SettingsError:
    return SettingsError(what, where="secure_sum", remedy=remedy)
