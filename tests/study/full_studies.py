"""Study documents in the full form."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from string import Template

from abaton.study.sections import DEFAULT_STATEMENTS, ConsentStatement

HERE = Path(__file__).parent / "full"


def long_starter(today: date, *, identifier: str = "my-study") -> str:
    """Return a complete study in the full form, with a comment on every section."""
    statements = (ConsentStatement.MODELS_STAY, ConsentStatement.MODELS_ARE_SEEN)
    return Template((HERE / "starter.toml").read_text("utf-8")).substitute(
        file="study.toml",
        id=identifier,
        start=today.isoformat(),
        closes=(today + timedelta(days=365)).isoformat(),
        end=(today + timedelta(days=3 * 365)).isoformat(),
        statements="\n".join(
            f'{statement.value} = "{DEFAULT_STATEMENTS[statement]}"' for statement in statements
        ),
    )
