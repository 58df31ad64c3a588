"""A whole hospital and a whole research centre in one folder, each with its own files, keys and databases."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path

from tests.study.long_form import long_starter

from abaton.cli import main
from abaton.governance import Registry, Ring, SenderRole, Senders, metadata
from abaton.governance.keys import lock, write_public, write_ring
from abaton.governance.identifiers import stamp
from abaton.store import Database
from abaton.study import load_study

PHRASE = "a long enough sentence"
IDS = ("mrn-4701", "mrn-4702", "mrn-4703")
# Names that no other test writes: the scenario looks through all files of a PostgreSQL server that others use, too.
NAMES = ("Ostrowinder", "Tamarisker", "Levinskaya")
ICD, LOINC = "http://hl7.org/fhir/sid/icd-10-cm", "http://loinc.org"

SITE = """
[site]
id = "pisa"
name = "Hospital"
[records]
kind = "ndjson"
paths = ["records"]
[consent]
registry = "{registry}"
[keys]
study = "study.key"
tags = "tags.key"
ring = "site.keys"
[centre]
url = "{url}"
keys = "centre.pub"
part = 1024
retries = 1
[vault]
rows = "{vault}"
keys = "row-keys.db"
controller = "controller.pub"
"""


class Place:
    """The files of both sides under one folder, and commands to run there.

    Args:
        folder: Where everything lies.
        urls: The databases of the site, the centre and the vault's rows.
    """

    def __init__(self, folder: Path, urls: list[str]) -> None:
        self.folder, (self.site_url, self.centre_url, self.vault_url) = folder, urls
        self.hospital, self.research = folder / "hospital", folder / "research"
        self.servers: list[Process] = []
        self.rings: dict[str, Ring] = {}
        self.logs = Path(tempfile.mkdtemp(prefix="abaton-test-"))  # what is printed is nobody's file

    def build(self, people: int = 3, notes: int = 60) -> None:
        """Make keys, the study document, records with names in them, and enter everybody at the centre."""
        now = stamp(datetime.now(UTC))
        for folder in (self.hospital, self.research):
            folder.mkdir()
        for name in ("site", "centre", "controller", "approver"):
            self.rings[name] = ring = Ring.new(name, os.urandom, now)
            home = self.hospital if name == "site" else self.research
            write_ring(home / f"{name}.keys", lock(ring, PHRASE.encode(), os.urandom, n=16))
            for other in (self.hospital, self.research):
                write_public(other / f"{name}.pub", ring.public)
        for name in ("study.key", "tags.key"):
            (self.hospital / name).write_bytes(os.urandom(32))
            (self.hospital / name).chmod(0o600)
        text = long_starter(datetime.now(UTC).date(), identifier="heart-2026")
        text = text.replace('shares = ["updates"] ', 'shares = ["records", "updates"] ')
        text = text.replace('identity = "pseudonym" ', 'identity = "pseudo-identity" ')
        (self.hospital / "study.toml").write_text(text)
        (self.research / "study.toml").write_text(text)
        self.study = load_study(self.hospital / "study.toml")
        (self.hospital / "records").mkdir()
        records = [r for number in range(1, people + 1) for r in person(number, notes)]
        (self.hospital / "records" / "all.ndjson").write_text("".join(json.dumps(r) + "\n" for r in records))
        with Database(self.centre_url, metadata) as database:
            Senders(database).enter(self.rings["site"].public, SenderRole.SITE, datetime.now(UTC))
        with Database(self.site_url, metadata) as database:
            Registry(database)

    def write_site(self, url: str) -> None:
        text = SITE.format(registry=self.site_url, url=url, vault=self.vault_url)
        (self.hospital / "site.toml").write_text(text)

    def serve(self, point: str = "") -> str:
        """Start the service as a process of its own; its address."""
        words = (
            "serve", "intake", "--database", self.centre_url, "--keys", "centre.keys", "--port", "0",
            "--inbox", "inbox", "--passphrase-env", "PHRASE",
        )  # fmt: skip
        server = Process(words, self.research, self._log(), point)
        self.servers.append(server)
        address = server.first_line()
        assert address.startswith("http://127.0.0.1:"), server.err.read_text()
        self.write_site(address)
        return address

    def _log(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.logs))

    def close(self) -> None:
        """Stop what still runs, and throw away what was printed."""
        while self.servers:
            self.stop(signal.SIGKILL)
        shutil.rmtree(self.logs)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop the service that was started last."""
        server = self.servers.pop()
        server.kill(how)
        server.wait()

    def run(self, *words: str, where: str = "hospital", code: int | None = 0, point: str = "") -> Process:
        """Run a command of Abaton at one side, in a process of its own, to its end."""
        done = Process(words, self.folder / where, self._log(), point)
        found = done.wait()
        assert code is None or found == code, (found, done.stderr)
        return done

    def site(self, *words: str, code: int | None = 0, point: str = "") -> Process:
        """Run a command of the site."""
        return self.run("site", *words, "--passphrase-env", "PHRASE", code=code, point=point)


