"""Listening: on this machine alone unless the line is encrypted, and not forever to anybody."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from abaton.errors import Refused, SettingsError
from abaton.governance.intake.intake_service import Centre, Limits
from abaton.governance.intake.routes import make_app
from abaton.http_server import App, Port
from abaton.http_server import configure as listening


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the service listens.

    Args:
        host: The address; only loopback without a certificate.
        port: The port; 0 takes a free one.
        certificate: The file of the TLS certificate chain (PEM).
        key: The file of its private key (PEM).
        behind_proxy: Whether a proxy on the same trusted network ends TLS before the service.
    """

    host: str = "127.0.0.1"
    port: int = 8720
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False

    def check(self) -> None:
        """Refuse to listen where the line would not be encrypted."""
        if (self.certificate is None) != (self.key is None):
            raise SettingsError(
                "TLS is only half set up", remedy="give --certificate and --certificate-key together"
            )
        for path in (self.certificate, self.key):
            if path is not None and not path.is_file():
                raise SettingsError("the TLS file cannot be read", where=str(path), remedy="check the path")
        if self.certificate is None and not self.behind_proxy and not self.is_loopback:
            raise Refused(
                "the service would listen to the network unencrypted",
                where=self.host,
                remedy="give --certificate and --key, or --behind-proxy if a proxy ends TLS",
            )

    @property
    def is_encrypted(self) -> bool:
        """Whether whoever asks from elsewhere does so over TLS, which may end at a proxy."""
        return self.certificate is not None or self.behind_proxy

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can reach the service."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def serve(
    centre: Centre,
    listen: Listen,
    ready: Callable[[str], None] = lambda address: None,
    around: Callable[[App], App] = lambda app: app,
) -> None:
    """Serve until the process is told to stop.

    Args:
        centre: What to serve.
        listen: Where.
        ready: Told the address when requests are taken.
        around: Puts something else beside the service, such as a dashboard.
    """
    serve_app(around(make_app(centre)), listen, ready, centre.limits)


def serve_app(
    app: App,
    listen: Listen,
    ready: Callable[[str], None] = lambda address: None,
    limits: Limits | None = None,
) -> None:
    """Serve an application until the process is told to stop."""
    listen.check()
    _Server(configure(app, listen, limits or Limits()), ready).run()


def configure(app: App, listen: Listen, limits: Limits) -> uvicorn.Config:
    """The settings of the web server."""
    tls: dict[str, Any] = {}
    if listen.certificate is not None:
        tls = {"ssl_certfile": str(listen.certificate), "ssl_keyfile": str(listen.key)}
    each = limits.connections if listen.behind_proxy else limits.each  # there all have the proxy's address
    bounds = Port(limits.head_seconds, limits.read_seconds, connections=limits.connections, each=each)
    return listening(
        app,
        bounds,
        backlog=limits.concurrent + limits.waiting,
        host=listen.host,
        port=listen.port,
        proxy_headers=listen.behind_proxy,
        **tls,
    )


class _Server(uvicorn.Server):
    """A server that says where it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        self._ready(f"{'https' if self.config.is_ssl else 'http'}://{name}:{port}")
