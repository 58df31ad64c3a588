"""Every field that a site's answers may hold, in words; whatever is not listed here does not leave.

The list is the law and not its description: each answer is held against it (`check_fields`) before it is sent, and
`abaton site join --dry-run` prints it with what this site would send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from abaton.engines.flower import Parcel
from abaton.errors import Refused
from abaton.federation.network.wording import body_of

_REASON = "one of a few fixed phrases for what went wrong; never an error's text"
_HOLDS = "digests of the community models that the site holds, so that only differences are sent to it"
_COHORT = "a digest of who was in, which tells nobody"

FIELDS: Mapping[str, Mapping[str, str]] = {
    "query": {
        "site": "the site's id",
        "group": "the group of learners that the site belongs to; empty",
        "examples": "how many people's rows are trained on",
        "labels": "how many validation rows each class has",
        "holds": _HOLDS,
    },
    "read": {
        "body/told": "counts of people by stage and by reason, masked below the smallest count",
        "body/problem": "why the site cannot take part; empty if it can",
        "body/floor": "the smallest number of people that the site tells",
        "body/k": "among how many people everybody must hide",
        "body/histogram": "how many people share each combination of quasi-identifiers, from the study's local floor "
        "on, which is one person if it names none",
    },
    "deal": {
        "body/problem": "why the site cannot take part; empty if it can",
        "body/sums": "of each scaled column: how many values, their sum, the sum of their squares",
    },
    "scale": {
        "body/table": "a digest of the site's table",
        "body/cohort": _COHORT,
        "body/floor": "the smallest number of people that the site tells",
    },
    "train": {
        "key": "the task's name, as it was given",
        "steps": "how many batches were trained on",
        "loss": "the mean loss on the training rows; nothing if noise is added for privacy",
        "score": "counts of right and wrong on the site's validation rows, in coarse steps; nothing if few "
        "have changed",
        "examples": "how many people's rows were trained on",
        "cohort": _COHORT,
        "holds": _HOLDS,
        "update": "the encoded change of the model",
    },
    "evaluate": {
        "scores": "for each model, counts of right and wrong on the site's validation rows, in coarse steps",
        "holds": _HOLDS,
    },
    "tell": {"holds": _HOLDS},
    "judge": {
        "body/told": "for each model, groups of cases and of controls among the test rows by predicted "
        "chance, or sums of "
        "errors; nothing of fewer people than the smallest count",
        "holds": _HOLDS,
    },
    "gain": {
        "body/why": "why the site tells nothing, or makes nothing of the community model; empty if it does",
        "body/gain": "how good the site's own model, the community model and what the site makes of it are on its test "
        "rows, the differences, each with its interval, and the weight or line that it chose; nothing where a class "
        "has fewer people than the smallest count",
        "holds": _HOLDS,
    },
    "explain": {
        "body/why": "why the site tells nothing of what the model goes by; empty if it does",
        "body/explained": "such counts for the model as it is and with each input shuffled among the test rows, and "
        "its mean prediction with an input set to a value; nothing of fewer people than the smallest count",
        "holds": _HOLDS,
    },
    "end": {},
}
"""By what was asked: every field of an answer, and what it is."""

FLOWER = "the node itself sends its public key, signatures, heartbeats, and the sizes and times of messages"


def fields_of(answer: Parcel) -> Iterator[str]:
    """The names of an answer's fields."""
    yield from answer.about
    for name in answer.blobs:
        if name == "body":
            yield from (f"body/{each}" for each in body_of(answer))
        else:
            yield name


def check_fields(kind: str, answer: Parcel) -> Parcel:
    """Let an answer pass if all of its fields are listed.

    >>> check_fields("train", Parcel("answer", {"patient": "4711"}))
    Traceback (most recent call last):
    abaton.errors.Refused: a field that is not listed would leave (site): ...
    """
    allowed = {"reason", *FIELDS.get(kind, ())}
    if not allowed.issuperset(fields_of(answer)):
        raise Refused(
            "a field that is not listed would leave",
            where="site",
            remedy="list it in federation.network.fields",
        )
    return answer


def words_for(kind: str, field: str) -> str:
    """What a field is."""
    return _REASON if field == "reason" else FIELDS[kind][field]
