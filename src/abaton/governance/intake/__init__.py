"""Intake of a research centre over HTTP: published studies, consents, sealed records and withdrawals.

Needs the extra ``abaton[serve]``.
"""

from abaton.governance.intake.intake_service import IntakeLimits, IntakeService
from abaton.governance.intake.routes import make_app
from abaton.governance.intake.server import ListenSettings, serve, serve_app

__all__ = ["IntakeLimits", "IntakeService", "ListenSettings", "make_app", "serve", "serve_app"]
