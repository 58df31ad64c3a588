"""Listener of the intake: loopback only unless encrypted, with bounded connections."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from abaton.errors import RefusedError, SettingsError
from abaton.governance.intake.intake_service import IntakeLimits, IntakeService
from abaton.governance.intake.routes import make_app
from abaton.http_server import App, ServerLimits
from abaton.http_server import configure as listening


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Address of the service.

    Args:
        host: Address; without a certificate only loopback.
        port: Port; 0 selects a free one.
        certificate: File of the TLS certificate chain (PEM).
        key: File of its private key (PEM).
        behind_proxy: Whether a proxy on the same trusted network terminates TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8720
    certificate: Path | None = None
    key: Path | None = None
    behind_proxy: bool = False

    def check(self) -> None:
        """Raise an error if connections to the intake's server would not be encrypted."""
        if (self.certificate is None) != (self.key is None):
            raise SettingsError(
                "only one of TLS certificate and key is given",
                remedy="give --certificate and --certificate-key together",
            )
        for path in (self.certificate, self.key):
            if path is not None and not path.is_file():
                raise SettingsError(
                    "the TLS file could not be read", where=str(path), remedy="check the path"
                )
        if self.certificate is None and not self.behind_proxy and not self.is_loopback:
            raise RefusedError(
                "the service would listen unencrypted on a network address",
                where=self.host,
                remedy="give --certificate and --certificate-key, or --behind-proxy if a proxy terminates TLS",
            )

    @property
    def is_encrypted(self) -> bool:
        """Whether connections to the intake's server use TLS, possibly terminated by a proxy."""
        return self.certificate is not None or self.behind_proxy

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the intake's server."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def serve(
    centre: IntakeService,
    listen: ListenSettings,
    ready: Callable[[str], None] = lambda address: None,
    wrap_app: Callable[[App], App] = lambda app: app,
) -> None:
    """Serve the intake over HTTP until the process is stopped.

    Args:
        centre: The service.
        listen: Address.
        ready: Called with the address when requests are accepted.
        wrap_app: Adds an application beside the service, such as a dashboard.
    """
    serve_app(wrap_app(make_app(centre)), listen, ready, centre.limits)


def serve_app(
    app: App,
    listen: ListenSettings,
    ready: Callable[[str], None] = lambda address: None,
    limits: IntakeLimits | None = None,
) -> None:
    """Serve an application at the intake server's address until the process is stopped."""
    listen.check()
    _Server(configure(app, listen, limits or IntakeLimits()), ready).run()


def configure(app: App, listen: ListenSettings, limits: IntakeLimits) -> uvicorn.Config:
    """Return the uvicorn settings of the intake's server."""
    tls: dict[str, Any] = {}
    if listen.certificate is not None:
        tls = {"ssl_certfile": str(listen.certificate), "ssl_keyfile": str(listen.key)}
    connections_per_address = (
        limits.connections if listen.behind_proxy else limits.connections_per_address
    )  # all requests have the proxy's address
    bounds = ServerLimits(
        limits.header_seconds,
        limits.read_seconds,
        max_connections=limits.connections,
        max_connections_per_address=connections_per_address,
    )
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
    """Web server that reports its address when it listens."""

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
