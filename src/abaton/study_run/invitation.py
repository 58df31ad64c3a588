"""Invitation of a site to a network study: invitation and node-key files, membership, systemd unit.

An invitation names the centre's address, the authority of its certificate, and the study by its document and hash. The
site creates its own key and sends the public part; both sides compare a fingerprint, and neither file contains a
secret.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from abaton.atomic_files import atomic_write
from abaton.engines.flower.site_processes import SiteMembership
from abaton.errors import RefusedError, SettingsError
from abaton.site import LoadedSiteConfig
from abaton.site.factory import release_log_paths, release_register_paths
from abaton.store import content_digest
from abaton.study import Study, load_study, study_from_toml, write_toml
from abaton.study_run.model_signatures import signing_key_path
from abaton.study_run.site_service import WORKER_ENTRY_POINT


@dataclass(frozen=True, slots=True)
class OsAccounts:
    """Accounts of a site's processes, if not the current one; only root can start them under other accounts.

    Attributes:
        workers: Account that reads records and trains.
        node: Account with network access.
    """

    workers: str = ""
    node: str = ""


CURRENT_ACCOUNT = OsAccounts()


def make_membership(
    file: LoadedSiteConfig,
    study: Study,
    document: Path,
    centre: str,
    authority: Path,
    folder: Path,
    accounts: OsAccounts = CURRENT_ACCOUNT,
) -> SiteMembership:
    """Return the settings with which the processes of an invited site are started."""
    settings = {"site_config": str(Path(file.name).resolve()), "study_document": str(document.resolve())}
    return SiteMembership(
        file.config.site.id,
        centre,
        authority.resolve(),
        WORKER_ENTRY_POINT,
        folder.resolve(),
        study.hash,
        settings,
        private_files(file),
        accounts.workers,
        accounts.node,
    )


def private_files(file: LoadedSiteConfig) -> tuple[Path, ...]:
    """Return the files that an invited site's node must not open: records, keys, registry, release log, vault."""
    config = file.config
    keys, vault, smart = config.keys, config.vault, config.records.smart
    names = [*config.records.paths, config.records.work_dir, keys.study, keys.registry, keys.key_set]
    names += [config.consent.registry] if config.consent.registry else []
    names += [vault.rows_database, vault.keys_database, vault.data_controller_key] if vault else []
    names += [smart.key] if smart else []
    paths = (file.path(name) for name in names if name and "://" not in name)
    releases = (*release_log_paths(file), *release_register_paths(file))
    return tuple(path.resolve() for path in (*paths, *releases, signing_key_path(file)))


def agreed_study(invitation: Invitation, local_copy: Path | None) -> Study:
    """Return the study that an invited site joins: its copy if given, else the invitation's, with a matching hash.

    Raises:
        RefusedError: The document is not the one that the centre names.
    """
    if local_copy:
        study = load_study(local_copy)
    else:
        study = study_from_toml(invitation.document, "the invitation's study document")
    if study.hash != invitation.study:
        raise RefusedError(
            f"the study document has the hash {study.hash[:12]}, the invitation names {invitation.study[:12]}",
            where=str(local_copy or "invitation"),
            remedy="ask the centre for the current study document",
        )
    return study


def check_invited(invitation: Invitation, file: LoadedSiteConfig, study: Study) -> None:
    """Refuse an invitation of another site, and a site configuration that is weaker than the study requires.

    Raises:
        RefusedError: The invitation names another site.
        SiteConfigError: With every weaker setting.
    """
    if invitation.site != file.config.site.id:
        raise RefusedError(
            f"the invitation is for '{invitation.site}', this is '{file.config.site.id}'",
            where=file.name,
            remedy="ask the centre for an invitation of this site, or correct [site] id",
        )
    file.check_against(study)


def prepare_membership(
    invitation: Invitation,
    file: LoadedSiteConfig,
    study: Study,
    folder: Path,
    accounts: OsAccounts = CURRENT_ACCOUNT,
) -> SiteMembership:
    """Write the files that an invited site's processes need, and return their settings."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, document = folder / "ca.pem", folder / "study.toml"
    for path, text in ((authority, invitation.authority), (document, write_toml(study))):
        with atomic_write(path) as temporary_path:
            temporary_path.write_text(text)
    return make_membership(file, study, document, invitation.centre, authority, folder, accounts)


def systemd_unit(command: str, folders: Sequence[Path], account: str) -> str:
    """Return a systemd unit for the processes of an invited site.

    A unit of root is for processes with accounts of their own; its capabilities only allow to start them.

    >>> "Restart=always" in systemd_unit("/opt/abaton/bin/abaton site join a", [Path("/var/lib/abaton")], "abaton")
    True
    """
    capabilities = "CapabilityBoundingSet="
    if account == "root":
        capabilities += "CAP_SETUID CAP_SETGID CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_KILL"
    return f"""[Unit]
