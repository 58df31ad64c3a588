"""Release gate of a site: the only way for a number about subjects to leave it, besides model updates.

Every number is a count of disjoint groups (`ReleaseGate.table`) or a sum of bounded contributions of subjects
(`ReleaseGate.total`; `ReleaseGate.share` for a sum over sites). At level `noisy` discrete Gaussian noise of public size
is added. It is derived from the site's secret, the epoch, the question and the subjects:

- the question, because equal noise in two questions would show that their groups of subjects are equal;
- the epoch, because all answers change between epochs, so a change does not show that a subject left;
- the subjects, because after the loss of the register a group without one subject must have other noise.

Within an epoch the first answer is repeated, also if subjects have left since. Neighbouring data sets differ in one
subject with all its rows.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.canonical_json import canonical_digest, to_canonical_json
from abaton.disclosure.levels import DisclosureLevel, NoiseSettings, table_cost
from abaton.disclosure.noise import KeyedStream, discrete_gaussian
from abaton.disclosure.release_register import RecordedRelease, ReleaseRegister
from abaton.errors import RefusedError

MIN_SITES = 3
"""Smallest number of sites in a sum at level `summed`."""

_UNITS_PER_BOUND = 20  # a bound is 2^20 to 2^21 units of the grid on which sums are computed
_SECONDS_PER_DAY = 86400
_TOKEN = object()

Values = NDArray[np.float64]
Units = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a site; its digest is part of the key of the noise.

    Attributes:
        kind: Kind of number, such as `attrition`; shown by `abaton site releases`.
        study: Id of the study, whose budget is charged. All versions of a study have one id.
        about: Everything that determines the answer besides the subjects: criteria, columns, digest of the model.
    """

    kind: str
    study: str
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of the question that is released and recorded."""
        return canonical_digest({"kind": self.kind, "study": self.study, "about": dict(self.about)})


@dataclass(frozen=True, slots=True)
class Released:
    """Numbers that may leave a site. Only a release gate can create it.

    Attributes:
        values: Released numbers by name; the coordinates of a sum are named 0, 1, 2, ...
        sd: Standard deviation of the noise of each number; 0 without noise.
        suppressed: Names of counts that are below the threshold at level `exact`; they have no value.
    """

    values: Mapping[str, float]
    sd: float
    suppressed: frozenset[str] = frozenset()
    token: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not _TOKEN:
            raise TypeError("only a ReleaseGate releases numbers")

    @property
    def vector(self) -> Values:
        """Released coordinates of a sum."""
        return np.array([self.values[str(i)] for i in range(len(self.values))], np.float64)

    def to_row(self) -> dict[str, Any]:
        """Return released numbers as JSON values, as they are sent."""
        return {"values": dict(self.values), "sd": self.sd, "suppressed": sorted(self.suppressed)}


@dataclass(frozen=True, slots=True)
class SumShare:
    """A site's part of a sum over sites, for a secure sum only: alone it has too little noise, or none.

    Attributes:
        units: Coordinates as integers; the sites' integers are added.
        unit: Value of one unit, the same at all sites.
        sd: Standard deviation of the noise of the sum over all sites.
    """

    units: tuple[int, ...]
    unit: float
    sd: float
    token: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not _TOKEN:
            raise TypeError("only a ReleaseGate releases numbers")


class ReleaseGate:
    """Release gate of one site at one disclosure level.

    Args:
        register: The site's register of releases and of the privacy budget.
        level: Disclosure level that applies; see `abaton.disclosure.levels`.
        settings: Sizes of the noise, budgets and threshold.
        clock: Returns the time, which decides epoch and year.
    """

    def __init__(
        self,
        register: ReleaseRegister,
        level: DisclosureLevel = DisclosureLevel.NOISY,
        settings: NoiseSettings | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.register, self.level, self._clock = register, level, clock
        self.settings = settings or NoiseSettings()

    def table(
        self, question: Question, cells: Mapping[str, Collection[str]], *, sd: float | None = None
    ) -> Released:
        """Release the number of subjects in disjoint cells; with noise, empty cells have noise as well.

        Adding one subject changes one cell by 1, so the table costs 1/(2 sd²), however many cells it has.

        Args:
            question: What is counted. It must determine the names of the cells.
            cells: Patient ids in each cell, empty cells included.
            sd: Standard deviation of the noise; by default that of the settings for tables.

        Raises:
            RefusedError: A subject is in two cells, or the privacy budget is used up.
        """
        sd = self.settings.table_sd if sd is None else sd
        _check_positive(sd=sd)
        members = {name: frozenset(subjects) for name, subjects in cells.items()}
        if sum(map(len, members.values())) != len(frozenset().union(*members.values())):
            raise RefusedError(
                f"a subject is in two cells of the table '{question.kind}'", remedy="count each subject once"
            )
        counts = {name: len(subjects) for name, subjects in members.items()}
        self._check_single_site()
        if self.level is DisclosureLevel.EXACT:
            suppressed = frozenset(name for name, n in counts.items() if 0 < n < self.settings.threshold)
            values = {name: float(n) for name, n in counts.items() if name not in suppressed}
            return self._record_exact(question, values, suppressed)
        variance = Fraction(sd) ** 2
        subjects_key = self._key_digest(
            to_canonical_json({name: sorted(subjects) for name, subjects in members.items()})
        )

        def answer(epoch: int) -> dict[str, Any]:
            streams = {name: self._stream(epoch, question.digest, subjects_key, name) for name in counts}
            noisy = {name: n + discrete_gaussian(streams[name], variance) for name, n in counts.items()}
            return {"values": noisy, "sd": sd}

        row = self._answer_once(question, question.digest, table_cost(sd), answer)
        return Released({name: float(n) for name, n in row["values"].items()}, row["sd"], token=_TOKEN)

    def total(
        self,
        question: Question,
        subjects: Sequence[str],
        contributions: Values,
        bound: float,
        multiplier: float,
    ) -> Released:
        """Release a sum over subjects of bounded vectors; the cost is 1/(2 multiplier²).

        All rows of a subject are added first. The result is clipped to the L2 norm `bound`, so adding or removing a
        subject moves the sum by at most `bound`. The caller states a bound that also holds for changing a record.

        Args:
            question: What is summed.
            subjects: Patient id of each row.
            contributions: One row per entry of `subjects`.
            bound: The most that adding, removing or changing the record of one subject moves the sum.
            multiplier: Standard deviation of the noise in units of `bound`.

        Raises:
            RefusedError: The privacy budget is used up; without noise, fewer subjects than the threshold.
        """
        _check_positive(bound=bound, multiplier=multiplier)
        self._check_single_site()
        names, vectors = _clipped_by_subject(subjects, contributions, bound)
        if self.level is DisclosureLevel.EXACT:
            if len(names) < self.settings.threshold:
                raise RefusedError(
                    f"the sum '{question.kind}' is over fewer than {self.settings.threshold} subjects"
                )
            sums = {str(i): math.fsum(column) for i, column in enumerate(vectors.T)}
            return self._record_exact(question, sums, frozenset())
        grid = _Grid.for_bound(bound, vectors.shape[1])
        variance = (Fraction(multiplier) * grid.bound) ** 2
        make_answer = self._noisy_units(question.digest, names, grid, vectors, variance)
        row = self._answer_once(question, question.digest, table_cost(multiplier), make_answer)
        return Released(
            {str(i): n * row["unit"] for i, n in enumerate(row["units"])}, row["sd"], token=_TOKEN
        )

    def share(
        self,
        question: Question,
        subjects: Sequence[str],
        contributions: Values,
        bound: float,
        multiplier: float,
        sites: int,
        cohort_digest: str,
        colluding: int = 0,
    ) -> SumShare:
        """Return the site's part of a sum over sites, with its part of the noise; it may enter a secure sum only.

        If one site alone drew its noise anew, the noise of the others would cancel in the difference of two sums.
        Therefore the noise also depends on the digest of all sites' cohorts, and a new digest is a new question.

        Args:
            question: What is summed.
            subjects: Patient id of each row.
            contributions: One row per entry of `subjects`.
            bound: The most that adding, removing or changing the record of one subject moves the sum.
            multiplier: Standard deviation of the noise of the sum, in units of `bound`, that protects a subject.
            sites: Number of sites in the sum.
            cohort_digest: Digest of the cohorts of all sites in the sum.
            colluding: Sites that may pass their own part of the noise to the centre; it is then not counted.

        Raises:
            RefusedError: The privacy budget is used up; at level `summed`, fewer than three sites.
        """
        _check_positive(bound=bound, multiplier=multiplier)
        if not 0 <= colluding < sites:
            raise ValueError("fewer sites must collude than take part")
        if self.level is DisclosureLevel.SUMMED and sites < MIN_SITES:
            raise RefusedError(f"a sum over {sites} sites is not released at level 'summed'")
        names, vectors = _clipped_by_subject(subjects, contributions, bound)
        grid = _Grid.for_bound(bound, vectors.shape[1])
        key = canonical_digest([question.digest, cohort_digest, sites, colluding])
        if self.level is not DisclosureLevel.NOISY:
            exact = [int(n) for n in grid.round(vectors).sum(0)]
            self.register.replace_answer(self._release(question, key, Fraction(0)), {"units": exact})
            return SumShare(tuple(exact), grid.unit, 0.0, _TOKEN)
        variance = (Fraction(multiplier) * grid.bound) ** 2 / (sites - colluding)
        make_answer = self._noisy_units(key, names, grid, vectors, variance)
        row = self._answer_once(question, key, table_cost(multiplier), make_answer)
        return SumShare(tuple(row["units"]), row["unit"], math.sqrt(sites) * row["sd"], _TOKEN)

    def cost(self, question: Question, sd: float) -> float:
        """Return what a release would cost now: 0 without noise, and for a question answered in this epoch.

        Args:
            question: The question.
            sd: Standard deviation of a table, or multiplier of a sum.
        """
        is_free = self.level is not DisclosureLevel.NOISY or self.register.is_answered(
            question.digest, self.epoch, self.level
        )
        return 0.0 if is_free else float(table_cost(sd))

    def remaining(self, study: str) -> float:
        """Return what remains of the privacy budget for further releases to a study this year."""
        return float(self.register.remaining(study, self._clock().year, self.settings))

    @property
    def epoch(self) -> int:
        """Number of the current epoch of releases."""
        return int(self._clock().timestamp() // (_SECONDS_PER_DAY * self.settings.epoch_days))

    def _check_single_site(self) -> None:
        if self.level is DisclosureLevel.SUMMED:
            raise RefusedError(
                "at level 'summed' no number of a single site is released",
                where="[privacy] disclosure",
                remedy="use a sum over at least three sites, or another level",
            )

    def _record_exact(
        self, question: Question, values: dict[str, float], suppressed: frozenset[str]
    ) -> Released:
        answer = {"values": values, "suppressed": sorted(suppressed)}
        self.register.replace_answer(self._release(question, question.digest, Fraction(0)), answer)
        return Released(values, 0.0, suppressed, _TOKEN)

    def _answer_once(
        self, question: Question, digest: str, cost: Fraction, make_answer: Callable[[int], dict[str, Any]]
    ) -> dict[str, Any]:
        release = self._release(question, digest, cost)
        return self.register.answer_once(release, self.settings, lambda: make_answer(release.epoch))

    def _release(self, question: Question, digest: str, cost: Fraction) -> RecordedRelease:
        now = self._clock()
        return RecordedRelease(
            digest, question.kind, question.study, self.level, self.epoch, now.astimezone(UTC), cost
        )

    def _noisy_units(
        self, digest: str, names: Sequence[str], grid: _Grid, vectors: Values, variance: Fraction
    ) -> Callable[[int], dict[str, Any]]:
        """Return a function that adds the noise of an epoch to the sum of the subjects' vectors."""
        units = grid.round(vectors)
        key = self._key_digest(to_canonical_json(list(names)) + units.astype("<i8").tobytes())

        def answer(epoch: int) -> dict[str, Any]:
            noise = [
                discrete_gaussian(self._stream(epoch, digest, key, str(i)), variance)
                for i in range(units.shape[1])
            ]
            noisy = [int(n) + extra for n, extra in zip(units.sum(0), noise, strict=True)]
            return {"units": noisy, "unit": grid.unit, "sd": math.sqrt(variance) * grid.unit}

        return answer

    def _key_digest(self, content: bytes) -> str:
        return hmac.new(self.register.secret, b"subjects" + content, hashlib.sha256).hexdigest()

    def _stream(self, epoch: int, question: str, subjects_key: str, cell: str) -> KeyedStream:
        return KeyedStream(self.register.secret, to_canonical_json([epoch, question, subjects_key, cell]))


