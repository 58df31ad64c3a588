"""A centre and its SuperLink: its own, or somebody else's that is not there, or is not who it should be."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from abaton.engines.flower.server_processes import Address, Centre, read_address, write_address
from abaton.engines.flower.tls import Certificates, issue, node_key
from abaton.engines.flower.supervisor import free_port
from abaton.errors import SettingsError


def authority(folder: Path) -> Certificates:
    return issue(folder, ["127.0.0.1"], datetime.now(UTC))


def centre_of(folder: Path, port: int, own: Certificates) -> Centre:
    trusted = Certificates(own.authority, own.authority, own.authority)
    return Centre(folder, Address("127.0.0.1", port), trusted, print, embedded=False)


@contextmanager
def stranger(own: Certificates) -> Iterator[int]:
    """Somebody with a certificate who listens; the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with suppress(OSError), listener.accept()[0] as caller:
                context.wrap_socket(caller, server_side=True).close()

        thread = threading.Thread(target=greet)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


def test_a_superlink_that_does_not_answer_is_somebody_elses_to_start(tmp_path):
    centre = centre_of(tmp_path / "centre", free_port(), authority(tmp_path / "theirs"))
    with pytest.raises(SettingsError, match="the SuperLink does not answer.*: ask whoever runs it"):
        centre.start(patience=0.5)


def test_a_superlink_of_another_authority_is_not_believed(tmp_path):
    with (
        stranger(authority(tmp_path / "stranger")) as port,
        pytest.raises(SettingsError, match="the SuperLink's certificate is not valid.*--authority"),
    ):
        centre_of(tmp_path / "centre", port, authority(tmp_path / "theirs")).start(patience=10)


def test_sites_dial_the_name_and_the_centre_the_address(tmp_path):
    own = authority(tmp_path)
    write_address(tmp_path, Address("10.0.0.7", 9443, "link.example.org"), own)
    address, _ = read_address(tmp_path)
    assert (str(address), address.near) == ("link.example.org:9443", "10.0.0.7:9443")


def test_a_superlink_has_the_port_of_before_unless_somebody_else_took_it(tmp_path):
    own = authority(tmp_path / "own")
    centre = Centre(tmp_path, Address("127.0.0.1", 8443), own, print)
    port = free_port()
    (tmp_path / "gate.json").write_text(json.dumps({"link": f"127.0.0.1:{port}"}))
    assert centre._port(own.authority) == port
    with stranger(authority(tmp_path / "stranger")) as taken:
        (tmp_path / "gate.json").write_text(json.dumps({"link": f"127.0.0.1:{taken}"}))
        assert centre._port(own.authority) != taken


def test_without_a_centre_nobody_is_admitted(tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    centre = Centre(tmp_path, Address("127.0.0.1", 8443), authority(tmp_path / "own"), print)
    _, public = node_key(tmp_path / "key")
    with pytest.raises(SettingsError, match="the centre does not run"):
        centre.admit(public.read_text(), "a")
    told = {"link": f"127.0.0.1:{free_port()}", "authority": str(tmp_path / "own" / "ca.pem")}
    (tmp_path / "link.json").write_text(json.dumps(told))
    with pytest.raises(SettingsError, match="the centre's SuperLink does not answer"):
        centre.admit(public.read_text(), "a")
