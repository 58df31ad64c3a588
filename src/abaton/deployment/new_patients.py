"""New people for a model: their records go the study's own way, from its eligibility to its columns.

Nothing is kept of them but a line in an audit chain, which says on what ground records were read; pseudonyms are made
with a key that is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from abaton.errors import SettingsError
from abaton.governance import state_ground
from abaton.records.export import pseudonyms_for
from abaton.features import Report, Table, featurise
from abaton.site import Site, SiteDocument, SiteFile, Stage, StatedGround, load_site
from abaton.site.factory import open_registry, open_source
from abaton.study import Study

GROUND = "the care of these people, by whoever holds their records; nothing of them is kept or sent"


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Who was read, as the model's columns.

    Attributes:
        table: One row for each, in the study's columns; none if nobody has one.
        people: How rows name people, and the Patient's id of each.
        report: What is missing, and in which units and codes values came.
        not_eligible: Whom the study would not have taken: reasons, and how many people each.
        no_row: Who has no row: reasons, and how many people each.
        set_aside: What could not be read: reasons, and how often.
    """

    table: Table | None
    people: dict[str, str] = field(repr=False)
    report: Report
    not_eligible: dict[str, int]
    no_row: dict[str, int]
    set_aside: dict[str, int]


def read_newcomers(
    study: Study,
    source: Path,
    now: datetime,
    key: bytes,
    *,
    notes: Path,
    ground: str = GROUND,
    step: Callable[[str], None] = lambda words: None,
) -> Newcomers:
    """Read people's records from files, or from wherever a site's document says.

    Args:
        study: The study whose way they go.
        source: A Bundle, NDJSON, a folder of them, or a `site.toml`.
        now: The moment for which ages are counted.
        key: What pseudonyms are made with; forgotten afterwards.
        notes: The folder of the audit chain, unless a site has its own.
        ground: Why their records may be read.
        step: Told of progress, in words without content.

    Raises:
        SettingsError: There is nothing to be read.
    """
    if not source.exists():
        raise SettingsError(
            "there is no such file or folder",
            where=str(source),
            remedy="give a Bundle, an NDJSON file, a folder of them, or a site.toml",
        )
    file = load_site(source) if source.suffix == ".toml" else _here(source, notes, ground)
    file.against(study)
    need = study.need(now.date())
    document = file.document
    gate = StatedGround(
        state_ground(open_registry(file), study.study.id, study.hash, document.site.id, ground, now)
    )
    names = pseudonyms_for(need, key, document.site.id)
    site = Site(document, study, open_source(file, study, need, step), gate, names, now)
    plan = study.plan().model_copy(
        update={"floor": 1}
    )  # whoever holds the records may know how many there are
    made = featurise(plan, site.records(), labelled=False)
    funnel = site.funnel.with_rows(made.rows, made.lost)
    not_eligible = dict(funnel.stopped.get(Stage.ELIGIBLE, {}))
    no_row = {
        reason: count
        for stage in (Stage.KEPT, Stage.ROWS)
        for reason, count in funnel.stopped.get(stage, {}).items()
    }
    return Newcomers(
        made.table, dict(site.people), made.report, not_eligible, no_row, dict(site.faults.reasons)
    )


def _here(source: Path, notes: Path, ground: str) -> SiteFile:
    """Files as a site of their own."""
    document = SiteDocument.model_validate(
        {
            "site": {"id": "here", "name": "Records on this machine"},
            "records": {"kind": "directory", "paths": [str(source.resolve())]},
            "consent": {"ground": ground},
        }
    )
    notes.mkdir(parents=True, exist_ok=True)
    return SiteFile(document, notes, str(source), "")
