"""A hostile site in a study on a network: it may answer any question with anything, and the others' study is made.

Each attack below crashed, stalled or spoiled a run before there was a defence, or would if one were taken away. Most
are tried on answers that were recorded in one honest run, some in whole runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.network.loops import Loop

from abaton.cli.output import table
from abaton.codecs import Key
from abaton.engines.flower import Parcel
from abaton.engines.flower.flower_engine import introduction
from abaton.errors import AbatonError, PayloadError
from abaton.features import columns
from abaton.kernels import Layout
from abaton.lab.demo import Demonstration, demonstration, opened
from abaton.report import run_page, run_report
from abaton.store import Journal, RunRow, Store
from abaton.study import load_study
from abaton.study_run import Wish
from abaton.study_run.evaluation import judge_counts
from abaton.study_run.interpretability import explanation_of
from abaton.study_run.messages import body_of, sums_from, told_from
from abaton.study_run.model_signatures import Signing
from abaton.study_run.site_client import Preparation, Ready, explained, gained, judged
from abaton.study_run.site_releases import check_scale
from abaton.training import round_key

LIAR = "kos"
HONEST = ["pergamon", "trikala"]
NAMES = (LIAR, *HONEST)
WISH = Wish(sites=3, seed=5, resamples=20, poll=0.0)
HUGE = 10**400  # whole, and no float
MARKUP = "<script>alert(1)</script>"

Lie = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Demonstration:
    """Three hospitals that train in two rounds, and are asked for all that a site can be asked for."""
    folder = tmp_path_factory.mktemp("lied") / "all"
    made = demonstration(folder, 3, 0.25, rounds=16)
    file = folder / "study.toml"
    text = file.read_text().replace(
        "rounds = 16", 'rounds = 2\npolicy = "SyncDVW"\npersonalise = ["recalibrate"]'
    )
    text += '\n[learning.explanation]\nimportance = 1\ndependence = ["age"]\npoints = 2\n'
    file.write_text(text)
    for site in made.sites:
        site.write_text(site.read_text().replace('registry = "consents.db"', 'ground = "a vote"'))
    made = opened(folder)
    some = [path for path in made.sites if path.parent.name in NAMES]
    return replace(made, study=load_study(file), sites=some)


def spoilt(answer: Parcel, lie: Lie) -> Parcel:
    """An answer with a lie in it."""
    if "body" not in answer.blobs:
        about = dict(answer.about)
        lie(about)
        return replace(answer, about=about)
    body = body_of(answer)
    lie(body)
    return replace(answer, blobs={"body": json.dumps(body).encode()})


def run(made: Demonstration, folder: Path, kind: str, lie: Lie, wish: Wish = WISH) -> RunRow:
    """A run in which one site's answers to one kind of question are not what it would have said."""
    loop = Loop(folder, made.study, made.sites, wish)

    def fate(desk: Any, parcel: Parcel) -> Parcel | None:
        return spoilt(desk.answer(parcel), lie) if (desk.name, parcel.kind) == (LIAR, kind) else None

    loop.post.fate = fate
    with Store(folder / "store") as store:
        row = loop.run(store)
    assert row.status == "finished", row.result
    json.dumps(row.result, allow_nan=False)
    return row


@dataclass
class Recorded:
    """Answers of one honest run, in the place of a survey; one site may lie in those to one kind of question."""

    answers: Mapping[tuple[str, str], Parcel]
    kind: str = ""
    lie: Lie = lambda body: None

    def ask(self, questions: Mapping[str, Parcel]) -> dict[str, Parcel]:
        return {site: self._answer(parcel.kind, site) for site, parcel in questions.items()}

    def _answer(self, kind: str, site: str) -> Parcel:
        answer = self.answers[kind, site]
        return spoilt(answer, self.lie) if (kind, site) == (self.kind, LIAR) else answer


@pytest.fixture(scope="module")
def recorded(hospitals, tmp_path_factory) -> Mapping[tuple[str, str], Parcel]:
    """What every site answered to every kind of question."""
    folder, answers = tmp_path_factory.mktemp("recorded"), {}
    loop = Loop(folder, hospitals.study, hospitals.sites, WISH)

    def fate(desk: Any, parcel: Parcel) -> Parcel:
        answers[parcel.kind, desk.name] = answer = desk.answer(parcel)
        return answer

    loop.post.fate = fate
    with Store(folder / "store") as store:
        assert loop.run(store).status == "finished"
    return answers


