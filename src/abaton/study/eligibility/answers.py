"""Yes, no, or not known: logic that never takes silence for an answer."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Answer(StrEnum):
    """What the records say about a criterion."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """An answer and why; the reason speaks about the kind of evidence, never about a value."""

    answer: Answer
    reason: str = ""


YES, NO = Finding(Answer.YES, "the records show it"), Finding(Answer.NO, "the records do not show it")


def unknown(reason: str) -> Finding:
    """An answer that the records do not give."""
    return Finding(Answer.UNKNOWN, reason)


def both(*findings: Finding) -> Finding:
    """Kleene's *and*: one no decides, then one unknown."""
    return _strongest(findings, (Answer.NO, Answer.UNKNOWN, Answer.YES), YES)


def either(findings: Iterable[Finding]) -> Finding:
    """Kleene's *or*: one yes decides, then one unknown; nothing at all is a no."""
    return _strongest(findings, (Answer.YES, Answer.UNKNOWN, Answer.NO), NO)


def negated(finding: Finding) -> Finding:
    """The opposite; what is not known stays so."""
    turned = {Answer.YES: Answer.NO, Answer.NO: Answer.YES, Answer.UNKNOWN: Answer.UNKNOWN}
    return Finding(turned[finding.answer], finding.reason)


def _strongest(findings: Iterable[Finding], order: tuple[Answer, ...], empty: Finding) -> Finding:
    return min(findings, key=lambda finding: order.index(finding.answer), default=empty)
