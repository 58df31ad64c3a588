"""The dashboard: pages over the store that are live while a run goes on, and work offline.

Needs the extra ``abaton[serve]``.
"""

from abaton.dashboard.access import AccessFile, Person, Right, Sessions, ViewerRole, add_token, load_access
from abaton.dashboard.server import beside, check_access, make_dashboard, serve_dashboard
from abaton.dashboard.state import Dashboard

__all__ = [
    "AccessFile",
    "Dashboard",
    "Person",
    "Right",
    "Sessions",
    "ViewerRole",
    "add_token",
    "beside",
    "check_access",
    "load_access",
    "make_dashboard",
    "serve_dashboard",
]
