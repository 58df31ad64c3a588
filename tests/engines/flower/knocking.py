"""What the processes of a small federation run: whoever is there is asked once and answers with what it was sent."""

from __future__ import annotations

import json
import time
from pathlib import Path

from abaton.engines.flower import Parcel, Post

BODY = bytes(range(256)) * 12_000  # three pieces each way


def conduct(post: Post, about: str) -> None:
    """Ask every node and write down how many answered well; called by Flower at the centre."""
    told = json.loads(about)
    while len(post.nodes()) < told["nodes"]:
        time.sleep(0.2)
    letters = [post.send(node, Parcel("query", {"run": "x"}, {"body": BODY}), 300.0) for node in post.nodes()]
    answers: dict[str, object] = {}
    while len(answers) < len(letters):
        answers |= post.collect([letter for letter in letters if letter not in answers])
        time.sleep(0.2)
    well = sum(isinstance(answer, Parcel) and answer.blobs == {"body": BODY} for answer in answers.values())
    Path(told["report"]).write_text(str(well))
