"""Secure sums: the centre learns sums over sites and no site's contribution."""

from abaton.secure_sum.centre_decisions import SumPhase
from abaton.secure_sum.event_log import EventLog, FileLog, LogTransaction, MemoryLog
from abaton.secure_sum.modular_vectors import Values, max_magnitude
from abaton.secure_sum.settings import SumSettings
from abaton.secure_sum.sum_centre import SumCentre
from abaton.secure_sum.sum_messages import (
    Contributor,
    KeyAdvertisement,
    KeyDirectory,
    MaskedInput,
    MaskRequest,
    Request,
    RevealedShares,
    RevealRequest,
    SiteFaultError,
    SumContext,
    SumResult,
    SumSegment,
)
from abaton.secure_sum.sum_site import Encoder, SumSite

__all__ = [
    "Contributor",
    "Encoder",
    "EventLog",
    "FileLog",
    "KeyAdvertisement",
    "KeyDirectory",
    "LogTransaction",
    "MaskRequest",
    "MaskedInput",
    "MemoryLog",
    "Request",
    "RevealRequest",
    "RevealedShares",
    "SiteFaultError",
    "SumCentre",
    "SumContext",
    "SumPhase",
    "SumResult",
    "SumSegment",
    "SumSettings",
    "SumSite",
    "Values",
    "max_magnitude",
]
