"""The research centre's programs: Flower's SuperLink, and the one that starts our controller for each run.

The SuperLink has a database and runs the controller in a process of its own, so that either survives the other's end.
Only nodes whose key was admitted may connect, over TLS.
"""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from abaton.engines.flower.certificates import Certificates
from abaton.engines.flower.keeper import Keeper, Program, call, surroundings
from abaton.errors import SettingsError
from abaton.files import replacing

_APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "abaton-app"
version = "1.0.0"
description = "Calls the Abaton that is installed where it runs; holds no code of its own."
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "abaton"

[tool.flwr.app.components]
serverapp = "abaton_app.server:app"
clientapp = "abaton_app.client:app"

[tool.flwr.app.config]
controller = ""
about = ""
""",
    "abaton_app/__init__.py": '"""Abaton on Flower."""\n',
    "abaton_app/server.py": "from abaton.engines.flower.grid import server_app\n\napp = server_app()\n",
    "abaton_app/client.py": "from abaton.engines.flower.grid import client_app\n\napp = client_app()\n",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the centre is reached.

    Attributes:
        host: the address it listens at; ``0.0.0.0`` for all of the machine's.
        port: the one port that everybody dials.
        name: what sites dial, if that is another name; the certificate is for it.

    >>> str(Address("0.0.0.0", 8443, "centre.example.org"))
    'centre.example.org:8443'
    """

    host: str
    port: int
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.host}:{self.port}"

    @property
    def near(self) -> str:
        """Where the centre's own programs reach it."""
        every = self.host in ("0.0.0.0", "::")  # noqa: S104
        return f"{'127.0.0.1' if every else self.host}:{self.port}"

    @property
    def hosts(self) -> list[str]:
        """All names that its certificate is for."""
        return list(dict.fromkeys([str(self).rpartition(":")[0], self.near.rpartition(":")[0]]))


