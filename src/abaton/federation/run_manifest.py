"""Manifest of a run: settings, code and software digests, stored with the run and compared before it is resumed.

Strategy, codec, model, machines and software are stored as text, so that a difference can be named. Each site's data
enters as a digest keyed by a site secret, so that others cannot test guessed values. A new NumPy or PyTorch version is
a difference and prevents resuming.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from abaton import __version__, controller
from abaton.codecs import CodecPipeline
from abaton.engines import MachineProfile
from abaton.learners import PersonalLayersModel
from abaton.models.code_digest import user_code_digest

Manifest = Mapping[str, Any]

COMPONENT_TAGS: Mapping[type, str] = {
    controller.Strategy: "strategy",
    controller.TrainSettings: "train_settings",
    controller.UpdateThresholds: "update_thresholds",
    controller.DifferentialPrivacy: "differential_privacy",
    controller.SynchronousScheduler: "synchronous",
    controller.SemiSynchronousScheduler: "semi_synchronous",
    controller.AsynchronousScheduler: "asynchronous",
    controller.BufferedScheduler: "buffered",
    controller.ExampleWeighting: "examples",
    controller.ValidationWeighting: "validation",
    controller.LossWeighting: "loss",
    controller.StalenessWeighting: "staleness",
    controller.LatestContribution: "latest",
    controller.FedAsyncContribution: "fedasync",
    controller.CoordinateMedian: "median",
    controller.TrimmedMean: "trimmed_mean",
    controller.Krum: "krum",
    controller.NormBound: "norm_bound",
    controller.ServerSgd: "sgd",
    controller.ServerMomentum: "momentum",
    controller.ServerAdam: "adam",
    PersonalLayersModel: "personal_layers",
}
"""Tag of each built-in component in a manifest. Tags are part of the stored format; class names are not."""

_MAX_DESCRIPTION = 120  # characters of a model's description; longer ones are shortened and get a digest


def flatten_settings(component: object) -> dict[str, str]:
    """Return every setting of a component as text of the run manifest, by its dotted name.

    >>> settings = flatten_settings(controller.Strategy(learners=2, rounds=3))
    >>> settings["scheduler"], settings["training.learning_rate"]
    ('synchronous', '0.05')
    """
    return dict(_settings(component, ""))


def _settings(value: object, name: str) -> Iterator[tuple[str, str]]:
    prefix = f"{name}." if name else ""
    if isinstance(value, np.generic):  # stored like a Python number
        value = value.item()
    if value is None or isinstance(value, str | int | float | bytes):
        yield name, repr(value)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield from _settings(value[key], f"{prefix}{key}")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _settings(item, f"{prefix}{index}")
    else:
        yield name or "type", _describe_type(value)
        names = (
            [f.name for f in fields(value)] if is_dataclass(value) else sorted(getattr(value, "__dict__", ()))
        )
        for key in names:
            if not key.startswith("_"):
                yield from _settings(getattr(value, key), f"{prefix}{key}")


def _describe_type(component: object) -> str:
    """Return the manifest's tag of a built-in component, or a user-defined one's dotted name and code digest."""
    code = user_code_digest([component])
    if not code and type(component) in COMPONENT_TAGS:
        return COMPONENT_TAGS[type(component)]
    dotted_name = f"{type(component).__module__}.{type(component).__qualname__}"
    return f"{dotted_name}, code {code}" if code else dotted_name


def describe_codec(codec: CodecPipeline) -> str:
    """Return a codec as text of the run manifest: its spec, with a digest of user-defined code."""
    code = user_code_digest([*codec.transforms, codec.codec])
    return f"{codec.spec}, code {code}" if code else codec.spec


def describe_model(model: object) -> str:
    """Return a model as text of the run manifest: description or type, with a digest of user-defined code."""
    description = getattr(model, "description", None)
    if description is None:
        return _describe_type(model)
    code = user_code_digest([model])
    text = f"{description}, code {code}" if code else str(description)
    if len(text) <= _MAX_DESCRIPTION:
        return text
    return f"{text[: _MAX_DESCRIPTION // 2]}…, digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def machine_differences(profiles: Mapping[str, MachineProfile]) -> dict[str, dict[str, str]]:
    """Return the manifest's settings of simulated machines that differ from the default."""
    default = MachineProfile()
    return {
        name: {key: repr(value) for key, value in asdict(profile).items() if value != getattr(default, key)}
        for name, profile in profiles.items()
        if profile != default
    }


def manifest_differences(before: Manifest, now: Manifest) -> list[str]:
    """Return the differences of two run manifests as text.

    >>> manifest_differences({"codec": "raw", "sites": {"a": "1"}}, {"codec": "fp16", "sites": {"a": "2"}})
    ['codec was raw and is fp16', "the data of 'a'"]
    """
    differences = []
    for section in dict.fromkeys((*before, *now)):
        old, new = before.get(section), now.get(section)
        if old == new:
            continue
        if section == "sites":
            differences += _site_differences(old or {}, new or {})
        elif isinstance(old, Mapping) and isinstance(new, Mapping):
            keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
            differences += [_format_change(f"{section}.{key}", old.get(key), new.get(key)) for key in keys]
        else:
            differences.append(_format_change(section, old, new))
    return differences


def _site_differences(old: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    removed = [f"site '{name}' is missing" for name in old if name not in current]
    added = [f"site '{name}' is new" for name in current if name not in old]
    changed = [f"the data of '{name}'" for name in old if name in current and old[name] != current[name]]
    return removed + added + changed


def _format_change(name: str, old: object, new: object) -> str:
    if old is None or new is None:
        return f"{name} was {'nothing' if old is None else old} and is {'nothing' if new is None else new}"
    return f"{name} was {old} and is {new}"


_PACKAGES = ("numpy", "numba", "torch", "scikit-learn")


def software_versions() -> dict[str, str]:
    """Return the software versions for the run manifest that the bits of a result may depend on.

    >>> list(software_versions())[:2]
    ['abaton', 'python']
    """
    versions = {"abaton": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:  # a package that is not installed cannot have been used
            continue
    return versions
