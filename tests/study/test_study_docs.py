"""Every key of the study document is on its page, and the page's example is valid."""

from __future__ import annotations

import dataclasses
import re
from enum import EnumMeta
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from abaton.study import Statement, Study, study_from_toml
from abaton.study.criteria import What
from abaton.study.shorthand import SYSTEMS, ShortParts, standard_views

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
    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", " ".join(re.findall(r"`([^`]+)`", PROSE))))
    missing = sorted({*keys(Study, set()), *keys(ShortParts, set()), *SYSTEMS, *standard_views()} - words)
    assert not missing


def test_every_choice_is_documented():
    for word in (*get_args(What), *(statement.value for statement in Statement)):
        assert f"`{word}`" in PAGE


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    study = study_from_toml(example)
    assert study.study.id == "pressure-2026"
    assert [each.name for each in study.features.inputs][-2:] == ["emergencies", "smoking"]
