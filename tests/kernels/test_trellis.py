"""The trellis search finds the closest sequence, and its vector and scalar forms give the same bits."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import abaton
from abaton.codecs import CodecKey, Tcdq
from abaton.codecs.base import KeyPurpose
from abaton.codecs.tcdq_rate_model import trellis_rate_model
from abaton.kernels import interleaved_rans, trellis_fallback, trellis_quantiser
from abaton.kernels.rotation import backward, derive_key, rotate_block
from abaton.kernels.trellis_search import LANES, SEARCHES, TAPS, cosets
from abaton.kernels.walsh_hadamard import aligned
from abaton.layout import Layout, Tensor, TensorRole

PROCESSORS = {
    "haswell": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
    "x86-64-v2": "+sse4.2,+popcnt",
    "x86-64": "+sse2",
}
KEY = CodecKey(b"key", "north")


def searched(residues: np.ndarray, states: int) -> np.ndarray:
    """Return the cosets that the vector search chooses."""
    steps, aligned_residues = residues.size // LANES, aligned(residues.size // 2).view(np.int16)
    aligned_residues[:] = residues
    metrics, decisions = (
        aligned(3 * LANES * states // 2).view(np.int16),
        aligned(steps * states).view(np.uint32),
    )
    path = np.empty(residues.size, np.uint8)
    SEARCHES[states](aligned_residues, steps, metrics, decisions, path)
    return path


def costs(residues: np.ndarray, path: np.ndarray) -> np.ndarray:
    """Return the cost of each residue's distance to its coset, by the definition of the format."""
    distance = (residues.astype(int) - 64 * path + 128) % 256 - 128
    return (2 * np.where(distance < 0, -1 - distance, distance) + 1) ** 2 >> 6


def paths(states: int, steps: int):
    """Yield the coset sequence of every path of the trellis from state 0."""
    table = cosets(states)
    for bits in itertools.product((0, 1), repeat=steps):
        state, sequence = 0, []
        for bit in bits:
            register = bit * states + state
            sequence.append(table[register])
            state = register >> 1
        yield sequence


@pytest.mark.parametrize("states", TAPS)
def test_no_path_is_closer_than_the_chosen_one(states):
    steps = 12
    residues = np.random.default_rng(states).integers(0, 256, steps * LANES).astype(np.int16)
    all_paths = np.array(list(paths(states, steps)))
    cosets_of_lanes = searched(residues, states).reshape(steps, LANES)
    lanes = residues.reshape(steps, LANES)
    for lane in range(LANES):
        totals = costs(lanes[:, lane], all_paths).sum(axis=1)
        best = all_paths[totals == totals.min()].tolist()
        assert cosets_of_lanes[:, lane].tolist() in best


@pytest.mark.parametrize("states", TAPS)
@pytest.mark.parametrize("kind", ["uniform", "zero", "half", "alternating", "two values"])
def test_scalar_search_chooses_the_same_cosets(states, kind):
    rng, size = np.random.default_rng(1), 4096
    residues = {
        "uniform": rng.integers(0, 256, size),
        "zero": np.zeros(size),
        "half": np.full(size, 32),  # ties in every step
        "alternating": np.arange(size) // LANES % 2 * 128,
        "two values": rng.choice([0, 255], size),
    }[kind].astype(np.int16)
    scalar = np.empty(size, np.uint8)
    trellis_fallback.search(residues, states, cosets(states), scalar)
    np.testing.assert_array_equal(searched(residues, states), scalar)


