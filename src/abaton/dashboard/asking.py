"""What every route asks first: what it works with, who asks, and whether a form is from our own pages."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from abaton.dashboard.access import Right
from abaton.dashboard.gate import Caller
from abaton.dashboard.state import Dashboard


def _dashboard(request: Request) -> Dashboard:
    made: Dashboard = request.app.state.dashboard
    return made


def _caller(request: Request) -> Caller:
    caller: Caller | None = request.state.caller
    if caller is None:
        raise HTTPException(401, "sign in, or send a token")
    return caller


At = Annotated[Dashboard, Depends(_dashboard)]
By = Annotated[Caller, Depends(_caller)]


async def read_form(request: Request, at: Dashboard, by: Caller, right: Right) -> dict[str, str]:
    """The fields of a form that changes something; refused unless its sender may, and it is from our own pages."""
    if not by.person.may(right):
        raise HTTPException(403, f"a {by.person.role} may not do this")
    fields = {name: values[-1] for name, values in parse_qs((await request.body()).decode("latin-1")).items()}
    # A program that shows its token with each request has no cookie that another site could use.
    if by.session and not at.sessions.is_form_key(by.session, fields.get("key", "")):
        raise HTTPException(403, "the form is not from this session: load the page again")
    return fields
