"""Payloads decode to the same bits on a machine with narrower vectors."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.codecs.codec_specs import SPECS

from abaton.codecs import CodecKey, parse_codec
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout(
    [
        Tensor("conv.weight", (16, 8, 5, 5), TensorRole.CONV),
        Tensor("conv.bias", (16,), TensorRole.BIAS),
        Tensor("dense.weight", (64, 300), TensorRole.DENSE),
    ]
)
KEY = CodecKey(b"round one", "north", b"secret")
READER = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from tests.codecs.test_narrow_simd import KEY, LAYOUT, SPECS, parse_codec
for spec, payload in zip(SPECS, sys.stdin.read().split(), strict=True):
    decoded = parse_codec(spec).decode(bytes.fromhex(payload), LAYOUT, KEY)
    print(hashlib.sha256(decoded.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names a processor of this family")
def test_narrower_vectors_decode_the_same_bits(tmp_path):
    import platform

    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("names an x86 processor")
    update = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    payloads = [parse_codec(spec).encode(update, LAYOUT, KEY, {})[0] for spec in SPECS]
    expected = [
        hashlib.sha256(parse_codec(spec).decode(payload, LAYOUT, KEY).tobytes()).hexdigest()
        for spec, payload in zip(SPECS, payloads, strict=True)
    ]
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", READER, str(Path(__file__).parents[2])],
        input=" ".join(payload.hex() for payload in payloads),
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == expected
