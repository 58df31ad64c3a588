"""A whole hospital and a whole research centre in one folder, each with its own files, keys and databases."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from abaton.governance import Registry, Ring, Role, Senders, metadata
from abaton.governance.keyfiles import lock, write_public, write_ring
from abaton.governance.times import stamp
from abaton.store import Database
from abaton.study import load_study, starter

PHRASE = "a long enough sentence"
IDS = ("mrn-4701", "mrn-4702", "mrn-4703")
NAMES = ("Chalmers", "Windsor", "Levin")
MAIN = "from abaton.cli import main; main()"
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
        self.servers: list[subprocess.Popen[str]] = []
        self.rings: dict[str, Ring] = {}

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
        text = starter("study.toml", datetime.now(UTC).date(), identifier="heart-2026")
        text = text.replace('shares = ["updates"] ', 'shares = ["records", "updates"] ')
        text = text.replace('identity = "pseudonym" ', 'identity = "pseudo-identity" ')
        (self.hospital / "study.toml").write_text(text)
        (self.research / "study.toml").write_text(text)
        self.study = load_study(self.hospital / "study.toml")
        (self.hospital / "records").mkdir()
        records = [r for number in range(1, people + 1) for r in person(number, notes)]
        (self.hospital / "records" / "all.ndjson").write_text("".join(json.dumps(r) + "\n" for r in records))
        with Database(self.centre_url, metadata) as database:
            Senders(database).enter(self.rings["site"].public, Role.SITE, datetime.now(UTC))
        with Database(self.site_url, metadata) as database:
            Registry(database)

    def write_site(self, url: str) -> None:
        text = SITE.format(registry=self.site_url, url=url, vault=self.vault_url)
        (self.hospital / "site.toml").write_text(text)

    def serve(self, *command: str) -> str:
        """Start the service as a process of its own; its address."""
        words = command or (
            "-c", MAIN, "serve", "--governance", self.centre_url, "--keys", "centre.keys", "--port", "0",
            "--inbox", "inbox", "--passphrase-env", "PHRASE",
        )  # fmt: skip
        server = subprocess.Popen(
            [sys.executable, *words], cwd=self.research, env=environment(), stdout=subprocess.PIPE, text=True
        )
        self.servers.append(server)
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        self.write_site(address)
        return address

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop the service that was started last."""
        server = self.servers.pop()
        server.send_signal(how)
        server.wait(30)
        assert server.stdout is not None
        server.stdout.close()

    def run(
        self, *words: str, where: str = "hospital", code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Abaton at one side."""
        options = {"cwd": self.folder / where, "env": environment(), "capture_output": True, "text": True}
        done = subprocess.run([sys.executable, "-c", MAIN, *words], check=False, **options)  # type: ignore[call-overload]
        assert code is None or done.returncode == code, done.stderr
        return done

    def site(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.run("site", *words, "--passphrase-env", "PHRASE", code=code)


def environment() -> dict[str, str]:
    return {**os.environ, "PHRASE": PHRASE}


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
