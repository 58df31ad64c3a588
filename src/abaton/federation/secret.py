"""A site's own secret of a run: it keys the fingerprint of its data, shuffles its rows and feeds its noise for privacy.

In a simulation it follows from the seed, so that a run can be made again to the bit. In real time it is drawn, and
kept in the folder where the site keeps its learner's memory, readable by its account alone.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from abaton.atomic_files import begun_name
from abaton.store import digest_of, writing

_LENGTH = 32


def simulated_secret(seed: int, site: str) -> bytes:
    """The secret of a site in a simulation."""
    return f"simulated {seed} {site}".encode()


def kept_secret(folder: Path, site: str) -> bytes:
    """The secret of a site in a run, drawn when it is first asked for."""
    path = folder / f"{digest_of(site.encode())[:32]}.secret"
    if not path.exists():
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            drawn = folder / begun_name(secrets.token_hex(8))
            drawn.touch(mode=0o600)
            drawn.write_bytes(secrets.token_bytes(_LENGTH))
            with suppress(FileExistsError):  # whoever was first has drawn it for all
                path.hardlink_to(drawn)
            drawn.unlink()
    return path.read_bytes()
