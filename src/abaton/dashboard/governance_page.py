"""The page of governance: studies, consents, withdrawals and cohorts in ranges, and the state of the audit chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from abaton.dashboard.access import Right
from abaton.dashboard.markup import Frame, scrolled, section
from abaton.governance import Chain, StudyCensus
from abaton.report.html import text

_PURPOSES = {"collect": "collecting", "disclose": "sending", "use": "training"}
ABSENT = (
    "<h1>Governance</h1><p>This dashboard was started without a governance database: give it one with "
    "<code>--governance</code>.</p>"
)


@dataclass(frozen=True, slots=True)
class Checked:
    """The last check of the audit chain: when, over how many entries, and where it was found wrong."""

    at: str
    length: int
    faults: tuple[tuple[int, str], ...]


def governance_page(
    frame: Frame, studies: Sequence[StudyCensus], chain: Chain, checked: Checked | None
) -> str:
    """Governance in numbers; nobody can be found in it."""
    listed = [
        (s.study, s.title, s.version, "open" if s.is_open else "closed", s.published[:10], s.ends[:10] or "–")
        for s in studies
    ]
    consents = [(s.study, s.in_force, s.expired, s.withdrawn, s.other) for s in studies]
    pending = [
        (s.study, s.pending, "–" if s.oldest_days is None else f"{s.oldest_days} days") for s in studies
    ]
    cohorts = [
        (s.study, _PURPOSES.get(each.purpose, each.purpose), each.people, each.at[:10])
        for s in studies
        for each in s.cohorts
    ]
    parts = [
        ("Studies", scrolled("published studies", ("study", "title", "version", "state", "since", "until"), listed)),
        ("Consents", scrolled("consents today, in ranges",
                              ("study", "in force", "expired", "withdrawn", "other"), consents)),
        ("Withdrawals", scrolled("withdrawals under way", ("study", "people", "oldest since"), pending)),
        ("Cohorts", scrolled("newest cohorts", ("study", "for", "people", "taken"), cohorts) if cohorts
         else "<p>No cohort was taken yet.</p>"),
    ]  # fmt: skip
    if not studies:
        parts = [("Studies", "<p>No study is published.</p>")]
    every = [*parts, ("Audit chain", _chain(frame, chain, checked))]
    sections = "".join(section(f"g{i}", name, content) for i, (name, content) in enumerate(every))
    words = (
        "Numbers of people are ranges, so that nobody can be told from them, nor from how they change. "
        "Exact numbers are for those who have the database and its keys."
    )
    return frame.page(
        "Governance",
        f'<h1>Governance</h1><p class="about">{words}</p>{sections}',
        here="/governance",
        script=False,
    )


def _chain(frame: Frame, chain: Chain, checked: Checked | None) -> str:
    rows: list[tuple[str, object]] = [("entries", chain.length), ("newest entry", chain.newest[:19] or "–")]
    if checked is None:
        state = '<p id="chain">Not checked since this dashboard was started.</p>'
    elif checked.faults:
        where = "; ".join(f"entry {place}: {what}" for place, what in checked.faults[:10])
        words = f"Broken in {len(checked.faults)} places, checked {checked.at}. {where}"
        state = f'<p id="chain" class="no">{text(words)}</p>'
    else:
        state = f'<p id="chain" class="yes">Sound: all {checked.length:,} entries, checked {text(checked.at)}.</p>'
    form = ""
    if frame.caller is not None and frame.caller.person.may(Right.CONTROL):
        form = (
            f'<form method="post" action="{frame.base}/governance/verify">{frame.form_key()}'
            "<button>Check the whole chain</button></form>"
        )
    return scrolled("the audit chain", ("what", "value"), rows) + state + form
