"""Packs the Python of the page: compiled, without what it never uses, the same bytes every time.

It runs inside the browser's own Python while the page is built, because compiled files fit one version of Python alone.
``build.mjs`` has put our sources under ``/stage/own`` and the wheels under ``/stage/wheels``.
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
_WHEN = (1980, 1, 1, 0, 0, 0)
_LOADED = ("abaton/fhir/", "abaton/deid/", "abaton/study/", "abaton/citizen/")
_LEFT_OUT = ("pydantic/v1/", "pydantic/mypy.py", "pydantic/_hypothesis_plugin.py")
WHOLE = frozenset({"collections", "importlib", "json", "pathlib", "re", "zipfile"})
"""Parts of the library that are taken whole: they load pieces of themselves late."""
ALSO = (
    # What is needed only when something goes wrong, or by the loader itself before ours is there.
    "traceback", "linecache", "tokenize", "token", "textwrap", "difflib", "warnings", "contextlib", "encodings",
    "encodings.utf_8", "encodings.ascii", "encodings.latin_1", "encodings.idna", "encodings.cp437", "stringprep",
    "zipfile", "shutil", "tempfile", "inspect", "dis", "opcode", "ast", "pprint", "locale", "calendar", "_strptime",
    "zoneinfo", "email.utils", "string", "html", "quopri", "mimetypes", "importlib.resources", "importlib.metadata",
)  # fmt: skip


def packed() -> None:
    """Write ``python_stdlib.zip`` and ``abaton.zip``."""
    library = next(Path(place) for place in sys.path if place.endswith(".zip"))
    own = _own_files()
    _use(own)
    with zipfile.ZipFile(library) as whole:
        names = {name: whole.read(name) for name in whole.namelist() if _is_used(name)}
    OUT.mkdir(exist_ok=True)
    _write(OUT / "python_stdlib.zip", {name: (data, str(library)) for name, data in names.items()})
    _write(OUT / "abaton.zip", {name: (data, "/abaton") for name, data in own.items()})


def _own_files() -> dict[str, bytes]:
    found = {
        str(path.relative_to(STAGE / "own")): path.read_bytes()
        for path in (STAGE / "own").rglob("*")
        if path.is_file()
    }
    for wheel in sorted((STAGE / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as whole:
            for name in whole.namelist():
                if name.endswith((".py", ".so")) and not name.startswith(_LEFT_OUT):
                    found[name] = whole.read(name)
    return found


def _use(own: dict[str, bytes]) -> None:
    """Load everything the page loads, so that it is known which parts of Python's library belong to it."""
    place = Path("/abaton")
    for name, data in own.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    sys.path.insert(0, str(place))
    for name in (*ALSO, "abaton.citizen.browser_api"):
        importlib.import_module(name)
    for path in sorted(own):
        if path.startswith(_LOADED) and path.endswith(".py"):
            importlib.import_module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    _rehearse()


def _rehearse() -> None:
    """Once through everything that the page does, for what is loaded only when it is used."""
    phone = importlib.import_module("abaton.citizen.browser_api").Phone()
    study_from_toml = importlib.import_module("abaton.study.study_reader").study_from_toml
    starting = importlib.import_module("abaton.study.template")
    form = importlib.import_module("abaton.study.document").FORMAT
    text = starting.starter("study.toml", date(2026, 1, 1), starting.Answers())
    study = study_from_toml(text, "study.toml")
    phone.open_study(json.dumps({"format": form, **study.content()}), study.hash, "2026-01-01")
    phone.pick(b'{"resourceType":"Patient","id":"7","gender":"female","birthDate":"1980-02-03"}')
    for no_record in (b"", b"<a/>", b"{", b'{"a":' * 200, b'{"resourceType":"Nothing"}', b"eyJ9.e30.e30"):
        phone.pick(no_record)
    phone.eligible("2026-01-01")
    phone.prepare(bytes(range(32)), "2026-01-01")
    phone.consents("A" * 26, "2026-01-01T00:00:00.000Z")


def _is_used(name: str) -> bool:
    if not name.endswith(".py"):
        return False
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return module in sys.modules or module.partition(".")[0] in WHOLE


def _write(target: Path, files: dict[str, tuple[bytes, str]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as made:
        for name, (data, place) in sorted(files.items()):
            if name.endswith(".py"):
                name, data = f"{name}c", _compiled(data, f"{place}/{name}")
            made.writestr(zipfile.ZipInfo(name, _WHEN), data)


def _compiled(source: bytes, place: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "a.py"), Path(folder, "a.pyc")
        before.write_bytes(source)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(before), str(after), place, doraise=True, optimize=0, invalidation_mode=mode)
        return after.read_bytes()


packed()
