"""What every test may use."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

# The same examples each time, so that a change is judged by what it changes; `thorough` searches for new ones.
settings.register_profile(
    "fast", max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("fast")

# Every command typed in a test would build the whole command line anew: 50 ms each, for one and the same object.
typer.main.get_command = typer.testing._get_command = functools.cache(typer.main.get_command)

gc.disable()  # while thousands of tests are collected, of which all are kept


def pytest_collection_finish() -> None:
    """Look for garbage from here on, and not among the tests themselves: each look takes a fifth of the time less."""
    gc.collect()
    gc.freeze()
    gc.enable()


# Each worker of many has one processor: threads of theirs would wait for one another.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(_threads, "1")

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Thousands of small files that are synced and deleted again: in memory, where there is enough of it.
_MEMORY, _ENOUGH = Path("/dev/shm"), 4 << 30
if os.access(_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.fixture(scope="session", autouse=True)
def _home_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put default stores and databases into a temporary folder."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout; tests that use it carry the mark ``shared``."""
    if not (SHARED / "data").is_dir():
        pytest.skip("the data folder '../shared/data' is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a real PostgreSQL server that lives as long as the tests, on a socket in a private folder."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(binaries[-1]) if binaries else None)
    if initdb is None:
        pytest.skip("no PostgreSQL server here: install Debian's 'postgresql'")
    pytest.importorskip("psycopg", reason="psycopg is missing: install abaton[postgres]")
    folder, programs = Path(tempfile.mkdtemp(prefix="pg")), Path(initdb).parent
    account: dict[str, Any] = {"cwd": folder, "capture_output": True, "check": True}
    if os.geteuid() == 0:  # the server refuses to run as root
        user = next((name for name in ("postgres", "nobody") if _has_account(name)), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no account 'postgres' or 'nobody'")
        shutil.chown(folder, user)
        account |= {"user": user, "extra_groups": []}
    data = folder / "data"
    quick = "-c fsync=off -c max_connections=100"
    subprocess.run([programs / "initdb", "-D", data, "-U", "abaton", "-A", "trust", "-E", "UTF8"], **account)
    start = [programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "start"]
    subprocess.run([*start, "-o", f"{quick} -c listen_addresses='' -k {folder}"], **account)
    yield f"postgresql+psycopg://abaton@/postgres?host={folder}"
    subprocess.run([programs / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **account)
    shutil.rmtree(folder, ignore_errors=True)


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@pytest.fixture(scope="session")
def new_database(postgres: str) -> Callable[[], str]:
    """Makes addresses at the real PostgreSQL server under which there are no tables yet."""
    import sqlalchemy as sql

    numbers = itertools.count()

    def make() -> str:
        name = f"t{next(numbers)}"
        engine = sql.create_engine(postgres)
        with engine.begin() as connection:
            connection.execute(sql.text(f"CREATE SCHEMA {name}"))
        engine.dispose()
        return f"{postgres}&options=-csearch_path%3D{name}"

    return make


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database: the same test runs on SQLite and on a real PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'governance.db'}"
    return str(request.getfixturevalue("new_database")())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser without a window, which writes down what it asks for and complains of."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver is installed (Debian: chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver_session = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield driver_session
    driver_session.quit()
