"""What the page's scripts seal and sign is what this side opens and believes, to the byte."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.governance.conftest import DOCUMENT, WHEN, drawing

from abaton.governance import Header, Ring, opened
from abaton.governance.keys import PublicKey, PublicRing, verifier
from abaton.governance.signed_statements import read_order

SIZES = [0, 1, 65_535, 65_536, 65_537, 200_000]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(built) -> tuple[dict, list[Ring]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    rings = [Ring.new("centre", drawing(f"centre {kind}"), WHEN, hybrid=kind) for kind in (False, True)]
    recipients = [ring.public.sealing.row() | {"id": ring.public.sealing.id} for ring in rings]
    head = {"study": "pressure-2026", "document": DOCUMENT, "sequence": 1, "created": WHEN}
    job = json.dumps({"recipients": recipients, "sizes": SIZES, "head": head})
    script = Path(__file__).with_name("seal.mjs")
    done = subprocess.run(
        [node, str(script), str(built)], input=job, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout), rings


def test_what_the_page_seals_opens_here_with_plain_and_hybrid_keys(made):
    told, rings = made
    sender = PublicRing.read(told["ring"])
    envelopes = iter(told["envelopes"])
    for ring in rings:
        for size in SIZES:
            stream = opened(
                [base64.b64decode(next(envelopes))], ring, {sender.signing.id: sender.signing}.get
            )
            header = next(stream)
            assert isinstance(header, Header)
            assert header.subject == told["tag"]
            content = b"".join(piece for piece in stream if isinstance(piece, bytes))
            assert content == bytes((i * 7) % 251 for i in range(size))


def test_the_code_on_paper_signs_orders_and_slips_are_found(made):
    told, _ = made
    order = read_order(told["order"], verifier([PublicKey.read(told["recovery"])]))
    assert (order.study, order.subject) == ("pressure-2026", told["tag"])
    assert told["slips"] <= 1  # of thirty; one in a million is not found


def test_no_private_key_can_be_taken_out(made):
    assert made[0]["refused"] == ["refused"] * 4
