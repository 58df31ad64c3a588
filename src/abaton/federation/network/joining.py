"""A site joins a study on a network: its invitation checked, its programs described, its private files named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abaton.engines.flower.membership import Membership
from abaton.errors import Refused
from abaton.federation.network.desk import DESK
from abaton.federation.network.invitation import Invitation
from abaton.federation.signatures import key_place
from abaton.files import replacing
from abaton.site import SiteFile
from abaton.study import Study, load_study, study_from_toml, write_toml


@dataclass(frozen=True, slots=True)
class Accounts:
    """Whose rights a site's programs have, if not those of whoever starts them; only root can give them others.

    Attributes:
        desks: the account that reads records and trains.
        node: the account that talks to the network.
    """

    desks: str = ""
    node: str = ""


OWN = Accounts()


def membership(
    file: SiteFile,
    study: Study,
    document: Path,
    centre: str,
    authority: Path,
    folder: Path,
    accounts: Accounts = OWN,
) -> Membership:
    """What a site's programs are started with."""
    more = {"document": str(Path(file.name).resolve()), "protocol": str(document.resolve())}
    return Membership(
        file.document.site.id,
        centre,
        authority.resolve(),
        DESK,
        folder.resolve(),
        study.hash,
        more,
        private_files(file),
        accounts.desks,
        accounts.node,
    )


def private_files(file: SiteFile) -> tuple[Path, ...]:
    """Everything of a site that its node has no business with: records, keys, registry, vault; where they are files."""
    document = file.document
    keys, vault = document.keys, document.vault
    places = [*document.records.paths, document.records.work, keys.study, keys.tags, keys.ring]
    places += [document.consent.registry] if document.consent.registry else []
    places += [vault.rows, vault.keys, vault.controller] if vault else []
    smart = document.records.smart
    places += [smart.key] if smart else []
    named = (file.path(place) for place in places if place and "://" not in place)
    return tuple(path.resolve() for path in (*named, key_place(file)))


def agreed_study(invitation: Invitation, own: Path | None) -> Study:
    """The study that a site joins: its own copy if it has one, otherwise the invitation's; the digest must be right.

    Raises:
        Refused: The document is not the one that the centre names.
    """
    study = (
        load_study(own) if own else study_from_toml(invitation.document, "the invitation's study document")
    )
    if study.hash != invitation.study:
        raise Refused(
            f"the study document has the digest {study.hash[:12]}, the invitation is to {invitation.study[:12]}",
            where=str(own or "invitation"),
            remedy="ask the centre which document is meant",
        )
    return study


def check_invited(invitation: Invitation, file: SiteFile, study: Study) -> None:
    """Refuse an invitation to somebody else, and a site's document that is weaker than the study.

    Raises:
        Refused: The invitation names another site.
        SiteError: With every weaker setting.
    """
    if invitation.site != file.document.site.id:
        raise Refused(
            f"the invitation is for '{invitation.site}', this is '{file.document.site.id}'",
            where=file.name,
            remedy="ask the centre for an invitation of your own, or correct [site] id",
        )
    file.against(study)


def prepare(
    invitation: Invitation, file: SiteFile, study: Study, folder: Path, accounts: Accounts = OWN
) -> Membership:
    """Write down what a site's programs need, in its own folder."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, document = folder / "ca.pem", folder / "study.toml"
    for path, text in ((authority, invitation.authority), (document, write_toml(study))):
        with replacing(path) as begun:
            begun.write_text(text)
    return membership(file, study, document, invitation.centre, authority, folder, accounts)


def unit(command: str, folders: Sequence[Path], account: str) -> str:
    """A systemd unit that keeps a site's programs running.

    A unit of root's is for programs that have accounts of their own: then it may do no more than start them.

    >>> "Restart=always" in unit("/opt/abaton/bin/abaton site join a", [Path("/var/lib/abaton")], "abaton")
    True
    """
    rights = "CapabilityBoundingSet="
    if account == "root":
        rights += "CAP_SETUID CAP_SETGID CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_KILL"
    return f"""[Unit]
Description=Abaton: the programs of this site
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
{rights}
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
