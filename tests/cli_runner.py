"""Runner of `abaton` commands in this process: output and exit code, without starting another interpreter."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from abaton.cli import main


def abaton(
    *arguments: object, stdin: bytes = b"", folder: Path | None = None, **environment: str
) -> CompletedProcess[str]:
    """Type a command.

    Args:
        words: What follows `abaton`.
        stdin: What it reads.
        folder: Where it is typed.
        environment: What is said there beside what is said here.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    typed = ["abaton", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as there, redirect_stdout(out), redirect_stderr(err):
        there.setattr(sys, "argv", typed)
        there.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        for name, value in {"NO_COLOR": "1", **environment}.items():
            there.setenv(name, value)
        if folder is not None:
            there.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main()
    written = (stream.buffer.getvalue().decode() for stream in (out, err))
    return CompletedProcess(typed, ended.value.code or 0, *written)
