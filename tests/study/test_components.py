"""Components and settings of the learning section: in TOML, Bundle and hash, and validated with their lines."""

from __future__ import annotations

import json
from datetime import date

import pytest
from tests.study.full_studies import long_starter

from abaton.codecs import Clip, GaussianNoise
from abaton.controller import (
    BufferedScheduler,
    CoordinateMedian,
    ExampleWeighting,
    Krum,
    NormBound,
    ServerAdam,
    ServerMomentum,
    ServerSgd,
    StalenessWeighting,
    TrimmedMean,
)
from abaton.learners import PersonalLayersModel
from abaton.metrics.counts import METRICS, task_of
from abaton.models import SklearnModel
from abaton.study import (
    LearningSection,
    StudyError,
    describe,
    study_from_json,
    study_from_toml,
    write_bundle,
    write_toml,
)

START = long_starter(date(2026, 11, 16))
STRATEGY = 'strategy = "AsyncDVW(na)"'


def with_lines(lines: str, strategy: str = STRATEGY, more: str = "") -> str:
    """Return the starter study with another strategy, further lines and further tables of the learning section."""
    assert STRATEGY in START
    text = START.replace(STRATEGY, f"{strategy}\n{lines}", 1)
    return text.replace("[learning.training]", f"{more}\n[learning.training]", 1)


SYNC = 'strategy = "SyncFedAvg"'
QUORUM = 'strategy = { name = "SyncFedAvg", quorum = 5 }'

VALID = [
    # lines, strategy, tables, check of the strategy
    (
        'server_optimiser = "adam(rate=0.5, yogi=true)"',
        SYNC,
        "",
        lambda r: r.server_optimiser == ServerAdam(rate=0.5, yogi=True),
    ),
    (
        "",
        SYNC,
        "[learning.server_optimiser]\nname = 'momentum'\nbeta = 0.5",
        lambda r: r.server_optimiser == ServerMomentum(beta=0.5),
    ),
    ('server_optimiser = "sgd"', SYNC, "", lambda r: r.server_optimiser == ServerSgd()),
    ('robust_aggregation = "median"', SYNC, "", lambda r: r.robust_aggregation == CoordinateMedian()),
    (
        "robust_aggregation = { name = 'trimmed_mean', fraction = 0.25 }",
        SYNC,
        "",
        lambda r: r.robust_aggregation == TrimmedMean(0.25),
    ),
    (
        'robust_aggregation = "krum(byzantine=1, keep=3)"',
        QUORUM,
        "",
        lambda r: r.robust_aggregation == Krum(1, 3),
    ),
    ('robust_aggregation = "norm_bound(norm=2)"', SYNC, "", lambda r: r.robust_aggregation == NormBound(2.0)),
    ('weighting = ["examples"]', STRATEGY, "", lambda r: r.weighting == (ExampleWeighting(),)),
    (
        "",
        'strategy = { name = "FedBuff", buffer_size = 3 }',
        "",
        lambda r: r.scheduler == BufferedScheduler(3),
    ),
    (
        'weighting = ["examples", "staleness(kind=hinge, b=2)"]',
        'strategy = "AsyncFedAvg"',
        "",
        lambda r: r.weighting == (ExampleWeighting(), StalenessWeighting("hinge", b=2.0)),
    ),
    (
        'weighting = ["validation(metric=mcc, include_own_validation=false)"]',
        STRATEGY,
        "",
        lambda r: (r.validation.metric, r.validation.include_own_validation) == ("mcc", False),
    ),
    (
        "",
        'strategy = { name = "SyncDVW", include_own_validation = false }',
        "",
        lambda r: r.validation.include_own_validation is False,
    ),
    (
        "",
        'strategy = { name = "AsyncDVW(a)", thresholds = { loss = 2, tombstones = 3 } }',
        "",
        lambda r: (r.scheduler.adaptive[""].loss, r.scheduler.adaptive[""].tombstones) == (2.0, 3),
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4",
        lambda r: (r.privacy.epsilon, r.privacy.delta, r.privacy.noise_multiplier) == (8.0, 1e-5, 4.0),
    ),
    (
        'weighting = ["staleness(kind=constant)"]',
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4\nadversary = 'readers'",
        lambda r: r.privacy.adversary == "readers",
    ),
]


