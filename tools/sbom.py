"""Bill of materials of Abaton (CycloneDX, JSON): the package, its dependencies and those of its extras.

It follows from ``pyproject.toml``, ``requirements.lock`` and ``requirements.hashes`` alone, so the same checkout gives
the same bytes. What only an extra asks for by name has the scope *optional*; of everything else nothing is said, which
readers take for *required*.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tools.lock import HASHES, LOCK, ROOT, canonical, pinned

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill() -> str:
    """Return the bill of materials as JSON."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r'__version__ = "([^"]+)"', (ROOT / "src/abaton/__init__.py").read_text())
    assert version is not None
    needed = {canonical(_NAME.match(requirement)[0]) for requirement in project["dependencies"]}  # type: ignore[index]
    extras = {
        canonical(_NAME.match(requirement)[0])  # type: ignore[index]
        for requirements in project["optional-dependencies"].values()
        for requirement in requirements
    }
    root = _part("abaton", version[1], ComponentType.APPLICATION)
    root.licenses.add(LicenseExpression(project["license"]))
    files = _files()
    parts = {
        name: _part(name, number, ComponentType.LIBRARY, files.get(name, ()), extra=name in extras - needed)
        for name, number in sorted(pinned(LOCK).items())
    }
    bom = Bom(components=parts.values(), serial_number=uuid5(NAMESPACE_URL, _content()))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # the same checkout, the same bytes
    bom.metadata.component = root
    bom.metadata.tools.components.add(this_component())
    bom.register_dependency(root, [parts[name] for name in sorted((needed | extras) & parts.keys())])
    document: str = JsonV1Dot6(bom).output_as_string(indent=2)
    return document + "\n"


def _part(
    name: str, version: str, kind: ComponentType, files: tuple[str, ...] = (), *, extra: bool = False
) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    component = Component(
        name=name, version=version, type=kind, purl=purl, bom_ref=purl.to_string(),
        scope=ComponentScope.OPTIONAL if extra else None,
    )  # fmt: skip
    if files:  # a version has a file per platform
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in files]
        component.external_references.add(
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION, url=XsUri(purl.to_string()), hashes=hashes
            )
        )
    return component


def _files() -> dict[str, tuple[str, ...]]:
    """The hashes of the files that each version may be."""
    digests: dict[str, tuple[str, ...]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", HASHES.read_text()):
        name = _NAME.match(block)
        if name:
            digests[canonical(name[0])] = tuple(_HASH.findall(block))
    return digests


def _content() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "pyproject.toml", LOCK, HASHES))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(bill())
