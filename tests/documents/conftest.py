"""Study documents shared by the tests."""

from __future__ import annotations

from tests.study.conftest import full, full_text

__all__ = ["full", "full_text"]
