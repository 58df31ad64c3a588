"""Golden payloads that every version of this wire format must write and read, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from abaton.codecs import CodecKey, parse_codec
from abaton.layout import Layout, Tensor, TensorRole

LAYOUT = Layout(
    [
        Tensor("conv.weight", (2, 1, 3, 3), TensorRole.CONV),
        Tensor("conv.bias", (2,), TensorRole.BIAS),
        Tensor("dense.weight", (3, 4), TensorRole.DENSE),
    ]
)
UPDATE = LAYOUT.zeros()
UPDATE[[1, 4, 18, 19, 20, 27, 31]] = [0.5, -1, 0.125, -3, 2, -1.5, 0.25]
KEY = CodecKey(b"golden round", "north")

# Each payload in three parts: header, body, checksum.
GOLDEN = {
    "raw": (
        "4142544e01010000a08e3368b57aed972000000080000000"
        "000000000000003f0000000000000000000080bf0000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000000000000000003e000040c0"
        "000000400000000000000000000000000000000000000000000000000000c0bf0000000000000000"
        "000000000000803e"
        "01273ce4"
    ),
    "fp16": (
        "4142544e02010000a08e3368b57aed972000000042000000"
        "0d000000006c0000000000f000000000000000000000000000000000000000000000000000000064"
        "00f6007400000000000000000000000000f20000000000000068"
        "8a300b48"
    ),
    "stc(sparsity=0.1)": (
        "4142544e03010000a08e3368b57aed9720000000110000000000c03f0300000003d9ea0d00006400f6c3812dd3"
    ),
    "stc(sparsity=0.1, scope=tensor)": (
        "4142544e03010100a08e3368b57aed97200000001c000000"
        "0000403f020000000000e03f0200000003a30202a1010d00006400f6"
        "6ee2ddcf"
    ),
    "stc(sparsity=0.1, coding=context)": (
        "4142544e03010400a08e3368b57aed9720000000120000000000c03f030000006a15efe80d00006400f687fdd1ea"
    ),
    "stc(sparsity=0.1, biases=raw)": (
        "4142544e03011000a08e3368b57aed9720000000130000000000c03f0300000003d9ea0000003e000040c0d139e987"
    ),
    "stc(sparsity=0.1, biases=sparse)": (
        "4142544e03012000a08e3368b57aed97200000000c0000000000f03f0400000002121d1abda925d3"
    ),
    "sstc(sparsity=0.2, kernels=0.5, coding=fixed, biases=raw)": (
        "4142544e04011100a08e3368b57aed972000000019000000"
        "0000603f0500000001000000100800e02e0000003e000040c0"
        "ad990f54"
    ),
    "sstc(sparsity=0.2, kernels=0.5)": (
        "4142544e04010000a08e3368b57aed972000000019000000"
        "0000603f05000000010000000001a50001410d0d00006400f6"
        "c8d0592c"
    ),
    "sstc(sparsity=0.2, kernels=0.5, coding=context)": (
        "4142544e04010200a08e3368b57aed9720000000130000000000603f0500000064a1dea6740d00006400f68e3564f2"
    ),
}


@pytest.mark.parametrize("spec", GOLDEN)
def test_the_bytes_are_the_golden_bytes(spec: str):
    codec = parse_codec(spec)
    payload, _ = codec.encode(UPDATE, LAYOUT, KEY, {})
    assert payload.hex() == GOLDEN[spec]


def test_the_header_is_as_documented():
    header = bytes.fromhex(GOLDEN["raw"])[:24]
    assert header[:4] == b"ABTN"
    assert header[4:8] == bytes([1, 1, 0, 0])
    assert header[8:16] == bytes.fromhex(LAYOUT.digest[:16])[::-1]
    assert header[16:20] == (32).to_bytes(4, "little")
    assert header[20:24] == (128).to_bytes(4, "little")


def test_raw_decodes_to_the_update():
    codec = parse_codec("raw")
    decoded = codec.decode(bytes.fromhex(GOLDEN["raw"]), LAYOUT, KEY)
    np.testing.assert_array_equal(decoded, UPDATE)
