"""A coverage-guided fuzzer on every decoder: it looks for the bytes that a person would not think of.

The first needs nothing: it keeps the inputs that reach new lines, as told by Python's own tracing. The second is
`atheris`, which is not part of the project's environment; it runs where somebody has installed it.
"""

from __future__ import annotations

import random
import sys
import zlib
from types import FrameType
from typing import Any

import pytest
from lines import LINES, MIXED, updates

from abaton.codecs import Key, parse
from abaton.errors import PayloadError

KEY = Key(b"round one", "north")
ROUNDS = 1500


def sealed(header: bytes, body: bytes) -> bytes:
    whole = header[:20] + len(body).to_bytes(4, "little") + body
    return whole + zlib.crc32(whole).to_bytes(4, "little")


class Coverage:
    """Which lines of the codecs ran."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "abaton/codecs" not in frame.f_code.co_filename:
            return None
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self


def mutated(rng: random.Random, body: bytes) -> bytes:
    """One of the usual damages: flipped bits, cut, doubled, or overwritten with unusual bytes."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randint(1, 16)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 16)]
            case 3:
                data[at : at + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\0\0\x80\x7f"])
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_fuzzing_finds_only_payload_errors(line: str):
    codec, rng = parse(line), random.Random(line)
    valid = [codec.encode(update, MIXED, KEY, {})[0] for update in updates(MIXED).values()]
    corpus = [(payload[:24], payload[24:-4]) for payload in valid]
    coverage = Coverage()
    for _ in range(ROUNDS):
        header, body = rng.choice(corpus)
        tried = header, mutated(rng, body)
        before = len(coverage.lines)
        sys.settrace(coverage)
        try:
            decoded = codec.decode(sealed(*tried), MIXED, KEY)
        except PayloadError:
            decoded = None
        finally:
            sys.settrace(None)
        if decoded is not None:
            assert decoded.shape == (MIXED.size,)
        if len(coverage.lines) > before:
            corpus.append(tried)


@pytest.mark.slow
def test_atheris_finds_only_payload_errors(tmp_path):
    atheris = pytest.importorskip("atheris", reason="the fuzzer atheris is not installed")
    import subprocess

    script = tmp_path / "fuzz.py"
    script.write_text(
        "import sys, atheris\n"
        f"sys.path.insert(0, {str(__file__.rsplit('/', 1)[0])!r})\n"
        "with atheris.instrument_imports():\n"
        "    import abaton.codecs\n"
        "from test_fuzz import KEY, LINES, MIXED, PayloadError, parse, sealed, updates\n"
        "codecs = [parse(line) for line in LINES]\n"
        "headers = [c.encode(updates(MIXED)['normal'], MIXED, KEY, {})[0][:24] for c in codecs]\n"
        "def one(data):\n"
        "    i = data[0] % len(codecs) if data else 0\n"
        "    try:\n"
        "        codecs[i].decode(sealed(headers[i], data[1:]), MIXED, KEY)\n"
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
