"""Every setting of the learning that a study can name: kept in both forms, in the hash, checked with its line."""

from __future__ import annotations

import json
from datetime import date

import pytest
from tests.study.long_form import long_starter

from abaton.codecs import Clip, GaussianNoise
from abaton.controller import (
    Adam,
    Buffered,
    ByExamples,
    ByStaleness,
    Krum,
    Median,
    Momentum,
    NormBound,
    Plain,
    Trimmed,
)
from abaton.metrics.counts import MEASURES, task_of
from abaton.learners import Personal, SklearnModel
from abaton.study import (
    Learning,
    StudyError,
    describe,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)

START = long_starter(date(2026, 11, 16))
POLICY = 'policy = "AsyncDVW(na)"'


def with_lines(lines: str, policy: str = POLICY, more: str = "") -> str:
    """The starter's study with other lines for its policy, and tables of the learning's own."""
    assert POLICY in START
    text = START.replace(POLICY, f"{policy}\n{lines}", 1)
    return text.replace("[learning.training]", f"{more}\n[learning.training]", 1)


SYNC = 'policy = "SyncFedAvg"'
QUORUM = 'policy = { name = "SyncFedAvg", quorum = 5 }'

MADE = [
    # lines, policy, tables, what the rules say
    ('server = "adam(rate=0.5, yogi=true)"', SYNC, "", lambda r: r.server == Adam(rate=0.5, yogi=True)),
    ("", SYNC, "[learning.server]\nname = 'momentum'\nbeta = 0.5", lambda r: r.server == Momentum(beta=0.5)),
    ('server = "plain"', SYNC, "", lambda r: r.server == Plain()),
    ('robust = "median"', SYNC, "", lambda r: r.robust == Median()),
    ("robust = { name = 'trimmed', share = 0.25 }", SYNC, "", lambda r: r.robust == Trimmed(0.25)),
    ('robust = "krum(liars=1, keep=3)"', QUORUM, "", lambda r: r.robust == Krum(1, 3)),
    ('robust = "norm_bound(norm=2)"', SYNC, "", lambda r: r.robust == NormBound(2.0)),
    ('weighting = ["examples"]', POLICY, "", lambda r: r.weighting == (ByExamples(),)),
    ("", 'policy = { name = "FedBuff", buffer = 3 }', "", lambda r: r.pacing == Buffered(3)),
    (
        'weighting = ["examples", "staleness(kind=hinge, b=2)"]',
        'policy = "AsyncFedAvg"',
        "",
        lambda r: r.weighting == (ByExamples(), ByStaleness("hinge", b=2.0)),
    ),
    (
        'weighting = ["validation(measure=mcc, own=false)"]',
        POLICY,
        "",
        lambda r: (r.validation.measure, r.validation.own) == ("mcc", False),
    ),
    ("", 'policy = { name = "SyncDVW", own = false }', "", lambda r: r.validation.own is False),
    (
        "",
        'policy = { name = "AsyncDVW(a)", thresholds = { loss = 2, tombstones = 3 } }',
        "",
        lambda r: (r.pacing.adaptive[""].loss, r.pacing.adaptive[""].tombstones) == (2.0, 3),
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4",
        lambda r: (r.privacy.epsilon, r.privacy.delta, r.privacy.noise) == (8.0, 1e-5, 4.0),
    ),
    (
        'weighting = ["staleness(kind=constant)"]',
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4\nagainst = 'readers'",
        lambda r: r.privacy.against == "readers",
    ),
]


@pytest.mark.parametrize(("lines", "policy", "tables", "says"), MADE, ids=range(len(MADE)))
def test_a_setting_reaches_the_rules_survives_both_forms_and_is_in_the_hash(lines, policy, tables, says):
    study = study_from_toml(with_lines(lines, policy, tables))
    assert says(study.learning.rules(5))
    assert study_from_toml(write_toml(study)) == study
    back = study_from_json(json.dumps(write_bundle(study)))
    assert (back, back.hash) == (study, study.hash)
    assert study.hash != study_from_toml(START).hash
    assert Learning.model_validate(study.learning.model_dump(mode="json")) == study.learning


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_of_the_weighting_can_be_named(measure):
    task = task_of(measure)
    more = {"task": task, "network": "linear" if task == "value" else "logistic"}
    learning = Learning(policy={"name": "SyncDVW", "measure": measure}, **more)
    assert learning.rules(3).validation.measure == measure


def test_what_is_told_beside_the_model_is_in_both_forms_in_the_hash_and_on_the_page():
    asked = "[learning.explanation]\nimportance = 3\ndependence = ['age', 'sex']\npoints = 5"
    study = study_from_toml(with_lines("personalise = ['interpolate']", POLICY, asked))
    assert study.learning.explanation.points == 5
    assert study_from_toml(write_toml(study)) == study
    back = study_from_json(json.dumps(write_bundle(study)))
    assert (back, back.hash) == (study, study.hash)
    assert study.hash != study_from_toml(START).hash
    page = describe(study)
    assert "every input shuffled 3 times; curves of age, sex" in page
    assert "interpolate" in page


