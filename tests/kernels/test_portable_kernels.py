"""Payloads decode to the same bits on a processor with narrower vectors."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import abaton
from abaton.codecs import CodecKey, parse_codec
from abaton.layout import Layout, Tensor, TensorRole

SPECS = [f"{name}(bits={b})" for name in ("quicfl", "ecdq") for b in (1, 2, 3, 4)]
SPECS += ["eden(bits=2)", "drive", "hadamard(bits=3)", "kashin(bits=1)", "qsgd(bits=2)"]
LAYOUT = Layout([Tensor("weight", (70_000,), TensorRole.DENSE)])
KEY = CodecKey(b"key", "north")


def digests(folder):
    """Return the digests of the decoded payloads of a folder, one by one and as a sum."""
    hashes = []
    for i, spec in enumerate(SPECS):
        payload, codec = (folder / f"{i}").read_bytes(), parse_codec(spec).codec
        total = codec.accumulator(LAYOUT, KEY.round)
        total.add(payload, 0.7, KEY.learner)
        vectors = (codec.decode(payload, LAYOUT, KEY), total.mean())
        hashes += [hashlib.sha256(vector.tobytes()).hexdigest() for vector in vectors]
    return hashes


def encodings():
    """Return the digests of the payloads of the codecs that are summed without decoding."""
    update = np.random.default_rng(3).lognormal(size=LAYOUT.size).astype(np.float32)
    return [
        hashlib.sha256(parse_codec(spec).codec.encode(update, LAYOUT, KEY)).hexdigest() for spec in SPECS[:8]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["haswell", "x86-64-v2"])
def test_decoded_bits_do_not_depend_on_the_width_of_vectors(tmp_path, processor):
    features = {"haswell": "+avx2,+fma,+bmi,+bmi2,+popcnt", "x86-64-v2": "+sse4.2,+popcnt"}[processor]
    update = np.random.default_rng(3).lognormal(size=LAYOUT.size).astype(np.float32)
    for i, spec in enumerate(SPECS):
        (tmp_path / f"{i}").write_bytes(parse_codec(spec).codec.encode(update, LAYOUT, KEY))
    narrow = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    paths = os.pathsep.join([str(Path(abaton.__file__).parents[1]), str(Path(__file__).parent)])
    code = (
        "import sys, pathlib, test_portable_kernels as t; print('\\n'.join(t.digests(pathlib.Path(sys.argv[1]))));"
        "from abaton.kernels import rotated_quantiser;"
        "print('\\n'.join(t.encodings() if 'fma' in sys.argv[2] else []));"
        "print(any('zmm' in a for a in rotated_quantiser.accumulate.inspect_asm().values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), features],
        env={**os.environ, **narrow, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    *hashes, uses_zmm = done.stdout.split()
    assert uses_zmm == "False"
    assert hashes == digests(tmp_path) + (encodings() if processor == "haswell" else [])
