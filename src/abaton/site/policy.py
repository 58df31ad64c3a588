"""What a site lets a study's centre do: the part ``[policy]`` of ``site.toml``, strict if it says nothing."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from abaton.documents.fields import Part

Fingerprint = Annotated[str, Field(pattern=r"^ed25519:[A-Z2-7]{26}$")]


class PolicyPart(Part):
    """Bounds that the site keeps whatever the centre asks; the study document is the contract for everything else.

    Attributes:
        smallest_batch: The fewest rows that one step of training rests on, and that a model leaves to learn from.
        fewest_rows: The fewest rows that an update rests on; with fewer a site takes part only under a privacy budget,
            in a study with rounds and without scores.
        reach: How many times further than the site's own updates a model may lie from the one before it.
        scored: How many models of others the site scores for each version of the community model.
        judged: How many versions of the community model the site judges after a run.
        peers: The fingerprints of other sites' signing keys, by the site's id: then only their models are scored.
    """

    smallest_batch: int = Field(8, ge=1)
    fewest_rows: int = Field(50, ge=1)
    reach: float = Field(10.0, ge=1)
    scored: int = Field(64, ge=0)
    judged: int = Field(64, ge=1)
    peers: dict[str, Fingerprint] = Field(default_factory=dict)