@pytest.mark.parametrize("states", TAPS)
def test_metrics_do_not_overflow_on_the_worst_places(states):
    """Places opposite from every coset of one parity, in changing order; exact integers give the same cosets."""
    rng, size = np.random.default_rng(2), 1 << 15
    residues = np.repeat(rng.choice([0, 32, 64, 96, 128, 160, 192, 224], size // LANES), LANES).astype(
        np.int16
    )
    scalar = np.empty(size, np.uint8)
    trellis_fallback.search(residues, states, cosets(states), scalar)
    np.testing.assert_array_equal(searched(residues, states), scalar)


@pytest.mark.parametrize(("states", "variance"), [(8, 0.260), (64, 0.250), (256, 0.2456)])
def test_the_error_has_the_variance_of_the_code(states, variance):
    residues = np.random.default_rng(3).integers(0, 256, 1 << 18).astype(np.int16)
    distance = ((residues + 0.5) / 64 - searched(residues, states) + 2) % 4 - 2
    assert np.mean(distance**2) == pytest.approx(variance, rel=0.01)


def with_spikes(size: int) -> np.ndarray:
    """Return an update whose rotation has values opposite outside the tables."""
    rotated = aligned(size)
    rotated[:] = np.random.default_rng(4).standard_normal(size)
    rotated[[5, 77, size - 9]] = 40, -25, 11
    update = np.empty(size, np.float32)
    backward(rotated, 0, size, 0, derive_key(KEY.derive(KeyPurpose.ROTATION)), 1 / size, update, 0, size)
    return update


@pytest.mark.parametrize("states", TAPS)
@pytest.mark.parametrize("bits", [0.3, 0.5, 1, 2, 3, 6])
def test_scalar_loops_give_the_same_payload_and_values(bits, states):
    size, codec = 4096, Tcdq(bits, states)
    update, layout = with_spikes(size), Layout([Tensor("w", (size,), TensorRole.DENSE)])
    payload = codec.encode(update, layout, KEY)
    values = codec.open_payload(payload, layout, KEY).values
    model, keys = trellis_rate_model(bits, states), derive_key(KEY.derive(KeyPurpose.DITHER))
    strata, width = model.rows.shape
    z, step_count = aligned(size), values.size // LANES
    rotation = derive_key(KEY.derive(KeyPurpose.ROTATION))
    _, scale = rotate_block(update, 0, size, z, 0, size, 0, rotation)
    steps = np.arange(step_count)
    if step_count < size // LANES:
        trellis_quantiser.select_steps(size // LANES, step_count, 0, keys, steps)
        assert (np.diff(steps) > 0).all()
    coded = z.reshape(-1, LANES)[steps].ravel()
    grid, residues = np.empty(coded.size, np.int64), np.empty(coded.size, np.int16)
    trellis_fallback.dither_values(coded, np.float32(np.float64(scale) / model.step), 0, keys, grid, residues)
    path, symbols = np.empty(coded.size, np.uint8), np.empty(coded.size, np.uint16)
    trellis_fallback.search(residues, states, cosets(states), path)
    excess = np.empty(coded.size, np.int64)
    trellis_fallback.take_symbols(grid, path, 0, keys, strata, width, symbols, excess)
    assert step_count < size // LANES or np.count_nonzero(excess) >= 2
    assert payload[24:-4].endswith(
        interleaved_rans.encode_symbols(symbols, interleaved_rans.rans_table(model.rows))
    )
    rows, decoded = np.empty(coded.size, np.uint32), np.empty(coded.size, np.float32)
    trellis_fallback.decode_symbols(symbols, 0, keys, strata, width, states, cosets(states), rows, decoded)
    np.testing.assert_array_equal(rows, symbols // width)
    np.testing.assert_array_equal(values, decoded + excess.astype(np.float32))


def digests() -> list[str]:
    """Return the digests of payloads, of what they decode to, and of their sums."""
    results, layout = [], Layout([Tensor("w", (70_000,), TensorRole.DENSE)])
    update = np.random.default_rng(3).lognormal(size=layout.size).astype(np.float32)
    update[:4096] = with_spikes(4096)
    for states, bits in itertools.product(TAPS, (0.3, 0.5, 1, 2, 4)):
        codec, total = Tcdq(bits, states), Tcdq(bits, states).accumulator(layout, KEY.round)
        payload = codec.encode(update, layout, KEY)
        total.add(payload, 0.7, KEY.learner)
        vectors = (codec.decode(payload, layout, KEY), total.mean())
        results += [hashlib.sha256(data).hexdigest() for data in (payload, *(v.tobytes() for v in vectors))]
    return results


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_payloads_do_not_depend_on_the_width_of_vectors(tmp_path, processor):
    environment = {
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": PROCESSORS[processor],
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(Path(abaton.__file__).parents[1]), str(Path(__file__).parent)]),
    }
    code = (
        "import test_trellis as t; print('\\n'.join(t.digests()));"
        "print(any('zmm' in a for f in t.SEARCHES.values() for a in f.inspect_asm().values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    *hashes, uses_zmm = done.stdout.split()
    assert uses_zmm == "False"
    assert hashes == digests()
