"""Site policy: checks each request before the work, and each reply before it leaves the site.

Every engine applies the policy of the learner's site. The controller receives a fixed code for a refusal; the reason
stays in the site's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from abaton.layout import Vector
from abaton.training import TrainSettings


@dataclass(frozen=True, slots=True)
class SignedModel:
    """Origin and signature of a model that is to be scored.

    Attributes:
        trained_by: The learner that trained the model.
        version: The version of the community model from which it was trained.
        signature: Signature of the learner's site.
    """

    trained_by: str
    version: int
    signature: str


@dataclass(frozen=True, slots=True)
class SiteRequest:
    """Request to a site.

    Attributes:
        message_type: `train`, `evaluate`, or another message type.
        task_id: Id of the task; empty for other requests.
        version: Version of the community model from which training starts.
        settings: Settings of training.
        model: The model to train from or to score.
        signed_model: Origin and signature of a model to score, where sites sign models.
    """

    message_type: str
    task_id: str = ""
    version: int | None = None
    settings: TrainSettings | None = None
    model: Vector | None = field(default=None, compare=False, repr=False)
    signed_model: SignedModel | None = None


@dataclass(frozen=True, slots=True)
class SiteReply:
    """Reply of a site: JSON values, and bytes such as the encoded update."""

    header: Mapping[str, Any]
    payload: bytes = b""


class SitePolicy(Protocol):
    """Policy of a site; a method refuses by raising `RefusedError`.

    >>> from abaton.errors import RefusedError
    >>> class MaxEpochs:
    ...     "Policy of a site that trains at most 2 epochs and does not release its loss."
    ...     def admit(self, request: SiteRequest) -> None:
    ...         if request.settings is not None and request.settings.epochs > 2:
    ...             raise RefusedError("epochs is above 2", where="site 'north'", remedy="use 2 epochs or fewer")
    ...     def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
    ...         return SiteReply({**reply.header, "loss": None}, reply.payload)
    >>> policy: SitePolicy = MaxEpochs()
    >>> policy.admit(SiteRequest("train", "task 1", 0, TrainSettings(epochs=1)))
    >>> dict(policy.release(SiteRequest("train"), SiteReply({"steps": 8, "loss": 0.5})).header)
    {'steps': 8, 'loss': None}
    """

    def admit(self, request: SiteRequest) -> None:
        """Site policy interface: allow the work on a request, also on a repeated one.

        Raises:
            RefusedError: The site refuses the request.
        """

    def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        """Site policy interface: return the reply that leaves the site, all of it or less, also when repeated.

        Raises:
            RefusedError: The site releases no reply.
        """


class AllowAllPolicy:
    """Policy of a site without rules: all requests and replies are allowed."""

    def admit(self, request: SiteRequest) -> None:
        """Allow every request: the site policy without restrictions."""

    def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        """Return the reply unchanged: the site policy without restrictions."""
        return reply


ALLOW_ALL = AllowAllPolicy()