class Centre:
    """Starts, watches and ends the centre's programs, and speaks to them.

    Args:
        folder: where database, logs and the list of admitted nodes are.
        address: where it listens.
        certificates: what it proves itself with.
        say: hears, in one line, when something happens.
        embedded: whether the SuperLink is started here, too; otherwise one that runs already is used.
    """

    def __init__(
        self,
        folder: Path,
        address: Address,
        certificates: Certificates,
        say: Callable[[str], None],
        *,
        embedded: bool = True,
    ) -> None:
        self.folder, self.address, self._certificates = folder, address, certificates
        self.embedded = embedded
        self._env = surroundings(folder / "flwr")
        self.link = Keeper(self._program("superlink", self._link()), say)
        self.executor = Keeper(self._program("superexec", self._executor()), say)

    def start(self, patience: float = 60.0) -> None:
        """Start everything and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_app()
        if self.embedded:
            self.link.start()
        self._wait(patience)
        self.executor.start()

    def watch(self) -> None:
        """Start again what has ended."""
        if self.embedded:
            self.link.watch()
        self.executor.watch()

    def stop(self) -> None:
        """End everything."""
        self.executor.stop()
        self.link.stop()

    def admit(self, public: Path, site: str, role: str) -> int:
        """Let the node with this key connect, as a site's; the number under which Flower knows it."""
        self._write_app()
        command = ["flwr", "supernode", "register", str(public), "--format", "json"]
        node = int(_json(call(command, self._env, where="admission"))["node-id"])
        self._write_admitted(self.admitted() | {node: (site, role)})
        return node

    def revoke(self, site: str) -> list[int]:
        """Let no node of a site connect any more; those that are connected are cut off."""
        admitted = self.admitted()
        gone = [node for node, (owner, _) in admitted.items() if owner == site]
        for node in gone:
            call(["flwr", "supernode", "unregister", str(node)], self._env, where="admission")
        self._write_admitted({node: seat for node, seat in admitted.items() if node not in gone})
        return gone

    def admitted(self) -> dict[int, tuple[str, str]]:
        """Whose each admitted node is, as (site, role)."""
        return read_admitted(self.folder)

    def submit(self, controller: str, about: str) -> str:
        """Start a run: Flower calls `controller` (``module:function``) with a post and `about`; the run's number."""
        settings = self.folder / "run.toml"
        settings.write_text(f"controller = {json.dumps(controller)}\nabout = {json.dumps(about)}\n")
        command = ["flwr", "run", str(self.folder / "app"), "--run-config", str(settings), "--format", "json"]
        return str(_json(call(command, self._env, where="run"))["run-id"])

    def state(self, run: str) -> str:
        """What has become of a run, in Flower's words, such as `running` or `finished:completed`."""
        rows = _json(call(["flwr", "ls", "--format", "json"], self._env, where="run"))["runs"]
        found = [str(row["status"]) for row in rows if str(row["run-id"]) == run]
        return found[0] if found else "unknown"

    def _write_admitted(self, admitted: Mapping[int, tuple[str, str]]) -> None:
        with replacing(self.folder / "admitted.json") as begun:
            begun.write_text(json.dumps({str(node): seat for node, seat in admitted.items()}, indent=2))

    def _program(self, name: str, command: list[str]) -> Program:
        return Program(name, command, self._env, self.folder / "logs" / f"{name}.log")

    def _link(self) -> list[str]:
        own, address = self._certificates, self.address
        return [
            *("flower-superlink", "--host", address.host, "--port", str(address.port)),
            *("--isolation", "process", "--database", str(self.folder / "superlink.db")),
            *("--ssl-certfile", str(own.certificate), "--ssl-keyfile", str(own.key)),
            *("--ssl-ca-certfile", str(own.authority), "--enable-supernode-auth"),
            "--disable-runtime-dependency-installation",
        ]

    def _executor(self) -> list[str]:
        authority = str(self._certificates.authority)
        return [
            "flower-superexec",
            "--runtime-api-address",
            self.address.near,
            "--root-certificates",
            authority,
        ]

    def _write_app(self) -> None:
        for name, text in _APP.items():
            path = self.folder / "app" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        authority = json.dumps(str(self._certificates.authority.resolve()))
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "centre"\n\n[superlink.centre]\naddress = "{self.address.near}"\n'
            f"root-certificates = {authority}\n"
        )

    def _wait(self, patience: float) -> None:
        import httpx

        trusted = ssl.create_default_context(cafile=str(self._certificates.authority))
        end = time.monotonic() + patience
        while time.monotonic() < end:
            try:
                if httpx.get(
                    f"https://{self.address.near}/health", verify=trusted, trust_env=False
                ).is_success:
                    return
            except httpx.TransportError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise self._untrusted(str(error)) from None
                time.sleep(0.2)
        raise SettingsError(
            "the SuperLink does not answer",
            where=str(self.address),
            remedy=f"see {self.link.program.log}" if self.embedded else "ask whoever runs it",
        )

    def _untrusted(self, said: str) -> SettingsError:
        found = re.search(r"failed: ([^(]*)", said)
        why = found[1].strip() if found else "see the log"
        if not self.embedded:
            return SettingsError(
                f"the SuperLink's certificate is not valid: {why}",
                where=str(self.address),
                remedy="give as --authority what signed it, and dial a name that it is for",
            )
        return SettingsError(
            f"the centre's certificate is not valid: {why}",
            where=str(self._certificates.certificate),
            remedy="renew it: without given certificates a new one is made at each start",
        )


def write_address(folder: Path, address: Address, certificates: Certificates) -> None:
    """Write down where a centre listens and what it proves itself with, for commands that speak to it later."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = (certificates.authority, certificates.certificate, certificates.key)
    row = {**asdict(address), "certificates": [str(p.resolve()) for p in paths]}
    with replacing(folder / "address.json") as begun:
        begun.write_text(json.dumps(row, indent=2))


def read_address(folder: Path) -> tuple[Address, Certificates]:
    """Where the centre of a folder listens and what it proves itself with."""
    try:
        row = json.loads((folder / "address.json").read_text())
    except FileNotFoundError:
        raise SettingsError(
            "there is no centre here",
            where=str(folder),
            remedy="start one with 'abaton serve --engine flower', or name its store with --store",
        ) from None
    return Address(row["host"], row["port"], row["name"]), Certificates(*map(Path, row["certificates"]))


def read_admitted(folder: Path) -> dict[int, tuple[str, str]]:
    """Whose each admitted node is, from a centre's folder."""
    try:
        rows = json.loads((folder / "admitted.json").read_text())
    except FileNotFoundError:
        return {}
    return {int(node): (site, role) for node, (site, role) in rows.items()}


def _json(text: str) -> dict[str, Any]:
    """The JSON object in what a command printed, whatever it printed before; it may say that the command failed."""
    found: dict[str, Any] = json.loads(text[text.find("{") :] or "{}")
    if not found.get("success"):
        said = str(found.get("error-message", "")).strip().splitlines()
        raise SettingsError(
            "Flower did not do it", where="network", remedy=said[-1] if said else "see the SuperLink's log"
        )
    return found
