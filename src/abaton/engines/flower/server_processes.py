"""Processes of the research centre: Flower's SuperLink, the proxy in front of it, and the controllers of runs.

The SuperLink has a database and each controller its own process, so that either survives the other's end. The SuperLink
listens on loopback for the centre's own processes; sites connect to the proxy, which forwards only the requests of
nodes. Only nodes with an admitted key may connect, over TLS.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from abaton.atomic_files import atomic_write
from abaton.engines.flower.superlink_client import (
    SuperLinkConnection,
    SuperLinkRefusedError,
    SuperLinkTransport,
    SuperLinkUnavailableError,
)
from abaton.engines.flower.supervisor import (
    ChildProcess,
    HealthEndpoint,
    ProcessSupervisor,
    child_environment,
    end_with_parent,
    free_port,
    is_port_free,
    with_parent_death_signal,
)
from abaton.engines.flower.tls import CertificateAuthority, admit_key, issue_certificate, revoke_key
from abaton.errors import SettingsError

if TYPE_CHECKING:
    from abaton.engines.flower.flower_protocol import ControlClient

T = TypeVar("T")

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Address of the centre.

    Attributes:
        host: the address it listens at; ``0.0.0.0`` for all addresses of the machine.
        port: the port that sites connect to.
        public_name: the name that sites connect to, if it differs; the certificate is issued for it.

    >>> str(ServerAddress("0.0.0.0", 8443, "centre.example.org"))
    'centre.example.org:8443'
    """

    host: str
    port: int
    public_name: str = ""

    def __str__(self) -> str:
        return f"{self.public_name or self.host}:{self.port}"

    @property
    def local_address(self) -> str:
        """Server address for connections from the centre's own machine."""
        is_wildcard = self.host in ("0.0.0.0", "::")  # noqa: S104
        return f"{'127.0.0.1' if is_wildcard else self.host}:{self.port}"

    @property
    def hosts(self) -> list[str]:
        """All names of the centre's server that its certificate is issued for."""
        return list(dict.fromkeys([str(self).rpartition(":")[0], self.local_address.rpartition(":")[0]]))


