"""Keys of the site configuration are documented, and the examples of the page are valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from abaton.site import SiteConfig, site_from_toml

PAGE = (Path(__file__).parents[2] / "docs/site.md").read_text("utf-8")
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.S)


def keys(kind):
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            yield name
            yield from keys(info.annotation)
    else:
        for inner in get_args(kind):
            yield from keys(inner)


def test_every_key_is_documented():
    tokens = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", PROSE))))
    assert not sorted(set(keys(SiteConfig)) - tokens)


def test_the_example_is_valid():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert site_from_toml(example).site.id == "pisa"


def test_the_python_example_compiles():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    compile(example, "site.md", "exec")
