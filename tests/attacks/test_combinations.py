"""A hostile centre and the counts of combinations: nobody is told of alone, whatever it asks, and however often."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tests.attacks.conftest import Centre

from abaton.engines.flower.site_worker import run_folder
from abaton.errors import Refused
from abaton.study_run.preparation import NOTHING_TOLD, federate
from abaton.study_run.site_service import Folder
from abaton.study_run.invitation import _choice
from abaton.study_run.ingest import read_sites
from abaton.study_run.site_releases import combinations_told
from abaton.governance import Registry, metadata
from abaton.anonymity import BinHierarchy
from abaton.anonymity.federated_recoding import Histogram, choose
from abaton.features import groups
from abaton.site import load_site, subject_tag
from abaton.store import Database
from abaton.study import load_study

FLOOR = 5
NAMES = ("athens", "kos", "pergamon", "trikala")


def table_of(centre):
    return Folder(run_folder(centre.desk.place, centre.run)).waiting().table


def withdraw(centre, subjects, people):
    file = load_site(next(path for path in centre.made.sites if path.parent.name == centre.site))
    registry = Registry(Database(file.path("consents.db"), metadata))
    for subject in subjects:
        gone = subject_tag(file.path("tags.key").read_bytes(), people[subject])
        registry.withdraw(gone, centre.study.study.id, datetime.now(UTC) - timedelta(hours=1))


@pytest.mark.parametrize("name", NAMES)
def test_no_combination_of_fewer_people_than_the_floor_is_told(four, tmp_path, name):
    """With a base of years, two of five combinations at a hospital of 130 people were of one person alone."""
    centre = Centre(four, tmp_path, site=name)
    told = Histogram.from_row(centre.ask("read")["histogram"])
    table = table_of(centre)
    ages = table.x[:, 0].astype(int)
    alone = np.unique(
        [f"{age} {sex}" for age, sex in zip(ages, groups(table, "sex"), strict=True)], return_counts=True
    )
    assert (alone[1] < FLOOR).sum() > 20, "there is much that must not be told"
    assert min(told.people) >= FLOOR
    assert told.hidden == 0 or told.hidden >= FLOOR
    assert sum(told.people) + told.hidden == len(table)
    assert {names[0] for names, _ in told.chains[0]} == {told.names(cell)[0] for cell in told.cells}


def test_one_person_withdrawn_between_two_runs_is_not_found_by_subtraction(centre, tmp_path):
    before = centre.ask("read")["histogram"]
    waiting = Folder(run_folder(centre.desk.place, "run")).waiting()
    withdraw(centre, waiting.table.subjects[:1], waiting.people)
    later = Centre(centre.made, tmp_path / "later", run="later")
    assert later.ask("read")["histogram"] == before
    assert len(table_of(later)) == len(waiting.table) - 1, "their row is gone all the same"


def test_another_version_of_the_study_tells_no_more_of_who_withdrew(centre, tmp_path):
    """A new title makes a new hash; what was told of the same people was told by the old one."""
    before = centre.ask("read")["histogram"]
    table, asked = table_of(centre), centre.study.privacy.anonymity
    document = centre.made.sites[0].parent.parent / "study.toml"
    document.write_text(document.read_text().replace("Heart failure within", "Failure of hearts within"))
    later = load_study(document)
    assert later.hash != centre.study.hash
    fewer = table.without(frozenset(table.subjects[:1]))
    after = combinations_told(centre.desk.ledger, later, fewer, asked)
    assert json.loads(json.dumps(after.row())) == before


def test_whoever_comes_or_goes_combinations_are_told_once(centre, tmp_path):
    """A number that changes with the fifth who goes would tell of the one who was known to go."""
    before = centre.ask("read")["histogram"]
    waiting = Folder(run_folder(centre.desk.place, "run")).waiting()
    withdraw(centre, waiting.table.subjects[:40], waiting.people)
    later = Centre(centre.made, tmp_path / "later", run="later")
    assert later.ask("read")["histogram"] == before
    assert len(table_of(later)) == len(waiting.table) - 40


def test_a_version_with_other_ranges_is_told_nothing(centre):
    """Ranges of five years and of four, of the same people, can be subtracted; and so can an age that is not known."""
    centre.ask("read")
    asked, table = centre.study.privacy.anonymity, table_of(centre)
    age, sex = asked.quasi_identifiers
    for other in (
        replace(asked, quasi_identifiers=(replace(age, hierarchy=BinHierarchy((4.0, 8.0, 40.0))), sex)),
        replace(asked, quasi_identifiers=(sex, age)),
        replace(asked, quasi_identifiers=(age,)),
        replace(asked, missing=("50",)),
    ):
        with pytest.raises(Refused, match="other columns or ranges before"):
            combinations_told(centre.desk.ledger, centre.study, table, other)


def test_a_weight_is_no_range(centre):
    before = centre.ask("read")["histogram"]
    asked = centre.study.privacy.anonymity
    heavier = replace(
        asked, quasi_identifiers=tuple(replace(each, weight=2.0) for each in asked.quasi_identifiers)
    )
    table = table_of(centre)
    fewer = table.without(frozenset(table.subjects[:1]))
    after = combinations_told(centre.desk.ledger, centre.study, fewer, heavier)
    assert json.loads(json.dumps(after.row())) == before


def test_classes_of_the_centres_own_choosing_are_not_dealt(centre, tmp_path):
    """By bisection: who has withdrawn is in the half whose sums are of one person fewer than was told of it."""
    read = centre.ask("read")
    body = {"seed": 1, **_choice(centre.study, read)}
    classes = body["choice"]["classes"]
    for half in (classes[::2], classes[1::2], classes[:1], []):
        asked = {**body, "choice": {**body["choice"], "classes": half}}
        assert "hide at the site alone" in centre.ask("deal", **asked)["problem"]
        answer = centre.ask("scale", **asked, scale={"columns": {}, "label": [0.0, 1.0]})
        assert answer == {"reason": "task was refused"}
    assert not centre.ask("deal", **body)["problem"]


def test_with_a_larger_k_one_choice_is_taken_for_a_study(centre):
    """Who hides only among people of other sites is shown or not by the centre's word: once."""
    read = centre.ask("read")
    told = Histogram.from_row(read["histogram"])
    body = {"seed": 1, "k": 10**6, "choice": _choice(centre.study, read)["choice"]}
    classes = body["choice"]["classes"]

    def asking(some):
        return centre.ask("deal", **{**body, "choice": {**body["choice"], "classes": some}})

    assert len(classes) == len(told.cells)
    first, second = classes[:-1], classes[1:]
    assert not asking(first)["problem"]
    assert "one choice" in asking(second)["problem"]
    assert "one choice" in asking(classes[:-2])["problem"]
    assert not asking(first)["problem"]


