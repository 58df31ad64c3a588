"""Study documents in the long form, as people write them who do not use the short one."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from string import Template

from abaton.study.sections import WORDING, Statement

HERE = Path(__file__).parent / "long"


def long_starter(today: date, *, identifier: str = "my-study") -> str:
    """A whole study with a comment on every section, nothing of it derived."""
    told = (Statement.MODELS_STAY, Statement.MODELS_ARE_SEEN)
    return Template((HERE / "starter.toml").read_text("utf-8")).substitute(
        file="study.toml",
        id=identifier,
        start=today.isoformat(),
        closes=(today + timedelta(days=365)).isoformat(),
        end=(today + timedelta(days=3 * 365)).isoformat(),
        statements="\n".join(f'{statement.value} = "{WORDING[statement]}"' for statement in told),
    )
