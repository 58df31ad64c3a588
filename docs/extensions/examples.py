"""Griffe extension that fences docstring examples; Markdown renders `>>>` as nested quotations."""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Extension that fences every block of lines from `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    """Return the text with fenced examples."""
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
