"""The hashes of everything that the lock names: make them, and check what is installed.

``requirements.lock`` is used as constraints, and pip takes no hashes there together with an editable install. So the
hashes stand in a second file, ``requirements.hashes``, which installs everything but torch with ``--require-hashes``:
torch has builds of one version with different files (for processors and for graphics cards), so its version alone
is pinned, and the build is the installer's choice. See docs/adr/0208-two-locks.md.
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
"""What is pinned by its version alone."""
SOME_PLATFORMS = {
    name: ' ; sys_platform == "linux" and platform_machine == "x86_64"' for name in ("atheris", "ray")
}
"""What has files for some platforms only."""
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)")


def canonical(name: str) -> str:
    """A package's name as everybody writes it.

    >>> canonical("Py_Serializable")
    'py-serializable'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    """The packages that a file pins, and their versions."""
    lines = (_PINNED.match(line) for line in path.read_text().splitlines())
    return {canonical(found[1]): found[2] for found in lines if found}


def differences() -> list[str]:
    """How the two files differ in what they pin."""
    lock, hashes = pinned(LOCK), pinned(HASHES)
    wanted = {name: version for name, version in lock.items() if name not in BY_VERSION}
    names = sorted(wanted.items() ^ hashes.items())
    return [f"{name}=={version} stands in one of the two files only" for name, version in names]


def strays() -> list[str]:
    """What is installed in another version than the lock names."""
    lock = pinned(LOCK)
    found = {canonical(each.metadata["Name"]): each.version for each in metadata.distributions()}
    return [
        f"{name} is installed as {version}, the lock names {lock[name]}"
        for name, version in sorted(found.items())
        if name in lock and version.partition("+")[0] != lock[name]
    ]


def make() -> None:
    """Write the hashes anew; asks the package index for them."""
    wanted = [f"{name}=={version}" for name, version in pinned(LOCK).items() if name not in BY_VERSION]
    uv = Path(sys.executable).with_name("uv")
    words = ["pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
    done = subprocess.run(  # noqa: S603 - words of ours
        [str(uv), *words, "--no-emit-index-url", "-"],
        input="\n".join(wanted), capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [
        "# Made by 'make lock' of requirements.lock: the files that each version may be. See tools/lock.py."
    ]
    for line in done.stdout.splitlines():
        found = _PINNED.match(line)
        marker = SOME_PLATFORMS.get(canonical(found[1]), "") if found else ""
        lines.append(line.replace(" \\", f"{marker} \\") if marker else line)
    HASHES.write_text("\n".join(lines) + "\n")


def main(words: list[str]) -> int:
    """``make`` writes the hashes; ``check`` says what does not fit, and fails if anything does not."""
    if words == ["make"]:
        make()
    wrong = [*differences(), *strays()] if words == ["check"] else differences()
    for each in wrong:
        sys.stderr.write(f"{each}: run 'make lock', or install what the lock names\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
