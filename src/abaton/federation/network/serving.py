"""The research centre at work: its programs are kept running, and a controller that ends early is started again."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from abaton.engines.flower.centre import Address, Centre, write_address
from abaton.engines.flower.certificates import Certificates, issue
from abaton.engines.flower.membership import SitePrograms
from abaton.engines.flower.programs import Keeper, free_port
from abaton.errors import AbatonError, Refused, SettingsError
from abaton.federation.network.conducting import CONDUCT, Submission, Wish
from abaton.federation.network.joining import membership
from abaton.files import replacing
from abaton.site import SiteFile
from abaton.store import RunRow, Store
from abaton.study import Study, write_toml

Say = Callable[[str], None]

_LOOK = 0.25
_ERRORS = {error.exit_code: error for error in (SettingsError, Refused)}


class Kept(Protocol):
    """Programs that are kept running."""

    def start(self) -> None:
        """Start them."""

    def watch(self) -> None:
        """Start again what has ended."""

    def stop(self) -> None:
        """End them."""


def centre_folder(store: Path) -> Path:
    """Where a store's research centre keeps its own: the SuperLink's database, certificates, admitted nodes, logs."""
    return store / "network"


def open_centre(
    store: Path, address: Address, given: Certificates | None, say: Say, *, embedded: bool = True
) -> Centre:
    """The centre of a store; without given certificates a private authority is made, and the certificate renewed."""
    folder = centre_folder(store).resolve()
    own = given or issue(folder / "certificates", address.hosts, datetime.now(UTC))
    write_address(folder, address, own)
    return Centre(folder, address, own, say, embedded=embedded)


@dataclass
class Service:
    """Serves one study until its run has ended.

    Args:
        centre: The centre's programs.
        store: The store's folder.
        study: The study.
        wish: How it is run.
        say: Hears, in one line, when something happens.
        others: Further programs to keep running, such as the sites' in a rehearsal.
    """

    centre: Centre
    store: Path
    study: Study
    wish: Wish
    say: Say
    others: Sequence[Kept] = ()
    _heard: int = field(default=0, init=False)

    def run(self) -> RunRow:
        """Start everything, bring the run to its end, end everything.

        Raises:
            AbatonError: What the controller was refused.
        """
        try:
            self.centre.start()
            with replacing(self.centre.folder / "study.toml") as begun:
                begun.write_text(write_toml(self.study))
            self.say(f"the centre listens at {self.centre.address}")
            for programs in self.others:
                programs.start()
            return self._bring_to_end()
        finally:
            for programs in (*self.others, self.centre):
                programs.stop()

    def _bring_to_end(self) -> RunRow:
        told = self._told()
        controller = self.centre.conduct(CONDUCT, told.text())
        try:
            outcome = self._awaited(told, controller)
        finally:
            controller.stop()
        self._tell(told)
        if "error" in outcome:
            raise _ERRORS.get(outcome["code"], AbatonError)(outcome["error"])
        with Store(self.store) as store:
            return store.run(outcome["run"])

    def _awaited(self, told: Submission, controller: Keeper) -> dict[str, Any]:
        """How the run ended; whatever ends before it is started again, the controller as well."""
        while (outcome := self._outcome(told)) is None:
            for programs in (self.centre, *self.others):
                programs.watch()
            self._tell(told)
            if self._outcome(told) is None:
                controller.watch()
            time.sleep(_LOOK)
        return outcome

    def _told(self) -> Submission:
        told = Submission(secrets.token_hex(8), self.store.resolve(), self.centre.folder, self.wish)
        told.progress_file.parent.mkdir(parents=True, exist_ok=True)
        told.progress_file.touch()
        self._heard = told.progress_file.stat().st_size
        return told

    def _outcome(self, told: Submission) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] = json.loads(told.outcome_file.read_text())
        except (FileNotFoundError, ValueError):
            return None
        return row if row["token"] == told.token else None

    def _tell(self, told: Submission) -> None:
        """Pass on what the controller has said since."""
        with told.progress_file.open("rb") as log:
            log.seek(self._heard)
            lines = log.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._heard += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.say(line)


def rehearse(study: Study, files: Sequence[SiteFile], store: Store, wish: Wish, say: Say) -> RunRow:
    """Run a study on this machine as on a network: a centre on loopback, a node for each site, TLS and keys.

    Raises:
        Refused: Fewer sites than are needed can take part.
    """
    if len(files) < 2:
        raise Refused(f"{len(files)} of {len(files)} sites can take part, 2 are needed", remedy="add others")
    centre = open_centre(store.folder, Address("127.0.0.1", free_port()), None, say)
    authority = centre.folder / "certificates" / "ca.pem"
    sites = Sites(centre, say)
    document = centre.folder / "study.toml"
    for file in files:
        folder = centre.folder / "members" / file.document.site.id
        sites.add(
            SitePrograms(membership(file, study, document, str(centre.address), authority, folder), say)
        )
    return Service(centre, store.folder, study, wish, say, [sites]).run()


class Sites:
    """The programs of several sites on this machine; their keys are admitted when they start."""

    def __init__(self, centre: Centre, say: Say) -> None:
        self._centre, self._say = centre, say
        self.programs: dict[str, SitePrograms] = {}

    def add(self, programs: SitePrograms) -> None:
        """One more site."""
        self.programs[programs.member.site] = programs

    def start(self) -> None:
        """Make keys, admit them, start the programs."""
        known = set(self._centre.admitted().values())
        for site, programs in self.programs.items():
            programs.make_key()
            if site not in known:
                self._centre.admit(programs.public_key(), site)
            programs.start()

    def watch(self) -> None:
        """Start again what has ended."""
        for programs in self.programs.values():
            programs.watch()

    def stop(self) -> None:
        """End all programs."""
        for programs in self.programs.values():
            programs.stop()
