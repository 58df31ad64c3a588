from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import abaton.citizen
from abaton.study import Study, load_study
from abaton.study.document import FORMAT

HERE = Path(__file__).parent
BUILT = Path(abaton.citizen.__file__).parent / "built"


@pytest.fixture(scope="session")
def study() -> Study:
    """A study in which citizens may take part."""
    return load_study(HERE / "study.toml")


def served_form(study: Study) -> str:
    """Return a study document as the intake serves it."""
    return json.dumps({"format": FORMAT, **study.content()})


@pytest.fixture(scope="session")
def built() -> Path:
    """Folder of the page built by 'make citizen'."""
    if not (BUILT / "manifest.json").is_file():
        pytest.skip("the citizen page is not built: run 'make citizen' (needs node and npm)")
    return BUILT


@pytest.fixture(scope="session")
def browser_python(built, tmp_path_factory) -> Callable[..., Any]:
    """Return a function that runs a call of ``page_digests.py`` in the page's Python under node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")

    def run(call: str, files: list[Path], **more: Any) -> Any:
        job = tmp_path_factory.mktemp("job") / "job.json"
        script = (HERE / "page_digests.py").read_text()
        job.write_text(json.dumps({"script": script, "call": call, "files": [str(f) for f in files], **more}))
        done = subprocess.run(
            [node, str(HERE / "python.mjs"), str(built), str(job)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run
