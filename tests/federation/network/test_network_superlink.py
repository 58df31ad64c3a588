"""A study over a SuperLink that somebody else runs, on a host that is neither the centre's nor a site's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks._hosts import Hosts
from tests.federation.network.commands import Federation
from tests.federation.network.hosts import hosts

from abaton.engines.flower.tls import Certificates, issue
from abaton.engines.flower.supervisor import surroundings
from abaton.federation import StudyOptions, run_study
from abaton.store import Store

pytestmark = [pytest.mark.hosts, pytest.mark.network, pytest.mark.slow]


def by_hand(own: Certificates, database: Path) -> Sequence[str]:
    """The command of the how-to."""
    return [
        *("flower-superlink", "--host", "0.0.0.0", "--port", "9443", "--isolation", "process"),
        *(
            "--database",
            str(database),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ),
        *("--ssl-certfile", str(own.certificate), "--ssl-keyfile", str(own.key)),
        *("--ssl-ca-certfile", str(own.authority)),
    ]


@contextmanager
def superlink(net: Hosts, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A SuperLink that Abaton does not know of, and the authority of its certificate."""
    own = issue(folder, [net.addresses["link"]], datetime.now(UTC))
    with (folder / "superlink.log").open("wb") as log:
        program = subprocess.Popen(
            net.words("link", by_hand(own, folder / "superlink.db")),
            env=surroundings(folder / "flwr"),
            stdout=log,
            stderr=log,
        )
        try:
            yield program, own.authority
        finally:
            program.terminate()
            program.wait(60)


def test_a_study_runs_over_a_superlink_of_somebody_else(rounds, tmp_path):
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
            run = federation.ended()
        finally:
            federation.stop()
        assert link.poll() is None, "it is not ours to end"
    assert not list(federation.store.rglob("superlink.*")), "nor to keep"
    with Store(federation.store) as store:
        assert store.run(run).status == "finished"
        here = run_study(
            rounds.study, rounds.sites[:2], store, StudyOptions(resamples=0), now=datetime.now(UTC)
        ).row
        there = [model.digest for model in store.models(run)]
        ours = [model.digest for model in store.models(here.run)]
        assert len(there) == len(ours)
        assert there[0] == ours[0], "the later ones follow from orders of rows that each site draws itself"
