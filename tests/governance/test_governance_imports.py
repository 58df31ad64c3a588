"""Consents, forms and study documents are read without database, cryptography or NumPy."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

from abaton import governance

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from datetime import UTC, datetime
from pathlib import Path

HEAVY = {"sqlalchemy", "cryptography", "numpy", "httpx", "torch", "numba", "scipy", "fastapi", "polars"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name.partition(".")[0])

sys.meta_path.insert(0, Blocked())
from abaton.governance import ConsentAction, ConsentQuery, DataPermit
from abaton.governance import evaluate_consent, make_consent, registry_pseudonym
from abaton.governance.consent_forms import ConsentForm, combine_consents, read_form
from abaton.study import load_study, study_from_toml, write_toml

study = load_study(Path(sys.argv[1]))
assert study.learning is not None
assert study_from_toml(write_toml(study)).hash == study.hash
now = datetime(2026, 3, 1, tzinfo=UTC)
query = ConsentQuery(registry_pseudonym(bytes(32), "subject", "1"), study.study.id, study.hash)
assert evaluate_consent(make_consent(query, now, None), query, now).permits
form = ConsentForm("policy", frozenset({"https://hospital.example/policies/research/3"}),
            {ConsentAction.TRAIN: frozenset({"*"})}, scopes=frozenset({"patient-privacy"}))
terms = combine_consents([read_form(json.loads(Path(sys.argv[2]).read_text().splitlines()[0]), [form])])
training = ConsentQuery(query.subject, query.study, query.document, ConsentAction.TRAIN)
assert evaluate_consent(terms.study_consent(query), training, now).permits
permit = DataPermit("7", "body", now.date(), now.date(), (study.study.purpose.value,), study.hash)
assert permit.reason(study.hash, study.study.purpose.value, now, ConsentAction.TRAIN).permits
assert not HEAVY & {name.partition(".")[0] for name in sys.modules}
print(study.hash)
"""


def test_consents_and_studies_need_no_heavy_imports():
    arguments = [
        sys.executable,
        "-c",
        PROGRAM,
        "examples/heart/study.toml",
        "tests/governance/forms/pcf.ndjson",
    ]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 64


def test_no_exported_name_is_hidden_by_a_module():
    for module in walk_packages(governance.__path__, "abaton.governance."):
        import_module(module.name)
    assert not [n for n in governance.__all__ if isinstance(getattr(governance, n), types.ModuleType)]
