"""Check which package may import which, and which modules stay light or pure."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.house.parsed_sources import parsed

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "abaton"

# What a package or module may import besides itself, `errors` and `abaton.__version__`: lower levels only.
ALLOWED = {
    "errors": "",
    "atomic_files": "",
    "http_server": "",
    "benchmark": "",
    "record_types": "",
    "protocols": "",
    "specs": "",
    "plugins": "",
    "canonical_json": "",
    "strict_json": "",
    "strict_toml": "",
    "layout": "",
    "training": "",
    "metrics": "",
    "store": "atomic_files",
    "anonymity": "atomic_files strict_toml",
    "documents": "strict_json strict_toml",
    "kernels": "layout",
    "disclosure": "anonymity atomic_files canonical_json metrics store",
    "report": "layout store",
    "codecs": "kernels layout protocols specs",
    "models": "kernels layout metrics training",
    "fhir": "documents record_types strict_json",
    "learners": "codecs layout metrics models training",
    "controller": "codecs kernels layout metrics protocols training",
    "fhirpath": "fhir",
    "deid": "fhir record_types",
    "engines": "atomic_files codecs controller http_server layout learners metrics models store training",
    "views": "atomic_files fhir fhirpath record_types",
    "records": "atomic_files deid disclosure fhir fhirpath record_types",
    "governance": "atomic_files canonical_json deid disclosure fhir http_server store",
    "secure_sum": "atomic_files canonical_json governance",
    "features": "anonymity disclosure documents fhir record_types views",
    "dashboard": "atomic_files governance http_server report store strict_toml",
    "study": (
        "anonymity canonical_json codecs controller deid disclosure documents features fhir learners metrics models "
        "plugins protocols specs strict_json strict_toml training views"
    ),
    "federation": (
        "atomic_files codecs controller engines features layout learners metrics models protocols report "
        "store study training"
    ),
    "site": (
        "anonymity atomic_files canonical_json deid disclosure documents features fhir governance plugins "
        "record_types records store study"
    ),
    "citizen": "atomic_files canonical_json deid documents fhir governance study",
    "study_run": (
        "anonymity atomic_files canonical_json codecs controller disclosure engines features federation "
        "governance layout learners metrics models site store study training"
    ),
    "lab": (
        "benchmark codecs controller engines federation governance layout learners metrics models report site "
        "store study study_run training"
    ),
    "deployment": (
        "anonymity atomic_files disclosure features federation governance learners metrics models records site "
        "study study_run"
    ),
    "cli": (
        "anonymity atomic_files benchmark citizen codecs controller dashboard deid deployment disclosure "
        "engines federation fhir governance http_server lab layout models record_types records report site "
        "store strict_toml study study_run training views"
    ),
}
MAY_IMPORT = {name: {"errors", *others.split()} - {name} for name, others in ALLOWED.items()}

# No clock, socket, thread, file or framework.
PURE = (
    "canonical_json.py",
    "layout.py",
    "training.py",
    "metrics",
    "codecs",
    "controller",
    "disclosure/attrition.py",
    "disclosure/levels.py",
    "disclosure/noise.py",
    "disclosure/privacy_budget.py",
    "disclosure/microaggregation.py",
    "secure_sum/centre_decisions.py",
    "secure_sum/modular_vectors.py",
    "secure_sum/settings.py",
    "secure_sum/site_decisions.py",
    "secure_sum/sum_keys.py",
    "secure_sum/sum_messages.py",
    "secure_sum/sum_rules.py",
)
FORBIDDEN = {
    "asyncio", "datetime", "fastapi", "flwr", "http", "io", "multiprocessing", "os", "pathlib", "random", "ray",
    "requests", "shutil", "socket", "sqlalchemy", "sqlite3", "subprocess", "tempfile", "threading", "time", "torch",
    "urllib", "uvicorn",
}  # fmt: skip


@cache
def imports(path: Path) -> frozenset[str]:
    """Return every name that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def sources(package: str) -> list[Path]:
    """Return the modules of a package, or a module itself."""
    path = PACKAGE / package
    return sorted(path.rglob("*.py")) if path.is_dir() else [path if path.suffix else path.with_suffix(".py")]


def imported_packages(path: Path) -> set[str]:
    """Return the top-level packages of Abaton that a module imports."""
    front = {"__version__"}
    return {name.split(".")[1] for name in imports(path) if name.startswith("abaton.")} - front


def test_every_package_has_its_allowed_imports():
    packages = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert packages - {"__init__"} == set(ALLOWED)


def test_allowed_imports_have_no_cycle():
    order: list[str] = []
    remaining = dict(MAY_IMPORT)
    while remaining:
        level = [name for name, others in remaining.items() if others <= set(order)]
        assert level, f"cycle among {sorted(remaining)}"
        order += level
        remaining = {name: others for name, others in remaining.items() if name not in level}


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_they_may(package):
    for path in sources(package):
        extra = imported_packages(path) - MAY_IMPORT[package] - {package}
        assert not extra, f"{path.relative_to(PACKAGE)} imports {sorted(extra)}"


