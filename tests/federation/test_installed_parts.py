"""Parts of an installed package that a study names: checked with their line, told with the run, allowed by sites."""

from __future__ import annotations

import json
import shutil
import sys
from datetime import UTC, date, datetime

import pytest
from tests.federation.network.loops import Loop
from tests.federation.packages import install
from tests.federation.test_settings import OPTIONS, study_with
from tests.study.long_form import long_starter
from typer.testing import CliRunner

from abaton.cli.app import app
from abaton.engines.flower.tls import issue
from abaton.engines.flower.site_worker import Place
from abaton.errors import Refused, SettingsError
from abaton.federation import run_study
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run import StudyDesk, Wish
from abaton.study_run.invitation import Invitation, check_invited
from abaton.study_run.messages import body_of, worded
from abaton.lab.demo import NOW, opened
from abaton.report import page_of
from abaton.site import SiteError, load_site
from abaton.store import Store
from abaton.study import (
    StudyError,
    notes_on,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)

PINNED = {"our-parts": "1.2.0"}
START = long_starter(date(2026, 11, 16))


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """The module of an installed package with a part of each kind."""
    return install(tmp_path / "packages", monkeypatch)


def on_their_own_ground(written, folder):
    """The four hospitals on a ground of their own; all but kos and trikala allow the package."""
    shutil.copytree(written, folder)
    made = opened(folder)
    for site in made.sites:
        text = site.read_text().replace('registry = "consents.db"', 'ground = "a vote"')
        if site.parent.name not in ("kos", "trikala"):
            text += '\n[parts]\nOur_Parts = "1.2.0"\n'
        site.write_text(text)
    return made


@pytest.fixture
def hospitals(written, tmp_path):
    """The hospitals in a folder of the test's own."""
    return on_their_own_ground(written, tmp_path / "hospitals")


@pytest.fixture(scope="module")
def usual(written, tmp_path_factory) -> str:
    """The digest of the model that the hospitals learn without any part of the package."""
    folder = tmp_path_factory.mktemp("usual")
    made = on_their_own_ground(written, folder / "hospitals")
    with Store(folder / "store") as opened_store:
        run = run_study(study_with(made), made.sites, opened_store, OPTIONS, now=NOW)
        return str(run.result["digest"])


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened_store:
        yield opened_store


AT_SITES = {"codec": {"codec": "thinned(keep=0.25)"}, "network": {"network": "wide(width=4)"}}
AT_CENTRE = {
    "pacing": {"pacing": "in_turns"},
    "weighting": {"weighting": ["root(power=0.1)"]},
    "robust": {"robust": "signs(size=0.02)"},
    "server": {"server": "halved(part=0.25)"},
}


@pytest.mark.parametrize("kind", AT_SITES)
def test_what_runs_at_a_site_needs_its_permission_and_the_others_go_on(hospitals, store, module, kind):
    study = study_with(hospitals, **AT_SITES[kind], parts=PINNED)
    made = run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    assert made.status == "finished"
    left_out = made.row.recipe["left_out"]
    assert set(left_out) == {"kos", "trikala"}
    assert all("our-parts 1.2.0" in why and "does not allow" in why for why in left_out.values())
    assert set(made.row.recipe["tables"]) == {"athens", "pergamon"}
    assert made.row.recipe["fingerprint"]["software"]["our-parts"] == "1.2.0"
    page = page_of(made.report())
    assert "our-parts" in page
    assert "1.2.0" in page
    assert next(iter(AT_SITES[kind].values())) in page


@pytest.mark.parametrize("kind", AT_CENTRE)
def test_what_the_controller_runs_alone_needs_no_permission(hospitals, store, module, usual, kind):
    study = study_with(hospitals, **AT_CENTRE[kind], parts=PINNED)
    made = run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    assert made.status == "finished"
    assert not made.row.recipe["left_out"]
    assert made.result["digest"] != usual
    assert made.report()["reproduce"]["versions"]["our-parts"] == "1.2.0"