def test_a_privacy_budget_clips_and_adds_noise_before_anything_is_encoded():
    table = "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4\nclip = 0.5"
    learning = study_from_toml(with_lines("", SYNC, table)).learning
    clip, noise, *_ = learning.pipeline().steps
    assert (clip, noise) == (Clip(0.5), GaussianNoise(2.0))
    learning.rules(4).privacy.check(learning.pipeline())
    assert [step.name for step in learning.pipeline().steps][2:] == ["error_feedback"]


def test_personal_layers_are_no_part_of_what_is_shared():
    network = 'network = "mlp(4)" '
    text = with_lines("", POLICY, "[learning.personal]\nlayers = ['2', '0.bias']")
    model = study_from_toml(text.replace('network = "logistic" ', network)).learning.model(
        features=3, classes=2
    )
    assert isinstance(model, Personal)
    assert [tensor.name for tensor in model.layout] == ["0.weight"]


@pytest.mark.parametrize(
    ("line", "task", "tensors"),
    [
        ("SGDClassifier(alpha=0.001, fit_intercept=true)", "classes", {"coef": (1, 3), "intercept": (1,)}),
        ("SGDRegressor(loss=huber)", "value", {"coef": (3,), "intercept": (1,)}),
        (
            "MLPClassifier(5)",
            "classes",
            {"coef0": (3, 5), "intercept0": (5,), "coef1": (5, 1), "intercept1": (1,)},
        ),
    ],
)
def test_estimators_of_scikit_learn_are_named_like_networks(line, task, tensors):
    learning = Learning(task=task, network=line)
    model = learning.model(features=3, classes=2)
    assert isinstance(model, SklearnModel)
    assert {tensor.name: tensor.shape for tensor in model.layout} == tensors
    with_bias = learning.model_copy(update={"personal": Learning(personal={"layers": ["bias"]}).personal})
    assert with_bias.network == line


def test_an_estimator_learns_at_the_rate_of_the_study():
    estimator = Learning(network="SGDClassifier").model(features=2, classes=2).factory()
    assert (estimator.loss, estimator.learning_rate) == ("log_loss", "constant")


WRONG = [
    # lines, policy, tables, key, what, remedy
    (
        "",
        SYNC,
        "[learning.server]\nname = 'adam'\nrate = [1]",
        "learning.server.rate",
        "a number, a word",
        "one",
    ),
    ('server = "adm"', SYNC, "", "learning.server", "no server optimiser 'adm'", "'adam'?"),
    ('server = "adam(rat=1)"', SYNC, "", "learning.server", "adam has no setting 'rat'", "rate, beta"),
    (
        "",
        SYNC,
        "[learning.server]\nname = 'adam'\nrat = 1",
        "learning.server.rat",
        "no setting 'rat'",
        "rate",
    ),
    (
        "",
        SYNC,
        "[learning.server]\nname = 'adam'\nrate = 'x'",
        "learning.server.rate",
        "not a number",
        "number",
    ),
    ('server = "adam(rate=0)"', SYNC, "", "learning.server", "a rate is 0", "above 0"),
    ('server = "adam(0.5)"', SYNC, "", "learning.server", "without a name", "settings as"),
    ('server = "adam(5)"', SYNC, "", "learning.server", "no name", "rate=0.5"),
    ('server = "adam | plain"', SYNC, "", "learning.server", "names 2 parts", "one"),
    ('server = "adam"', 'policy = "FedAsync"', "", "learning.server", "server is", "Plain()"),
    ('robust = "median"', POLICY, "", "learning.robust", "robust is", "synchronous"),
    ('robust = "krum(liars=1)"', SYNC, "", "learning.robust", "fewest updates of a mix is 1", "at least 5"),
    ('robust = "trimed"', SYNC, "", "learning.robust", "no robust mixing 'trimed'", "'trimmed'?"),
    ('weighting = ["size"]', SYNC, "", "learning.weighting", "no weighting 'size'", "examples"),
    ('pacing = "mine"', SYNC, "", "learning.pacing", "no pacing 'mine'", "abaton.pacing"),
    (
        'weighting = ["examples"]',
        'policy = { name = "SyncDVW", measure = "mcc" }',
        "",
        "learning.policy.measure",
        "whose weighting the study replaces",
        "remove",
    ),
    (
        "",
        'policy = { name = "SyncFedAvg", own = false }',
        "",
        "learning.policy.own",
        "'own' does not",
        "remove",
    ),
    (
        "",
        'policy = { name = "AsyncDVW(na)", thresholds = { loss = 1 } }',
        "",
        "learning.policy.thresholds",
        "does not belong",
        "remove",
    ),
    (
        "",
        POLICY,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4",
        "learning.privacy",
        "noise",
        "weigh by",
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5",
        "learning.privacy",
        "'noise' is missing",
        "add it",
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4\nclp = 1",
        "learning.privacy.clp",
        "key",
        "clip",
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4\nagainst = 'readers'",
        "learning.privacy",
        "all count the same",
        "constant",
    ),
    (
        "",
        POLICY,
        "[learning.personal]\nlayers = ['head']",
        "learning.personal",
        "fits 'head'",
        "weight, bias",
    ),
    ("", POLICY, "[learning.personal]\nlayers = ['*']", "learning.personal", "every layer", "share"),
    ("", POLICY, "[learning.personal]\nlayers = []", "learning.personal.layers", "empty", ""),
    ("", POLICY, "[learning.parts]\nour-codecs = 1", "learning.parts.our-codecs", "", ""),
    (
        "",
        POLICY,
        "[learning.explanation]\ndependence = ['agee']",
        "learning.explanation.dependence",
        "'agee' is not a input",
        "did you mean 'age'?",
    ),
    ("", POLICY, "[learning.explanation]\npoints = 1", "learning.explanation.points", "", ""),
    ("personalise = ['guess']", POLICY, "", "learning.personalise", "", ""),
    (
        "personalise = ['fine-tune', 'fine-tune']",
        POLICY,
        "",
        "learning.personalise",
        "stands twice",
        "remove",
    ),
    (
        "personalise = ['interpolate']",
        POLICY,
        "[learning.personal]\nlayers = ['bias']",
        "learning.personalise",
        "every site's own already",
        "leave out",
    ),
]


