"""The way down: everybody holds the controller's bits, nothing is lost for ever, and no codec runs away."""

from __future__ import annotations

import json

import numpy as np
import pytest

from abaton.codecs import Difference, Downlink, Key, downlink_of, follow, lacking, parse
from abaton.errors import PayloadError, SettingsError
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout([Tensor("weight", (60, 50), Role.DENSE), Tensor("bias", (50,), Role.BIAS)])
LINES = (
    "stc(sparsity=0.02)",
    "raw",
    "fp16",
    "quicfl(bits=1)",
    "quicfl(bits=4)",
    "eden(bits=1)",
    "ecdq(bits=1)",
    "hadamard(bits=1)",
    "qsgd(bits=1)",
)


def key(version: int) -> bytes:
    return b"version %d" % version


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


def published(line: str, mixes: list[np.ndarray]) -> Downlink:
    down = Downlink(parse(line), LAYOUT, noise(0))
    for mix in mixes:
        down.publish(mix, key)
    return down


@pytest.mark.parametrize("line", LINES)
def test_whoever_follows_the_differences_holds_the_controllers_bits(line: str):
    down = Downlink(parse(line), LAYOUT, noise(0))
    held = {"steady": (0, down.model), "late": (0, down.model)}
    for version in range(1, 7):
        down.publish(noise(version), key)
        for learner, missing in (("steady", ()), ("late", (1, 2, 4, 5))):
            if version not in missing:
                base, model = held[learner]
                steps = lacking(down.lately, {base}, version)
                if steps is None:  # dearer than the model itself
                    held[learner] = version, down.model
                else:
                    held[learner] = version, follow(down.pipeline, LAYOUT, model, steps, key)
    for version, model in held.values():
        assert version == 6
        assert model.tobytes() == down.model.tobytes()


@pytest.mark.parametrize("line", LINES)
def test_the_model_that_everybody_holds_comes_to_a_mix_that_stays(line: str):
    mix = noise(9)
    far = np.linalg.norm(mix - noise(0))
    near = np.linalg.norm(mix - published(line, [mix] * 60).model)
    assert near < (0.9 if line in ("hadamard(bits=1)", "qsgd(bits=1)") else 0.05) * far


def test_it_is_the_error_feedback_of_stc():
    """Sattler et al. 2019: the server's residual is added to the mean of the updates before it is compressed."""
    line, start = "stc(sparsity=0.02)", noise(0)
    down, mix = Downlink(parse(line), LAYOUT, start), start
    pipeline = parse(f"error_feedback | {line}")
    memory, model = pipeline.start(LAYOUT), start
    for version in range(1, 9):
        change = noise(version)
        mix = mix + change
        down.publish(mix, key)
        payload, memory = pipeline.encode(change, LAYOUT, Key(b"any", "server"), memory)
        model = model + pipeline.decode(payload, LAYOUT, Key(b"any", "server"))
        np.testing.assert_allclose(down.model, model, atol=1e-4)
        np.testing.assert_allclose(mix - down.model, memory["error_feedback"], atol=1e-4)


def test_the_same_mixes_give_the_same_bytes_and_another_key_gives_others():
    one, two = (published("quicfl(bits=2)", [noise(1), noise(2)]) for _ in range(2))
    assert [d.data for d in one.lately] == [d.data for d in two.lately]
    one.publish(noise(3), lambda version: b"another key")
    two.publish(noise(3), key)
    assert one.lately[-1].data != two.lately[-1].data


def test_no_more_differences_are_kept_than_are_smaller_than_the_model():
    down = published("ecdq(bits=4)", [noise(i) for i in range(1, 30)])
    sizes = [len(step.data) for step in down.lately]
    assert 0 < sum(sizes) < 4 * LAYOUT.size <= sum(sizes) + sizes[0]
    assert [step.version for step in down.lately][-1] == down.version == 29
    assert lacking(down.lately, {1}, 29) is None, "one that missed too much gets the model"
    assert published("raw", [noise(1)]).lately == (), "a difference that is no smaller is not kept"


@pytest.mark.parametrize("line", ["stc(sparsity=0.02)", "ecdq(bits=2)"])
def test_a_downlink_goes_on_from_plain_values_with_the_same_bits(line: str):
    down = published(line, [noise(i) for i in range(1, 5)])
    about, arrays = down.save()
    again = Downlink(parse(line), LAYOUT, LAYOUT.zeros())
    again.load((json.loads(json.dumps(about)), {n: a.copy() for n, a in arrays.items()}))
    for mix in (noise(5), noise(6)):
        down.publish(mix, key)
        again.publish(mix, key)
        assert again.model.tobytes() == down.model.tobytes()
        assert again.lately == down.lately


def test_error_feedback_may_be_written_and_is_so_anyway():
    assert downlink_of("error_feedback | stc(sparsity=0.02)") == downlink_of("stc(sparsity=0.02)")
    assert downlink_of(None) is None


@pytest.mark.parametrize(
    "line", ["clip(norm=1.0) | stc(sparsity=0.1)", "gaussian_noise(std=1.0) | error_feedback | raw"]
)
def test_steps_that_are_for_updates_are_refused(line: str):
    with pytest.raises(SettingsError, match="is for the updates of learners") as raised:
        downlink_of(line)
    assert "downlink" in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xffgarbage"])
def test_a_difference_that_is_not_sound_is_refused(data: bytes):
    with pytest.raises(PayloadError):
        follow(parse("stc(sparsity=0.02)"), LAYOUT, noise(0), [Difference(1, data)], key)
