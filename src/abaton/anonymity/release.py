"""What would be shown of a table: the names every combination gets, its class, and what stays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from abaton.anonymity.equivalence_classes import Mask, Table
from abaton.anonymity.hierarchies import Label
from abaton.anonymity.lattice import Node, Recoding, optimum
from abaton.anonymity.mondrian import Boxes, boxes
from abaton.anonymity.privacy_models import safe
from abaton.anonymity.settings import AnonymitySettings
from abaton.errors import Refused


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """A table as it would be shown.

    Attributes:
        method: How it was made: ``as is``, ``recode`` or ``mondrian``.
        key: The class of every combination.
        classes: How many classes there are.
        covered: Per quasi-identifier, how many values of the domain the name of each combination covers.
        names: Per quasi-identifier, the names in use; ``places`` says which one each combination gets.
        places: Per quasi-identifier, an index into its names for every combination.
        kept: Which combinations are shown; the others are left out.
        node: The level of every quasi-identifier, where all records share one.
        nodes: How many nodes the lattice has, where one was searched.
        evaluated: How many of them were counted.
    """

    method: str
    key: NDArray[np.intp]
    classes: int
    covered: tuple[NDArray[np.int64], ...]
    names: tuple[tuple[Label, ...], ...]
    places: tuple[NDArray[np.intp], ...]
    kept: Mask
    node: Node | None = None
    nodes: int = 0
    evaluated: int = 0


def as_is(table: Table) -> Release:
    """A table shown unchanged, nobody left out."""
    node = (0,) * len(table.ladders)
    return recoded_as(table, node, np.ones(len(table.counts), bool), method="as is")


def recoded(table: Table, recoding: Recoding) -> Release:
    """A table shown on the levels a search has found."""
    made = recoded_as(table, recoding.node, recoding.kept)
    return replace(made, nodes=recoding.nodes, evaluated=recoding.evaluated)


def make_release(table: Table, settings: AnonymitySettings) -> Release:
    """Make a table anonymous in the way the study asks for.

    Args:
        table: The combinations of quasi-identifiers and their counts.
        settings: What the study asks; with method ``measure`` the table is shown as it is or refused.

    Returns:
        What may be shown; every class of it satisfies k, diversity and closeness.

    Raises:
        Refused: The study's anonymity cannot be reached within its suppression limit.
    """
    if settings.method == "recode":
        return recoded(table, optimum(table, settings))
    if settings.method == "mondrian":
        return _boxed(table, boxes(table, settings))
    if not satisfied(table, as_is(table), settings):
        raise Refused(
            "the table as it is does not satisfy the study's anonymity",
            where="privacy.anonymity",
            remedy="set method = 'recode' or 'mondrian' to have it coarsened",
        )
    return as_is(table)


def satisfied(table: Table, shown: Release, settings: AnonymitySettings) -> bool:
    """Whether everything shown satisfies every model, and no more than the limit stays out."""
    overall = [column.overall for column in table.sensitive]
    seen = table.people.per_class(shown.key, shown.classes, shown.kept)
    held = safe(shown.key, seen, settings.k, table.sensitive, overall, shown.kept)
    left_out = int(table.counts[~shown.kept].sum()) + table.hidden
    return bool(held[shown.kept].all()) and left_out <= settings.suppression_limit * table.records


def recoded_as(table: Table, node: Sequence[int], kept: Mask, *, method: str = "recode") -> Release:
    """A table shown on given levels, some combinations left out."""
    key, classes = table.classes(node)
    places = tuple(
        made.steps[level][code].astype(np.intp)
        for made, code, level in zip(table.ladders, table.codes, node, strict=True)
    )
    levels = list(zip(table.ladders, node, strict=True))
    covered = tuple(made.leaves[level][place] for (made, level), place in zip(levels, places, strict=True))
    names = tuple(made.labels[level] for made, level in levels)
    return Release(method, key, classes, covered, names, places, kept, tuple(node))


def _boxed(table: Table, made: Boxes) -> Release:
    covered = tuple((high - low + 1)[made.key] for low, high in made.ranges)
    places = tuple(place[made.key] for place in made.places)
    kept = np.ones(len(table.counts), bool)
    return Release("mondrian", made.key, int(made.key.max()) + 1, covered, made.names, places, kept)
