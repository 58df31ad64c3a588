"""Show the examples of docstrings as code: Markdown would read `>>>` as quotations."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Puts a fence around every run of lines that begins with `>>>` and ends at an empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its examples fenced."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and line.startswith(">>>"):
            inside = True
            lines.append("```pycon")
        elif inside and not line.strip():
            inside = False
            lines.append("```")
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