@pytest.mark.slow
def test_a_packages_codec_works_in_processes(hospitals, store, module, monkeypatch):
    monkeypatch.setattr(
        ConsentedLearner, "own_order", False
    )  # a site's own secret order is nobody's to repeat
    study = study_with(hospitals, **AT_SITES["codec"], parts=PINNED)
    here = run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    there = run_study(study, hospitals.sites, store, OPTIONS, now=NOW, engine="local")
    assert there.result["digest"] == here.result["digest"]


@pytest.mark.parametrize("kind", AT_SITES)
def test_a_site_on_a_network_takes_part_only_if_it_allows_the_package(
    hospitals, store, module, tmp_path, kind
):
    study = study_with(hospitals, **AT_SITES[kind], parts=PINNED)
    row = Loop(tmp_path, study, hospitals.sites, Wish(sites=4, seed=5, resamples=0, poll=0.0)).run(store)
    assert row.status == "finished"
    assert set(row.recipe["left_out"]) == {"kos", "trikala"}
    assert all("does not allow" in why for why in row.recipe["left_out"].values())
    assert row.recipe["versions"]["our-parts"] == "1.2.0"


def test_a_desk_answers_no_question_with_a_part_that_is_not_allowed(hospitals, module, tmp_path, caplog):
    study = study_with(hospitals, **AT_SITES["codec"], parts=PINNED)
    again = study_from_toml(write_toml(study))
    sys.modules.pop(module, None)
    (path,) = (site for site in hospitals.sites if site.parent.name == "kos")
    desk = StudyDesk(load_site(path), again, Place("train", tmp_path / "kos", study.hash))
    about = {"run": "r", "terms": study.hash}
    read = body_of(desk.answer(worded("read", about, {})))
    assert "does not allow" in read["problem"]
    for kind in ("deal", "scale", "query", "train", "evaluate", "judge"):
        assert desk.answer(worded(kind, about, {})).about["reason"] in ("task was refused", "unknown message")
    assert module not in sys.modules, "nothing of the package was run at the site"


def test_a_site_is_told_at_the_door_what_it_would_have_to_allow(hospitals, module, tmp_path):
    study = study_with(hospitals, **AT_SITES["network"], parts=PINNED)
    (path,) = (site for site in hospitals.sites if site.parent.name == "kos")
    authority = issue(tmp_path / "centre", ["localhost"], datetime.now(UTC)).authority.read_text()
    invitation = Invitation("kos", "localhost:9093", authority, study.hash)
    with pytest.raises(SiteError, match="does not allow") as caught:
        check_invited(invitation, load_site(path), study)
    assert 'our-parts = "1.2.0"' in str(caught.value)
    path.write_text(path.read_text() + '\n[parts]\nour-parts = "1.1.0"\n')
    with pytest.raises(SiteError, match="does not allow") as caught:
        check_invited(invitation, load_site(path), study)
    line = caught.value.problems[0].line
    assert "our-parts" in path.read_text().splitlines()[line - 1]


def test_a_package_that_is_not_there_at_the_site_is_named(hospitals, tmp_path, monkeypatch, store):
    study = study_with(hospitals, codec="thinned", parts=PINNED)
    with pytest.raises(Refused, match="0 of 4 sites can take part") as caught:
        run_study(study, hospitals.sites, store, OPTIONS, now=NOW)
    assert "pip install our-parts==1.2.0" in str(caught.value)
    only_here = study_with(hospitals, server="halved", parts=PINNED)
    with pytest.raises(SettingsError, match="our-parts 1.2.0 is not installed"):
        run_study(only_here, hospitals.sites, store, OPTIONS, now=NOW)


def problems(text: str, *, load: bool = True):
    with pytest.raises(StudyError) as caught:
        study_from_toml(text, load=load)
    return caught.value.problems


def with_part(line: str, pin: str = 'our-parts = "1.2.0"', policy: str = 'policy = "SyncFedAvg"') -> str:
    key = line.split(" = ")[0]
    text = START.replace('policy = "AsyncDVW(na)"', policy)
    if key in ("codec", "network"):
        text = "\n".join(line if each.startswith(f"{key} = ") else each for each in text.splitlines())
    else:
        text = text.replace(
            "[learning.training]", f"[learning.{key}]\n{line.split(' = ', 1)[1]}\n[learning.training]"
        )
    return text.replace("[learning.evaluation]", f"[learning.parts]\n{pin}\n\n[learning.evaluation]", 1)


