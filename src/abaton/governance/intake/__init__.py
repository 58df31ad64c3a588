"""The intake of a research centre over HTTP: studies out; consents, sealed records and withdrawals in.

Needs the extra ``abaton[serve]``.
"""

from abaton.governance.intake.intake_service import Centre, Limits
from abaton.governance.intake.routes import make_app
from abaton.governance.intake.server import Listen, serve, serve_app

__all__ = ["Centre", "Limits", "Listen", "make_app", "serve", "serve_app"]