@pytest.mark.parametrize(("lines", "policy", "tables", "key", "what", "remedy"), WRONG, ids=range(len(WRONG)))
def test_what_cannot_be_is_refused_with_its_line(lines, policy, tables, key, what, remedy):
    text = with_lines(lines, policy, tables)
    with pytest.raises(StudyError) as caught:
        study_from_toml(text)
    found = caught.value.problems
    match = [p for p in found if p.key.startswith(key) and what in p.what and remedy in p.remedy]
    assert match, [str(problem) for problem in found]
    leaf = key.removeprefix("learning.").split(".")[-1]
    assert all(leaf in text.splitlines()[problem.line - 1] for problem in match)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("SGDClassifier(alpha=word)", "scikit-learn cannot use"),
        ("SGDClassifier(eta0=0.5)", "no setting 'eta0'"),
        ("SGDClassifier(3)", "no network"),
        ("MLPClassifier", "no network"),
        ("SGDRegressor", "does not fit the task"),
        ("logistic(width=3)", "no network"),
    ],
)
def test_an_estimator_that_cannot_be_is_refused_with_its_line(line, what):
    text = START.replace('network = "logistic" ', f'network = "{line}" ')
    with pytest.raises(StudyError, match="learning.network") as caught:
        study_from_toml(text)
    assert what in caught.value.problems[0].what


def test_what_an_estimator_cannot_follow_is_refused():
    for training in ({"solver": "adam"}, {"momentum": 0.5}, {"proximal": 0.1}):
        with pytest.raises(ValueError, match="momentum|own solver"):
            Learning(network="SGDClassifier", training=training)
    assert Learning(network="MLPClassifier(4)", training={"momentum": 0.5}).training.momentum == 0.5


def test_a_codec_that_clips_beside_the_budget_is_refused():
    table = "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4"
    text = with_lines("", SYNC, table).replace('codec = "', 'codec = "clip(norm=1) | ', 1)
    with pytest.raises(StudyError, match="clips and adds noise by itself"):
        study_from_toml(text)


def test_what_is_wrong_in_several_tables_is_told_at_once():
    text = with_lines('server = "adm"', SYNC, "[learning.personal]\nlayers = ['head']")
    with pytest.raises(StudyError) as caught:
        study_from_toml(text.replace('network = "logistic" ', 'network = "linear" '))
    assert {problem.key for problem in caught.value.problems} == {
        "learning.network",
        "learning.server",
        "learning.personal",
    }


def test_the_page_of_a_study_says_every_setting():
    lines = 'server = "adam(rate=0.5)"\nrobust = "median"\nweighting = ["examples"]'
    tables = (
        "[learning.personal]\nlayers = ['bias']\n[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise = 4"
    )
    policy = 'policy = { name = "SyncFedAvg", quorum = 2 }'
    page = describe(study_from_toml(with_lines(lines, policy, tables)))
    for words in (
        "adam(rate=0.5)",
        "median",
        "quorum = 2",
        "personal layers",
        "epsilon 8 at delta 1e-05",
        "examples",
    ):
        assert words in page
