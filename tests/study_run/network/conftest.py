"""The lab's four synthetic hospitals with a study of synchronous rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from abaton.lab.demo import Demonstration
from abaton.study import load_study


@pytest.fixture
def rounds(four) -> Demonstration:
    """Return the four hospitals with a stated legal basis, and a study with synchronous rounds."""
    file = four.sites[0].parent.parent / "study.toml"
    text = file.read_text().replace(
        "rounds = 16", 'rounds = 3\nstrategy = "SyncDVW"\npersonalise = ["recalibrate", "interpolate"]'
    )
    text += "\n[learning.interpretability]\npermutation_repeats = 1\ngrid_points = 3\n"
    text += 'partial_dependence = ["age", "sex"]\n'
    file.write_text(text)
    for site in four.sites:
        site.write_text(site.read_text().replace('registry = "consents.db"', 'legal_basis = "a vote"'))
    return replace(four, study=load_study(file))
