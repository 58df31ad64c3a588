"""The research centre's programs: Flower's SuperLink, the gate before it, and what starts our controller for each run.

The SuperLink has a database and runs the controller in a process of its own, so that either survives the other's end.
It listens on loopback, to the centre's own programs; sites reach the gate, which passes what nodes ask and no more.
Only nodes whose key was admitted may connect, over TLS.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abaton.engines.flower.app import write_app
from abaton.engines.flower.certificates import Certificates, issue
from abaton.engines.flower.door import Door, is_free
from abaton.engines.flower.keeper import Keeper, Program, call, surroundings
from abaton.engines.flower.nodes import free_port
from abaton.errors import SettingsError
from abaton.files import replacing

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the centre is reached.

    Attributes:
        host: the address it listens at; ``0.0.0.0`` for all of the machine's.
        port: the one port that sites dial.
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
        """Where it is reached from the centre itself."""
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
        self.embedded, self._say = embedded, say
        self._env = surroundings(folder / "flwr")
        self._kept: list[Keeper] = []

    def start(self, patience: float = 60.0) -> None:
        """Start everything and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        link, authority = self.address.near, self._certificates.authority
        if self.embedded:
            link, authority = self._open(patience)
        else:
            self._wait(Door("SuperLink", link, authority, 200), patience)
        self._write_settings(link, authority)
        self._keep("superexec", _executor(link, authority))

    def watch(self) -> None:
        """Start again what has ended."""
        for keeper in self._kept:
            keeper.watch()

    def stop(self) -> None:
        """End everything."""
        while self._kept:
            self._kept.pop().stop()

    def admit(self, public: Path, site: str, role: str) -> int:
        """Let the node with this key connect, as a site's; the number under which Flower knows it."""
        command = ["flwr", "supernode", "register", str(public), "--format", "json"]
        node = int(_json(self._call(command, "admission"))["node-id"])
        self._write_admitted(self.admitted() | {node: (site, role)})
        return node

    def revoke(self, site: str) -> list[int]:
        """Let no node of a site connect any more; those that are connected are cut off."""
        admitted = self.admitted()
        gone = [node for node, (owner, _) in admitted.items() if owner == site]
        for node in gone:
            self._call(["flwr", "supernode", "unregister", str(node)], "admission")
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
        return str(_json(self._call(command, "run"))["run-id"])

    def state(self, run: str) -> str:
        """What has become of a run, in Flower's words, such as `running` or `finished:completed`."""
        rows = _json(self._call(["flwr", "ls", "--format", "json"], "run"))["runs"]
        found = [str(row["status"]) for row in rows if str(row["run-id"]) == run]
        return found[0] if found else "unknown"

    def _write_admitted(self, admitted: Mapping[int, tuple[str, str]]) -> None:
        with replacing(self.folder / "admitted.json") as begun:
            begun.write_text(json.dumps({str(node): seat for node, seat in admitted.items()}, indent=2))

    def _call(self, command: list[str], where: str) -> str:
        """Let a command of Flower's speak to the SuperLink; without our settings it would dial one of Flower's."""
        if not self._settings.exists():
            raise SettingsError(
                "the centre does not run", where=str(self.folder), remedy="run 'abaton serve --engine flower'"
            )
        return call(command, self._env, where=where)

    def _keep(self, name: str, command: list[str]) -> None:
        keeper = Keeper(Program(name, command, self._env, self._log(name)), self._say)
        self._kept.append(keeper)
        keeper.start()

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    @property
    def _settings(self) -> Path:
        return self.folder / "flwr" / "config.toml"

    def _open(self, patience: float) -> tuple[str, Path]:
        """Start SuperLink and gate; where the SuperLink is reached, and what its certificate is signed with.

        It has an authority of its own, which nobody else is given: a given certificate need not be for loopback.
        """
        own = issue(self.folder / "loopback", [_LOOPBACK], datetime.now(UTC))
        link = f"{_LOOPBACK}:{self._port(own.authority)}"
        self._keep("superlink", _superlink(link, own, self.folder / "superlink.db"))
        self._wait(Door("SuperLink", link, own.authority, 200), patience)
        address, outer = self.address, self._certificates
        told = {"host": address.host, "port": address.port, "link": link, "authority": str(own.authority)}
        told |= {"certificate": str(outer.certificate), "key": str(outer.key)}
        with replacing(self._gate) as begun:
            begun.write_text(json.dumps(told, indent=2))
        self._keep("gate", [sys.executable, "-m", "abaton.engines.flower.gate", str(self._gate)])
        name = str(address).rpartition(":")[0]
        self._wait(Door("gate", address.near, outer.authority, 404, name), patience)
        return link, own.authority

    @property
    def _gate(self) -> Path:
        return self.folder / "gate.json"

    def _port(self, authority: Path) -> int:
        """The SuperLink's port: that of before, where one that outlived its service is found, unless it is taken."""
        with suppress(FileNotFoundError):
            link = str(json.loads(self._gate.read_text())["link"])
            if is_free(link) or not Door("SuperLink", link, authority, 200).trouble():
                return int(link.rpartition(":")[2])
        return free_port()

    def _write_settings(self, link: str, authority: Path) -> None:
        """What Flower's commands need: the app, and where the SuperLink is."""
        write_app(self.folder / "app")
        self._settings.parent.mkdir(exist_ok=True)
        trusted = json.dumps(str(authority.resolve()))
        self._settings.write_text(
            f'[superlink]\ndefault = "centre"\n\n[superlink.centre]\naddress = "{link}"\n'
            f"root-certificates = {trusted}\n"
        )

    def _wait(self, door: Door, patience: float) -> None:
        end = time.monotonic() + patience
        while time.monotonic() < end:
            said = door.trouble()
            if not said:
                return
            if "CERTIFICATE_VERIFY_FAILED" in said:
                raise self._untrusted(said)
            time.sleep(0.2)
        raise SettingsError(
            f"the {door.what} does not answer",
            where=door.address,
            remedy=f"see {self._log(door.what.lower())}" if self.embedded else "ask whoever runs it",
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


def _superlink(link: str, own: Certificates, database: Path) -> list[str]:
    host, _, port = link.rpartition(":")
    return [
        *("flower-superlink", "--host", host, "--port", port),
        *("--isolation", "process", "--database", str(database)),
        *("--ssl-certfile", str(own.certificate), "--ssl-keyfile", str(own.key)),
        *("--ssl-ca-certfile", str(own.authority), "--enable-supernode-auth"),
        "--disable-runtime-dependency-installation",
    ]


def _executor(link: str, authority: Path) -> list[str]:
    return ["flower-superexec", "--runtime-api-address", link, "--root-certificates", str(authority)]


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
