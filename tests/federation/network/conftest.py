"""The lab's four hospitals with a study of synchronous rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abaton.lab.demo import Demonstration
from abaton.study import load_study


@pytest.fixture
def rounds(four) -> Demonstration:
    """The four hospitals on a ground of their own, so that the study can be another one: synchronous rounds."""
    file = four.sites[0].parent.parent / "study.toml"
    text = file.read_text().replace(
        "rounds = 16", 'rounds = 3\npolicy = "SyncDVW"\npersonalise = ["recalibrate", "interpolate"]'
    )
    text += '\n[learning.explanation]\nimportance = 1\ndependence = ["age", "sex"]\npoints = 3\n'
    file.write_text(text)
    for site in four.sites:
        site.write_text(site.read_text().replace('registry = "consents.db"', 'ground = "a vote"'))
    return replace(four, study=load_study(file))
