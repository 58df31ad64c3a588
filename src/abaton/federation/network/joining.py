"""A site joins a study on a network: its invitation checked, its keys made, its nodes described."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abaton.engines.flower.certificates import node_key
from abaton.engines.flower.nodes import ROLES, Membership, Nodes
from abaton.errors import Refused
from abaton.federation.network.desk import DESK
from abaton.federation.network.invitation import Invitation, NodeKeys
from abaton.files import replacing
from abaton.site import SiteFile
from abaton.study import Study, load_study, study_from_toml, write_toml


def membership(
    file: SiteFile, study: Study, document: Path, centre: str, authority: Path, folder: Path
) -> Membership:
    """What a site's nodes are started with."""
    more = {"document": str(Path(file.name).resolve()), "protocol": str(document.resolve())}
    return Membership(
        file.document.site.id, centre, authority.resolve(), DESK, folder.resolve(), study.hash, more
    )


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


def prepare(invitation: Invitation, file: SiteFile, study: Study, folder: Path) -> Membership:
    """Write down what a site's nodes need, in its own folder."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, document = folder / "ca.pem", folder / "study.toml"
    for path, text in ((authority, invitation.authority), (document, write_toml(study))):
        with replacing(path) as begun:
            begun.write_text(text)
    return membership(file, study, document, invitation.centre, authority, folder)


def keys_of(nodes: Nodes) -> tuple[NodeKeys, bool]:
    """The public keys of a site's nodes, and whether they were made just now."""
    new = False
    for role in ROLES:
        if not nodes.key(role).exists():
            node_key(nodes.key(role))
            new = True
    public = {role: nodes.key(role).with_name(f"{role}.pub").read_text().strip() for role in ROLES}
    return NodeKeys(nodes.member.site, public["train"], public["evaluate"]), new


def unit(command: str, folders: Sequence[Path], account: str) -> str:
    """A systemd unit that keeps a site's nodes running.

    >>> "Restart=always" in unit("/opt/abaton/bin/abaton site join a", [Path("/var/lib/abaton")], "abaton")
    True
    """
    return f"""[Unit]
Description=Abaton: the nodes of this site
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
PrivateTmp=true
ProtectSystem=strict
ReadWritePaths={" ".join(map(str, folders))}

[Install]
WantedBy=multi-user.target
"""