def changed(**values: Any) -> Lie:
    return lambda body: body.update(values)


def spoilt_column(body: dict[str, Any], moments: list[float]) -> None:
    body["sums"]["columns"] = dict.fromkeys(body["sums"]["columns"], moments)


def other_names(body: dict[str, Any]) -> None:
    """What a value is coarsened to is not what the study says."""
    for column in body["histogram"]["chains"]:
        for names, _ in column:
            names[1:-1] = [f"{name}!" for name in names[1:-1]]


def nameless(body: dict[str, Any]) -> None:
    for names, _ in body["histogram"]["chains"][0]:
        names.clear()


def ghosts(body: dict[str, Any]) -> None:
    body["histogram"]["counts"] = [2**62 for _ in body["histogram"]["counts"]]


def prepared(made: Demonstration, answers: Mapping[tuple[str, str], Parcel], kind: str, lie: Lie) -> Ready:
    survey: Any = Recorded(answers, kind, lie)
    return Preparation(made.study, survey, "run", 5, lambda words: None)(NAMES)


PREPARING: dict[str, tuple[str, Lie]] = {
    "a sum that no float holds": ("deal", lambda body: spoilt_column(body, [9, HUGE, 1.0])),
    "a sum from far away": ("deal", lambda body: spoilt_column(body, [2**40, 1e30, 1e50])),
    "sums that cannot be of any numbers": ("deal", lambda body: spoilt_column(body, [9, 100.0, 1.0])),
    "fewer squares than nothing": ("deal", lambda body: spoilt_column(body, [9, 0.0, -1.0])),
    "everybody must hide among a million": ("read", changed(k=10**6)),
    "everybody must hide among more than there are numbers": ("read", changed(k=HUGE)),
    "more records kept back than there are": ("read", lambda body: body["histogram"].update(hidden=2**33)),
    "a number of records that no machine holds": ("read", lambda body: body["histogram"].update(hidden=HUGE)),
    "half a person": (
        "read",
        lambda body: body["histogram"].update(people=[0.5 for _ in body["histogram"]["people"]]),
    ),
    "more people than machines can add": ("read", ghosts),
    "other names for the same ages": ("read", other_names),
    "another level": (
        "read",
        lambda body: body["histogram"].update(base=[1 for _ in body["histogram"]["base"]]),
    ),
    "a level that no column has": ("read", lambda body: body["histogram"].update(base=[10**6, 0])),
    "a level too few": ("read", lambda body: body["histogram"].update(base=[1])),
    "nobody": ("read", lambda body: body["histogram"].update(cells=[], counts=[], people=[])),
    "ages without a name": ("read", nameless),
    "a count of the cohort that no machine holds": (
        "read",
        lambda body: body["told"]["records"].update(Patient=HUGE),
    ),
    "words that move a terminal's cursor": ("read", lambda body: body["told"].update(remarks=["\x9b2J"])),
    "a million characters": ("read", lambda body: body["told"].update(remarks=["x" * 10**6])),
    "nothing may be told of fewer than a million": ("scale", changed(floor=10**6)),
}


@pytest.mark.parametrize("name", PREPARING)
def test_a_site_that_lies_before_a_run_is_left_out_and_the_others_begin(hospitals, recorded, name):
    ready = prepared(hospitals, recorded, *PREPARING[name])
    assert list(ready.tables) == HONEST
    assert list(ready.left_out) == [LIAR]
    assert max(ready.floors.values()) < 100
    learning = hospitals.study.learning
    for site in HONEST:
        own = sums_from(body_of(recorded["deal", site])["sums"])
        assert check_scale(learning, ready.scale, own), "the others do not refuse the scale"


def test_who_tells_the_truth_is_not_left_out(hospitals, recorded):
    ready = prepared(hospitals, recorded, "", lambda body: None)
    assert tuple(ready.tables) == NAMES
    assert ready.left_out == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a sum from far away", "everybody must hide among a million"])
def test_the_others_train_to_the_end_when_one_lies_before(hospitals, tmp_path, name):
    row = run(hospitals, tmp_path, *PREPARING[name])
    assert list(row.recipe["left_out"]) == [LIAR]
    (line,) = [each for each in row.result["evaluation"]["lines"] if each["of"] == "all"]
    assert (line["sites"], line["measures"] is not None) == (2, True)


