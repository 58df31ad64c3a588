"""Where runs, journals, models and payloads are kept."""

from abaton.atomic_files import writing
from abaton.store.commit_statistics import (
    CommitLine,
    CycleLine,
    Quartiles,
    Stretch,
    commit_lines,
    cycle_lines,
    quartiles,
    stretches,
)
from abaton.store.database import Database, hold, insert_new, mark_version
from abaton.store.journal import EventLine, Journal, events_of, kinds_of
from abaton.store.learner_activity import LearnerLine, Span, busiest, spans
from abaton.store.model_files import Models, SlotFile, digest_of, model_digest
from abaton.store.model_retention import Keep, Pruning, plan, prune
from abaton.store.payload_file import Pack
from abaton.store.run_overview import Head, Point, RunLine, codec_of, head, model_bytes, points, run_lines
from abaton.store.run_visibility import Activity, activity, is_about_people, tells_weights
from abaton.store.store import ModelRow, RunRow, Store, default_folder

__all__ = [
    "Activity",
    "CommitLine",
    "CycleLine",
    "Database",
    "EventLine",
    "Head",
    "Journal",
    "Keep",
    "LearnerLine",
    "ModelRow",
    "Models",
    "Pack",
    "Point",
    "Pruning",
    "Quartiles",
    "RunLine",
    "RunRow",
    "SlotFile",
    "Span",
    "Store",
    "Stretch",
    "activity",
    "busiest",
    "codec_of",
    "commit_lines",
    "cycle_lines",
    "default_folder",
    "digest_of",
    "events_of",
    "head",
    "hold",
    "insert_new",
    "is_about_people",
    "kinds_of",
    "mark_version",
    "model_bytes",
    "model_digest",
    "plan",
    "points",
    "prune",
    "quartiles",
    "run_lines",
    "spans",
    "stretches",
    "tells_weights",
    "writing",
]
