"""Build script: bundle Python for Pyodide, compiled, without unused modules, reproducibly.

It runs in Pyodide during the build, because compiled files fit one version of Python only. ``build.mjs`` puts the
sources under ``/stage/own`` and the wheels under ``/stage/wheels``.
"""

from __future__ import annotations

import importlib
import json
import py_compile
import sys
import tempfile
import zipfile
from datetime import date
from pathlib import Path

STAGE, OUT = Path("/stage"), Path("/out")
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_PRELOADED = ("abaton/fhir/", "abaton/deid/", "abaton/study/", "abaton/citizen/")
_EXCLUDED = ("pydantic/v1/", "pydantic/mypy.py", "pydantic/_hypothesis_plugin.py")
COMPLETE = frozenset({"collections", "importlib", "json", "pathlib", "re", "zipfile"})
"""Packages that are included completely, because they import submodules late."""
EXTRA_MODULES = (
    # Needed only by error paths, or by the loader before this code is available.
    "traceback", "linecache", "tokenize", "token", "textwrap", "difflib", "warnings", "contextlib", "encodings",
    "encodings.utf_8", "encodings.ascii", "encodings.latin_1", "encodings.idna", "encodings.cp437", "stringprep",
    "zipfile", "shutil", "tempfile", "inspect", "dis", "opcode", "ast", "pprint", "locale", "calendar", "_strptime",
    "zoneinfo", "email.utils", "string", "html", "quopri", "mimetypes", "importlib.resources", "importlib.metadata",
)  # fmt: skip


def write_bundles() -> None:
    """Write the citizen page's Python bundles, ``python_stdlib.zip`` and ``abaton.zip``."""
    library = next(Path(entry) for entry in sys.path if entry.endswith(".zip"))
    own = _own_files()
    _import_all(own)
    with zipfile.ZipFile(library) as archive:
        names = {name: archive.read(name) for name in archive.namelist() if _is_used(name)}
    OUT.mkdir(exist_ok=True)
    _write(OUT / "python_stdlib.zip", {name: (data, str(library)) for name, data in names.items()})
    _write(OUT / "abaton.zip", {name: (data, "/abaton") for name, data in own.items()})


def _own_files() -> dict[str, bytes]:
    files = {
        str(path.relative_to(STAGE / "own")): path.read_bytes()
        for path in (STAGE / "own").rglob("*")
        if path.is_file()
    }
    for wheel in sorted((STAGE / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith((".py", ".so")) and not name.startswith(_EXCLUDED):
                    files[name] = archive.read(name)
    return files


def _import_all(own: dict[str, bytes]) -> None:
    """Import everything that the citizen page imports, to bundle the used modules of the standard library."""
    root = Path("/abaton")
    for name, data in own.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    sys.path.insert(0, str(root))
    for name in (*EXTRA_MODULES, "abaton.citizen.browser_api"):
        importlib.import_module(name)
    for path in sorted(own):
        if path.startswith(_PRELOADED) and path.endswith(".py"):
            importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    _exercise_api()


def _exercise_api() -> None:
    """Call every function of the citizen page once, to bundle modules that are imported late."""
    api = importlib.import_module("abaton.citizen.browser_api").BrowserApi()
    study_from_toml = importlib.import_module("abaton.study.study_reader").study_from_toml
    template = importlib.import_module("abaton.study.template")
    study_format = importlib.import_module("abaton.study.document").FORMAT
    text = template.study_template("study.toml", date(2026, 1, 1), template.TemplateAnswers())
    study = study_from_toml(text, "study.toml")
    api.open_study(json.dumps({"format": study_format, **study.content()}), study.hash, "2026-01-01")
    api.add_file(b'{"resourceType":"Patient","id":"7","gender":"female","birthDate":"1980-02-03"}')
    for invalid in (b"", b"<a/>", b"{", b'{"a":' * 200, b'{"resourceType":"Nothing"}', b"eyJ9.e30.e30"):
        api.add_file(invalid)
    api.check_eligibility("2026-01-01")
    api.prepare_records(bytes(range(32)), "2026-01-01")
    api.consents("A" * 26, "2026-01-01T00:00:00.000Z")


def _is_used(name: str) -> bool:
    if not name.endswith(".py"):
        return False
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return module in sys.modules or module.partition(".")[0] in COMPLETE


def _write(target: Path, files: dict[str, tuple[bytes, str]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for name, (data, root) in sorted(files.items()):
            if name.endswith(".py"):
                name, data = f"{name}c", _compiled(data, f"{root}/{name}")
            archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), data)


def _compiled(source: bytes, path: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "a.py"), Path(folder, "a.pyc")
        before.write_bytes(source)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(before), str(after), path, doraise=True, optimize=0, invalidation_mode=mode)
        return after.read_bytes()


write_bundles()
