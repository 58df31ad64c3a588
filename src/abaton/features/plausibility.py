"""Plausible ranges of inputs: declared by the study, or shipped for common LOINC codes and ages."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from abaton.features.specification import InputKind, InputSpec
from abaton.fhir.ucum import convert

PlausibleRange = tuple[float, float]

_LOINC = "http://loinc.org"
_AGE_RANGE = (0.0, 130.0)


def plausible_range(spec: InputSpec) -> PlausibleRange | None:
    """Return the plausible range of an input (feature) in its unit: declared, shipped for its codes, or None."""
    if spec.plausible:
        return spec.plausible[0], spec.plausible[1]
    if spec.kind is InputKind.AGE:
        return _AGE_RANGE
    if spec.kind is not InputKind.NUMBER or spec.unit is None or spec.where is None:
        return None
    codes = tuple(coding.code for coding in spec.where.codes if coding.system == _LOINC)
    return _shipped_range(codes, spec.unit, spec.molar_mass)


@lru_cache(maxsize=1024)
def _shipped_range(codes: tuple[str, ...], unit: str, molar_mass: float | None) -> PlausibleRange | None:
    """Return the range that contains the shipped plausible ranges of all codes that have one."""
    limits: list[float] = []
    for code in codes:
        if (entry := shipped_ranges().get(code)) is not None:
            mass = molar_mass or entry.get("molar_mass")
            converted = [
                convert(float(limit), entry["unit"], unit, molar_mass=mass) for limit in entry["range"]
            ]
            limits += [limit for limit in converted if limit is not None]
    return (min(limits), max(limits)) if limits else None


@cache
def shipped_ranges() -> Mapping[str, Mapping[str, Any]]:
    """Return the shipped plausible ranges, with their units, by LOINC code."""
    text = files("abaton.features").joinpath("plausible_ranges.toml").read_text(encoding="utf-8")
    return {code: entry for entry in tomllib.loads(text).values() for code in entry["loinc"]}