class ServerProcesses:
    """Supervisor of the centre's processes, and client of its SuperLink.

    Args:
        folder: database, logs and the list of admitted nodes.
        address: where it listens.
        certificates: its certificates.
        report: called with one line for each change of state.
        embedded: whether the SuperLink is started here; otherwise a running one is used.
    """

    def __init__(
        self,
        folder: Path,
        address: ServerAddress,
        certificates: CertificateAuthority,
        report: Callable[[str], None],
        *,
        embedded: bool = True,
    ) -> None:
        self.folder, self.address, self._certificates = folder, address, certificates
        self.embedded, self._report = embedded, report
        self._env = child_environment(folder / "flwr")
        self._supervisors: list[ProcessSupervisor] = []

    def start(self, start_timeout: float = 60.0) -> None:
        """Start the centre's server processes, SuperLink and proxy, and wait until they respond."""
        self.folder.mkdir(parents=True, exist_ok=True)
        superlink, authority = self.address.local_address, self._certificates.authority
        if self.embedded:
            superlink, authority = self._start_superlink(start_timeout)
        else:
            self._wait(HealthEndpoint("SuperLink", superlink, authority, 200), start_timeout)
        with atomic_write(self.folder / "superlink.json") as temporary_path:
            temporary_path.write_text(
                json.dumps({"superlink": superlink, "authority": str(authority.resolve())})
            )

    def watch(self) -> None:
        """Restart the centre's server processes that have exited."""
        for supervisor in self._supervisors:
            supervisor.watch()

    def stop(self) -> None:
        """Stop all server processes of the centre."""
        while self._supervisors:
            self._supervisors.pop().stop()

    def admit(self, public_key: str, site: str) -> int:
        """Admit a site's node at the centre's server by its public key and return Flower's id of the node."""
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key

        from abaton.engines.flower.flower_protocol import public_bytes

        key = public_bytes(load_ssh_public_key(public_key.encode()))
        node = self._request(lambda control: control.register_node(key), "admission")
        self._write_admitted(self.admitted_nodes() | {node: site})
        admit_key(self._keys, node, public_key.encode())
        return node

    def revoke(self, site: str) -> list[int]:
        """Revoke all nodes of a site at the centre's server and return their ids; they are disconnected."""
        admitted = self.admitted_nodes()
        revoked = [node for node, owner in admitted.items() if owner == site]
        for node in revoked:
            revoke_key(self._keys, node)
            self._request(partial(_unregister, node=node), "admission")
        self._write_admitted({node: owner for node, owner in admitted.items() if node not in revoked})
        return revoked

    def admitted_nodes(self) -> dict[int, str]:
        """Return the site of each node that the centre's server has admitted."""
        return read_admitted(self.folder)

    def start_controller(self, controller: str, argument: str, name: str = "controller") -> ProcessSupervisor:
        """Start a server process that calls `controller` (``module:function``) with a transport and `argument`.

        It ends with this process; the returned supervisor restarts it.
        """
        settings = self.folder / f"{name}.json"
        with atomic_write(settings) as temporary_path:
            temporary_path.write_text(
                json.dumps({"controller": controller, "argument": argument, "name": name})
            )
        command = [sys.executable, "-m", "abaton.engines.flower.server_processes", str(settings)]
        supervisor = ProcessSupervisor(ChildProcess(name, command, self._env, self._log(name)), self._report)
        supervisor.start()
        return supervisor

    def _write_admitted(self, admitted: Mapping[int, str]) -> None:
        with atomic_write(self.folder / "admitted.json") as temporary_path:
            temporary_path.write_text(
                json.dumps({str(node): site for node, site in admitted.items()}, indent=2)
            )

    def _request(self, send: Callable[[ControlClient], T], where: str) -> T:
        """Send a control request to the SuperLink process of this centre."""
        from abaton.engines.flower.flower_protocol import ControlClient, version_headers

        superlink, authority = read_superlink(self.folder)
        connection = SuperLinkConnection(superlink, authority, lambda: version_headers("cli"))
        try:
            return send(ControlClient(connection))
        except SuperLinkUnavailableError as outage:
            raise SettingsError(
                f"the centre's SuperLink does not respond: {outage}",
                where=superlink,
                remedy="start the centre",
            ) from None
        except SuperLinkRefusedError as refusal:
            raise SettingsError(
                f"the SuperLink refused the request ({refusal})",
                where=where,
                remedy=f"see {self._log('superlink')}; a key can be admitted only once",
            ) from None
        finally:
            connection.close()

    def _supervise(self, name: str, command: list[str]) -> None:
        supervisor = ProcessSupervisor(ChildProcess(name, command, self._env, self._log(name)), self._report)
        self._supervisors.append(supervisor)
        supervisor.start()

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _start_superlink(self, timeout: float) -> tuple[str, Path]:
        """Start the SuperLink and proxy processes; return the SuperLink's address and authority certificate.

        It has a separate authority that is not distributed, because a given certificate need not be valid for loopback.
        """
        loopback = issue_certificate(self.folder / "loopback", [_LOOPBACK], datetime.now(UTC))
        superlink = f"{_LOOPBACK}:{self._port(loopback.authority)}"
        self._supervise("superlink", _superlink_command(superlink, loopback, self.folder / "superlink.db"))
        self._wait(HealthEndpoint("SuperLink", superlink, loopback.authority, 200), timeout)
        address, public = self.address, self._certificates
        settings = {
            "host": address.host,
            "port": address.port,
            "superlink": superlink,
            "authority": str(loopback.authority),
        }
        settings |= {"certificate": str(public.certificate), "key": str(public.key), "keys": str(self._keys)}
        with atomic_write(self._proxy_settings) as temporary_path:
            temporary_path.write_text(json.dumps(settings, indent=2))
        self._supervise(
            "proxy", [sys.executable, "-m", "abaton.engines.flower.proxy", str(self._proxy_settings)]
        )
        name = str(address).rpartition(":")[0]
        self._wait(HealthEndpoint("proxy", address.local_address, public.authority, 404, name), timeout)
        return superlink, loopback.authority

    @property
    def _keys(self) -> Path:
        return self.folder / "node-keys"

    @property
    def _proxy_settings(self) -> Path:
        return self.folder / "proxy.json"

    def _port(self, authority: Path) -> int:
        """Return the port for the SuperLink process: the previous one, unless another process uses it."""
        with suppress(FileNotFoundError):
            superlink = str(json.loads(self._proxy_settings.read_text())["superlink"])
            if (
                is_port_free(superlink)
                or not HealthEndpoint("SuperLink", superlink, authority, 200).problem()
            ):
                return int(superlink.rpartition(":")[2])
        return free_port()

    def _wait(self, endpoint: HealthEndpoint, timeout: float) -> None:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            problem = endpoint.problem()
            if not problem:
                return
            if "CERTIFICATE_VERIFY_FAILED" in problem:
                raise self._untrusted(problem)
            time.sleep(0.2)
        raise SettingsError(
            f"the {endpoint.service} does not respond",
            where=endpoint.address,
            remedy=f"see {self._log(endpoint.service.lower())}" if self.embedded else "ask its operator",
        )

    def _untrusted(self, problem: str) -> SettingsError:
        match = re.search(r"failed: ([^(]*)", problem)
        reason = match[1].strip() if match else "see the log"
        if not self.embedded:
            return SettingsError(
                f"the SuperLink's certificate is invalid: {reason}",
                where=str(self.address),
                remedy="give its authority as --authority, and connect to a name that it is valid for",
            )
        return SettingsError(
            f"the centre's certificate is invalid: {reason}",
            where=str(self._certificates.certificate),
            remedy="renew it, or start without given certificates to have a new one issued",
        )


