"""File hashes of the locked packages: write them, and check the installed versions.

``requirements.lock`` is used as constraints, and pip accepts no hashes there together with an editable install.
The hashes are in a second file, ``requirements.hashes``, which installs everything but torch with
``--require-hashes``: torch has several builds of one version (for processors and for graphics cards), so only
its version is pinned. See docs/adr/0208-install-dependencies-in-ci-from-a-lock-file-with-hashes.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK, HASHES = ROOT / "requirements.lock", ROOT / "requirements.hashes"
BY_VERSION = frozenset({"torch"})
"""Packages pinned by version only."""
SOME_PLATFORMS = {
    name: ' ; sys_platform == "linux" and platform_machine == "x86_64"' for name in ("atheris", "ray")
}
"""Packages with files for some platforms only."""
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")


def canonical(name: str) -> str:
    """Return the normalised name of a package.

    >>> canonical("Py_Serializable")
    'py-serializable'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    """Return the packages that a file pins, with their versions."""
    lines = (_PINNED.match(line) for line in path.read_text().splitlines())
    return {canonical(match[1]): match[2] for match in lines if match}


def differences() -> list[str]:
    """Return the differences between the two files."""
    lock, hashes = pinned(LOCK), pinned(HASHES)
    wanted = {name: version for name, version in lock.items() if name not in BY_VERSION}
    names = sorted(wanted.items() ^ hashes.items())
    return [f"{name}=={version} is in one of the two files only" for name, version in names]


def strays() -> list[str]:
    """Return the packages that are installed in another version than the locked one."""
    lock = pinned(LOCK)
    installed = {
        canonical(distribution.metadata["Name"]): distribution.version
        for distribution in metadata.distributions()
    }
    return [
        f"{name} is installed as {version}, but {lock[name]} is locked"
        for name, version in sorted(installed.items())
        if name in lock and version.partition("+")[0] != lock[name]
    ]


def make() -> None:
    """Write the hashes from the package index."""
    wanted = [f"{name}=={version}" for name, version in pinned(LOCK).items() if name not in BY_VERSION]
    uv = Path(sys.executable).with_name("uv")
    arguments = [
        "pip",
        "compile",
        "--quiet",
        "--no-deps",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
    ]
    done = subprocess.run(  # noqa: S603 - fixed arguments
        [str(uv), *arguments, "--no-emit-index-url", "-"],
        input="\n".join(wanted), capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = ["# Written by 'make lock' from requirements.lock: the files of each version. See tools/lock.py."]
    for line in done.stdout.splitlines():
        match = _PINNED.match(line)
        marker = SOME_PLATFORMS.get(canonical(match[1]), "") if match else ""
        lines.append(line.replace(" \\", f"{marker} \\") if marker else line)
    HASHES.write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    """Write the hashes (``make``), or report differences and return 1 (``check``)."""
    if arguments == ["make"]:
        make()
    problems = [*differences(), *strays()] if arguments == ["check"] else differences()
    for problem in problems:
        sys.stderr.write(f"{problem}: run 'make lock', or install the locked version\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
