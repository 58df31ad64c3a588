"""The command ``abaton``: thin, light to start, one file for each group of commands."""

from abaton.cli.app import app, main

__all__ = ["app", "main"]