def sum_shares(shares: Sequence[SumShare], names: Sequence[str] = ()) -> Released:
    """Return the sum of the shares of at least three sites as released numbers.

    On a network the sites' integers are added by a secure sum; on one machine they are added here.

    Args:
        shares: One share of each site.
        names: Names of the coordinates; 0, 1, 2, ... if not given.
    """
    if len(shares) < MIN_SITES or len({(share.unit, share.sd, len(share.units)) for share in shares}) != 1:
        raise ValueError("the shares are not of three or more sites with the same question")
    sums = [sum(column) * shares[0].unit for column in zip(*(share.units for share in shares), strict=True)]
    keys = names or [str(i) for i in range(len(sums))]
    return Released(dict(zip(keys, sums, strict=True)), shares[0].sd, token=_TOKEN)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Grid on which sums are integers, so that no floating-point number carries a subject's low bits.

    Attributes:
        unit: A power of two.
        bound: Bound of a change in units, including the rounding of every coordinate and of the clipping.
    """

    unit: float
    bound: int

    @classmethod
    def for_bound(cls, bound: float, coordinates: int) -> _Grid:
        """Return the grid for a released sum with a bound and a number of coordinates."""
        unit = 2.0 ** (math.floor(math.log2(bound)) - _UNITS_PER_BOUND)
        return cls(unit, math.ceil(bound / unit) + math.ceil(math.sqrt(coordinates)) + 1)

    def round(self, vectors: Values) -> Units:
        """Return vectors in units of the grid of a released sum."""
        return np.rint(vectors / self.unit).astype(np.int64)


def _clipped_by_subject(
    subjects: Sequence[str], contributions: Values, bound: float
) -> tuple[list[str], Values]:
    """Return the sorted subjects, and for each the sum of its rows, clipped to the L2 norm `bound`."""
    rows = np.asarray(contributions, np.float64)
    if rows.ndim != 2 or len(rows) != len(subjects):
        raise ValueError("a sum needs one row of contributions for each entry of subjects")
    if not np.isfinite(rows).all():
        raise ValueError("a contribution is not a finite number")
    names = sorted(set(subjects))
    index = {name: i for i, name in enumerate(names)}
    vectors = np.zeros((len(names), rows.shape[1]))
    np.add.at(vectors, [index[subject] for subject in subjects], rows)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return names, vectors * np.minimum(1.0, bound / np.maximum(norms, np.finfo(float).tiny))


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise ValueError(f"{name} is not a number above 0")
