"""What the page's scripts seal and sign opens and verifies in Python."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.governance.conftest import DOCUMENT, WHEN, random_source

from abaton.governance import EnvelopeHeader, KeySet, open_envelope
from abaton.governance.keys import PublicKey, PublicKeySet, verifier
from abaton.governance.signed_statements import read_order

SIZES = [0, 1, 65_535, 65_536, 65_537, 200_000]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sealed(built) -> tuple[dict, list[KeySet]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    key_sets = [
        KeySet.new("centre", random_source(f"centre {kind}"), WHEN, hybrid=kind) for kind in (False, True)
    ]
    recipients = [
        key_set.public.sealing_key.row() | {"id": key_set.public.sealing_key.id} for key_set in key_sets
    ]
    header = {"study": "pressure-2026", "document": DOCUMENT, "sequence": 1, "created": WHEN}
    job = json.dumps({"recipients": recipients, "sizes": SIZES, "header": header})
    script = Path(__file__).with_name("seal.mjs")
    done = subprocess.run(
        [node, str(script), str(built)], input=job, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout), key_sets


def test_what_the_page_seals_opens_here_with_plain_and_hybrid_keys(sealed):
    output, key_sets = sealed
    sender = PublicKeySet.read(output["keySet"])
    envelopes = iter(output["envelopes"])
    for key_set in key_sets:
        for size in SIZES:
            stream = open_envelope(
                [base64.b64decode(next(envelopes))], key_set, {sender.signing_key.id: sender.signing_key}.get
            )
            header = next(stream)
            assert isinstance(header, EnvelopeHeader)
            assert header.subject == output["subject"]
            content = b"".join(piece for piece in stream if isinstance(piece, bytes))
            assert content == bytes((i * 7) % 251 for i in range(size))


def test_the_code_on_paper_signs_orders_and_typing_errors_are_detected(sealed):
    output, _ = sealed
    order = read_order(output["order"], verifier([PublicKey.read(output["recovery"])]))
    assert (order.study, order.subject) == ("pressure-2026", output["subject"])
    assert output["undetected"] <= 1  # of 30; one typing error in a million is not detected


def test_no_private_key_is_extractable(sealed):
    assert sealed[0]["refused"] == ["refused"] * 4
