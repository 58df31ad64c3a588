"""Every key of the study document is documented, and the documented example is valid."""

from __future__ import annotations

import dataclasses
import re
from enum import EnumMeta
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from abaton.study import ConsentStatement, Study, study_from_toml
from abaton.study.criteria import CriterionType
from abaton.study.shorthand import SYSTEMS, ShorthandSections, standard_views

PAGE = (Path(__file__).parents[2] / "docs/study-document.md").read_text("utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.S)


def keys(kind, seen):
    if isinstance(kind, EnumMeta) or kind in seen:
        return
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        seen.add(kind)
        for name, field in kind.model_fields.items():
            yield name
            yield from keys(field.annotation, seen)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        seen.add(kind)
        yield from (field.name for field in dataclasses.fields(kind))
    else:
        for inner in get_args(kind):
            yield from keys(inner, seen)


def test_every_key_is_documented():
    documented = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`([^`]+)`", PROSE))))
    missing = sorted(
        {*keys(Study, set()), *keys(ShorthandSections, set()), *SYSTEMS, *standard_views()} - documented
    )
    assert not missing


def test_every_choice_is_documented():
    for word in (*get_args(CriterionType), *(statement.value for statement in ConsentStatement)):
        assert f"`{word}`" in PAGE


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    study = study_from_toml(example)
    assert study.study.id == "pressure-2026"
    assert [spec.name for spec in study.features.inputs][-2:] == ["emergencies", "smoking"]
