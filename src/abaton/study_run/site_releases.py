"""What a site tells outside of training, held against its ledger: its funnel, combinations, sums and test rows.

What cannot be told anew because too few people have changed is told as it was before, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from abaton.errors import Refused
from abaton.study_run.preparation import Dealt, Member, Sums, sums
from abaton.study_run.preparation_state import Scale
from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import Choice, Histogram
from abaton.features import Moments, Statistics, Table, histogram
from abaton.site import Ledger
from abaton.study import Learning, Study

_FAR = 10.0  # deviations, and parts of one, by which what all scale by may differ from the site's own


def as_told(ledger: Ledger, study: Study, told: Mapping[str, Any]) -> dict[str, Any]:
    """How many people came how far, as it was told before unless every number has changed by the smallest count."""
    what = f"funnel/{study.hash}"
    before = ledger.told(what)
    if before is not None and not _apart(dict(_numbers(before)), dict(_numbers(told)), ledger.floor):
        return dict(before)
    ledger.replace(what, dict(told))
    return dict(told)


def sums_told(ledger: Ledger, study: Study, seed: int, dealt: Dealt) -> Sums:
    """What a site tells for scaling: of the people it told of before, or of a group that differs by enough of them.

    Raises:
        Refused: Too few have changed since, or too few are left.
    """
    assert study.learning is not None
    made, what = sums(study.learning, dealt), f"sums/{study.hash}/{seed}"
    people = [dealt.reading.people[subject] for subject in dealt.seen.subjects]
    if ledger.may_tell("sums", people):
        ledger.replace(what, _row(made))
        return made
    before = ledger.told(what)
    if before is None:
        raise Refused(
            "sums would tell of single people: fewer than the smallest count differ from what was told before"
        )
    return _sums(before)


def combinations_told(ledger: Ledger, study: Study, table: Table, settings: AnonymitySettings) -> Histogram:
    """How many people share each combination of quasi-identifiers: what was told the first time, and nothing after it.

    That holds for all versions of a study, whoever has come or gone since; so there is nothing to subtract.

    Raises:
        Refused: An earlier version asked by other columns or ranges, which could be subtracted, too.
    """
    ranges = [(quasi.column, asdict(quasi.hierarchy)) for quasi in settings.quasi_identifiers]
    asked = [ranges, [each.column for each in settings.sensitive], settings.missing]
    now = _plain({"asked": asked, "row": histogram(table, settings).row()})
    told = ledger.as_told(f"combinations/{study.study.id}", now)
    if told["asked"] != now["asked"]:
        raise Refused(
            "combinations were told by other columns or ranges before: a study has one set, and another id begins anew"
        )
    return Histogram.from_row(told["row"])


def check_choice(
    ledger: Ledger, study: Study, told: Histogram, choice: Choice, settings: AnonymitySettings
) -> Choice:
    """Refuse ranges by which a centre could ask about groups of its own choosing.

    Whoever hides at the site alone is shown, unless values are sensitive. Of the others, who hide among people of other
    sites or do not, one choice is taken for a study.

    Raises:
        Refused: The ranges are finer than what was told, or leave out others than they may.
    """
    own = told.on_levels(choice.node)
    without = {names: people for names, people in own.items() if names not in choice.classes}
    if not without:
        return choice
    if not settings.asks_of_values and max(without.values()) >= settings.k:
        raise Refused("the ranges leave out people who hide at the site alone")
    listed = _plain([choice.node, sorted(without, key=repr)])
    if ledger.as_told(f"left out/{study.study.id}", listed) != listed:
        raise Refused("other ranges have left out others before: a study has one choice")
    return choice


def _plain(value: Any) -> Any:
    """As a ledger gives it back."""
    return json.loads(json.dumps(value))


def one_seed(ledger: Ledger, study: Study, seed: int) -> int:
    """The seed of a study at a site: the first one that a centre gave; subjects are dealt once.

    Raises:
        Refused: Another one is given now.
    """
    if ledger.as_told(f"seed/{study.hash}", seed) != seed:
        raise Refused("subjects were dealt by another seed before: a study has one")
    return seed


def check_scale(learning: Learning, scale: Scale, own: Sums) -> Scale:
    """Refuse a scale by which single values would stand out.

    Raises:
        Refused: A column would be scaled by far less, or from far away of, what the site itself has.
    """
    columns = {
        name: (own.columns.of[name], each)
        for name, each in scale.columns.of.items()
        if name in own.columns.of
    }
    if columns.keys() != own.columns.of.keys():
        raise Refused("the scale is of other columns")
    wrong = [name for name, (mine, all_) in columns.items() if mine.count and not _like(mine, all_)]
    mean, deviation = scale.label
    if learning.task == "value" and own.label.count and not _near(own.label, mean, deviation):
        wrong.append("label")
    if wrong:
        raise Refused("the scale is far from what the site itself has: single values would stand out")
    return scale


def tellable(ledger: Ledger, member: Member, inside: frozenset[str]) -> frozenset[str]:
    """Whose test rows may be judged on: everybody who is in, or nobody, if too few have changed since the last time."""
    tested = [member.people[subject] for subject in member.test.subjects if subject in inside]
    return inside if ledger.may_tell("judged", tested) else frozenset()


def _like(mine: Moments, all_: Moments) -> bool:
    return all_.count >= mine.count and _near(mine, all_.mean, all_.deviation)


def _near(mine: Moments, mean: float, deviation: float) -> bool:
    own = mine.deviation
    return deviation > 0 and own <= _FAR * deviation and abs(mine.mean - mean) <= _FAR * max(own, deviation)


def _row(told: Sums) -> dict[str, Any]:
    named = {name: [each.count, each.total, each.squares] for name, each in told.columns.of.items()}
    return {"columns": named, "label": [told.label.count, told.label.total, told.label.squares]}


def _sums(row: Mapping[str, Any]) -> Sums:
    columns = Statistics({name: Moments(*each) for name, each in row["columns"].items()})
    return Sums(columns, Moments(*row["label"]))


def _apart(before: Mapping[str, str], now: Mapping[str, str], floor: int) -> bool:
    """Whether every number that differs does so by at least the floor; a number that comes or goes may not."""
    differing = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
    pairs = [(before.get(name, ""), now.get(name, "")) for name in differing]
    return all(a.isdigit() and b.isdigit() and abs(int(a) - int(b)) >= floor for a, b in pairs)


def _numbers(told: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(told, Mapping):
        for key, value in told.items():
            yield from _numbers(value, f"{path}/{key}")
    elif isinstance(told, list | tuple):
        for at, value in enumerate(told):
            yield from _numbers(value, f"{path}/{at}")
    else:
        yield path, str(told)
