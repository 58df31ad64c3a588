"""What a site releases about its cohort, at each disclosure level, and what stays at the site."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from abaton.disclosure.levels import DisclosureLevel
from abaton.errors import RefusedError
from abaton.lab.demo import NOW
from abaton.report.cohort_flow import cohort_flow_data, noise_text
from abaton.site import build_site, load_site, open_release_gate, release_register_paths
from abaton.store import Store
from abaton.study_run import StudyOptions, ingest_sites, run_study
from abaton.study_run.site_releases import cohort_report, released_cohort


def at_level(study, level: str):
    """Return the study at another disclosure level."""
    privacy = study.privacy.model_copy(update={"disclosure": DisclosureLevel(level)})
    return study.__class__.model_validate({**study.model_dump(), "privacy": privacy.model_dump()})


def set_policy(four, line: str) -> None:
    """Add a line to the policy of every site; consents refer to the study document, which stays as it is."""
    for site in four.sites:
        text = site.read_text()
        section = "[policy]\n"
        text = text if section in text else f"{text}\n{section}"
        site.write_text(text.replace(section, f"{section}{line}\n"))


@pytest.fixture
def noisy(four):
    """Return the study at sites that require noise."""
    set_policy(four, 'disclosure = "noisy"')
    return four.study


def release(file, study, cohort, days: int = 0):
    gate = open_release_gate(file, study, lambda: NOW + timedelta(days=days))
    released = released_cohort(gate, study, cohort)
    gate.register.close()
    return released


def test_the_level_is_part_of_the_hash(four):
    assert four.study.privacy.disclosure is DisclosureLevel.EXACT
    assert at_level(four.study, "noisy").hash != four.study.hash


def test_noisy_cells_are_near_the_exact_ones_and_repeated(four, noisy):
    file = load_site(four.sites[0])
    (ingest,) = ingest_sites(noisy, [file], NOW)
    released = release(file, noisy, ingest.cohort)
    cells = ingest.cohort.cells
    errors = {name: released["counts"]["values"][name] - len(cells[name]) for name in cells}
    assert released["counts"]["sd"] == 3.0
    assert any(errors.values())
    assert max(map(abs, errors.values())) < 6 * 3
    assert released["remarks"] == [ingest.cohort.legal_basis]
    report = cohort_report(released)
    assert [step["stage"] for step in report["attrition"]] == ["consented", "retained", "rows"]
    # A subject leaves: the same answer within the epoch, other noise in the next one.
    fewer = replace(ingest.cohort, cells={**cells, "rows": cells["rows"][1:]})
    assert release(file, noisy, fewer) == released
    assert release(file, noisy, fewer, days=31) != released


def test_documents_that_differ_by_one_year_of_age_have_independent_noise(four, noisy):
    file = load_site(four.sites[0])
    (ingest,) = ingest_sites(noisy, [file], NOW)
    document = noisy.model_dump()
    document["eligibility"]["criteria"][0]["low"] = 19
    other = noisy.__class__.model_validate(document)
    one, two = (release(file, study, ingest.cohort)["counts"]["values"] for study in (noisy, other))
    assert one != two
    assert open_release_gate(file, noisy, lambda: NOW).remaining(noisy.study.id) == pytest.approx(1 - 2 / 18)


def test_exact_cells_are_suppressed_below_the_minimum_cell_count(four):
    file = load_site(four.sites[0])
    (ingest,) = ingest_sites(four.study, [file], NOW)
    cells = {**ingest.cohort.cells, "rows/another reason": ("a", "b", "c")}
    released = release(file, four.study, replace(ingest.cohort, cells=cells))
    assert released["threshold"] == 5
    assert released["counts"]["suppressed"] == ["rows/another reason"]
    assert released["counts"]["values"]["rows"] == len(cells["rows"])
    assert released["counts"]["sd"] == 0.0
    assert released["remarks"] == list(ingest.cohort.remarks)


@pytest.mark.parametrize("level", ["exact", "noisy"])
def test_neither_records_nor_subjects_without_consent_are_counted(four, level):
    """`records {"Patient": 618}` beside 616 eligible subjects would show two persons who never consented."""
    set_policy(four, f'disclosure = "{level}"')
    file, study = load_site(four.sites[0]), four.study
    (ingest,) = ingest_sites(study, [file], NOW)
    released = release(file, study, ingest.cohort)
    assert released.keys() == {"counts", "threshold", "remarks"}
    site = build_site(file, study, NOW)
    site.table()
    assert site.without_consent
    patients = {patient for subjects in ingest.cohort.cells.values() for patient in subjects}
    assert not patients & site.without_consent
    assert {name.split("/")[0] for name in released["counts"]["values"]} <= {"retained", "rows"}
    text = json.dumps(released)
    assert not any(patient in text for patient in patients)


def test_a_used_up_budget_releases_nothing_and_the_run_goes_on(four, tmp_path, noisy):
    set_policy(four, "study_budget = 0.05")
    options = StudyOptions(seed=5, profiles=four.profiles, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(noisy, four.sites, store, options, now=NOW).row
    assert row.status == "finished"
    assert all(report["attrition"] == [] for report in row.recipe["cohort_reports"].values())
    assert "cohort_description" not in row.result


def test_a_run_at_level_noisy_shows_noisy_counts(four, tmp_path, noisy):
    options = StudyOptions(seed=5, profiles=four.profiles, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(noisy, four.sites, store, options, now=NOW).row
    reports = row.recipe["cohort_reports"]
    assert {report["sd"] for report in reports.values()} == {3.0}
    assert "standard deviation of 3" in noise_text(reports)
    stages = cohort_flow_data(reports)
    assert [stage["stage"] for stage in stages] == ["consented", "retained", "rows"]
    exact = sum(len(ingest.table) for ingest in ingest_sites(noisy, list(map(load_site, four.sites)), NOW))
    assert abs(int(stages[-1]["subjects"].replace(",", "")) - exact) < 6 * 3 * len(reports) ** 0.5
    assert "cohort_description" not in row.result


def test_at_level_summed_no_attrition_of_a_site_is_released(four):
    file, summed = load_site(four.sites[0]), at_level(four.study, "summed")
    (ingest,) = ingest_sites(four.study, [file], NOW)
    assert release(file, summed, ingest.cohort)["counts"] is None


def test_at_level_summed_a_run_shows_the_attrition_of_all_sites_together(four, tmp_path):
    set_policy(four, 'disclosure = "summed"')
    options = StudyOptions(seed=5, profiles=four.profiles, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store:
        row = run_study(four.study, four.sites, store, options, now=NOW).row
    reports = row.recipe["cohort_reports"]
    together = reports.pop("all sites")
    assert all(report["attrition"] == [] for report in reports.values())
    exact = sum(
        len(ingest.table) for ingest in ingest_sites(four.study, list(map(load_site, four.sites)), NOW)
    )
    assert together["attrition"][-1] == {
        "stage": "rows",
        "subjects": str(exact),
        "excluded": together["attrition"][-1]["excluded"],
    }
    assert "cohort_description" not in row.result


def test_a_run_with_a_lost_register_is_refused(four, noisy, tmp_path):
    file = load_site(four.sites[0])
    (ingest,) = ingest_sites(noisy, [file], NOW)
    release(file, noisy, ingest.cohort)
    register, _ = release_register_paths(file)
    register.unlink()
    options = StudyOptions(seed=5, profiles=four.profiles, bootstrap_resamples=0)
    with Store(tmp_path / "store") as store, pytest.raises(RefusedError, match="--confirm-loss"):
        run_study(noisy, four.sites, store, options, now=NOW)
