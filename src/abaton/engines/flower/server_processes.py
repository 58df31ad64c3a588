"""The research centre's programs: Flower's SuperLink, the gate before it, and the controllers of its runs.

The SuperLink has a database, and each controller a process of its own, so that either survives the other's end. It
listens on loopback, to the centre's own programs; sites reach the gate, which passes what nodes ask and no more. Only
nodes whose key was admitted may connect, over TLS.
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

from abaton.engines.flower.tls import Certificates, drop_key, enter_key, issue
from abaton.engines.flower.superlink_client import Away, Line, LinkPost, Turned
from abaton.engines.flower.supervisor import (
    Door,
    Keeper,
    Program,
    end_with_parent,
    ending_with_parent,
    free_port,
    is_free,
    surroundings,
)
from abaton.errors import SettingsError
from abaton.atomic_files import replacing

if TYPE_CHECKING:
    from abaton.engines.flower.flower_protocol import Control

T = TypeVar("T")

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
        with replacing(self.folder / "link.json") as begun:
            begun.write_text(json.dumps({"link": link, "authority": str(authority.resolve())}))

    def watch(self) -> None:
        """Start again what has ended."""
        for keeper in self._kept:
            keeper.watch()

    def stop(self) -> None:
        """End everything."""
        while self._kept:
            self._kept.pop().stop()

    def admit(self, public: str, site: str) -> int:
        """Let the node with this key connect, as a site's; the number under which Flower knows it."""
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key

        from abaton.engines.flower.flower_protocol import public_bytes

        key = public_bytes(load_ssh_public_key(public.encode()))
        node = self._asked(lambda control: control.admit(key), "admission")
        self._write_admitted(self.admitted() | {node: site})
        enter_key(self._keys, node, public.encode())
        return node

    def revoke(self, site: str) -> list[int]:
        """Let no node of a site connect any more; one that is connected is cut off."""
        admitted = self.admitted()
        gone = [node for node, owner in admitted.items() if owner == site]
        for node in gone:
            drop_key(self._keys, node)
            self._asked(partial(_revoked, node=node), "admission")
        self._write_admitted({node: owner for node, owner in admitted.items() if node not in gone})
        return gone

    def admitted(self) -> dict[int, str]:
        """Whose each admitted node is."""
        return read_admitted(self.folder)

    def conduct(self, controller: str, about: str, name: str = "controller") -> Keeper:
        """Start a controller: a process that calls `controller` (``module:function``) with a post and `about`.

        It ends with this process; who watches it starts it again when it has ended.
        """
        told = self.folder / f"{name}.json"
        with replacing(told) as begun:
            begun.write_text(json.dumps({"controller": controller, "about": about, "name": name}))
        command = [sys.executable, "-m", "abaton.engines.flower.server_processes", str(told)]
        keeper = Keeper(Program(name, command, self._env, self._log(name)), self._say)
        keeper.start()
        return keeper

    def _write_admitted(self, admitted: Mapping[int, str]) -> None:
        with replacing(self.folder / "admitted.json") as begun:
            begun.write_text(json.dumps({str(node): site for node, site in admitted.items()}, indent=2))

    def _asked(self, ask: Callable[[Control], T], where: str) -> T:
        """Ask the SuperLink of this centre."""
        from abaton.engines.flower.flower_protocol import Control, who

        link, authority = read_link(self.folder)
        line = Line(link, authority, lambda: who("cli"))
        try:
            return ask(Control(line))
        except Away as away:
            raise SettingsError(
                f"the centre's SuperLink does not answer: {away}", where=link, remedy="start the centre"
            ) from None
        except Turned as no:
            raise SettingsError(
                f"the SuperLink did not do it ({no})",
                where=where,
                remedy=f"see {self._log('superlink')}; a key can be admitted once",
            ) from None
        finally:
            line.close()

    def _keep(self, name: str, command: list[str]) -> None:
        keeper = Keeper(Program(name, command, self._env, self._log(name)), self._say)
        self._kept.append(keeper)
        keeper.start()

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

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
        told |= {"certificate": str(outer.certificate), "key": str(outer.key), "keys": str(self._keys)}
        with replacing(self._gate) as begun:
            begun.write_text(json.dumps(told, indent=2))
        self._keep("gate", [sys.executable, "-m", "abaton.engines.flower.proxy", str(self._gate)])
        name = str(address).rpartition(":")[0]
        self._wait(Door("gate", address.near, outer.authority, 404, name), patience)
        return link, own.authority

    @property
    def _keys(self) -> Path:
        return self.folder / "node-keys"

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
    command = [
        *("flower-superlink", "--host", host, "--port", port),
        *("--isolation", "process", "--database", str(database)),
        *("--ssl-certfile", str(own.certificate), "--ssl-keyfile", str(own.key)),
        *("--ssl-ca-certfile", str(own.authority), "--enable-supernode-auth"),
        "--disable-runtime-dependency-installation",
    ]
    return ending_with_parent(command)


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
            remedy="start one ('abaton serve --help' says how), or name its store with --store",
        ) from None
    return Address(row["host"], row["port"], row["name"]), Certificates(*map(Path, row["certificates"]))


def read_admitted(folder: Path) -> dict[int, str]:
    """Whose each admitted node is, from a centre's folder."""
    try:
        rows = json.loads((folder / "admitted.json").read_text())
    except FileNotFoundError:
        return {}
    return {int(node): str(site) for node, site in rows.items()}


def read_link(folder: Path) -> tuple[str, Path]:
    """Where a centre's SuperLink is reached by the centre's own programs, and what its certificate is signed with."""
    try:
        row = json.loads((folder / "link.json").read_text())
    except FileNotFoundError:
        raise SettingsError(
            "the centre does not run", where=str(folder), remedy="start it; 'abaton serve --help' says how"
        ) from None
    return str(row["link"]), Path(row["authority"])


def open_post(folder: Path, name: str = "controller") -> LinkPost:
    """The post of a centre's controller; the run of one that was killed is ended when it is entered."""
    return LinkPost(*read_link(folder), folder / f"{name}.run")


def _revoked(control: Control, *, node: int) -> None:
    control.revoke(node)


def main(words: list[str]) -> None:
    """The program of a controller: calls what a file names with a post to the SuperLink of the centre beside it."""
    from abaton.engines.flower.site_worker import named

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    end_with_parent()
    path = Path(words[0])
    told = json.loads(path.read_text())
    with open_post(path.parent, told["name"]) as post:
        named(told["controller"])(post, told["about"])


if __name__ == "__main__":
    main(sys.argv[1:])
