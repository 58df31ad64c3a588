"""Secure sums: the centre learns sums over sites and no site's contribution.

A sum of floats over three sites in one process; :class:`FileLog` makes the state durable:

>>> import secrets
>>> import numpy as np
>>> from abaton.governance.keys import KeyKind, PrivateKey
>>> keys = {name: PrivateKey.new(KeyKind.SIGN, secrets.token_bytes, "") for name in ("cos", "kos", "naxos")}
>>> settings = SumSettings("study", "run", {name: key.id for name, key in keys.items()})
>>> sites = {
...     name: SumSite(settings, name, key, settings.sites, MemoryLog(), secrets.token_bytes)
...     for name, key in keys.items()
... }
>>> centre = SumCentre(settings, MemoryLog())
>>> for site in sites.values():
...     centre.accept_key(site.advertise(subjects=100))
>>> for site in sites.values():
...     site.accept_directory(centre.fix_directory())
>>> segments = [SumSegment(name="moments", size=2, bits=256)]
>>> lines = [Contributor(site=name, task="t1", version=1, version_digest="0" * 64) for name in sites]
>>> for line in lines:
...     sites[line.site].record(line, "scaling", segments, {"moments": np.array([0.1, 1e20])})
>>> context = centre.begin("scaling", lines, segments)
>>> for request in centre.requests(context):
...     centre.receive_input(sites[request.site].mask(request.context))
>>> for request in centre.requests(context):
...     centre.receive_shares(sites[request.site].reveal(request))
>>> centre.result(context).values["moments"].tolist()
[0.30000000000000004, 3e+20]
"""

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
