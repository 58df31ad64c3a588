"""Plugins of an installed package in a study: checked with their line, stored with the run, allowed by sites."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, date, datetime

import pytest
from tests.federation.plugin_packages import install
from tests.federation.test_federation_settings import OPTIONS, study_with
from tests.study.full_studies import long_starter
from tests.study_run.network.network_loopback import Loop
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.engines.flower.site_worker import WorkerSettings
from abaton.engines.flower.tls import issue_certificate
from abaton.errors import RefusedError, SettingsError
from abaton.lab.demo import NOW, open_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.report import render_report
from abaton.site import SiteConfigError, load_site
from abaton.store import Store
from abaton.study import (
    StudyError,
    lint_study,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)
from abaton.study_run import NetworkRunOptions, StudySiteService, run_study
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.invitation import Invitation, check_invited
from abaton.study_run.messages import make_message, message_body

PINNED = {"our-parts": "1.2.0"}
START = long_starter(date(2026, 11, 16))


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """Module of an installed package with a plugin of each kind."""
    return install(tmp_path / "packages", monkeypatch)


def with_stated_basis(written, folder):
    """Copy the four hospitals with a stated legal basis; all but kos and trikala allow the package."""
    shutil.copytree(written, folder)
    hospitals = open_demo(folder, cohort=FOUR_HOSPITALS)
    for site in hospitals.sites:
        text = site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"')
        if site.parent.name not in ("kos", "trikala"):
            text += '\n[plugins]\nOur_Parts = "1.2.0"\n'
        site.write_text(text)
    return hospitals


@pytest.fixture
def hospitals(written, tmp_path):
    """Copy of the hospitals for one test."""
    return with_stated_basis(written, tmp_path / "hospitals")


@pytest.fixture(scope="module")
def default_digest(written, tmp_path_factory) -> str:
    """Digest of the model that the hospitals train without plugins."""
    folder = tmp_path_factory.mktemp("usual")
    hospitals = with_stated_basis(written, folder / "hospitals")
    with Store(folder / "store") as opened_store:
        run = run_study(study_with(hospitals), hospitals.sites, opened_store, OPTIONS, now=NOW)
        return str(run.result["digest"])


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened_store:
        yield opened_store


SITE_PLUGINS = {"codec": {"codec": "thinned(keep=0.25)"}, "model": {"model": "wide(width=4)"}}
CENTRE_PLUGINS = {
    "scheduler": {"scheduler": "in_turns"},
    "weighting": {"weighting": ["root(power=0.1)"]},
    "robust_aggregation": {"robust_aggregation": "signs(size=0.02)"},
    "server_optimiser": {"server_optimiser": "halved(part=0.25)"},
}


@pytest.mark.parametrize("kind", SITE_PLUGINS)
def test_site_plugins_need_permission_and_other_sites_continue(hospitals, store, module, kind):
    study = study_with(hospitals, **SITE_PLUGINS[kind], plugins=PINNED)
    finished = run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    assert finished.status == "finished"
    excluded = finished.row.recipe["excluded_sites"]
    assert set(excluded) == {"kos", "trikala"}
    assert all("our-parts 1.2.0" in why and "is not allowed" in why for why in excluded.values())
    assert set(finished.row.recipe["tables"]) == {"athens", "pergamon"}
    assert finished.row.recipe["manifest"]["software"]["our-parts"] == "1.2.0"
    page = render_report(finished.report())
    assert "our-parts" in page
    assert "1.2.0" in page
    assert next(iter(SITE_PLUGINS[kind].values())) in page


@pytest.mark.parametrize("kind", CENTRE_PLUGINS)
def test_controller_plugins_need_no_permission(hospitals, store, module, default_digest, kind):
    study = study_with(hospitals, **CENTRE_PLUGINS[kind], plugins=PINNED)
    finished = run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    assert finished.status == "finished"
    assert not finished.row.recipe["excluded_sites"]
    assert finished.result["digest"] != default_digest
    assert finished.report()["provenance"]["versions"]["our-parts"] == "1.2.0"


@pytest.mark.slow
def test_a_packages_codec_works_in_processes(hospitals, store, module, monkeypatch):
    monkeypatch.setattr(ConsentedLearner, "has_secret_order", False)  # a secret order cannot be repeated
    study = study_with(hospitals, **SITE_PLUGINS["codec"], plugins=PINNED)
    simulated = run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    in_processes = run_study(study, hospitals.sites, store, OPTIONS, now=NOW, engine="local")
    assert in_processes.result["digest"] == simulated.result["digest"]


@pytest.mark.parametrize("kind", SITE_PLUGINS)
def test_a_site_on_a_network_takes_part_only_if_it_allows_the_package(
    hospitals, store, module, tmp_path, kind
):
    study = study_with(hospitals, **SITE_PLUGINS[kind], plugins=PINNED)
    row = Loop(
        tmp_path,
        study,
        hospitals.sites,
        NetworkRunOptions(min_sites=4, seed=5, bootstrap_resamples=0, poll_seconds=0.0),
    ).run(store)
    assert row.status == "finished"
    assert set(row.recipe["excluded_sites"]) == {"kos", "trikala"}
    assert all("is not allowed" in why for why in row.recipe["excluded_sites"].values())
    assert row.recipe["software_versions"]["our-parts"] == "1.2.0"


def test_a_site_refuses_requests_that_need_a_disallowed_plugin(hospitals, module, tmp_path, caplog):
    study = study_with(hospitals, **SITE_PLUGINS["codec"], plugins=PINNED)
    again = study_from_toml(write_toml(study))
    sys.modules.pop(module, None)
    (path,) = (site for site in hospitals.sites if site.parent.name == "kos")
    service = StudySiteService(load_site(path), again, WorkerSettings("train", tmp_path / "kos", study.hash))
    header = {"run": "r", "study_hash": study.hash}
    reply = message_body(service.reply(make_message("ingest", header, {})))
    assert "is not allowed" in reply["problem"]
    for message_type in ("split", "scale", "introduce", "train", "evaluate", "evaluate_test"):
        assert service.reply(make_message(message_type, header, {})).header["reason"] in (
            "refused",
            "unknown_message",
        )
    assert module not in sys.modules, "no code of the package ran at the site"


def test_an_invited_site_gets_the_list_of_plugins_to_allow(hospitals, module, tmp_path):
    study = study_with(hospitals, **SITE_PLUGINS["model"], plugins=PINNED)
    (path,) = (site for site in hospitals.sites if site.parent.name == "kos")
    authority = issue_certificate(tmp_path / "centre", ["localhost"], datetime.now(UTC)).authority.read_text()
    invitation = Invitation("kos", "localhost:9093", authority, study.hash)
    with pytest.raises(SiteConfigError, match="is not allowed") as caught:
        check_invited(invitation, load_site(path), study)
    assert 'our-parts = "1.2.0"' in str(caught.value)
    path.write_text(path.read_text() + '\n[plugins]\nour-parts = "1.1.0"\n')
    with pytest.raises(SiteConfigError, match="is not allowed") as caught:
        check_invited(invitation, load_site(path), study)
    line = caught.value.problems[0].line
    assert "our-parts" in path.read_text().splitlines()[line - 1]


def test_a_package_that_is_not_there_at_the_site_is_named(hospitals, tmp_path, monkeypatch, store):
    study = study_with(hospitals, codec="thinned", plugins=PINNED)
    with pytest.raises(RefusedError, match="0 of 4 sites can take part") as caught:
        run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    assert "pip install our-parts==1.2.0" in str(caught.value)
    only_here = study_with(hospitals, server_optimiser="halved", plugins=PINNED)
    with pytest.raises(SettingsError, match="our-parts 1.2.0 is not installed"):
        run_study(only_here, hospitals.sites, store, OPTIONS, now=NOW)


def problems(text: str, *, load: bool = True):
    with pytest.raises(StudyError) as caught:
        study_from_toml(text, load=load)
    return caught.value.problems


def with_component(
    line: str, pin: str = 'our-parts = "1.2.0"', strategy: str = 'strategy = "SyncFedAvg"'
) -> str:
    key = line.split(" = ")[0]
    text = START.replace('strategy = "AsyncDVW(na)"', strategy)
    if key in ("codec", "model"):
        text = "\n".join(line if item.startswith(f"{key} = ") else item for item in text.splitlines())
    else:
        text = text.replace(
            "[learning.training]", f"[learning.{key}]\n{line.split(' = ', 1)[1]}\n[learning.training]"
        )
    return text.replace("[learning.evaluation]", f"[learning.plugins]\n{pin}\n\n[learning.evaluation]", 1)


INVALID = [
    ('codec = "thinned(kep=0.5)"', "thinned has no setting 'kep'", "keep", "codec"),
    ('codec = "thinner"', "there is no codec of this name", "'thinned'?", "codec"),
    ('model = "wide(wdth=3)"', "wide has no setting 'wdth'", "its settings are width", "model"),
    ('model = "wide(width=word)"', "'width' is not an integer", "an integer", "model"),
    ('model = "no_model"', "which has no", "TorchModel", "model"),
    ('model = "gone"', "cannot be loaded", "repair the package", "model"),
    ('server_optimiser = name = "halved"\nprt = 0.5', "halved has no setting 'prt'", "part", "prt"),
    ('server_optimiser = name = "halfed"', "no server optimiser of this name", "'halved'?", "server"),
    ('robust_aggregation = name = "signs"\nsize = "big"', "'size' is not a number", "number", "size"),
    ('scheduler = name = "in_turns"\npause = 1.5', "'pause' is not an integer", "integer", "pause"),
]


@pytest.mark.parametrize(("line", "message", "remedy", "key"), INVALID, ids=range(len(INVALID)))
def test_an_invalid_plugin_setting_is_refused_with_its_line(module, line, message, remedy, key):
    text = with_component(line)
    problem = problems(text)
    match = [item for item in problem if message in item.what and remedy in item.remedy]
    assert match, [str(item) for item in problem]
    assert all(key in text.splitlines()[item.line - 1] for item in match)


def test_a_study_is_read_without_running_a_packages_code(module):
    study = study_from_toml(with_component('codec = "thinned(kep=0.5)"'))
    assert study.learning.plugins == PINNED
    assert module not in sys.modules
    assert study.learning.site_plugins == (("codec", "thinned"),)
    assert any(
        "each of which must allow it (our-parts 1.2.0)" in item for item in lint_study(study, date.today())
    )
    assert study_from_toml(write_toml(study)) == study
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    assert (
        study.hash
        != study_from_toml(with_component('codec = "thinned(kep=0.5)"', 'our-parts = "1.2.1"')).hash
    )


def test_a_package_in_another_version_is_refused_with_what_to_install(module):
    (problem,) = problems(with_component('codec = "thinned"', 'our-parts = "2.0"'))
    assert "installed in version 1.2.0, the study names 2.0" in problem.what
    assert "pip install our-parts==2.0" in problem.remedy


def test_a_name_that_only_an_unnamed_package_has_says_which(module):
    text = with_component('codec = "thinned"').replace('[learning.plugins]\nour-parts = "1.2.0"\n', "")
    (problem,) = problems(text, load=False)
    assert 'our-parts = "1.2.0" under [learning.plugins]' in problem.remedy
    assert module not in sys.modules


def test_plugin_names_are_unique(module, tmp_path, monkeypatch):
    install(
        tmp_path,
        monkeypatch,
        package="rude-codecs",
        entries={"abaton.codecs": {"stc": "Thinned", "x": "Thinned"}},
    )
    (problem,) = problems(with_component('codec = "x"', 'rude-codecs = "1.2.0"'))
    assert "registers a codec 'stc', which Abaton also has" in problem.what
    install(tmp_path, monkeypatch, package="late-codecs", entries={"abaton.codecs": {"thinned": "Thinned"}})
    (problem,) = problems(with_component('codec = "thinned"', 'our-parts = "1.2.0"\nlate-codecs = "1.2.0"'))
    assert "which our-parts also has" in problem.what


def test_the_command_that_checks_a_study_checks_its_plugins(module, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(with_component('codec = "thinned(kep=0.5)"'))
    done = CliRunner().invoke(app, ["study", "check", str(file)])
    line = next(i for i, item in enumerate(file.read_text().splitlines(), 1) if item.startswith("codec = "))
    assert done.exit_code == 2
    assert f"study.toml:{line}: learning.codec: thinned has no setting 'kep'" in done.stdout
    file.write_text(with_component('codec = "thinned(keep=0.5)"'))
    done = CliRunner().invoke(app, ["study", "check", str(file)])
    assert done.exit_code == 0
    assert "each of which must allow it (our-parts 1.2.0)" in done.stdout
