"""A study over an external SuperLink, on a host that belongs neither to the centre nor to a site."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks._hosts import Hosts
from tests.study_run.network.network_hosts import hosts
from tests.study_run.network_commands import Federation

from abaton.engines.flower.supervisor import child_environment
from abaton.engines.flower.tls import CertificateAuthority, issue_certificate
from abaton.store import Store
from abaton.study_run import StudyOptions, run_study

pytestmark = [pytest.mark.hosts, pytest.mark.network, pytest.mark.slow]


def by_hand(certificates: CertificateAuthority, database: Path) -> Sequence[str]:
    """Return the command of the how-to guide."""
    return [
        *("flower-superlink", "--host", "0.0.0.0", "--port", "9443", "--isolation", "process"),
        *(
            "--database",
            str(database),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ),
        *("--ssl-certfile", str(certificates.certificate), "--ssl-keyfile", str(certificates.key)),
        *("--ssl-ca-certfile", str(certificates.authority)),
    ]


@contextmanager
def superlink(net: Hosts, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start an external SuperLink; yield its process and the authority of its certificate."""
    certificates = issue_certificate(folder, [net.addresses["link"]], datetime.now(UTC))
    with (folder / "superlink.log").open("wb") as log:
        program = subprocess.Popen(
            net.command("link", by_hand(certificates, folder / "superlink.db")),
            env=child_environment(folder / "flwr"),
            stdout=log,
            stderr=log,
        )
        try:
            yield program, certificates.authority
        finally:
            program.terminate()
            program.wait(60)


def test_a_study_runs_over_an_external_superlink(rounds, tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    documents = {path.parent.name: path for path in rounds.sites[:2]}
    folder = tmp_path / "hospitals"
    with (
        hosts(["link", "centre", *documents]) as net,
        superlink(net, tmp_path / "theirs") as (link, authority),
    ):
        federation = Federation(net, folder, list(documents))
        try:
            federation.serve("--superlink", f"{net.addresses['link']}:9443", "--authority", authority)
            for site, document in documents.items():
                federation.join(site, document)
            run = federation.wait_for_run()
        finally:
            federation.stop()
        assert link.poll() is None, "an external process is not stopped"
    assert not list(federation.store.rglob("superlink.*")), "and its database is not stored"
    with Store(federation.store) as store:
        assert store.run(run).status == "finished"
        here = run_study(
            rounds.study, rounds.sites[:2], store, StudyOptions(bootstrap_resamples=0), now=datetime.now(UTC)
        ).row
        there = [model.digest for model in store.models(run)]
        ours = [model.digest for model in store.models(here.run)]
        assert len(there) == len(ours)
        assert there[0] == ours[0], "later versions depend on the sites' secret orders of rows"
