"""Where runs, journals, models and payloads are kept."""

from abaton.store.blobs import Models, digest_of, model_digest, writing
from abaton.store.database import Database, hold, insert_new
from abaton.store.journal import Journal
from abaton.store.pack import Pack
from abaton.store.retention import Keep, Pruning, plan, prune
from abaton.store.slots import SlotFile
from abaton.store.store import ModelRow, RunRow, Store, default_folder

__all__ = [
    "Database",
    "Journal",
    "Keep",
    "ModelRow",
    "Models",
    "Pack",
    "Pruning",
    "RunRow",
    "SlotFile",
    "Store",
    "default_folder",
    "digest_of",
    "hold",
    "insert_new",
    "model_digest",
    "plan",
    "prune",
    "writing",
]