def counts(subset: str, of: str, number: Any) -> list[Any]:
    return [subset, of, [[[1, number, number], [400, number, number]]]]


JUDGING: dict[str, Lie] = {
    "a count that no float holds": lambda body: body.update(
        told=[[counts("all sites", "all", HUGE)] for _ in body["told"]]
    ),
    "more people than live on earth": lambda body: body.update(
        told=[[counts("all sites", "all", 2**50)] for _ in body["told"]]
    ),
    "another site's line": lambda body: [each.append(counts("trikala", "site", 99)) for each in body["told"]],
    "a second line of everybody": lambda body: [each.append(counts("z", "all", 99)) for each in body["told"]],
    "groups that the study does not have": lambda body: [
        each.extend(counts(f"{MARKUP} {i}", MARKUP, 99) for i in range(2000)) for each in body["told"]
    ],
    "a group of an input that is none of its groups": lambda body: [
        each.append(counts(f"sex: {MARKUP}", "sex", 99)) for each in body["told"]
    ],
    "more of a group than of everybody": lambda body: [
        each.append(counts("sex: male", "sex", 9999)) for each in body["told"]
    ],
    "sums of values where chances are asked for": lambda body: body.update(
        told=[[["all sites", "all", [9, 1.0, 1.0, 1.0, 1.0, 1.0]]] for _ in body["told"]]
    ),
    "nothing of everybody": lambda body: body.update(told=[[counts(LIAR, "site", 99)] for _ in body["told"]]),
    "another number of models": lambda body: body.update(told=[]),
}


def lines(made: Demonstration, answers: Mapping[tuple[str, str], Parcel], lie: Lie) -> dict[str, Any]:
    """The results that the sites' answers give, by subset."""
    survey: Any = Recorded(answers, "judge", lie)
    models = [np.zeros(1, np.float32)] * len(body_of(answers["judge", LIAR])["told"])
    told = judged(survey, {}, NAMES, models, made.study)
    classes = made.study.plan().label.names
    found = judge_counts(made.study.learning, classes, 5, {"community": told[-1]}, seed=1, resamples=20)
    json.dumps(found, allow_nan=False)
    return {line["subset"]: line for line in found["lines"]}


@pytest.mark.parametrize("name", JUDGING)
def test_a_site_that_lies_about_its_test_is_not_counted(hospitals, recorded, name):
    found, honest = lines(hospitals, recorded, JUDGING[name]), lines(hospitals, recorded, lambda body: None)
    assert found["all sites"]["sites"] == 2
    assert found["trikala"] == honest["trikala"]
    assert found.keys() <= honest.keys()


def test_a_thousand_million_test_subjects_do_not_fill_the_memory_and_are_seen(hospitals, recorded):
    """As many people as there might be are not refused: the report says whose they are."""

    def lie(body: dict[str, Any]) -> None:
        told = [counts("all sites", "all", 2**30), counts(LIAR, "site", 2**30)]
        body.update(told=[told for _ in body["told"]])

    assert lines(hospitals, recorded, lie)[LIAR]["subjects"] == str(2**32)


