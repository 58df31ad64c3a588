"""Policies by name: those of the Metis paper as it calls them, and FedBuff, with and without validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abaton.control.adaptive import Thresholds
from abaton.controller.asynchronous_scheduler import Asynchronous, Buffered
from abaton.control.mixing import Blend
from abaton.controller.synchronous_scheduler import Synchronous
from abaton.controller.weighting import ByStaleness, ByValidation
from abaton.errors import SettingsError

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "SyncFedAvg": {"pacing": Synchronous()},
    "SyncDVW": {"pacing": Synchronous(), "weighting": (ByValidation(),)},
    "AsyncFedAvg": {"pacing": Asynchronous()},
    "FedAsync": {"pacing": Asynchronous(), "weighting": (ByStaleness(),), "mixing": Blend()},
    "AsyncDVW(na)": {"pacing": Asynchronous(), "weighting": (ByValidation(),)},
    "AsyncDVW(a)": {
        "pacing": Asynchronous(adaptive={"fast": Thresholds(0.0, 4), "": Thresholds(1.0, 1)}),
        "weighting": (ByValidation(),),
    },
    "FedBuff": {"pacing": Buffered(), "weighting": (ByStaleness(),)},
    "FedBuffDVW": {"pacing": Buffered(), "weighting": (ByStaleness(), ByValidation())},
}


def policy(name: str) -> Mapping[str, Any]:
    """The part of the rules that a policy fixes.

    >>> sorted(policy("SyncDVW"))
    ['pacing', 'weighting']
    """
    if name not in POLICIES:
        raise SettingsError(
            f"there is no policy '{name}'", where="policy", remedy=f"use one of {', '.join(POLICIES)}"
        )
    return POLICIES[name]