@pytest.mark.parametrize(("lines", "strategy", "tables", "is_expected"), VALID, ids=range(len(VALID)))
def test_setting_is_in_strategy_hash_toml_and_bundle(lines, strategy, tables, is_expected):
    study = study_from_toml(with_lines(lines, strategy, tables))
    assert is_expected(study.learning.build_strategy(5))
    assert study_from_toml(write_toml(study)) == study
    back = study_from_json(json.dumps(write_bundle(study)))
    assert (back, back.hash) == (study, study.hash)
    assert study.hash != study_from_toml(START).hash
    assert LearningSection.model_validate(study.learning.model_dump(mode="json")) == study.learning


@pytest.mark.parametrize("metric", METRICS)
def test_every_weighting_metric_is_accepted(metric):
    task = task_of(metric)
    more = {"task": task, "model": "linear" if task == "regression" else "logistic"}
    learning = LearningSection(strategy={"name": "SyncDVW", "metric": metric}, **more)
    assert learning.build_strategy(3).validation.metric == metric


def test_interpretability_is_in_hash_toml_bundle_and_summary():
    section = (
        "[learning.interpretability]\npermutation_repeats = 3\n"
        "partial_dependence = ['age', 'sex']\ngrid_points = 5"
    )
    study = study_from_toml(with_lines("personalise = ['interpolate']", STRATEGY, section))
    assert study.learning.interpretability.grid_points == 5
    assert study_from_toml(write_toml(study)) == study
    back = study_from_json(json.dumps(write_bundle(study)))
    assert (back, back.hash) == (study, study.hash)
    assert study.hash != study_from_toml(START).hash
    page = describe(study)
    assert "3 permutations per input; partial dependence of age, sex" in page
    assert "interpolate" in page


def test_privacy_budget_clips_and_adds_noise_before_encoding():
    table = "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4\nclip_norm = 0.5"
    learning = study_from_toml(with_lines("", SYNC, table)).learning
    clip, noise, *_ = learning.build_codec().transforms
    assert (clip, noise) == (Clip(0.5), GaussianNoise(2.0))
    learning.build_strategy(4).privacy.check(learning.build_codec())
    assert [step.name for step in learning.build_codec().transforms][2:] == ["error_feedback"]


def test_personal_layers_are_not_in_the_shared_layout():
    network = 'model = "mlp(4)" '
    text = with_lines("", STRATEGY, "[learning.personal_layers]\nlayers = ['2', '0.bias']")
    model = study_from_toml(text.replace('model = "logistic" ', network)).learning.build_model(
        features=3, classes=2
    )
    assert isinstance(model, PersonalLayersModel)
    assert [tensor.name for tensor in model.layout] == ["0.weight"]


@pytest.mark.parametrize(
    ("line", "task", "tensors"),
    [
        (
            "SGDClassifier(alpha=0.001, fit_intercept=true)",
            "classification",
            {"coef": (1, 3), "intercept": (1,)},
        ),
        ("SGDRegressor(loss=huber)", "regression", {"coef": (3,), "intercept": (1,)}),
        (
            "MLPClassifier(5)",
            "classification",
            {"coef0": (3, 5), "intercept0": (5,), "coef1": (5, 1), "intercept1": (1,)},
        ),
    ],
)
def test_scikit_learn_estimators_are_models(line, task, tensors):
    learning = LearningSection(task=task, model=line)
    model = learning.build_model(features=3, classes=2)
    assert isinstance(model, SklearnModel)
    assert {tensor.name: tensor.shape for tensor in model.layout} == tensors
    with_bias = learning.model_copy(
        update={"personal_layers": LearningSection(personal_layers={"layers": ["bias"]}).personal_layers}
    )
    assert with_bias.model == line


def test_estimator_has_a_constant_learning_rate():
    model = LearningSection(model="SGDClassifier").build_model(features=2, classes=2)
    estimator = model.native_model(model.initial(0))
    assert (estimator.loss, estimator.learning_rate) == ("log_loss", "constant")


