"""A hostile site in a network study may send any reply; the study of the other sites succeeds.

Each attack crashed, stalled or distorted a run before there was a defence, or would without one. Most use the recorded
replies of one honest run, some a complete run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.study_run.network.network_loopback import Loop

from abaton.cli.output import table
from abaton.codecs import CodecKey
from abaton.engines.flower import Message
from abaton.engines.flower.flower_engine import parse_introduction
from abaton.errors import AbatonError, PayloadError
from abaton.features import feature_columns
from abaton.lab.demo import Demonstration, make_demo, open_demo
from abaton.lab.synthetic_hospitals import FOUR_HOSPITALS
from abaton.layout import Layout
from abaton.metrics.regression import sum_errors
from abaton.report import make_run_report, render_run_report
from abaton.store import Journal, RunRow, Store
from abaton.study import load_study
from abaton.study_run import NetworkRunOptions, evaluation
from abaton.study_run.evaluation import EvaluationGroup, count_predictions, evaluate_counts
from abaton.study_run.interpretability import combine_interpretability
from abaton.study_run.messages import counts_from_row, counts_to_row, message_body, sums_from_row
from abaton.study_run.model_signatures import SiteSigner
from abaton.study_run.site_client import (
    PreparationResult,
    RemotePreparation,
    request_evaluations,
    request_interpretability,
    request_local_benefit,
)
from abaton.study_run.site_releases import check_scale
from abaton.training import round_key

LIAR = "kos"
HONEST = ["pergamon", "trikala"]
NAMES = (LIAR, *HONEST)
OPTIONS = NetworkRunOptions(min_sites=3, seed=5, bootstrap_resamples=20, poll_seconds=0.0)
HUGE = 10**400  # an integer that is no float
MARKUP = "<script>alert(1)</script>"

Lie = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module", autouse=True)
def _small_sites_contribute():
    """Let the small hospitals of these tests contribute to results of all sites: with `min_cell_count` cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_CONTRIBUTION_FACTOR", 1)
        yield


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory) -> Demonstration:
    """Three hospitals with a study of two rounds that uses every message type."""
    folder = tmp_path_factory.mktemp("lied") / "all"
    demo = make_demo(folder, 3, 0.25, rounds=16, cohort=FOUR_HOSPITALS)
    file = folder / "study.toml"
    text = file.read_text().replace(
        "rounds = 16", 'rounds = 2\nstrategy = "SyncDVW"\npersonalise = ["recalibrate"]'
    )
    text += '\n[learning.interpretability]\npermutation_repeats = 1\npartial_dependence = ["age"]\ngrid_points = 2\n'
    file.write_text(text)
    for site in demo.sites:
        site.write_text(site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"'))
    demo = open_demo(folder, cohort=FOUR_HOSPITALS)
    sites = [path for path in demo.sites if path.parent.name in NAMES]
    return replace(demo, study=load_study(file), sites=sites)


def spoilt(reply: Message, lie: Lie) -> Message:
    """Return a reply with a false value."""
    if "body" not in reply.attachments:
        header = dict(reply.header)
        lie(header)
        return replace(reply, header=header)
    body = message_body(reply)
    lie(body)
    return replace(reply, attachments={"body": json.dumps(body).encode()})


def run(
    demo: Demonstration, folder: Path, message_type: str, lie: Lie, options: NetworkRunOptions = OPTIONS
) -> RunRow:
    """Run a study in which the replies of one site to one message type are false."""
    loop = Loop(folder, demo.study, demo.sites, options)

    def intercept(service: Any, message: Message) -> Message | None:
        return (
            spoilt(service.reply(message), lie)
            if (service.name, message.message_type) == (LIAR, message_type)
            else None
        )

    loop.transport.intercept = intercept
    with Store(folder / "store") as store:
        row = loop.run(store)
    assert row.status == "finished", row.result
    json.dumps(row.result, allow_nan=False)
    return row


@dataclass
class Recorded:
    """Replays the replies of one honest run; one site's replies to one message type may be false."""

    replies: Mapping[tuple[str, str], Message]
    message_type: str = ""
    lie: Lie = lambda body: None

    def request_all(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        return {site: self._reply(message.message_type, site) for site, message in messages.items()}

    def _reply(self, message_type: str, site: str) -> Message:
        reply = self.replies[message_type, site]
        return spoilt(reply, self.lie) if (message_type, site) == (self.message_type, LIAR) else reply


@pytest.fixture(scope="module")
def recorded(hospitals, tmp_path_factory) -> Mapping[tuple[str, str], Message]:
    """Return the reply of every site to every message type."""
    folder, replies = tmp_path_factory.mktemp("recorded"), {}
    loop = Loop(folder, hospitals.study, hospitals.sites, OPTIONS)

    def intercept(service: Any, message: Message) -> Message:
        replies[message.message_type, service.name] = answer = service.reply(message)
        return answer

    loop.transport.intercept = intercept
    with Store(folder / "store") as store:
        assert loop.run(store).status == "finished"
    return replies


def changed(**values: Any) -> Lie:
    return lambda body: body.update(values)


def spoilt_column(body: dict[str, Any], sums: list[float]) -> None:
    body["sums"]["columns"] = dict.fromkeys(body["sums"]["columns"], sums)


def other_names(body: dict[str, Any]) -> None:
    """Change the generalised labels of the study."""
    for column in body["histogram"]["chains"]:
        for names, _ in column:
            names[1:-1] = [f"{name}!" for name in names[1:-1]]


def nameless(body: dict[str, Any]) -> None:
    for names, _ in body["histogram"]["chains"][0]:
        names.clear()


def ghosts(body: dict[str, Any]) -> None:
    body["histogram"]["counts"] = [2**62 for _ in body["histogram"]["counts"]]


def prepared(
    demo: Demonstration, replies: Mapping[tuple[str, str], Message], message_type: str, lie: Lie
) -> PreparationResult:
    requests: Any = Recorded(replies, message_type, lie)
    return RemotePreparation(demo.study, requests, "run", 5, lambda text: None)(NAMES)


PREPARATION_LIES: dict[str, tuple[str, Lie]] = {
    "a sum that is no float": ("split", lambda body: spoilt_column(body, [9, HUGE, 1.0])),
    "a distant sum": ("split", lambda body: spoilt_column(body, [2**40, 1e30, 1e50])),
    "sums that no values have": ("split", lambda body: spoilt_column(body, [9, 100.0, 1.0])),
    "a negative sum of squares": ("split", lambda body: spoilt_column(body, [9, 0.0, -1.0])),
    "a k of a million": ("ingest", changed(k=10**6)),
    "a k that is no float": ("ingest", changed(k=HUGE)),
    "more suppressed records than exist": (
        "ingest",
        lambda body: body["histogram"].update(suppressed=2**33),
    ),
    "a count of records that is no float": (
        "ingest",
        lambda body: body["histogram"].update(suppressed=HUGE),
    ),
    "half a subject": (
        "ingest",
        lambda body: body["histogram"].update(subjects=[0.5 for _ in body["histogram"]["subjects"]]),
    ),
    "counts that overflow": ("ingest", ghosts),
    "other labels for the same ages": ("ingest", other_names),
    "another level": (
        "ingest",
        lambda body: body["histogram"].update(base=[1 for _ in body["histogram"]["base"]]),
    ),
    "a level that no column has": ("ingest", lambda body: body["histogram"].update(base=[10**6, 0])),
    "a missing level": ("ingest", lambda body: body["histogram"].update(base=[1])),
    "no subjects": ("ingest", lambda body: body["histogram"].update(cells=[], counts=[], subjects=[])),
    "ages without labels": ("ingest", nameless),
    "a cohort count that is no float": (
        "ingest",
        lambda body: body["cohort_report"]["counts"]["values"].update(rows=HUGE),
    ),
    "terminal control characters": (
        "ingest",
        lambda body: body["cohort_report"].update(remarks=["\x9b2J"]),
    ),
    "a stage that does not exist": (
        "ingest",
        lambda body: body["cohort_report"]["counts"]["values"].update({"discharged": 4.0}),
    ),
    "record counts beside the cohort": (
        "ingest",
        lambda body: body["cohort_report"].update(records={"Patient": 618}),
    ),
    "a million characters": ("ingest", lambda body: body["cohort_report"].update(remarks=["x" * 10**6])),
    "a min_cell_count of a million": ("scale", changed(min_cell_count=10**6)),
}


@pytest.mark.parametrize("name", PREPARATION_LIES)
def test_a_site_with_false_preparation_replies_is_excluded(hospitals, recorded, name):
    ready = prepared(hospitals, recorded, *PREPARATION_LIES[name])
    assert list(ready.tables) == HONEST
    assert list(ready.excluded_sites) == [LIAR]
    assert max(ready.min_cell_counts.values()) < 100
    learning = hospitals.study.learning
    for site in HONEST:
        own = sums_from_row(message_body(recorded["split", site])["sums"])
        assert check_scale(learning, ready.scale, own), "the other sites accept the scaling"


def test_an_honest_site_is_not_excluded(hospitals, recorded):
    ready = prepared(hospitals, recorded, "", lambda body: None)
    assert tuple(ready.tables) == NAMES
    assert ready.excluded_sites == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a distant sum", "a k of a million"])
def test_a_run_finishes_without_a_site_with_false_preparation_replies(hospitals, tmp_path, name):
    row = run(hospitals, tmp_path, *PREPARATION_LIES[name])
    assert list(row.recipe["excluded_sites"]) == [LIAR]
    (line,) = [line for line in row.result["evaluation"]["rows"] if line["grouping"] == "all"]
    assert (line["sites"] >= 1, line["metrics"] is not None) == (True, True)


def counts(group: str, grouping: str, count: Any) -> list[Any]:
    return [group, grouping, [[[1, count, count], [400, count, count]]]]


EVALUATION_LIES: dict[str, Lie] = {
    "a count that is no float": lambda body: body.update(
        counts=[[counts("all sites", "all", HUGE)] for _ in body["counts"]]
    ),
    "more subjects than the world population": lambda body: body.update(
        counts=[[counts("all sites", "all", 2**50)] for _ in body["counts"]]
    ),
    "a row of another site": lambda body: [
        model_counts.append(counts("trikala", "site", 99)) for model_counts in body["counts"]
    ],
    "a second row of all subjects": lambda body: [
        model_counts.append(counts("z", "all", 99)) for model_counts in body["counts"]
    ],
    "groups that the study does not have": lambda body: [
        model_counts.extend(counts(f"{MARKUP} {i}", MARKUP, 99) for i in range(2000))
        for model_counts in body["counts"]
    ],
    "an unknown group of an input": lambda body: [
        model_counts.append(counts(f"sex: {MARKUP}", "sex", 99)) for model_counts in body["counts"]
    ],
    "a group larger than the total": lambda body: [
        model_counts.append(counts("sex: male", "sex", 9999)) for model_counts in body["counts"]
    ],
    "regression sums instead of probabilities": lambda body: body.update(
        counts=[[["all sites", "all", [9, *[1.0] * 9]]] for _ in body["counts"]]
    ),
    "no total": lambda body: body.update(counts=[[counts(LIAR, "site", 99)] for _ in body["counts"]]),
    "another number of models": lambda body: body.update(counts=[]),
}


def evaluation_rows(
    demo: Demonstration, replies: Mapping[tuple[str, str], Message], lie: Lie
) -> dict[str, Any]:
    """Return the results from the sites' replies, by group."""
    requests: Any = Recorded(replies, "evaluate_test", lie)
    models = [np.zeros(1, np.float32)] * len(message_body(replies["evaluate_test", LIAR])["counts"])
    counts = request_evaluations(requests, {}, NAMES, models, demo.study)
    classes = demo.study.feature_spec().label.class_names
    results = evaluate_counts(
        demo.study.learning, classes, 5, {"community": counts[-1]}, seed=1, bootstrap_resamples=20
    )
    json.dumps(results, allow_nan=False)
    return {row["group"]: row for row in results["rows"]}


@pytest.mark.parametrize("name", EVALUATION_LIES)
def test_false_test_counts_are_ignored(hospitals, recorded, name):
    results, honest = (
        evaluation_rows(hospitals, recorded, EVALUATION_LIES[name]),
        evaluation_rows(hospitals, recorded, lambda body: None),
    )
    contributing = [site for site in HONEST if site in honest]
    assert results["all sites"]["sites"] == len(contributing) >= 1
    assert all(results[site] == honest[site] for site in contributing)
    assert results.keys() <= honest.keys()


def test_huge_plausible_counts_need_bounded_memory_and_are_visible(hospitals, recorded):
    """Counts below the limit are accepted: the report shows which site they are from."""

    def lie(body: dict[str, Any]) -> None:
        model_counts = [counts("all sites", "all", 2**30), counts(LIAR, "site", 2**30)]
        body.update(counts=[model_counts for _ in body["counts"]])

    assert evaluation_rows(hospitals, recorded, lie)[LIAR]["subjects"] == str(2**32)


SUMS = {
    "negative errors": [9, 1.0, -1.0, *[1.0] * 7],
    "infinite squares": [9, *[1e200] * 9],
    "errors larger than their squares allow": [9, 100.0, *[1.0] * 8],
    "values larger than their squares allow": [9, 1.0, 1.0, 1.0, 100.0, *[1.0] * 5],
    "squares larger than fourth powers allow": [60, 1.0, 1.0, 1.0, 1.0, 100.0, *[1.0] * 4],
    "cubes larger than fourth powers allow": [60, *[1.0] * 5, -100.0, *[1.0] * 3],
    "products larger than their factors allow": [60, *[1.0] * 7, 100.0, 1.0],
    "negative products of squares": [60, *[1.0] * 8, -1.0],
    "more pairs than possible": [9, 4, 1.0, 1e9, 1.0, 1.0, 1.0],
    "more concordant pairs than pairs": [9, 4, 9.0, 8.0, 1.0, 1.0, 1.0],
    "negative squares of pairs": [9, 4, 1.0, 8.0, -1.0, 1.0, 1.0],
}


@pytest.mark.parametrize("name", SUMS)
def test_impossible_sums_are_invalid(name):
    with pytest.raises(PayloadError):
        counts_from_row([["all sites", "all", SUMS[name]]], 0)


def test_possible_sums_are_accepted():
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1.0, 1e4):
        sums = sum_errors(rng.normal(size=60) * scale, rng.standard_t(3, 60) * scale)
        (parsed,) = counts_from_row([["all sites", "all", list(astuple(sums))]], 0).values()
        assert parsed == sums


def test_high_powers_of_a_small_number_of_values_are_not_released():
    """Four moments of five values would determine them."""
    rng, federation = np.random.default_rng(4), SimpleNamespace(classes=(), label=(0.0, 1.0))
    sums = count_predictions(rng.normal(size=9), rng.normal(size=9), federation, 5)
    row = counts_to_row({EvaluationGroup("all sites", "all"): sums})
    assert row[0][2][6:] == [0.0] * 4
    (parsed,) = counts_from_row(row, 0).values()
    assert parsed.squares == sums.squares
    assert math.isnan(parsed.fourths)


def model_benefit(value: Any, low: Any = 0.1, high: Any = 0.9) -> dict[str, Any]:
    same = [0.0, 0.0, 0.0]
    return {
        "value": [value, low, high],
        "gain_over_local_only": same,
        "gain_over_community": same,
        "selected": {"penalty": 1.0},
    }


def benefits(row: dict[str, Any]) -> Lie:
    return lambda body: body.update(
        benefits=dict.fromkeys(("local_only", "community", "recalibrate"), row), reason=""
    )


BENEFIT_LIES: dict[str, Lie] = {
    "above the range": benefits(model_benefit(57.0, 56.0, 58.0)),
    "below the range": benefits(model_benefit(-1.0, -2.0, 0.0)),
    "a value that is no float": benefits(model_benefit(HUGE)),
    "an inverted interval": benefits(model_benefit(0.5, 0.7, 0.6)),
    "a gain above the range": benefits({**model_benefit(0.5), "gain_over_local_only": [5.0, 4.0, 6.0]}),
    "a weight of a hundred": benefits({**model_benefit(0.5), "selected": {"weight": 100.0}}),
    "no setting of the local-only model": benefits({**model_benefit(0.5), "selected": {}}),
    "a text with an escape character": changed(benefits=None, reason="\x1b[2J"),
}


@pytest.mark.parametrize("name", BENEFIT_LIES)
def test_an_impossible_local_benefit_is_ignored(hospitals, recorded, name):
    requests: Any = Recorded(recorded, "local_benefit", BENEFIT_LIES[name])
    assert (
        list(request_local_benefit(requests, {}, NAMES, np.zeros(1, np.float32), {}, hospitals.study))
        == HONEST
    )


def test_a_plausible_benefit_is_reported(hospitals, recorded):
    requests: Any = Recorded(recorded, "local_benefit", benefits(model_benefit(0.8)))
    by_site = request_local_benefit(requests, {}, NAMES, np.zeros(1, np.float32), {}, hospitals.study)
    assert by_site[LIAR].benefits["local_only"].value.value == 0.8


def spoil(part: str, value: Any) -> Lie:
    def lie(body: dict[str, Any]) -> None:
        body["interpretability"][part] = value

    return lie


INTERPRETABILITY_LIES: dict[str, Lie] = {
    "without the total": lambda body: body["interpretability"].update(
        counts=body["interpretability"]["counts"][1:]
    ),
    "a mean probability of a million": spoil("means", {"age": [[1e6], [1e6]]}),
    "a mean that is no float": spoil("means", {"age": [[HUGE], [HUGE]]}),
    "more subjects than the world population": spoil("subjects", 2**50),
    "inputs that are a text": spoil("permuted", "age"),
}


@pytest.mark.parametrize("name", INTERPRETABILITY_LIES)
def test_a_site_with_false_interpretability_results_is_excluded_there(hospitals, recorded, name):
    study, requests = hospitals.study, Recorded(recorded, "interpretability", INTERPRETABILITY_LIES[name])
    results = request_interpretability(requests, {}, NAMES, np.zeros(1, np.float32), study)  # type: ignore[arg-type]
    assert results[LIAR] == "invalid_reply"
    deployment = {"classes": study.feature_spec().label.class_names, "scale": {"age": (50.0, 10.0)}}
    combined = combine_interpretability(
        study.learning.interpretability, feature_columns(study.feature_spec()), deployment, 5, results
    )
    assert combined["sites"] == HONEST


INTRODUCTION_LIES: dict[str, Lie] = {
    "examples that are no float": changed(examples=HUGE),
    "half an example": changed(examples=0.5),
    "negative labels": changed(labels=[-1, 5]),
    "too many labels": changed(labels=[1] * (1 << 13)),
    "a group with an escape character": changed(group="\x1b]0;x\x07"),
    "no group": lambda header: header.pop("group"),
}


@pytest.mark.parametrize("name", INTRODUCTION_LIES)
def test_an_invalid_introduction_is_refused(recorded, name):
    with pytest.raises(PayloadError):
        parse_introduction(spoilt(recorded["introduce", LIAR], INTRODUCTION_LIES[name]).header)


@pytest.mark.slow
@pytest.mark.parametrize("lie", [changed(examples=0.5), changed(site="trikala")], ids=["half", "another"])
def test_a_site_without_a_valid_introduction_is_not_waited_for(hospitals, tmp_path, lie):
    """The site was prepared like the others; before, the run waited for it without end."""
    row = run(hospitals, tmp_path, "introduce", lie, replace(OPTIONS, absence_timeout=0.5))
    assert row.result["traffic"].keys() >= set(HONEST)
    assert row.result["traffic"].get(LIAR, {"updates": 0})["updates"] == 0


FALSE_COUNTS = [[0, 0, 1e15, 1e15, 1e15, 1e15], [4.5, 4, 5, 5, 5, 5], [-1, 4, 5, 5, 5, 5], [9, 4, 5, 5, 5, 5]]
FALSE_COUNTS += [
    [4, 4, 5, 5, 5, 9],
    [1, 1, 1, 2, 2, 2, 2, 2, 2],
    [HUGE] * 6,
    [9, 0.5],
    [9, 1.0, 2.0, 9.0],
    "<b>",
    None,
]
EVALUATE_LIES: list[Lie] = [
    lambda header, counts=counts: header.update(counts_list=[counts for _ in header["counts_list"]])  # type: ignore[misc]
    for counts in FALSE_COUNTS
]
TRAIN_LIES: list[Lie] = [
    *(changed(counts=counts) for counts in FALSE_COUNTS),
    changed(loss="nan"),
    changed(steps=HUGE),
    changed(examples=2**53, steps=2**53),
    changed(task_id="0.1.trikala"),
    changed(cohort="../../etc/passwd"),
    changed(patient="4711"),
    lambda header: header.update(reason=MARKUP),
]
UPDATES = [float("nan"), float("inf"), 1e6, 3e38]  # every value of an update


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["train", "evaluate", "update"])
def test_false_training_replies_neither_stop_nor_distort_the_run(hospitals, tmp_path, kind, monkeypatch):
    """One false reply after the other, in a run with a round for each."""
    text = (hospitals.sites[0].parent.parent / "study.toml").read_text()
    file = tmp_path / "study.toml"
    text = re.sub(r"(?m)^codec = .*$", 'codec = "raw"', text)
    file.write_text(text.replace("rounds = 2", f"rounds = {len(TRAIN_LIES)}"))
    demo, lies_sent = replace(hospitals, study=load_study(file)), []
    loop = Loop(tmp_path, demo.study, demo.sites, replace(OPTIONS, bootstrap_resamples=0))
    lies: list[Any] = {"train": TRAIN_LIES, "evaluate": EVALUATE_LIES, "update": UPDATES}[kind]

    def intercept(service: Any, message: Message) -> Message | None:
        if service.name != LIAR or message.message_type != ("train" if kind == "update" else kind):
            return None
        answer, lie = service.reply(message), lies[len(lies_sent) % len(lies)]
        lies_sent.append(lie)
        if not isinstance(lie, float):
            return spoilt(answer, lie)
        learning, version = demo.study.learning, message.header["version"]
        layout = learning.build_model(
            features=len(feature_columns(demo.study.feature_spec())), classes=2
        ).layout
        update, key = np.full(layout.size, lie, np.float32), CodecKey(round_key(OPTIONS.seed, version), LIAR)
        with monkeypatch.context() as careless:
            careless.setattr(Layout, "check", lambda self, vector, **about: vector)
            update, _ = learning.build_codec().encode(update, layout, key, {})
        about = dict(answer.header)
        with suppress(AbatonError):  # an invalid model cannot be signed
            about["signature"] = signs[version](update)
        return replace(answer, header=about, attachments={"update": update})

    def watched(signing: SiteSigner, learner: Any, version: int, start: Any, payload: bytes) -> str:
        if learner.name == LIAR:
            signs[version] = partial(sign, signing, learner, version, start)
        return sign(signing, learner, version, start, payload)

    sign, signs = SiteSigner.sign, dict[int, Callable[[bytes], str]]()
    monkeypatch.setattr(SiteSigner, "sign", watched)
    loop.transport.intercept = intercept
    with Store(tmp_path / "store") as store:
        row = loop.run(store)
        rows = list(Journal(store, row.run).rows())
        vector = store.model_files.get(store.models(row.run)[-1].digest)
    assert row.status == "finished"
    assert row.result["reason"] == "all rounds are done"
    assert len(lies_sent) >= len(lies)
    assert np.isfinite(vector).all()
    assert np.abs(vector).max() < 100
    assert MARKUP not in json.dumps(rows)
    updates = [body for name, body in rows if name == "update_received" and body["learner"] == LIAR]
    assert updates, "well-formed updates are accepted within the limits"
    (line,) = [line for line in row.result["evaluation"]["rows"] if line["grouping"] == "all"]
    assert line["metrics"]["auroc"]["value"] > 0.5


@pytest.mark.slow
def test_texts_of_a_site_are_shown_as_text(hospitals, tmp_path, capsys):
    """Neither a page nor a terminal interprets texts of a site as markup."""
    text = f"{MARKUP} [/bold] [link=https://evil.example]here[/link]"
    row = run(hospitals, tmp_path, "ingest", lambda body: body.update(problem=text))
    assert row.recipe["excluded_sites"] == {LIAR: text}
    page = render_run_report(make_run_report(row, [], []))
    assert MARKUP not in page
    assert "&lt;script&gt;alert(1)" in page
    table("sites", ("site", "takes part"), [(LIAR, text)])
    assert text in capsys.readouterr().out