Description=Abaton: processes of this site
After=network-online.target
Wants=network-online.target

[Service]
User={account}
WorkingDirectory={folders[0]}
ExecStart={command}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=30
UMask=0077
NoNewPrivileges=true
{capabilities}
PrivateTmp=true
PrivateDevices=true
ProtectSystem=strict
ProtectKernelTunables=true
ProtectKernelModules=true
ProtectControlGroups=true
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=true
LockPersonality=true
ReadWritePaths={" ".join(map(str, folders))}

[Install]
WantedBy=multi-user.target
"""


# ---- invitations --------------------------------------------------------------------------------------------------

FORMAT, KEY_FORMAT = "abaton-invitation/1", "abaton-node-key/1"
_MAX_BYTES = 1 << 23
_Form = TypeVar("_Form", "Invitation", "NodeKey")
_FORBIDDEN_CHARACTERS = frozenset("\"'\\=/")


@dataclass(frozen=True, slots=True)
class Invitation:
    """Invitation of one site to a study.

    Attributes:
        site: The site's id.
        centre: The centre's address, ``host:port``.
        authority: Certificate of the authority of the centre's certificate, as PEM.
        study: The hash of the study document.
        document: The study document.
    """

    site: str
    centre: str
    authority: str
    study: str = ""
    document: str = ""

    def __post_init__(self) -> None:
        host, _, port = self.centre.rpartition(":")
        if (
            not self.site
            or _FORBIDDEN_CHARACTERS & set(self.site + self.study)
            or not self.site.isprintable()
        ):
            raise SettingsError(
                f"the site's id is '{self.site}'",
                where="invitation",
                remedy="use letters, digits, spaces and dashes",
            )
        if not host or not port.isdecimal():
            raise SettingsError(
                f"'{self.centre}' is not an address", where="invitation", remedy="write it as host:port"
            )
        try:
            x509.load_pem_x509_certificate(self.authority.encode())
        except ValueError:
            raise SettingsError(
                "the authority's certificate is not readable", where="invitation", remedy="give it as PEM"
            ) from None

    def write(self, path: Path) -> None:
        """Write the invitation file that is sent to the site."""
        with atomic_write(path) as temporary_path:
            temporary_path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class NodeKey:
    """Public key of a site's node in OpenSSH format, sent to the centre.

    Attributes:
        site: The site's id.
        key: The public key.
    """

    site: str
    key: str

    def __post_init__(self) -> None:
        try:
            load_ssh_public_key(self.key.encode())
        except (ValueError, UnsupportedAlgorithm):
            raise SettingsError(
                "the key is not readable", where="node key", remedy="ask the site for the file again"
            ) from None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the invited site's node key, which both sides compare over a second channel."""
        digest = content_digest(" ".join(self.key.split()[:2]).encode())
        return "-".join(digest[i : i + 4] for i in range(0, 24, 4))

    def write(self, path: Path) -> None:
        """Write the node key file that an invited site sends to the centre."""
        with atomic_write(path) as temporary_path:
            temporary_path.write_text(json.dumps({"format": KEY_FORMAT, **asdict(self)}, indent=2) + "\n")


def read_invitation(path: Path) -> Invitation:
    """Read an invitation to a study from its file."""
    invitation = _read(path, FORMAT, Invitation)
    if invitation is None:
        raise SettingsError(
            "the file is not an invitation", where=str(path), remedy="ask the centre for 'abaton keys invite'"
        )
    return invitation


def read_node_key(path: Path) -> NodeKey:
    """Read the node key file of an invited site."""
    node_key = _read(path, KEY_FORMAT, NodeKey)
    if node_key is None:
        raise SettingsError(
            "the file is not a node key",
            where=str(path),
            remedy="ask the site for the file of 'abaton site join'",
        )
    return node_key


def _read(path: Path, format_name: str, file_type: type[_Form]) -> _Form | None:
    try:
        with path.open("rb") as file:
            row = json.loads(file.read(_MAX_BYTES))
        if row.pop("format") != format_name:
            return None
        return file_type(**{name: str(value) for name, value in row.items()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
