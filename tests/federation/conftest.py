"""Fixtures that federations share with study runs."""

from __future__ import annotations

from tests.study_run.conftest import _cached_ingest, four, written  # noqa: F401
