"""The models that a site makes of a community model, in a file of the site: they stay there.

How they are made and compared is in :mod:`abaton.federation.gains`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.errors import SettingsError
from abaton.federation.run import COMMUNITY
from abaton.atomic_files import replacing
from abaton.learners.personalisation import OwnModel
from abaton.store import digest_of, writing


def own_path(folder: Path, name: str) -> Path:
    """Where a site keeps what it made of a community model: by its name in a run's folder, by the run's in its own."""
    return folder / f"{digest_of(name.encode())[:32]}.own.safetensors"


def keep_own(path: Path, models: Mapping[str, OwnModel]) -> None:
    """Keep a site's own models of one community model in a file of the site: both weights, and what was chosen."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {}
    about = {}
    for way, each in models.items():
        arrays[COMMUNITY] = np.ascontiguousarray(each.community)
        if each.tuned is not None:
            arrays[way] = np.ascontiguousarray(each.tuned)
        about[way] = {"weight": each.weight, "line": list(each.line)}
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as begun:
            begun.write_bytes(save(arrays, metadata={"models": json.dumps(about)}))


def kept_own(path: Path, way: str) -> OwnModel:
    """What a site made of a community model.

    Raises:
        SettingsError: There is no such model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = json.loads(file.metadata()["models"])[way]
            community = file.get_tensor(COMMUNITY)
            tuned = file.get_tensor(way) if way in file.keys() else None  # noqa: SIM118
        intercept, slope = about["line"]
        return OwnModel(way, community, tuned, float(about["weight"]), (float(intercept), float(slope)))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise SettingsError(
            f"there is no model of the site's own, made by '{way}'",
            where=str(path),
            remedy=f'write personalise = ["{way}"] under [learning] and run the study',
        ) from error
