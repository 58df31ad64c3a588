"""How a run went, looked at when it is over: who sent how much, and some versions of the community model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from abaton.controller import Arrived, Scored, from_row
from abaton.store import Journal, ModelRow, Store
from abaton.kernels import Vector

_CURVE = 20  # versions of the community model that are judged, for the curve over time


def traffic_of(journal: Journal, size: int) -> dict[str, dict[str, int]]:
    """For each site: how many updates it sent, their bytes, and how many those would be as plain numbers.

    And the same of the models that it was sent for its updates and scores.
    """
    sent: Counter[str] = Counter()
    got: Counter[str] = Counter()
    bytes_up: Counter[str] = Counter()
    bytes_down: Counter[str] = Counter()
    for kind, body in journal.rows():
        event = from_row(kind, body)
        if isinstance(event, Arrived):
            sent[event.learner] += 1
            bytes_up[event.learner] += event.size
        if isinstance(event, Arrived | Scored):
            got[event.learner] += 1
            bytes_down[event.learner] += event.down
    return {
        name: {
            "updates": sent[name],
            "bytes_up": bytes_up[name],
            "uncompressed": sent[name] * size * 4,
            "models": got[name],
            "bytes_down": bytes_down[name],
            "uncompressed_down": got[name] * size * 4,
        }
        for name in sorted(got)
    }


def some_versions(store: Store, run: str) -> Iterator[tuple[ModelRow, Vector]]:
    """Some versions of the community model, the last among them; not every version is kept forever."""
    versions = store.models(run)
    stride = max(1, -(-len(versions) // _CURVE))
    for version in [*versions[:-1:stride], *versions[-1:]]:
        if store.vectors.path(version.digest).exists():
            yield version, store.vectors.get(version.digest)


def point_of(version: ModelRow, judged: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The main measure of a version, which is the first that the study names, if there is one to tell."""
    line = next((each for each in judged["lines"] if each["of"] == "all"), None)
    if line is None or line["measures"] is None:
        return []
    name, told = next(iter(line["measures"].items()))
    return [{"version": version.version, "at": version.at, name: told["value"]}]
