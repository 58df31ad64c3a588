"""Where the dashboard listens: on this machine alone, unless it knows who may use it and the line is encrypted."""

from __future__ import annotations

from collections.abc import Callable

from abaton.dashboard.access import AccessFile
from abaton.dashboard.app import make_dashboard
from abaton.dashboard.state import Dashboard
from abaton.errors import Refused
from abaton.governance.intake import Limits, Listen, serve_app
from abaton.http_server import App, Receive, Scope, Send


def check_access(listen: Listen, access: AccessFile | None) -> None:
    """Refuse to show runs to a network without knowing who looks."""
    if access is None and (not listen.is_loopback or listen.behind_proxy):
        raise Refused(
            "the dashboard would show runs to whoever can reach it",
            where=listen.host,
            remedy="give --access FILE (make one with 'abaton dashboard token'), or listen on 127.0.0.1",
        )


def serve_dashboard(
    dashboard: Dashboard, listen: Listen, ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the dashboard until the process is told to stop.

    Args:
        dashboard: What to show, and to whom.
        listen: Where.
        ready: Told the address when requests are taken.
    """
    check_access(listen, dashboard.access)
    dashboard.secure = listen.is_encrypted
    # Every viewer keeps a connection; those that ask at once wait in line.
    serve_app(make_dashboard(dashboard), listen, ready, Limits(waiting=1024))


def beside(service: App, dashboard: Dashboard) -> App:
    """The dashboard at its own address beside another service, whose gate it does not pass."""
    pages, base = make_dashboard(dashboard), dashboard.base

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == base:
            headers = [(b"location", f"{base}/".encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await (pages if path.startswith(f"{base}/") else service)(scope, receive, send)

    return both
