from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from abaton.controller import TrainSettings
from abaton.errors import SettingsError
from abaton.models.optimisers import LocalOptimiser, clip_gradient, learning_rate_at

SIZE = 37


def vectors(count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=SIZE).astype(np.float32) for _ in range(count)]


def reference(settings: TrainSettings, start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """Return the model after the same steps by PyTorch."""
    model = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimiser = (
        torch.optim.Adam([model], lr=settings.learning_rate)
        if settings.optimiser == "adam"
        else torch.optim.SGD([model], lr=settings.learning_rate, momentum=settings.momentum)
    )
    for gradient in gradients:
        model.grad = torch.from_numpy(gradient) + settings.proximal_mu * (
            model.detach() - torch.from_numpy(start)
        )
        if settings.max_grad_norm:
            torch.nn.utils.clip_grad_norm_([model], settings.max_grad_norm)
        optimiser.step()
    return model.detach().numpy()


@pytest.mark.parametrize(
    "settings",
    [
        TrainSettings(),
        TrainSettings(momentum=0.75),
        TrainSettings(proximal_mu=0.3),
        TrainSettings(momentum=0.9, proximal_mu=0.1, max_grad_norm=1.0),
        TrainSettings(max_grad_norm=0.5),
        TrainSettings(optimiser="adam", learning_rate=0.01),
        TrainSettings(optimiser="adam", learning_rate=0.01, proximal_mu=0.1, max_grad_norm=2.0),
    ],
    ids=["sgd", "momentum", "prox", "all", "clip", "adam", "adam all"],
)
def test_every_optimiser_equals_its_reference(settings):
    start, *gradients = vectors(12)
    optimiser, model = LocalOptimiser.create(settings, start, None), start.copy()
    for gradient in gradients:
        optimiser.apply(model, [gradient[:3].copy(), gradient[3:].copy()], settings.learning_rate)
    assert model == pytest.approx(reference(settings, start, gradients), abs=2e-6)
    assert optimiser.state() == {}


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "adam"}], ids=["momentum", "adam"])
def test_kept_state_continues_training(settings):
    settings = TrainSettings(keep_optimiser_state=True, learning_rate=0.01, **settings)
    start, *gradients = vectors(11)
    uninterrupted, model = LocalOptimiser.create(settings, start, None), start.copy()
    for gradient in gradients:
        uninterrupted.apply(model, [gradient.copy()], 0.01)
    other, state = start.copy(), None
    for part in (gradients[:4], gradients[4:]):
        optimiser = LocalOptimiser.create(settings, start, state)
        for gradient in part:
            optimiser.apply(other, [gradient.copy()], 0.01)
        state = optimiser.state()
    assert np.array_equal(model, other)
    assert LocalOptimiser.create(TrainSettings(momentum=0.9), start, state).steps == 0, (
        "only with keep_optimiser_state"
    )


def test_clipping_keeps_direction_and_short_gradients():
    (gradient,) = vectors(1)
    long, short = gradient.copy(), gradient.copy()
    clip_gradient(long, 1.5)
    clip_gradient(short, 1e3)
    assert np.linalg.norm(long) == pytest.approx(1.5, rel=1e-6)
    assert long / 1.5 == pytest.approx(gradient / np.linalg.norm(gradient), abs=1e-6)
    assert np.array_equal(short, gradient)


def test_proximal_term_leads_back_to_the_start():
    start, distant = vectors(2)
    model = distant.copy()
    optimiser = LocalOptimiser.create(TrainSettings(proximal_mu=1.0), start, None)
    for _ in range(200):
        optimiser.apply(model, [np.zeros(SIZE, np.float32)], 0.1)
    assert model == pytest.approx(start, abs=1e-5)


def test_schedules():
    eta = TrainSettings(learning_rate=0.4, learning_rate_schedule="plateau", learning_rate_decay=0.25)
    assert [learning_rate_at(eta, e) for e in (0, 9)] == [0.1, 0.1]
    assert learning_rate_at(TrainSettings(learning_rate=0.4, learning_rate_decay=0.25), 7) == 0.4
    cosine = TrainSettings(
        learning_rate=1, learning_rate_schedule="cosine", learning_rate_decay=0.2, schedule_period=10
    )
    assert learning_rate_at(cosine, 0) == 1
    assert learning_rate_at(cosine, 5) == pytest.approx(0.6)
    assert learning_rate_at(cosine, 10) == learning_rate_at(cosine, 99) == pytest.approx(0.2)
    assert all(learning_rate_at(cosine, e) > learning_rate_at(cosine, e + 1) for e in range(10))
    elapsed = TrainSettings(
        learning_rate=1,
        learning_rate_schedule="step",
        learning_rate_decay=0.1,
        schedule_period=3,
        elapsed_epochs=5,
    )
    assert math.isclose(learning_rate_at(elapsed, 0), 0.1)
    assert math.isclose(learning_rate_at(elapsed, 1), 0.01)


def test_unknown_names_are_refused():
    with pytest.raises(SettingsError, match=r"no optimiser 'lbfgs' \(training.optimiser\)"):
        LocalOptimiser.create(TrainSettings(optimiser="lbfgs"), np.zeros(2, np.float32), None)
    with pytest.raises(SettingsError, match=r"learning_rate_schedule is 'warm' \(training\)"):
        learning_rate_at(TrainSettings(learning_rate_schedule="warm"), 0)
