"""Live dashboard of runs and governance; requires the extra ``abaton[serve]``."""

from abaton.dashboard.access import (
    AccessFile,
    AccessRight,
    DashboardUser,
    Sessions,
    ViewerRole,
    add_token,
    load_access,
)
from abaton.dashboard.server import check_access, make_dashboard, mount_beside, serve_dashboard
from abaton.dashboard.state import DashboardState

__all__ = [
    "AccessFile",
    "AccessRight",
    "DashboardState",
    "DashboardUser",
    "Sessions",
    "ViewerRole",
    "add_token",
    "check_access",
    "load_access",
    "make_dashboard",
    "mount_beside",
    "serve_dashboard",
]
