"""The page on which a token is shown."""

from __future__ import annotations

from abaton.dashboard.markup import Frame
from abaton.report.html import text


def login_page(frame: Frame, problem: str = "") -> str:
    """A form for a token; says what was wrong with the last one."""
    wrong = f'<p role="alert" class="no" id="wrong">{text(problem)}</p>' if problem else ""
    described = ' aria-describedby="wrong" aria-invalid="true"' if problem else ""
    body = (
        f'<section class="card narrow" aria-labelledby="sign-in"><h1 id="sign-in">Sign in</h1>{wrong}'
        f'<form method="post" action="{frame.base}/login"><label for="token">Token</label>'
        f'<input id="token" name="token" type="password" autocomplete="current-password" required{described}>'
        "<button>Sign in</button></form>"
        '<p class="soft">Tokens are made with <code>abaton dashboard token</code> by whoever runs this '
        "dashboard.</p></section>"
    )
    return frame.page("Sign in", body, script=False)
