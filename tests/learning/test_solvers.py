from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.models.optimisers import Solver, clip, rate

SIZE = 37


def vectors(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=SIZE).astype(np.float32) for _ in range(count)]


def reference(settings: TrainSettings, start: np.ndarray, slopes: list[np.ndarray]) -> np.ndarray:
    """The same steps by PyTorch's own optimisers."""
    model = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimiser = (
        torch.optim.Adam([model], lr=settings.learning_rate)
        if settings.solver == "adam"
        else torch.optim.SGD([model], lr=settings.learning_rate, momentum=settings.momentum)
    )
    for slope in slopes:
        model.grad = torch.from_numpy(slope) + settings.proximal * (model.detach() - torch.from_numpy(start))
        if settings.clip:
            torch.nn.utils.clip_grad_norm_([model], settings.clip)
        optimiser.step()
    return model.detach().numpy()


@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(),
        TrainSettings(momentum=0.75),
        TrainSettings(proximal=0.3),
        TrainSettings(momentum=0.9, proximal=0.1, clip=1.0),
        TrainSettings(clip=0.5),
        TrainSettings(solver="adam", learning_rate=0.01),
        TrainSettings(solver="adam", learning_rate=0.01, proximal=0.1, clip=2.0),
    ],
    ids=["sgd", "momentum", "prox", "all", "clip", "adam", "adam all"],
)
def test_every_solver_equals_its_reference(settings):
    start, *slopes = vectors(12)
    solver, model = Solver.begin(settings, start, None), start.copy()
    for slope in slopes:
        solver.apply(model, [slope[:3].copy(), slope[3:].copy()], settings.learning_rate)
    assert model == pytest.approx(reference(settings, start, slopes), abs=2e-6)
    assert solver.kept() == {}


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"solver": "adam"}], ids=["momentum", "adam"])
def test_a_kept_memory_goes_on_where_it_stopped(settings):
    settings = TrainSettings(keep_momentum=True, learning_rate=0.01, **settings)
    start, *slopes = vectors(11)
    whole, model = Solver.begin(settings, start, None), start.copy()
    for slope in slopes:
        whole.apply(model, [slope.copy()], 0.01)
    other, kept = start.copy(), None
    for part in (slopes[:4], slopes[4:]):
        solver = Solver.begin(settings, start, kept)
        for slope in part:
            solver.apply(other, [slope.copy()], 0.01)
        kept = solver.kept()
    assert np.array_equal(model, other)
    assert Solver.begin(TrainSettings(momentum=0.9), start, kept).steps == 0, "only if the settings say so"


def test_clipping_never_lengthens_and_never_turns():
    (slope,) = vectors(1)
    long, short = slope.copy(), slope.copy()
    clip(long, 1.5)
    clip(short, 1e3)
    assert np.linalg.norm(long) == pytest.approx(1.5, rel=1e-6)
    assert long / 1.5 == pytest.approx(slope / np.linalg.norm(slope), abs=1e-6)
    assert np.array_equal(short, slope)


def test_the_proximal_pull_leads_back_to_the_start():
    start, far = vectors(2)
    model = far.copy()
    solver = Solver.begin(TrainSettings(proximal=1.0), start, None)
    for _ in range(200):
        solver.apply(model, [np.zeros(SIZE, np.float32)], 0.1)
    assert model == pytest.approx(start, abs=1e-5)


def test_schedules():
    eta = TrainSettings(learning_rate=0.4, schedule="driven", decay=0.25)
    assert [rate(eta, e) for e in (0, 9)] == [0.1, 0.1]
    assert rate(TrainSettings(learning_rate=0.4, decay=0.25), 7) == 0.4
    cosine = TrainSettings(learning_rate=1, schedule="cosine", decay=0.2, period=10)
    assert rate(cosine, 0) == 1
    assert rate(cosine, 5) == pytest.approx(0.6)
    assert rate(cosine, 10) == rate(cosine, 99) == pytest.approx(0.2)
    assert all(rate(cosine, e) > rate(cosine, e + 1) for e in range(10))
    later = TrainSettings(learning_rate=1, schedule="step", decay=0.1, period=3, elapsed=5)
    assert math.isclose(rate(later, 0), 0.1)
    assert math.isclose(rate(later, 1), 0.01)


def test_unknown_names_are_refused():
    with pytest.raises(SettingsError, match=r"no solver 'lbfgs' \(training.solver\)"):
        Solver.begin(TrainSettings(solver="lbfgs"), np.zeros(2, np.float32), None)
    with pytest.raises(SettingsError, match=r"no schedule 'warm' \(training.schedule\)"):
        rate(TrainSettings(schedule="warm"), 0)
