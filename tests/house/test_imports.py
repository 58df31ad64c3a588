"""Which room may use which, and what stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.house.sources import parsed

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "abaton"

# design: a room may use the rooms it names, never the others
MAY_USE = {
    "errors": set(),
    "parts": {"errors"},
    "files": set(),
    "canonical": {"errors"},
    "naming": {"errors"},
    "installed": {"errors", "naming"},
    "software": set(),
    "listening": set(),
    "vectors": {"errors"},
    "codecs": {"errors", "naming", "parts", "vectors"},
    "control": {"errors", "parts", "vectors", "codecs"},
    "learning": {"errors", "parts", "vectors", "codecs", "control"},
    "documents": {"errors"},
    "records": {"errors", "files", "documents"},
    "store": {"errors", "files"},
    "governance": {"errors", "canonical", "files", "listening", "records", "store"},
    "site": {
        "errors", "canonical", "documents", "files", "installed", "records", "governance", "store", "study",
    },
    "study": {
        "errors", "canonical", "documents", "installed", "naming", "parts", "records", "codecs", "control", "learning",
    },
    "citizen": {"errors", "canonical", "documents", "files", "governance", "records", "study"},
    "federation": {
        "errors", "parts", "canonical", "vectors", "codecs", "control", "learning", "records", "governance", "study",
        "site", "store", "engines", "files", "report", "software",
    },
    "lab": {
        "errors", "bench", "vectors", "codecs", "control", "learning", "engines", "store", "study", "site",
        "governance", "federation", "report",
    },
    "cli": {
        "errors", "bench", "files", "vectors", "codecs", "control", "learning", "engines", "store", "records", "study",
        "site", "governance", "federation", "lab", "report", "results", "dashboard", "citizen", "listening",
    },
    "bench": set(),
    "report": {"errors", "vectors", "store"},
    "results": {"errors", "files", "federation", "governance", "learning", "records", "site", "study"},
    "dashboard": {"errors", "files", "report", "store", "governance", "listening"},
    "engines": {"errors", "files", "listening", "vectors", "codecs", "control", "learning", "store"},
}  # fmt: skip

# Modules that are pure: no clock, socket, thread, file or framework.
PURE = ("canonical_json.py", "layout.py", "codecs", "control")
FORBIDDEN = {
    "asyncio", "datetime", "fastapi", "flwr", "http", "io", "multiprocessing", "os", "pathlib", "random", "ray",
    "requests", "shutil", "socket", "sqlalchemy", "sqlite3", "subprocess", "tempfile", "threading", "time", "torch",
    "urllib", "uvicorn",
}  # fmt: skip


@cache
def imports(path: Path) -> frozenset[str]:
    """Every name that a source imports."""
    names: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def files(room: str) -> list[Path]:
    path = PACKAGE / room
    return sorted(path.rglob("*.py")) if path.is_dir() else [path if path.suffix else path.with_suffix(".py")]


def test_every_room_has_its_arrows():
    rooms = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__"} == set(MAY_USE)


@pytest.mark.parametrize("room", MAY_USE)
def test_import_arrows_point_the_way_the_design_says(room):
    for path in files(room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("abaton.")} - {
            "__version__",
            room,
        }
        assert rooms <= MAY_USE[room], f"{path.relative_to(PACKAGE)} uses {sorted(rooms - MAY_USE[room])}"


# Parts of a room that may not use each other, although the room may use them all.
APART = {
    "engines/ray": {"abaton.engines.flower"},
    "engines/flower": {"abaton.engines.ray"},
}
# What an engine carries, and what it may never know: whose data it is, and what for.
PEOPLE = {"study", "site", "records", "governance", "federation", "lab"}


@pytest.mark.parametrize("part", APART)
def test_parts_of_a_room_stay_apart(part):
    for path in files(part):
        found = {name for name in imports(path) for other in APART[part] if name.startswith(other)}
        assert not found, f"{path.relative_to(PACKAGE)} imports {sorted(found)}"


def test_engines_know_nothing_of_studies():
    assert not MAY_USE["engines"] & PEOPLE
    words = re.compile(
        r"\b(stud(y|ies)|consents?|patients?|cohorts of people|Research Definition Document)\b", re.I
    )
    for path in files("engines"):
        told = path.read_text().replace("patient 4711", "")  # the canary of examples
        found = {each.group().lower() for each in words.finditer(told)}
        assert not found, f"{path.relative_to(PACKAGE)} speaks of {sorted(found)}"


@pytest.mark.parametrize("room", PURE)
def test_pure_modules_import_no_clock_socket_thread_file_or_framework(room):
    for path in files(room):
        found = {name.split(".")[0] for name in imports(path)} & FORBIDDEN
        assert not found, f"{path.relative_to(PACKAGE)} imports {sorted(found)}"


def test_pure_modules_open_no_file():
    for room in PURE:
        for path in files(room):
            calls = {
                n.func.id
                for n in ast.walk(parsed(path))
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            }
            assert not calls & {"open", "print", "input", "eval", "exec", "compile"}, path


def test_nothing_is_ever_unpickled():
    for path in sorted(PACKAGE.rglob("*.py")):
        assert not {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"} & {
            n.split(".")[0] for n in imports(path)
        }, path
        assert "torch.load(" not in path.read_text(), path


@pytest.mark.parametrize("words", ["import abaton", "from abaton.cli import app"])
def test_starting_is_light(words):
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
    code = f"{words}\nimport sys\nprint([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_help_is_light_too():
    code = (
        "import sys\nsys.argv = ['abaton', '--help']\nfrom abaton.cli import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numba', 'fastapi', 'polars', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_a_torch_model_is_what_imports_torch():
    code = (
        "import sys, abaton.learners, abaton.engines, abaton.controller, abaton.codecs, abaton.store\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules and 'numba' not in sys.modules\n"
        "from abaton.learners import mlp\nassert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
