from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "lab.md").read_text()


def test_the_page_s_code_prints_what_it_says():
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n+It prints\n+```text\n(.*?)```", PAGE, re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "lab.md", "exec"), {"__name__": "page"})
    assert out.getvalue() == printed
