"""What would leave a site if it joined: every message of a run, asked of its own desk, with nobody else there.

Records are read, rows made and a model trained once, as in a run, in a folder that is removed afterwards; nothing is
sent, and nothing is noted in the registry of consents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abaton.canonical import digest
from abaton.engines.flower import Parcel, Place
from abaton.engines.flower.differences import encode, model_name
from abaton.errors import Refused
from abaton.federation.members import scale_of
from abaton.federation.network.desk import StudyDesk
from abaton.federation.network.fields import fields_of, words_for
from abaton.federation.network.wording import body_of, sums_from, worded
from abaton.federation.rolls import Roll
from abaton.federation.signatures import learned_model, new_key
from abaton.governance.keys import PrivateKey
from abaton.records.anonymity.federated import Choice, Histogram, choose
from abaton.records.features import columns
from abaton.site import Ledger, SiteFile, smallest_count
from abaton.study import Study
from abaton.vectors import Vector

_RUN, _SEED = "preview", 1990
_SHOWN = 90


@dataclass(frozen=True, slots=True)
class Leaving:
    """A field that would leave.

    Attributes:
        asked: What the centre asks for.
        field: The field of the answer.
        words: What it is.
        value: What this site would send now, cut short.
    """

    asked: str
    field: str
    words: str
    value: str


class _Looking(Roll):
    """A roll that only looks."""

    def taken(self, keys: Any, at: float, version: int | None = None) -> tuple[frozenset[str], str]:
        inside = self.inside(keys, at)
        return inside, digest({"members": sorted(inside)})


def preview(file: SiteFile, study: Study, folder: Path) -> Iterator[Leaving]:
    """Every field that would leave a site, one after the other; ends early if the site cannot take part."""
    for kind, answer in _answers(file, study, folder):
        for name in fields_of(answer):
            yield Leaving(kind, name, words_for(kind, name), _value(name, answer))


def _answers(file: SiteFile, study: Study, folder: Path) -> Iterator[tuple[str, Parcel]]:
    assert study.learning is not None
    key = new_key()
    desks = {role: _desk(file, study, role, folder, key) for role in ("train", "evaluate")}
    about: dict[str, Any] = {"run": _RUN, "terms": study.hash}
    read = desks["train"].answer(worded("read", about, {}))
    yield "read", read
    if read.reason is not None or body_of(read)["problem"]:
        return
    body = {"seed": _SEED, **_choice(study, body_of(read))}
    dealt = desks["train"].answer(worded("deal", about, body))
    yield "deal", dealt
    if dealt.reason is not None or body_of(dealt)["problem"]:
        return
    scale = scale_of(study.learning, [sums_from(body_of(dealt)["sums"])])
    yield "scale", desks["train"].answer(worded("scale", about, {**body, "scale": scale.row()}))
    plan = study.plan()
    model = study.learning.model(features=len(columns(plan)), classes=len(plan.label.names))
    start = model.initial(_SEED)
    about |= {"layout": model.layout.digest, "committed": 0}
    named, data = {"model": model_name(start), "base": None}, encode(start)
    settings = asdict(study.learning.training.plain())
    train = {**about, "key": "task", "version": 0, "settings": settings, **named}
    one = {**about, "tasks": [{"key": "task", **named}]}
    yield "query", desks["train"].answer(Parcel("query", about))
    trained = desks["train"].answer(Parcel("train", train, {"model": data}))
    yield "train", trained
    if trained.reason is None:
        yield "evaluate", desks["evaluate"].answer(_own_model(file, study, about, start, trained))
    yield "judge", desks["train"].answer(Parcel("judge", one, {"model/0": data}))
    if study.learning.personal is None:
        asked = {**one, "epochs": 1, "seed": _SEED, "resamples": 1}
        yield "gain", desks["train"].answer(Parcel("gain", asked, {"model/0": data}))
    if study.learning.explanation is not None:
        yield "explain", desks["train"].answer(Parcel("explain", one, {"model/0": data}))


def _own_model(
    file: SiteFile, study: Study, about: Mapping[str, Any], start: Vector, trained: Parcel
) -> Parcel:
    """The site's own model to be scored: those of others are not there, and no model is scored that nobody signed."""
    assert study.learning is not None
    site, codec = file.document.site.id, study.learning.pipeline()
    layout = study.learning.model(
        features=len(columns(study.plan())), classes=len(study.plan().label.names)
    ).layout
    made = learned_model(codec, layout, _SEED, site, 0, start, trained.blobs["update"])
    one = {"key": "task", "model": model_name(made), "base": None}
    signed = [site, 0, trained.about["signature"]]
    return Parcel("evaluate", {**about, "tasks": [{**one, "signed": signed}]}, {"model/0": encode(made)})


def _desk(file: SiteFile, study: Study, role: str, folder: Path, key: PrivateKey) -> StudyDesk:
    def roll(file: SiteFile, study: Study, run: str, people: Mapping[str, str]) -> Roll:
        return _Looking(file, study, run, people, lambda at: datetime.fromtimestamp(at, UTC))

    nothing = Ledger(folder / "ledger.json", lambda patient: patient, smallest_count(file.document, study))
    return StudyDesk(file, study, Place(role, folder, study.hash), roll, nothing, key)


def _choice(study: Study, read: Mapping[str, Any]) -> dict[str, Any]:
    """The ranges that would be chosen if this were the only site; the finest ones if it cannot hide people alone."""
    asked = study.privacy.anonymity
    if asked is None:
        return {}
    told = Histogram.from_row(read["histogram"])
    try:
        choice = choose([told], asked)
    except Refused:
        finest = frozenset(
            tuple(chains[place][0][0] for chains, place in zip(told.chains, cell, strict=True))
            for cell in told.cells
        )
        choice = Choice(told.base, told.base, finest, 0.0, 0, sum(told.counts))
    return {"k": read["k"], "choice": choice.row()}


def _value(name: str, answer: Parcel) -> str:
    if name.startswith("body/"):
        value = body_of(answer)[name.removeprefix("body/")]
    elif name in answer.blobs:
        return f"{len(answer.blobs[name])} bytes"
    else:
        value = answer.about[name]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
