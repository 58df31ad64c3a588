"""Programs that are kept running: started, watched, started again when they end, and ended with all they started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abaton.errors import SettingsError

PAUSE, LONGEST_PAUSE = 5.0, 20.0
_STEADY = 120.0  # a program that ran for so long has recovered
_PATIENCE = 10.0

# Flower calls home twice, for numbers and for news of itself; both are off.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def surroundings(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: both call-home switches off, a home of their own, and each other found."""
    programs = str(Path(sys.executable).parent)
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": f"{programs}:{os.environ.get('PATH', '')}"}


@dataclass(frozen=True, slots=True)
class Program:
    """What is run.

    Attributes:
        name: what it is called in messages.
        command: the words of its command line.
        surroundings: its environment.
        log: the file that takes what it prints.
        after: what to say when it has ended and is to be started again.
    """

    name: str
    command: Sequence[str]
    surroundings: Mapping[str, str]
    log: Path
    after: str = "is started again"


class Keeper:
    """Keeps one program running.

    Args:
        program: what is run.
        say: hears, in one line, when something happens.
        clock: the time in seconds.
    """

    def __init__(
        self, program: Program, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.program, self._say, self._clock = program, say, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._again, self._began, self._pause = 0.0, 0.0, PAUSE

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the program in a session of its own, so that all it starts can be ended with it."""
        program, self._began = self.program, self._clock()
        program.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with program.log.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603
                    program.command,
                    env=dict(program.surroundings),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except FileNotFoundError:
            raise SettingsError(
                f"there is no program '{program.command[0]}'",
                where=program.name,
                remedy="install it with: pip install 'abaton[flower]'",
            ) from None

    def watch(self) -> None:
        """Start the program again if it has ended; not at once, so that it does not spin."""
        if self._process is not None and self._process.poll() is not None:
            code, self._process = self._process.returncode, None
            steady = self._clock() > self._began + _STEADY
            pause = PAUSE if steady else self._pause
            self._again, self._pause = self._clock() + pause, min(2 * pause, LONGEST_PAUSE)
            self._say(f"{self.program.name} ended (code {code}) and {self.program.after}")
        if self._process is None and self._clock() >= self._again:
            self.start()

    def stop(self) -> None:
        """End the program and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _signal(group: int, what: signal.Signals) -> None:
    try:
        os.killpg(group, what)
    except ProcessLookupError:
        return


def call(command: Sequence[str], surroundings: Mapping[str, str], *, where: str) -> str:
    """Run a short command of Flower's and return what it prints; its own words stay in the error."""
    done = subprocess.run(  # noqa: S603
        command, env=dict(surroundings), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise SettingsError(
            f"'{' '.join(command[:3])}' failed", where=where, remedy=said[-1] if said else "see the log"
        )
    return done.stdout