SUMS = {
    "errors below nothing": [9, 1.0, -1.0, 1.0, 1.0, 1.0],
    "so large that a square is endless": [9, 1e200, 1e200, 1e200, 1e200, 1e200],
    "more errors than their squares allow": [9, 100.0, 1.0, 1.0, 1.0, 1.0],
    "values that their squares do not allow": [9, 1.0, 1.0, 1.0, 100.0, 1.0],
    "more pairs than people": [9, 4, 1.0, 1e9, 1.0, 1.0, 1.0],
    "more right than pairs": [9, 4, 9.0, 8.0, 1.0, 1.0, 1.0],
    "squares of pairs below nothing": [9, 4, 1.0, 8.0, -1.0, 1.0, 1.0],
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_no_people_can_have_are_not_readable(name):
    with pytest.raises(PayloadError):
        told_from([["all sites", "all", SUMS[name]]], 0)


def standing(value: Any, low: Any = 0.1, high: Any = 0.9) -> dict[str, Any]:
    same = [0.0, 0.0, 0.0]
    return {"value": [value, low, high], "over_own": same, "over_community": same, "chosen": {}}


def gain(row: dict[str, Any]) -> Lie:
    return lambda body: body.update(gain=dict.fromkeys(("own", "community", "recalibrate"), row), why="")


GAINS: dict[str, Lie] = {
    "better than right": gain(standing(57.0, 56.0, 58.0)),
    "worse than nothing": gain(standing(-1.0, -2.0, 0.0)),
    "a number that no float holds": gain(standing(HUGE)),
    "an interval that ends before it begins": gain(standing(0.5, 0.7, 0.6)),
    "a gain of more than all": gain({**standing(0.5), "over_own": [5.0, 4.0, 6.0]}),
    "a weight of a hundred": gain({**standing(0.5), "chosen": {"weight": 100.0}}),
    "words with an escape": changed(gain=None, why="\x1b[2J"),
}


@pytest.mark.parametrize("name", GAINS)
def test_a_site_that_lies_about_its_gain_is_left_out_of_the_gains(hospitals, recorded, name):
    survey: Any = Recorded(recorded, "gain", GAINS[name])
    assert list(gained(survey, {}, NAMES, np.zeros(1, np.float32), {}, hospitals.study)) == HONEST


def test_a_gain_that_can_be_is_told(hospitals, recorded):
    survey: Any = Recorded(recorded, "gain", gain(standing(0.8)))
    found = gained(survey, {}, NAMES, np.zeros(1, np.float32), {}, hospitals.study)
    assert found[LIAR].told["own"].value.value == 0.8


def spoil(part: str, value: Any) -> Lie:
    def lie(body: dict[str, Any]) -> None:
        body["explained"][part] = value

    return lie


EXPLAINED: dict[str, Lie] = {
    "without everybody": lambda body: body["explained"].update(told=body["explained"]["told"][1:]),
    "a mean chance of a million": spoil("means", {"age": [[1e6], [1e6]]}),
    "a mean that no float holds": spoil("means", {"age": [[HUGE], [HUGE]]}),
    "more subjects than live on earth": spoil("subjects", 2**50),
    "inputs that are a text": spoil("shuffled", "age"),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_site_that_lies_about_what_the_model_goes_by_is_left_out_there(hospitals, recorded, name):
    study, survey = hospitals.study, Recorded(recorded, "explain", EXPLAINED[name])
    told = explained(survey, {}, NAMES, np.zeros(1, np.float32), study)  # type: ignore[arg-type]
    assert told[LIAR] == "unreadable answer"
    use = {"classes": study.plan().label.names, "scale": {"age": (50.0, 10.0)}}
    made = explanation_of(study.learning.explanation, columns(study.plan()), use, 5, told)
    assert made["sites"] == HONEST


QUERIED: dict[str, Lie] = {
    "examples that no float holds": changed(examples=HUGE),
    "half an example": changed(examples=0.5),
    "labels below nothing": changed(labels=[-1, 5]),
    "a label for every person": changed(labels=[1] * (1 << 13)),
    "a group with an escape": changed(group="\x1b]0;x\x07"),
    "no group at all": lambda about: about.pop("group"),
}


@pytest.mark.parametrize("name", QUERIED)
def test_what_a_site_says_of_itself_is_read_with_care(recorded, name):
    with pytest.raises(PayloadError):
        introduction(spoilt(recorded["query", LIAR], QUERIED[name]).about)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [changed(examples=0.5), changed(site="trikala")], ids=["half", "another"])
def test_a_site_that_never_says_who_it_is_is_not_waited_for(hospitals, tmp_path, lie):
    """It was prepared like the others; before, the run waited for it forever."""
    row = run(hospitals, tmp_path, "query", lie, replace(WISH, absence=0.5))
    assert row.result["traffic"].keys() >= set(HONEST)
    assert row.result["traffic"].get(LIAR, {"updates": 0})["updates"] == 0


SCORES = [[0, 0, 1e15, 1e15, 1e15, 1e15], [4.5, 4, 5, 5, 5, 5], [-1, 4, 5, 5, 5, 5], [9, 4, 5, 5, 5, 5]]
SCORES += [
    [4, 4, 5, 5, 5, 9],
    [1, 1, 1, 2, 2, 2, 2, 2, 2],
    [HUGE] * 6,
    [9, 0.5],
    [9, 1.0, 2.0, 9.0],
    "<b>",
    None,
]
SCORED: list[Lie] = [
    lambda about, said=said: about.update(scores=[said for _ in about["scores"]])  # type: ignore[misc]
    for said in SCORES
]
TRAINED: list[Lie] = [
    *(changed(score=said) for said in SCORES),
    changed(loss="nan"),
    changed(steps=HUGE),
    changed(examples=2**53, steps=2**53),
    changed(key="0.1.trikala"),
    changed(cohort="../../etc/passwd"),
    changed(patient="4711"),
    lambda about: about.update(reason=MARKUP),
]
UPDATES = [float("nan"), float("inf"), 1e6, 3e38]  # each number of an update


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "evaluate", "update"])
def test_a_site_that_lies_while_it_trains_neither_ends_nor_spoils_the_run(
    hospitals, tmp_path, kind, monkeypatch
):
    """One lie after the other, in a run long enough for all of them."""
    text = (hospitals.sites[0].parent.parent / "study.toml").read_text()
    file = tmp_path / "study.toml"
    text = re.sub(r"(?m)^codec = .*$", 'codec = "raw"', text)
    file.write_text(text.replace("rounds = 2", f"rounds = {len(TRAINED)}"))
    made, told = replace(hospitals, study=load_study(file)), []
    loop = Loop(tmp_path, made.study, made.sites, replace(WISH, resamples=0))
    lies: list[Any] = {"train": TRAINED, "evaluate": SCORED, "update": UPDATES}[kind]

    def fate(desk: Any, parcel: Parcel) -> Parcel | None:
        if desk.name != LIAR or parcel.kind != ("train" if kind == "update" else kind):
            return None
        answer, lie = desk.answer(parcel), lies[len(told) % len(lies)]
        told.append(lie)
        if not isinstance(lie, float):
            return spoilt(answer, lie)
        learning, version = made.study.learning, parcel.about["version"]
        layout = learning.model(features=len(columns(made.study.plan())), classes=2).layout
        update, key = np.full(layout.size, lie, np.float32), Key(round_key(WISH.seed, version), LIAR)
        with monkeypatch.context() as careless:
            careless.setattr(Layout, "check", lambda self, vector, **about: vector)
            update, _ = learning.pipeline().encode(update, layout, key, {})
        about = dict(answer.about)
        with suppress(AbatonError):  # what is no model cannot be signed
            about["signature"] = signs[version](update)
        return replace(answer, about=about, blobs={"update": update})

    def watched(signing: Signing, learner: Any, version: int, start: Any, payload: bytes) -> str:
        if learner.name == LIAR:
            signs[version] = partial(sign, signing, learner, version, start)
        return sign(signing, learner, version, start, payload)

    sign, signs = Signing.sign, dict[int, Callable[[bytes], str]]()
    monkeypatch.setattr(Signing, "sign", watched)
    loop.post.fate = fate
    with Store(tmp_path / "store") as store:
        row = loop.run(store)
        rows = list(Journal(store, row.run).rows())
        vector = store.vectors.get(store.models(row.run)[-1].digest)
    assert row.status == "finished"
    assert row.result["reason"] == "all rounds are done"
    assert len(told) >= len(lies)
    assert np.isfinite(vector).all()
    assert np.abs(vector).max() < 100
    assert MARKUP not in json.dumps(rows)
    arrived = [body for name, body in rows if name == "Arrived" and body["learner"] == LIAR]
    assert arrived, "what is sound in form counts, as far as it may"
    (line,) = [each for each in row.result["evaluation"]["lines"] if each["of"] == "all"]
    assert line["measures"]["auroc"]["value"] > 0.5


@pytest.mark.slow
def test_words_of_a_site_are_shown_as_words(hospitals, tmp_path, capsys):
    """Neither a page nor a terminal takes what a site says for markup."""
    words = f"{MARKUP} [/bold] [link=https://evil.example]here[/link]"
    row = run(hospitals, tmp_path, "read", lambda body: body.update(problem=words))
    assert row.recipe["left_out"] == {LIAR: words}
    page = run_page(run_report(row, [], []))
    assert MARKUP not in page
    assert "&lt;script&gt;alert(1)" in page
    table("sites", ("site", "takes part"), [(LIAR, words)])
    assert words in capsys.readouterr().out