def _superlink_command(superlink: str, loopback: CertificateAuthority, database: Path) -> list[str]:
    host, _, port = superlink.rpartition(":")
    command = [
        *("flower-superlink", "--host", host, "--port", port),
        *("--isolation", "process", "--database", str(database)),
        *("--ssl-certfile", str(loopback.certificate), "--ssl-keyfile", str(loopback.key)),
        *("--ssl-ca-certfile", str(loopback.authority), "--enable-supernode-auth"),
        "--disable-runtime-dependency-installation",
    ]
    return with_parent_death_signal(command)


def write_address(folder: Path, address: ServerAddress, certificates: CertificateAuthority) -> None:
    """Store the server address and certificates of a centre for later commands."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (certificates.authority, certificates.certificate, certificates.key)
    row = {**asdict(address), "certificates": [str(p.resolve()) for p in paths]}
    with atomic_write(folder / "address.json") as temporary_path:
        temporary_path.write_text(json.dumps(row, indent=2))


def read_address(folder: Path) -> tuple[ServerAddress, CertificateAuthority]:
    """Return the server address and certificates from a centre's folder."""
    try:
        row = json.loads((folder / "address.json").read_text())
    except FileNotFoundError:
        raise SettingsError(
            "the folder has no centre",
            where=str(folder),
            remedy="start one ('abaton serve --help' says how), or name its store with --store",
        ) from None
    return ServerAddress(row["host"], row["port"], row["public_name"]), CertificateAuthority(
        *map(Path, row["certificates"])
    )


def read_admitted(folder: Path) -> dict[int, str]:
    """Return the site of each node admitted by the server, from a centre's folder."""
    try:
        rows = json.loads((folder / "admitted.json").read_text())
    except FileNotFoundError:
        return {}
    return {int(node): str(site) for node, site in rows.items()}


def read_superlink(folder: Path) -> tuple[str, Path]:
    """Return the SuperLink's address for the centre's server processes, and its authority's certificate."""
    try:
        row = json.loads((folder / "superlink.json").read_text())
    except FileNotFoundError:
        raise SettingsError(
            "the centre is not running", where=str(folder), remedy="start it; 'abaton serve --help' says how"
        ) from None
    return str(row["superlink"]), Path(row["authority"])


def open_transport(folder: Path, name: str = "controller") -> SuperLinkTransport:
    """Return the transport of a centre's controller process; entering it stops the run of a killed controller."""
    return SuperLinkTransport(*read_superlink(folder), folder / f"{name}.run")


def _unregister(control: ControlClient, *, node: int) -> None:
    control.unregister_node(node)


def main(arguments: list[str]) -> None:
    """Run a controller process of the centre: call the function that a file names with a SuperLink transport."""
    from abaton.engines.flower.site_worker import import_function

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    path = Path(arguments[0])
    settings = json.loads(path.read_text())
    with open_transport(path.parent, settings["name"]) as transport:
        import_function(settings["controller"])(transport, settings["argument"])


if __name__ == "__main__":
    main(sys.argv[1:])
