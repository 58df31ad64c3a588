"""Payloads made here decode to the same bits where the machine has narrower vectors."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from lines import LINES

from abaton.codecs import Key, parse
from abaton.kernels import Layout, Role, Tensor

LAYOUT = Layout(
    [
        Tensor("conv.weight", (16, 8, 5, 5), Role.CONV),
        Tensor("conv.bias", (16,), Role.BIAS),
        Tensor("dense.weight", (64, 300), Role.DENSE),
    ]
)
KEY = Key(b"round one", "north", b"secret")
READER = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from test_narrow_simd import KEY, LAYOUT, LINES, parse
for line, name in zip(LINES, sys.stdin.read().split(), strict=True):
    decoded = parse(line).decode(bytes.fromhex(name), LAYOUT, KEY)
    print(hashlib.sha256(decoded.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names a processor of this family")
def test_narrower_vectors_decode_the_same_bits(tmp_path):
    import platform

    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("names an x86 processor")
    update = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    payloads = [parse(line).encode(update, LAYOUT, KEY, {})[0] for line in LINES]
    here = [
        hashlib.sha256(parse(line).decode(payload, LAYOUT, KEY).tobytes()).hexdigest()
        for line, payload in zip(LINES, payloads, strict=True)
    ]
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+sse4.2",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", READER, os.path.dirname(__file__)],  # noqa: PTH120
        input=" ".join(payload.hex() for payload in payloads),
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == here
