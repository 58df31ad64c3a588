"""The app that Flower is given for each run: it calls the Abaton that is installed where it runs (ADR 98)."""

from __future__ import annotations

from pathlib import Path

_APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "abaton-app"
version = "1.0.0"
description = "Calls the Abaton that is installed where it runs; holds no code of its own."
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "abaton"

[tool.flwr.app.components]
serverapp = "abaton_app.server:app"
clientapp = "abaton_app.client:app"

[tool.flwr.app.config]
controller = ""
about = ""
""",
    "abaton_app/__init__.py": '"""Abaton on Flower."""\n',
    "abaton_app/server.py": "from abaton.engines.flower.grid import server_app\n\napp = server_app()\n",
    "abaton_app/client.py": "from abaton.engines.flower.grid import client_app\n\napp = client_app()\n",
}


def write_app(folder: Path) -> None:
    """Write the app's files."""
    for name, text in _APP.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
