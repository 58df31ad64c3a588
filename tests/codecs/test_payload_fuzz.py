"""Coverage-guided fuzzing of every decoder.

The first fuzzer retains the inputs that reach new lines according to Python's tracing. The second is
`atheris`, which is not a dependency; its test runs where it is installed.
"""

from __future__ import annotations

import os
import random
import sys
import tracemalloc
import zlib
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.codecs.codec_specs import MIXED, SPECS, updates

from abaton.codecs import CodecKey, parse_codec
from abaton.errors import PayloadError

KEY = CodecKey(b"round one", "north")
MUTATIONS = 1500
MANY = int(os.environ.get("ABATON_FUZZ", "20000"))


def with_checksum(header: bytes, body: bytes) -> bytes:
    payload = header[:20] + len(body).to_bytes(4, "little") + body
    return payload + zlib.crc32(payload).to_bytes(4, "little")


class Coverage:
    """Executed lines of the codecs."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "abaton/codecs" not in frame.f_code.co_filename:
            return None
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self


def mutated(rng: random.Random, body: bytes) -> bytes:
    """Return a damaged body: flipped bits, truncated, duplicated, or overwritten with unusual bytes."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        position = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[position % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[position : position + rng.randint(1, 16)]
            case 2:
                data[position:position] = data[position : position + rng.randint(1, 16)]
            case 3:
                data[position : position + 4] = rng.choice(
                    [b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\0\0\x80\x7f"]
                )
            case _:
                data[position:position] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_fuzzing_finds_only_payload_errors(spec: str):
    codec, rng = parse_codec(spec), random.Random(spec)
    valid = [codec.encode(update, MIXED, KEY, {})[0] for update in updates(MIXED).values()]
    corpus = [(payload[:24], payload[24:-4]) for payload in valid]
    coverage = Coverage()
    for _ in range(MUTATIONS):
        header, body = rng.choice(corpus)
        candidate = header, mutated(rng, body)
        before = len(coverage.lines)
        sys.settrace(coverage)
        try:
            decoded = codec.decode(with_checksum(*candidate), MIXED, KEY)
        except PayloadError:
            decoded = None
        finally:
            sys.settrace(None)
        if decoded is not None:
            assert decoded.shape == (MIXED.size,)
        if len(coverage.lines) > before:
            corpus.append(candidate)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["tcdq(bits=0.3)", "tcdq(bits=2)", "tcdq(bits=6, states=8)"])
def test_many_mutated_trellis_payloads_are_safe(spec: str):
    """``make fuzz`` sets a million; the memory of all decodings together stays small."""
    codec, rng, outcomes = parse_codec(spec), random.Random(spec), {True: 0, False: 0}
    valid = [codec.encode(update, MIXED, KEY, {})[0] for update in updates(MIXED).values()]
    corpus = [(payload[:24], payload[24:-4]) for payload in valid]
    tracemalloc.start()
    for _ in range(MANY // 3):
        header, body = rng.choice(corpus)
        try:
            decoded = codec.decode(with_checksum(header, mutated(rng, body)), MIXED, KEY)
        except PayloadError:
            outcomes[False] += 1
            continue
        assert decoded.shape == (MIXED.size,)
        outcomes[True] += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
    assert min(outcomes.values()) > 0


@pytest.mark.slow
def test_atheris_finds_only_payload_errors(tmp_path):
    atheris = pytest.importorskip("atheris", reason="the fuzzer atheris is not installed")
    import subprocess

    script = tmp_path / "fuzz.py"
    script.write_text(
        "import sys, atheris\n"
        f"sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})\n"
        "with atheris.instrument_imports():\n"
        "    import abaton.codecs\n"
        "from tests.codecs.test_payload_fuzz import KEY, MIXED, SPECS, PayloadError\n"
        "from tests.codecs.test_payload_fuzz import parse_codec, updates, with_checksum\n"
        "codecs = [parse_codec(spec) for spec in SPECS]\n"
        "headers = [c.encode(updates(MIXED)['normal'], MIXED, KEY, {})[0][:24] for c in codecs]\n"
        "def one(data):\n"
        "    i = data[0] % len(codecs) if data else 0\n"
        "    try:\n"
        "        codecs[i].decode(with_checksum(headers[i], data[1:]), MIXED, KEY)\n"
        "    except PayloadError:\n"
        "        pass\n"
        "atheris.Setup(sys.argv, one)\n"
        "atheris.Fuzz()\n"
    )
    assert atheris
    done = subprocess.run(
        [sys.executable, str(script), "-max_total_time=60", f"-artifact_prefix={tmp_path}/"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
