"""The sources as trees, each parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a source file."""
    return ast.parse(path.read_text(encoding="utf-8"))