INVALID = [
    # lines, strategy, tables, key, problem, remedy
    (
        "",
        SYNC,
        "[learning.server_optimiser]\nname = 'adam'\nrate = [1]",
        "learning.server_optimiser.rate",
        "not a number, text or boolean",
        "one",
    ),
    (
        'server_optimiser = "adm"',
        SYNC,
        "",
        "learning.server_optimiser",
        "no server optimiser of this name",
        "'adam'?",
    ),
    (
        'server_optimiser = "adam(rat=1)"',
        SYNC,
        "",
        "learning.server_optimiser",
        "adam has no setting 'rat'",
        "rate, beta",
    ),
    (
        "",
        SYNC,
        "[learning.server_optimiser]\nname = 'adam'\nrat = 1",
        "learning.server_optimiser.rat",
        "no setting 'rat'",
        "rate",
    ),
    (
        "",
        SYNC,
        "[learning.server_optimiser]\nname = 'adam'\nrate = 'x'",
        "learning.server_optimiser.rate",
        "not a number",
        "number",
    ),
    ('server_optimiser = "adam(rate=0)"', SYNC, "", "learning.server_optimiser", "rate is 0.0", "above 0"),
    (
        'server_optimiser = "adam(0.5)"',
        SYNC,
        "",
        "learning.server_optimiser",
        "a setting has no name",
        "settings as",
    ),
    ('server_optimiser = "adam(5)"', SYNC, "", "learning.server_optimiser", "no name", "rate=0.5"),
    ('server_optimiser = "adam | sgd"', SYNC, "", "learning.server_optimiser", "2 components", "one"),
    (
        'server_optimiser = "adam"',
        'strategy = "FedAsync"',
        "",
        "learning.server_optimiser",
        "server_optimiser is",
        "ServerSgd()",
    ),
    (
        'robust_aggregation = "median"',
        STRATEGY,
        "",
        "learning.robust_aggregation",
        "robust_aggregation is",
        "SynchronousScheduler()",
    ),
    (
        'robust_aggregation = "krum(byzantine=1)"',
        SYNC,
        "",
        "learning.robust_aggregation",
        "number of updates of an aggregation is 1",
        "buffer_size >= 5",
    ),
    (
        'robust_aggregation = "trimed"',
        SYNC,
        "",
        "learning.robust_aggregation",
        "no robust aggregation of this name",
        "'trimmed_mean'?",
    ),
    ('weighting = ["size"]', SYNC, "", "learning.weighting", "no weighting of this name", "examples"),
    ('scheduler = "mine"', SYNC, "", "learning.scheduler", "no scheduler of this name", "abaton.schedulers"),
    (
        'weighting = ["examples"]',
        'strategy = { name = "SyncDVW", metric = "mcc" }',
        "",
        "learning.strategy.metric",
        "whose weighting the study replaces",
        "remove",
    ),
    (
        "",
        'strategy = { name = "SyncFedAvg", include_own_validation = false }',
        "",
        "learning.strategy.include_own_validation",
        "not a setting of the strategy SyncFedAvg",
        "remove",
    ),
    (
        "",
        'strategy = { name = "AsyncDVW(na)", thresholds = { loss = 1 } }',
        "",
        "learning.strategy.thresholds",
        "not a setting of the strategy AsyncDVW(na)",
        "remove",
    ),
    (
        "",
        STRATEGY,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4",
        "learning.privacy",
        "noise",
        "weight by",
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5",
        "learning.privacy",
        "'noise_multiplier' is missing",
        "add it",
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4\nclp = 1",
        "learning.privacy.clp",
        "key",
        "clip",
    ),
    (
        "",
        SYNC,
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4\nadversary = 'readers'",
        "learning.privacy",
        "all have the same weight",
        "constant",
    ),
    (
        "",
        STRATEGY,
        "[learning.personal_layers]\nlayers = ['head']",
        "learning.personal_layers",
        "matches one of 'layers'",
        "weight, bias",
    ),
    (
        "",
        STRATEGY,
        "[learning.personal_layers]\nlayers = ['*']",
        "learning.personal_layers",
        "every layer",
        "share",
    ),
    ("", STRATEGY, "[learning.personal_layers]\nlayers = []", "learning.personal_layers.layers", "empty", ""),
    ("", STRATEGY, "[learning.plugins]\nour-codecs = 1", "learning.plugins.our-codecs", "", ""),
    (
        "",
        STRATEGY,
        "[learning.interpretability]\npartial_dependence = ['agee']",
        "learning.interpretability.partial_dependence",
        "this is not an input",
        "did you mean 'age'?",
    ),
    (
        "",
        STRATEGY,
        "[learning.interpretability]\ngrid_points = 1",
        "learning.interpretability.grid_points",
        "",
        "",
    ),
    ("personalise = ['guess']", STRATEGY, "", "learning.personalise", "", ""),
    (
        "personalise = ['fine-tune', 'fine-tune']",
        STRATEGY,
        "",
        "learning.personalise",
        "listed twice",
        "remove",
    ),
    (
        "personalise = ['interpolate']",
        STRATEGY,
        "[learning.personal_layers]\nlayers = ['bias']",
        "learning.personalise",
        "personalised already",
        "remove 'personalise'",
    ),
]