class Process:
    """A command of Abaton in a process of its own, forked so that nothing has to be imported anew.

    Args:
        words: The command.
        folder: Where it runs.
        logs: Where what it prints goes.
        point: Where it kills itself, as ``module:class:method:before|after:call``; empty for nowhere.
    """

    def __init__(self, words: tuple[str, ...], folder: Path, logs: Path, point: str = "") -> None:
        self.code: int | None = None
        self.out, self.err = logs / "out", logs / "err"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads
            self.pid = os.fork()
        if self.pid == 0:
            _become(words, folder, point, self.out, self.err)

    def first_line(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.poll() is None:
            if self.out.exists() and "\n" in (text := self.out.read_text()):
                return text.splitlines()[0]
            time.sleep(0.02)
        return ""

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self) -> int:
        """How it ended: its exit code, or minus the signal that killed it."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self, how: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, how)

    @property
    def stdout(self) -> str:
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        return self.err.read_text()


def _become(words: tuple[str, ...], folder: Path, point: str, out: Path, err: Path) -> None:
    """In the child: be the command, and never come back."""
    code = 70
    try:
        for number, path in ((1, out), (2, err)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.chdir(folder)
        os.environ["PHRASE"] = PHRASE
        sys.argv = ["abaton", *words]
        if point:
            _arm(point)
        main()
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _arm(point: str) -> None:
    module, owner, name, moment, nth = point.split(":")
    holder = getattr(importlib.import_module(f"abaton.{module}"), owner)
    real, calls = getattr(holder, name), []

    def act(*words, **more):
        calls.append(1)
        if len(calls) == int(nth) and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(*words, **more)
        if len(calls) == int(nth) and moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(holder, name, act)


def person(number: int, notes: int = 60) -> list[dict[str, object]]:
    """Somebody with a name, hypertension, and enough blood pressures that an envelope has several parts."""
    who, name = IDS[number - 1], NAMES[number - 1]
    made: list[dict[str, object]] = [
        {
            "resourceType": "Patient", "id": who, "gender": "female", "birthDate": "1960-05-01",
            "name": [{"family": name}], "identifier": [{"value": f"ssn-{number}"}],
        },
        {
            "resourceType": "Condition", "id": f"c{number}", "subject": {"reference": f"Patient/{who}"},
            "code": {"coding": [{"system": ICD, "code": "I10"}], "text": f"{name} has it"},
        },
    ]  # fmt: skip
    made += [_pressure(number, i) for i in range(notes)]
    return made


def _pressure(number: int, i: int) -> dict[str, object]:
    value = {"value": 120 + (i * 7 + number) % 60, "unit": "mmHg", "code": "mm[Hg]"}
    return {
        "resourceType": "Observation",
        "id": f"o{number}-{i}",
        "status": "final",
        "subject": {"reference": f"Patient/{IDS[number - 1]}"},
        "code": {"coding": [{"system": LOINC, "code": "8480-6"}]},
        "effectiveDateTime": datetime.now(UTC).date().isoformat(),
        "valueQuantity": {**value, "system": "http://unitsofmeasure.org"},
    }
