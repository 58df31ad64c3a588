"""A centre and its SuperLink: embedded, not running, or with an untrusted certificate."""

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

from abaton.engines.flower.server_processes import ServerAddress, ServerProcesses, read_address, write_address
from abaton.engines.flower.supervisor import free_port
from abaton.engines.flower.tls import CertificateAuthority, create_node_key, issue_certificate
from abaton.errors import SettingsError


def authority(folder: Path) -> CertificateAuthority:
    return issue_certificate(folder, ["127.0.0.1"], datetime.now(UTC))


def centre_of(folder: Path, port: int, certificates: CertificateAuthority) -> ServerProcesses:
    trusted = CertificateAuthority(certificates.authority, certificates.authority, certificates.authority)
    return ServerProcesses(folder, ServerAddress("127.0.0.1", port), trusted, print, embedded=False)


@contextmanager
def other_server(certificates: CertificateAuthority) -> Iterator[int]:
    """Another server with a certificate; yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with suppress(OSError), listener.accept()[0] as caller:
                context.wrap_socket(caller, server_side=True).close()

        thread = threading.Thread(target=greet)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


def test_an_external_superlink_that_does_not_respond_is_an_error(tmp_path):
    centre = centre_of(tmp_path / "centre", free_port(), authority(tmp_path / "theirs"))
    with pytest.raises(SettingsError, match="the SuperLink does not respond.*: ask its operator"):
        centre.start(start_timeout=0.5)


def test_a_superlink_of_another_authority_is_not_trusted(tmp_path):
    with (
        other_server(authority(tmp_path / "other_server")) as port,
        pytest.raises(SettingsError, match="the SuperLink's certificate is invalid.*--authority"),
    ):
        centre_of(tmp_path / "centre", port, authority(tmp_path / "theirs")).start(start_timeout=10)


def test_sites_use_the_public_name_and_the_centre_the_address(tmp_path):
    certificates = authority(tmp_path)
    write_address(tmp_path, ServerAddress("10.0.0.7", 9443, "link.example.org"), certificates)
    address, _ = read_address(tmp_path)
    assert (str(address), address.local_address) == ("link.example.org:9443", "10.0.0.7:9443")


def test_a_superlink_keeps_its_port_unless_it_is_in_use(tmp_path):
    certificates = authority(tmp_path / "certificates")
    centre = ServerProcesses(tmp_path, ServerAddress("127.0.0.1", 8443), certificates, print)
    port = free_port()
    (tmp_path / "proxy.json").write_text(json.dumps({"superlink": f"127.0.0.1:{port}"}))
    assert centre._port(certificates.authority) == port
    with other_server(authority(tmp_path / "other_server")) as taken:
        (tmp_path / "proxy.json").write_text(json.dumps({"superlink": f"127.0.0.1:{taken}"}))
        assert centre._port(certificates.authority) != taken


def test_no_node_is_admitted_without_a_running_centre(tmp_path):
    pytest.importorskip("flwr", reason="Flower is missing: install abaton[flower]")
    centre = ServerProcesses(
        tmp_path, ServerAddress("127.0.0.1", 8443), authority(tmp_path / "certificates"), print
    )
    _, public = create_node_key(tmp_path / "key")
    with pytest.raises(SettingsError, match="the centre is not running"):
        centre.admit(public.read_text(), "a")
    settings = {
        "superlink": f"127.0.0.1:{free_port()}",
        "authority": str(tmp_path / "certificates" / "ca.pem"),
    }
    (tmp_path / "superlink.json").write_text(json.dumps(settings))
    with pytest.raises(SettingsError, match="the centre's SuperLink does not respond"):
        centre.admit(public.read_text(), "a")
