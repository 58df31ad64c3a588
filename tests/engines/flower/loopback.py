"""Transport without a network: messages are serialised and passed to the sites' workers at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from abaton.engines.flower import Message, MessageLost
from abaton.engines.flower.site_worker import ROLES, role_of


def over_the_wire(message: Message) -> Message:
    """Message after serialisation and parsing."""
    return Message.from_bytes(message.to_bytes())


class SiteWorkers:
    """A site's two workers behind its node; other attributes are those of the training worker."""

    def __init__(self, build: Callable[[str], Any]) -> None:
        self.workers = {role: build(role) for role in ROLES}

    def reply(self, message: Message) -> Message:
        return self.workers[role_of(message)].reply(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workers["train"], name)

    @property
    def policy(self) -> Any:
        return self.workers["train"].policy

    @policy.setter
    def policy(self, policy: Any) -> None:
        for worker in self.workers.values():
            worker.policy = policy


class LoopbackTransport:
    """Nodes in this process; a test can remove them, build them busy, or replace the reply to a message.

    Attributes:
        busy: nodes that do not reply, or (node, role) of workers that do not.
    """

    def __init__(self, workers: Mapping[int, Any]) -> None:
        self.workers, self.sent = dict(workers), []
        self.replies: dict[str, Message | MessageLost] = {}
        self.intercept = lambda worker, message: None
        self.busy: set[Any] = set()
        self.silent = 0.0

    def nodes(self) -> Collection[int]:
        return list(self.workers)

    def send(self, node: int, message: Message, ttl: float) -> str:
        if node not in self.workers:
            return ""
        message_id = f"{len(self.sent):06}"
        self.sent.append((node, message))
        worker = self.workers[node]
        intercept = self.intercept(worker, message)
        self.replies[message_id] = (
            over_the_wire(worker.reply(over_the_wire(message))) if intercept is None else intercept
        )
        return message_id

    def collect(self, message_ids: Collection[str]) -> Mapping[str, Message | MessageLost]:
        available = [
            message_id
            for message_id in message_ids
            if message_id in self.replies and not self._is_waiting(message_id)
        ]
        return {message_id: self.replies.pop(message_id) for message_id in available}

    def silence(self) -> float:
        silent, self.silent = self.silent, 0.0
        return silent

    def _is_waiting(self, message_id: str) -> bool:
        node, message = self.sent[int(message_id)]
        return bool({node, (node, role_of(message))} & self.busy)
