"""A hostile centre and the combination histogram: no request discloses a single subject, however often repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from tests.attacks.conftest import Centre

from abaton.anonymity import BinHierarchy
from abaton.anonymity.federated_recoding import CombinationHistogram, choose_recoding
from abaton.engines.flower.site_worker import run_folder
from abaton.errors import RefusedError
from abaton.features import row_groups
from abaton.governance import ConsentRegistry, metadata
from abaton.site import load_site, subject_pseudonym
from abaton.store import Database
from abaton.study import load_study
from abaton.study_run.ingest import ingest_sites
from abaton.study_run.outbound_preview import _single_site_recoding
from abaton.study_run.preparation import NO_RELEASABLE_COMBINATION, prepare_sites
from abaton.study_run.site_releases import released_histogram
from abaton.study_run.site_run_state import SiteRunFolder

MIN_CELL_COUNT = 5
NAMES = ("athens", "kos", "pergamon", "trikala")


def table_of(centre):
    return SiteRunFolder(run_folder(centre.service.worker_settings, centre.run)).pending_table().table


def withdraw(centre, subjects, patient_ids):
    file = load_site(next(path for path in centre.demo.sites if path.parent.name == centre.site))
    registry = ConsentRegistry(Database(file.path("consents.db"), metadata))
    for subject in subjects:
        pseudonym = subject_pseudonym(file.path("registry.key").read_bytes(), patient_ids[subject])
        registry.withdraw(pseudonym, centre.study.study.id, datetime.now(UTC) - timedelta(hours=1))


@pytest.mark.parametrize("name", NAMES)
def test_no_combination_below_the_minimum_cell_count_is_released(four, tmp_path, name):
    """With ages in years, two of five combinations at a site of 130 subjects had one subject only."""
    centre = Centre(four, tmp_path, site=name)
    histogram = CombinationHistogram.from_row(centre.ask("ingest")["histogram"])
    table = table_of(centre)
    ages = table.x[:, 0].astype(int)
    exact_counts = np.unique(
        [f"{age} {sex}" for age, sex in zip(ages, row_groups(table, "sex"), strict=True)], return_counts=True
    )
    assert (exact_counts[1] < MIN_CELL_COUNT).sum() > 20, "many combinations must be suppressed"
    assert min(histogram.subjects) >= MIN_CELL_COUNT
    assert histogram.suppressed == 0 or histogram.suppressed >= MIN_CELL_COUNT
    assert sum(histogram.subjects) + histogram.suppressed == len(table)
    assert {names[0] for names, _ in histogram.chains[0]} == {
        histogram.names(cell)[0] for cell in histogram.cells
    }


def test_differencing_two_runs_does_not_find_a_withdrawn_subject(centre, tmp_path):
    before = centre.ask("ingest")["histogram"]
    pending = SiteRunFolder(run_folder(centre.service.worker_settings, "run")).pending_table()
    withdraw(centre, pending.table.subjects[:1], pending.patient_ids)
    later = Centre(centre.demo, tmp_path / "later", run="later")
    assert later.ask("ingest")["histogram"] == before
    assert len(table_of(later)) == len(pending.table) - 1, "the row is deleted nevertheless"


def test_a_new_study_version_releases_nothing_about_a_withdrawal(centre, tmp_path):
    """A new title gives a new hash; the histogram of the same subjects was released for the old one."""
    before = centre.ask("ingest")["histogram"]
    table, anonymity = table_of(centre), centre.study.privacy.anonymity
    document = centre.demo.sites[0].parent.parent / "study.toml"
    document.write_text(document.read_text().replace("Heart failure within", "Failure of hearts within"))
    later = load_study(document)
    assert later.hash != centre.study.hash
    fewer = table.without(frozenset(table.subjects[:1]))
    after = released_histogram(centre.service.release_log, later, fewer, anonymity)
    assert json.loads(json.dumps(after.row())) == before


def test_histograms_are_released_once_whatever_subjects_change(centre, tmp_path):
    """A count that changes with the fifth withdrawal would disclose a known withdrawal."""
    before = centre.ask("ingest")["histogram"]
    pending = SiteRunFolder(run_folder(centre.service.worker_settings, "run")).pending_table()
    withdraw(centre, pending.table.subjects[:40], pending.patient_ids)
    later = Centre(centre.demo, tmp_path / "later", run="later")
    assert later.ask("ingest")["histogram"] == before
    assert len(table_of(later)) == len(pending.table) - 40


def test_a_version_with_other_ranges_gets_no_release(centre):
    """Ranges of five and of four years over the same subjects allow differencing, as does a missing age."""
    centre.ask("ingest")
    anonymity, table = centre.study.privacy.anonymity, table_of(centre)
    age, sex = anonymity.quasi_identifiers
    for other in (
        replace(anonymity, quasi_identifiers=(replace(age, hierarchy=BinHierarchy((4.0, 8.0, 40.0))), sex)),
        replace(anonymity, quasi_identifiers=(sex, age)),
        replace(anonymity, quasi_identifiers=(age,)),
        replace(anonymity, missing_values=("50",)),
    ):
        with pytest.raises(RefusedError, match="already released for other columns or ranges"):
            released_histogram(centre.service.release_log, centre.study, table, other)


def test_a_changed_weight_is_not_a_changed_range(centre):
    before = centre.ask("ingest")["histogram"]
    anonymity = centre.study.privacy.anonymity
    heavier = replace(
        anonymity,
        quasi_identifiers=tuple(replace(quasi, weight=2.0) for quasi in anonymity.quasi_identifiers),
    )
    table = table_of(centre)
    fewer = table.without(frozenset(table.subjects[:1]))
    after = released_histogram(centre.service.release_log, centre.study, fewer, heavier)
    assert json.loads(json.dumps(after.row())) == before


def test_classes_chosen_by_the_centre_are_refused(centre, tmp_path):
    """By bisection: a withdrawn subject is in the half whose sums have one subject fewer than released."""
    ingest = centre.ask("ingest")
    body = {"seed": 1, **_single_site_recoding(centre.study, ingest)}
    classes = body["recoding"]["classes"]
    for half in (classes[::2], classes[1::2], classes[:1], []):
        request = {**body, "recoding": {**body["recoding"], "classes": half}}
        assert "k-anonymous at the site alone" in centre.ask("split", **request)["problem"]
        reply = centre.ask("scale", **request, scale={"columns": {}, "label": [0.0, 1.0]})
        assert reply == {"reason": "refused"}
    assert not centre.ask("split", **body)["problem"]


def test_a_study_with_a_larger_k_accepts_one_recoding(centre):
    """Classes that are k-anonymous only together with other sites are selected by the centre once."""
    ingest = centre.ask("ingest")
    histogram = CombinationHistogram.from_row(ingest["histogram"])
    body = {"seed": 1, "k": 10**6, "recoding": _single_site_recoding(centre.study, ingest)["recoding"]}
    classes = body["recoding"]["classes"]

    def request_split(selected):
        return centre.ask("split", **{**body, "recoding": {**body["recoding"], "classes": selected}})

    assert len(classes) == len(histogram.cells)
    first, second = classes[:-1], classes[1:]
    assert not request_split(first)["problem"]
    assert "one recoding" in request_split(second)["problem"]
    assert "one recoding" in request_split(classes[:-2])["problem"]
    assert not request_split(first)["problem"]


def test_ranges_finer_than_the_released_ones_are_refused(centre):
    """A centre that names ages by year, and every possible class, would train on unrecoded rows."""
    ingest = centre.ask("ingest")
    body = {"seed": 1, **_single_site_recoding(centre.study, ingest)}
    assert body["recoding"]["node"][0] > 0
    ages = sorted({f"{age:.0f}" for age in table_of(centre).x[:, 0]})
    every = [[age, sex] for age in ages for sex in ("female", "male")]
    finer = {**body, "recoding": {**body["recoding"], "node": [0, 0], "classes": every}}
    assert "finer than those that the site released" in centre.ask("split", **finer)["problem"]
    assert centre.ask("scale", **finer, scale={"columns": {}, "label": [0.0, 1.0]})["reason"]
    assert not centre.ask("split", **body)["problem"]


def test_every_training_class_has_enough_subjects_at_the_site(four):
    """The site does not rely on the centre for the size of a class: it checks min_cell_count of its own subjects."""
    ingests = ingest_sites(four.study, [load_site(site) for site in four.sites], datetime.now(UTC))
    prepared = prepare_sites(four.study, ingests, 5)
    level = prepared.anonymity["levels"][0]
    assert level > 0
    for member in prepared.sites:
        rows = np.vstack([member.rows.train.x, member.rows.validation.x, member.test.x])
        names = [column.name for column in prepared.columns]
        indices = [i for i, name in enumerate(names) if name == "age" or name.startswith("sex=")]
        _, sizes = np.unique(rows[:, indices], axis=0, return_counts=True)
        assert sizes.min() >= MIN_CELL_COUNT


def test_the_release_log_has_released_combinations_only(centre):
    """A unique age would otherwise remain in a file of the site after the withdrawal."""
    histogram = centre.ask("ingest")["histogram"]
    row = json.loads(load_site(centre.demo.sites[0]).path("athens.releases").read_text())
    (release,) = (value for name, value in row["releases"].items() if name.startswith("histogram/"))
    assert release["row"] == histogram
    assert release["request"][0][0][0] == "age", "and the request of the study"


def test_a_site_with_nothing_to_release_is_excluded_as_on_a_network(four):
    ingests = ingest_sites(four.study, [load_site(site) for site in four.sites], datetime.now(UTC))
    small = next(ingest for ingest in ingests if ingest.name == "kos")
    small_table = small.table.without(frozenset(small.table.subjects[4:]))
    prepared = prepare_sites(
        four.study,
        [replace(ingest, table=small_table) if ingest is small else ingest for ingest in ingests],
        5,
    )
    assert prepared.excluded_sites == {"kos": NO_RELEASABLE_COMBINATION}
    assert "kos" not in prepared.anonymity["finest"]
    none = [
        replace(ingest, table=ingest.table.without(frozenset(ingest.table.subjects[4:])))
        for ingest in ingests
    ]
    with pytest.raises(RefusedError, match="0 of 4 sites can take part"):
        prepare_sites(four.study, none, 5)


def test_coarse_releases_of_one_site_coarsen_the_ranges_and_break_nothing(four, tmp_path):
    histograms = {
        name: CombinationHistogram.from_row(
            Centre(four, tmp_path / name, site=name).ask("ingest")["histogram"]
        )
        for name in NAMES
    }
    anonymity = four.study.privacy.anonymity
    recoding = choose_recoding(list(histograms.values()), anonymity)
    assert recoding.node == tuple(np.max([histogram.base for histogram in histograms.values()], axis=0))
    without = choose_recoding([histograms[name] for name in NAMES if name != "kos"], anonymity)
    assert without.node <= recoding.node