@pytest.mark.parametrize(
    ("lines", "strategy", "tables", "key", "what", "remedy"), INVALID, ids=range(len(INVALID))
)
def test_invalid_component_is_refused_with_its_line(lines, strategy, tables, key, what, remedy):
    text = with_lines(lines, strategy, tables)
    with pytest.raises(StudyError) as caught:
        study_from_toml(text)
    problems = caught.value.problems
    match = [p for p in problems if p.key.startswith(key) and what in p.what and remedy in p.remedy]
    assert match, [str(problem) for problem in problems]
    leaf = key.removeprefix("learning.").split(".")[-1]
    assert all(leaf in text.splitlines()[problem.line - 1] for problem in match)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("SGDClassifier(alpha=word)", "scikit-learn refuses"),
        ("SGDClassifier(eta0=0.5)", "no setting 'eta0'"),
        ("SGDClassifier(3)", "no model"),
        ("MLPClassifier", "no model"),
        ("SGDRegressor", "does not fit the task"),
        ("logistic(width=3)", "no model"),
    ],
)
def test_invalid_estimator_is_refused(line, what):
    text = START.replace('model = "logistic" ', f'model = "{line}" ')
    with pytest.raises(StudyError, match="learning.model") as caught:
        study_from_toml(text)
    assert what in caught.value.problems[0].what


def test_training_settings_unsupported_by_estimators_are_refused():
    for training in ({"optimiser": "adam"}, {"momentum": 0.5}, {"proximal_mu": 0.1}):
        with pytest.raises(ValueError, match="momentum|do not support"):
            LearningSection(model="SGDClassifier", training=training)
    assert LearningSection(model="MLPClassifier(4)", training={"momentum": 0.5}).training.momentum == 0.5


def test_clipping_codec_with_privacy_budget_is_refused():
    table = "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4"
    text = with_lines("", SYNC, table).replace('codec = "', 'codec = "clip(norm=1) | ', 1)
    with pytest.raises(StudyError, match="clips and adds noise"):
        study_from_toml(text)


def test_problems_of_several_tables_are_listed_together():
    text = with_lines('server_optimiser = "adm"', SYNC, "[learning.personal_layers]\nlayers = ['head']")
    with pytest.raises(StudyError) as caught:
        study_from_toml(text.replace('model = "logistic" ', 'model = "linear" '))
    assert {problem.key for problem in caught.value.problems} == {
        "learning.model",
        "learning.server_optimiser",
        "learning.personal_layers",
    }


def test_summary_contains_every_setting():
    lines = 'server_optimiser = "adam(rate=0.5)"\nrobust_aggregation = "median"\nweighting = ["examples"]'
    tables = (
        "[learning.personal_layers]\nlayers = ['bias']\n"
        "[learning.privacy]\nepsilon = 8\ndelta = 1e-5\nnoise_multiplier = 4"
    )
    strategy = 'strategy = { name = "SyncFedAvg", quorum = 2 }'
    page = describe(study_from_toml(with_lines(lines, strategy, tables)))
    for text in (
        "adam(rate=0.5)",
        "median",
        "quorum = 2",
        "personal layers",
        "epsilon 8 at delta 1e-05",
        "examples",
    ):
        assert text in page