def test_ranges_finer_than_what_the_site_has_told_are_not_shown(centre):
    """A centre that names ages by year, and every class there could be, would train on every row as it is."""
    read = centre.ask("read")
    body = {"seed": 1, **_choice(centre.study, read)}
    assert body["choice"]["node"][0] > 0
    ages = sorted({f"{age:.0f}" for age in table_of(centre).x[:, 0]})
    every = [[age, sex] for age in ages for sex in ("female", "male")]
    finer = {**body, "choice": {**body["choice"], "node": [0, 0], "classes": every}}
    assert "finer than what the site has told" in centre.ask("deal", **finer)["problem"]
    assert centre.ask("scale", **finer, scale={"columns": {}, "label": [0.0, 1.0]})["reason"]
    assert not centre.ask("deal", **body)["problem"]


def test_every_class_that_is_trained_on_holds_enough_people_of_the_site_itself(four):
    """The centre's word that a class holds k people is not needed: the site sees at least the floor of its own."""
    readings = read_sites(four.study, [load_site(site) for site in four.sites], datetime.now(UTC))
    made = federate(four.study, readings, 5)
    level = made.anonymity["levels"][0]
    assert level > 0
    for member in made.each:
        rows = np.vstack([member.rows.train.x, member.rows.validation.x, member.test.x])
        names = [column.name for column in made.columns]
        places = [i for i, name in enumerate(names) if name == "age" or name.startswith("sex=")]
        _, sizes = np.unique(rows[:, places], axis=0, return_counts=True)
        assert sizes.min() >= FLOOR


def test_the_ledger_names_no_combination_that_was_not_told(centre):
    """The only person of an age would be in a file of the site long after they have withdrawn."""
    told = centre.ask("read")["histogram"]
    row = json.loads(load_site(centre.made.sites[0]).path("athens.ledger").read_text())
    (kept,) = (value for name, value in row["told"].items() if name.startswith("combinations/"))
    assert kept["row"] == told
    assert kept["asked"][0][0][0] == "age", "and the study's own words, by which it was asked"


def test_a_site_that_has_nothing_to_tell_is_left_out_as_on_a_network(four):
    readings = read_sites(four.study, [load_site(site) for site in four.sites], datetime.now(UTC))
    small = next(each for each in readings if each.name == "kos")
    few = small.table.without(frozenset(small.table.subjects[4:]))
    made = federate(four.study, [replace(each, table=few) if each is small else each for each in readings], 5)
    assert made.left_out == {"kos": NOTHING_TOLD}
    assert "kos" not in made.anonymity["finest"]
    none = [replace(each, table=each.table.without(frozenset(each.table.subjects[4:]))) for each in readings]
    with pytest.raises(Refused, match="0 of 4 sites can take part"):
        federate(four.study, none, 5)


def test_a_site_that_tells_coarsely_makes_ranges_coarse_and_breaks_nothing(four, tmp_path):
    told = {
        name: Histogram.from_row(Centre(four, tmp_path / name, site=name).ask("read")["histogram"])
        for name in NAMES
    }
    asked = four.study.privacy.anonymity
    usual = choose(list(told.values()), asked)
    assert usual.node == tuple(np.max([each.base for each in told.values()], axis=0))
    without = choose([told[name] for name in NAMES if name != "kos"], asked)
    assert without.node <= usual.node