WRONG = [
    ('codec = "thinned(kep=0.5)"', "thinned has no setting 'kep'", "keep", "codec"),
    ('codec = "thinner"', "there is no codec 'thinner'", "'thinned'?", "codec"),
    ('network = "wide(wdth=3)"', "wide has no setting 'wdth'", "its settings are width", "network"),
    ('network = "wide(width=word)"', "width=word is not a whole number", "whole number", "network"),
    ('network = "no_model"', "which has no", "TorchModel", "network"),
    ('network = "gone"', "cannot be loaded", "mend the package", "network"),
    ('server = name = "halved"\nprt = 0.5', "halved has no setting 'prt'", "part", "prt"),
    ('server = name = "halfed"', "no server optimiser 'halfed'", "'halved'?", "server"),
    ('robust = name = "signs"\nsize = "big"', "size=big is not a number", "number", "size"),
    ('pacing = name = "in_turns"\npause = 1.5', "pause=1.5 is not a whole number", "whole", "pause"),
]


@pytest.mark.parametrize(("line", "what", "remedy", "at"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_setting_of_a_packages_part_is_refused_with_its_line(module, line, what, remedy, at):
    text = with_part(line)
    found = problems(text)
    match = [each for each in found if what in each.what and remedy in each.remedy]
    assert match, [str(each) for each in found]
    assert all(at in text.splitlines()[each.line - 1] for each in match)


def test_a_study_is_read_without_running_a_packages_code(module):
    study = study_from_toml(with_part('codec = "thinned(kep=0.5)"'))
    assert study.learning.parts == PINNED
    assert module not in sys.modules
    assert study.learning.own_parts == (("codec", "thinned"),)
    assert any(
        "each of which must allow it (our-parts 1.2.0)" in each for each in notes_on(study, date.today())
    )
    assert study_from_toml(write_toml(study)) == study
    assert study_from_json(json.dumps(write_bundle(study))).hash == study.hash
    assert study.hash != study_from_toml(with_part('codec = "thinned(kep=0.5)"', 'our-parts = "1.2.1"')).hash


def test_a_package_in_another_version_is_refused_with_what_to_install(module):
    (found,) = problems(with_part('codec = "thinned"', 'our-parts = "2.0"'))
    assert "installed in version 1.2.0, the study names 2.0" in found.what
    assert "pip install our-parts==2.0" in found.remedy


def test_a_name_that_only_an_unnamed_package_has_says_which(module):
    text = with_part('codec = "thinned"').replace('[learning.parts]\nour-parts = "1.2.0"\n', "")
    (found,) = problems(text, load=False)
    assert 'our-parts = "1.2.0" under [learning.parts]' in found.remedy
    assert module not in sys.modules


def test_nobody_takes_our_names_or_anothers(module, tmp_path, monkeypatch):
    install(
        tmp_path,
        monkeypatch,
        package="rude-codecs",
        entries={"abaton.codecs": {"stc": "Thinned", "x": "Thinned"}},
    )
    (found,) = problems(with_part('codec = "x"', 'rude-codecs = "1.2.0"'))
    assert "calls a codec 'stc', which is Abaton's own" in found.what
    install(tmp_path, monkeypatch, package="late-codecs", entries={"abaton.codecs": {"thinned": "Thinned"}})
    (found,) = problems(with_part('codec = "thinned"', 'our-parts = "1.2.0"\nlate-codecs = "1.2.0"'))
    assert "also one of our-parts" in found.what


def test_the_command_that_checks_a_study_checks_its_own_parts(module, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(with_part('codec = "thinned(kep=0.5)"'))
    done = CliRunner().invoke(app, ["study", "check", str(file)])
    line = next(i for i, each in enumerate(file.read_text().splitlines(), 1) if each.startswith("codec = "))
    assert done.exit_code == 2
    assert f"study.toml:{line}: learning.codec: thinned has no setting 'kep'" in done.stdout
    file.write_text(with_part('codec = "thinned(keep=0.5)"'))
    done = CliRunner().invoke(app, ["study", "check", str(file)])
    assert done.exit_code == 0
    assert "each of which must allow it (our-parts 1.2.0)" in done.stdout