def import_graph() -> dict[str, set[str]]:
    """Return the modules that each module imports when it is loaded: not in functions, not for type checkers."""
    names = {
        ".".join(("abaton", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if "node_modules" not in path.parts
    }
    return {name: module_imports(parsed(path).body, names) - {name} for name, path in names.items()}


def module_imports(body: list[ast.stmt], names: dict[str, Path]) -> set[str]:
    """Return the modules that statements at module level import."""
    imported: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Import):
            imported |= {alias.name for alias in statement.names if alias.name in names}
        elif isinstance(statement, ast.ImportFrom) and statement.module in names:
            inner = {f"{statement.module}.{alias.name}" for alias in statement.names} & set(names)
            imported |= inner or {statement.module}
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            imported |= module_imports([*statement.body, *statement.orelse], names)
        elif isinstance(statement, ast.Try):
            imported |= module_imports(statement.body, names)
    return imported


def test_modules_do_not_import_each_other_in_a_cycle():
    remaining = import_graph()
    while loaded := {name for name, others in remaining.items() if not others & set(remaining)}:
        remaining = {name: others for name, others in remaining.items() if name not in loaded}
    assert not remaining, f"modules in or above an import cycle: {sorted(remaining)}"


# Parts of a package that do not import each other, although the package may import both.
SEPARATE = {
    "engines/ray": {"abaton.engines.flower"},
    "engines/flower": {"abaton.engines.ray"},
}
# What an engine transports for, and must not depend on.
STUDY_PACKAGES = {
    "study",
    "site",
    "records",
    "governance",
    "federation",
    "study_run",
    "disclosure",
    "deid",
    "fhir",
    "lab",
}


@pytest.mark.parametrize("part", SEPARATE)
def test_engine_back_ends_do_not_import_each_other(part):
    for path in sources(part):
        forbidden = {name for name in imports(path) for other in SEPARATE[part] if name.startswith(other)}
        assert not forbidden, f"{path.relative_to(PACKAGE)} imports {sorted(forbidden)}"


def test_engines_do_not_depend_on_studies():
    assert not MAY_IMPORT["engines"] & STUDY_PACKAGES
    terms = re.compile(r"\b(consents?|patients?|Research Definition Document)\b", re.I)
    for path in sources("engines"):
        text = path.read_text().replace("patient 4711", "")  # the canary of examples
        mentions = {match.group().lower() for match in terms.finditer(text)}
        assert not mentions, f"{path.relative_to(PACKAGE)} mentions {sorted(mentions)}"


def test_learners_models_and_metrics_do_not_import_the_controller():
    assert all("controller" not in MAY_IMPORT[package] for package in ("learners", "models", "metrics"))


def test_one_module_of_disclosure_imports_anonymity():
    users = {path.stem for path in sources("disclosure") if "anonymity" in imported_packages(path)}
    assert users <= {"histograms"}


@pytest.mark.parametrize("package", PURE)
def test_pure_modules_import_no_clock_socket_thread_file_or_framework(package):
    for path in sources(package):
        forbidden = {name.split(".")[0] for name in imports(path)} & FORBIDDEN
        assert not forbidden, f"{path.relative_to(PACKAGE)} imports {sorted(forbidden)}"


def test_pure_modules_open_no_file():
    for package in PURE:
        for path in sources(package):
            calls = {
                node.func.id
                for node in ast.walk(parsed(path))
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            assert not calls & {"open", "print", "input", "eval", "exec", "compile"}, path


def test_nothing_is_unpickled():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert not {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"} & {
            name.split(".")[0] for name in imports(path)
        }, path
        assert "torch.load(" not in path.read_text(), path


@pytest.mark.parametrize("statement", ["import abaton", "from abaton.cli import app"])
def test_import_is_light(statement):
    heavy = (
        "torch",
        "numba",
        "fastapi",
        "sklearn",
        "polars",
        "plotly",
        "sqlalchemy",
        "scipy",
        "pydantic",
        "numpy",
        "httpx",
        "cryptography",
    )
    code = f"{statement}\nimport sys\nprint([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_help_is_light():
    code = (
        "import sys\nsys.argv = ['abaton', '--help']\nfrom abaton.cli import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numba', 'fastapi', 'polars', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip().endswith("[]")


def test_torch_is_loaded_with_a_torch_model_only():
    code = (
        "import sys, abaton.learners, abaton.engines, abaton.controller, abaton.codecs, abaton.store\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules and 'numba' not in sys.modules\n"
        "from abaton.models import mlp\nassert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
