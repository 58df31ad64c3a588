"""Store of runs, journals, models and payloads."""

from abaton.atomic_files import map_os_errors
from abaton.store.commit_statistics import (
    CommitInterval,
    CommitRow,
    CycleRow,
    Quartiles,
    commit_rows,
    commits_by_interval,
    cycle_rows,
    latest_weights,
    quartiles,
)
from abaton.store.database import Database, acquire_lock, insert_new, mark_version
from abaton.store.journal import EventRow, Journal, count_event_types, latest_events
from abaton.store.learner_activity import LearnerActivity, TrainingSpan, most_active_learners, training_spans
from abaton.store.model_files import ModelFiles, ScratchModelFile, content_digest, model_digest
from abaton.store.model_retention import PruneResult, RetentionRule, plan_pruning, prune
from abaton.store.payload_file import PayloadFile
from abaton.store.run_overview import (
    MetricPoint,
    RunHead,
    RunSummary,
    metric_points,
    model_bytes,
    recipe_codec,
    run_head,
    run_summaries,
)
from abaton.store.run_visibility import VisibleActivity, is_study_run, visible_activity, weights_visible
from abaton.store.store import ModelRow, RunRow, Store, default_folder

__all__ = [
    "CommitInterval",
    "CommitRow",
    "CycleRow",
    "Database",
    "EventRow",
    "Journal",
    "LearnerActivity",
    "MetricPoint",
    "ModelFiles",
    "ModelRow",
    "PayloadFile",
    "PruneResult",
    "Quartiles",
    "RetentionRule",
    "RunHead",
    "RunRow",
    "RunSummary",
    "ScratchModelFile",
    "Store",
    "TrainingSpan",
    "VisibleActivity",
    "acquire_lock",
    "commit_rows",
    "commits_by_interval",
    "content_digest",
    "count_event_types",
    "cycle_rows",
    "default_folder",
    "insert_new",
    "is_study_run",
    "latest_events",
    "latest_weights",
    "map_os_errors",
    "mark_version",
    "metric_points",
    "model_bytes",
    "model_digest",
    "most_active_learners",
    "plan_pruning",
    "prune",
    "quartiles",
    "recipe_codec",
    "run_head",
    "run_summaries",
    "training_spans",
    "visible_activity",
    "weights_visible",
]
