"""A hospital and a research centre in one folder, each with its own files, keys and databases."""

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

from tests.study.full_studies import long_starter

from abaton.cli import main
from abaton.governance import ConsentRegistry, KeySet, SenderRegistry, SenderRole, metadata
from abaton.governance.key_files import encrypt_key_set, write_key_set, write_public
from abaton.governance.timestamps import to_timestamp
from abaton.store import Database
from abaton.study import load_study

PHRASE = "a long enough sentence"
IDS = ("mrn-4701", "mrn-4702", "mrn-4703")
# Names that no other test uses: the scenario scans all files of a shared PostgreSQL server.
NAMES = ("Ostrowinder", "Tamarisker", "Levinskaya")
ICD, LOINC = "http://hl7.org/fhir/sid/icd-10-cm", "http://loinc.org"

SITE = """
[site]
id = "pisa"
name = "Hospital"
[records]
source = "ndjson"
paths = ["records"]
[consent]
registry = "{registry}"
[keys]
study = "study.key"
registry = "registry.key"
key_set = "site.keys"
[centre]
url = "{url}"
public_keys = "centre.pub"
chunk_bytes = 1024
retries = 1
[vault]
rows_database = "{vault}"
keys_database = "row-keys.db"
data_controller_key = "controller.pub"
"""


class Deployment:
    """Files of both parties in one folder, and commands to run there.

    Args:
        folder: The folder.
        urls: Databases of the site, the centre and the vault rows.
    """

    def __init__(self, folder: Path, urls: list[str]) -> None:
        self.folder, (self.site_url, self.centre_url, self.vault_url) = folder, urls
        self.hospital, self.research = folder / "hospital", folder / "research"
        self.servers: list[Process] = []
        self.key_sets: dict[str, KeySet] = {}
        self.logs = Path(tempfile.mkdtemp(prefix="abaton-test-"))  # output is kept outside the scanned folder

    def build(self, patients: int = 3, notes: int = 60) -> None:
        """Create keys, the study document and records with names, and register the site at the centre."""
        now = to_timestamp(datetime.now(UTC))
        for folder in (self.hospital, self.research):
            folder.mkdir()
        for name in ("site", "centre", "controller", "approver"):
            self.key_sets[name] = key_set = KeySet.new(name, os.urandom, now)
            home = self.hospital if name == "site" else self.research
            write_key_set(home / f"{name}.keys", encrypt_key_set(key_set, PHRASE.encode(), os.urandom, n=16))
            for other in (self.hospital, self.research):
                write_public(other / f"{name}.pub", key_set.public)
        for name in ("study.key", "registry.key"):
            (self.hospital / name).write_bytes(os.urandom(32))
            (self.hospital / name).chmod(0o600)
        text = long_starter(datetime.now(UTC).date(), identifier="heart-2026")
        text = text.replace('shared_data = ["updates"] ', 'shared_data = ["records", "updates"] ')
        text = text.replace('identity = "pseudonym" ', 'identity = "pseudo-identity" ')
        (self.hospital / "study.toml").write_text(text)
        (self.research / "study.toml").write_text(text)
        self.study = load_study(self.hospital / "study.toml")
        (self.hospital / "records").mkdir()
        records = [r for number in range(1, patients + 1) for r in person(number, notes)]
        (self.hospital / "records" / "all.ndjson").write_text("".join(json.dumps(r) + "\n" for r in records))
        with Database(self.centre_url, metadata) as database:
            SenderRegistry(database).register(
                self.key_sets["site"].public, SenderRole.SITE, datetime.now(UTC)
            )
        with Database(self.site_url, metadata) as database:
            ConsentRegistry(database)

    def write_site(self, url: str) -> None:
        text = SITE.format(registry=self.site_url, url=url, vault=self.vault_url)
        (self.hospital / "site.toml").write_text(text)

    def serve(self, point: str = "") -> str:
        """Start the service in a process and return its address."""
        arguments = (
            "serve", "intake", "--database", self.centre_url, "--keys", "centre.keys", "--port", "0",
            "--inbox", "inbox", "--passphrase-env", "PHRASE",
        )  # fmt: skip
        server = Process(arguments, self.research, self._log(), point)
        self.servers.append(server)
        address = server.first_line()
        assert address.startswith("http://127.0.0.1:"), server.err.read_text()
        self.write_site(address)
        return address

    def _log(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.logs))

    def close(self) -> None:
        """Stop running processes and delete their output."""
        while self.servers:
            self.stop(signal.SIGKILL)
        shutil.rmtree(self.logs)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop the service that was started last."""
        server = self.servers.pop()
        server.kill(how)
        server.wait()

    def run(self, *arguments: str, where: str = "hospital", code: int | None = 0, point: str = "") -> Process:
        """Run an Abaton command of one party in a process to its end."""
        done = Process(arguments, self.folder / where, self._log(), point)
        exit_code = done.wait()
        assert code is None or exit_code == code, (exit_code, done.stderr)
        return done

    def site(self, *arguments: str, code: int | None = 0, point: str = "") -> Process:
        """Run a command of the site."""
        return self.run("site", *arguments, "--passphrase-env", "PHRASE", code=code, point=point)


class Process:
    """Abaton command in a forked process, which avoids importing again.

    Args:
        arguments: The command.
        folder: Working folder.
        logs: Folder for its output.
        point: Where it kills itself, as ``module:class:method:before|after:call``; empty for nowhere.
    """

    def __init__(self, arguments: tuple[str, ...], folder: Path, logs: Path, point: str = "") -> None:
        self.code: int | None = None
        self.out, self.err = logs / "out", logs / "err"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads
            self.pid = os.fork()
        if self.pid == 0:
            _become(arguments, folder, point, self.out, self.err)

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
        """Return the exit code, or minus the signal that killed it."""
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


def _become(arguments: tuple[str, ...], folder: Path, point: str, out: Path, err: Path) -> None:
    """Run the command in the child process and exit."""
    code = 70
    try:
        for number, path in ((1, out), (2, err)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.chdir(folder)
        os.environ["PHRASE"] = PHRASE
        sys.argv = ["abaton", *arguments]
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
    module, owner, name, phase, nth = point.split(":")
    holder = getattr(importlib.import_module(f"abaton.{module}"), owner)
    real, calls = getattr(holder, name), []

    def act(*arguments, **more):
        calls.append(1)
        if len(calls) == int(nth) and phase == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **more)
        if len(calls) == int(nth) and phase == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, name, act)


def person(number: int, notes: int = 60) -> list[dict[str, object]]:
    """Return a named patient with hypertension and enough observations for several chunks."""
    who, name = IDS[number - 1], NAMES[number - 1]
    records: list[dict[str, object]] = [
        {
            "resourceType": "Patient", "id": who, "gender": "female", "birthDate": "1960-05-01",
            "name": [{"family": name}], "identifier": [{"value": f"ssn-{number}"}],
        },
        {
            "resourceType": "Condition", "id": f"c{number}", "subject": {"reference": f"Patient/{who}"},
            "code": {"coding": [{"system": ICD, "code": "I10"}], "text": f"{name} has it"},
        },
    ]  # fmt: skip
    records += [_pressure(number, i) for i in range(notes)]
    return records


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
