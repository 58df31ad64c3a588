"""Preview of every field that a site would send in a study.

The site's own service handles every request of a run, without other sites. Records are read, rows built and a model
trained once, in a temporary folder; nothing is sent, and nothing is recorded in the consent registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from abaton.anonymity.federated_recoding import CombinationHistogram, RecodingChoice, choose_recoding
from abaton.canonical_json import canonical_digest
from abaton.engines.flower import Message
from abaton.engines.flower.flower_messages import encode_model, model_digest
from abaton.engines.flower.site_worker import WorkerSettings
from abaton.errors import RefusedError
from abaton.features import feature_columns, model_columns
from abaton.governance.keys import PrivateKey
from abaton.layout import Vector
from abaton.site import LoadedSiteConfig, ReleaseLog, min_cell_count, preview_release_gate
from abaton.study import Study
from abaton.study_run.consent_roster import ConsentRoster
from abaton.study_run.messages import describe_field, field_names, make_message, message_body, sums_from_row
from abaton.study_run.model_signatures import learned_model, new_key
from abaton.study_run.preparation import common_scale
from abaton.study_run.site_service import StudySiteService

_RUN, _SEED = "preview", 1990
_MAX_SHOWN = 90


@dataclass(frozen=True, slots=True)
class OutboundField:
    """Field that would be sent.

    Attributes:
        message_type: The request of the centre.
        field: The field of the reply.
        description: The meaning of the field.
        value: The value that this site would send now, shortened.
    """

    message_type: str
    field: str
    description: str
    value: str


class _ReadOnlyRoster(ConsentRoster):
    """Roster that records nothing."""

    def take_snapshot_for_round(
        self, keys: Any, seconds: float, version: int | None = None
    ) -> tuple[frozenset[str], str]:
        eligible = self.eligible_at(keys, seconds)
        return eligible, canonical_digest({"members": sorted(eligible)})  # frozen: part of the bytes


def preview_fields(file: LoadedSiteConfig, study: Study, folder: Path) -> Iterator[OutboundField]:
    """Preview every outbound field of a site in a study; stop early if the site cannot take part."""
    for message_type, reply in _replies(file, study, folder):
        for name in field_names(reply):
            yield OutboundField(
                message_type, name, describe_field(message_type, name), _format_field(name, reply)
            )


def _replies(file: LoadedSiteConfig, study: Study, folder: Path) -> Iterator[tuple[str, Message]]:
    assert study.learning is not None
    key = new_key()
    services = {role: _make_service(file, study, role, folder, key) for role in ("train", "evaluate")}
    header: dict[str, Any] = {"run": _RUN, "study_hash": study.hash}
    ingest = services["train"].reply(make_message("ingest", header, {}))
    yield "ingest", ingest
    if ingest.reason is not None or message_body(ingest)["problem"]:
        return
    body = {"seed": _SEED, **_single_site_recoding(study, message_body(ingest))}
    split = services["train"].reply(make_message("split", header, body))
    yield "split", split
    if split.reason is not None or message_body(split)["problem"]:
        return
    scale = common_scale(study.learning, [sums_from_row(message_body(split)["sums"])])
    yield "scale", services["train"].reply(make_message("scale", header, {**body, "scale": scale.to_row()}))
    spec = study.feature_spec()
    model = study.learning.build_model(
        features=len(model_columns(feature_columns(spec))), classes=len(spec.label.class_names)
    )
    start = model.initial(_SEED)
    header |= {"layout": model.layout.digest, "committed_steps": 0}
    model_header, data = {"model": model_digest(start), "base": None}, encode_model(start)
    settings = asdict(study.learning.train_settings())
    train = {**header, "task_id": "task", "version": 0, "settings": settings, **model_header}
    evaluation = {**header, "evaluations": [{"task_id": "task", **model_header}]}
    yield "introduce", services["train"].reply(Message("introduce", header))
    trained = services["train"].reply(Message("train", train, {"model": data}))
    yield "train", trained
    if trained.reason is None:
        yield "evaluate", services["evaluate"].reply(_own_model(file, study, header, start, trained))
    yield "evaluate_test", services["train"].reply(Message("evaluate_test", evaluation, {"model/0": data}))
    if study.learning.personal_layers is None:
        request = {**evaluation, "epochs": 1, "seed": _SEED, "bootstrap_resamples": 1}
        yield "local_benefit", services["train"].reply(Message("local_benefit", request, {"model/0": data}))
    if study.learning.interpretability is not None:
        message = Message("interpretability", evaluation, {"model/0": data})
        yield "interpretability", services["train"].reply(message)


def _own_model(
    file: LoadedSiteConfig, study: Study, header: Mapping[str, Any], start: Vector, trained: Message
) -> Message:
    """Return the preview's request to evaluate the site's own model: others are missing, unsigned ones refused."""
    assert study.learning is not None
    site, codec = file.config.site.id, study.learning.build_codec()
    spec = study.feature_spec()
    layout = study.learning.build_model(
        features=len(model_columns(feature_columns(spec))), classes=len(spec.label.class_names)
    ).layout
    model = learned_model(codec, layout, _SEED, site, 0, start, trained.attachments["update"])
    evaluation = {"task_id": "task", "model": model_digest(model), "base": None}
    signed_model = [site, 0, trained.header["signature"]]
    return Message(
        "evaluate",
        {**header, "evaluations": [{**evaluation, "signed_model": signed_model}]},
        {"model/0": encode_model(model)},
    )


def _make_service(
    file: LoadedSiteConfig, study: Study, role: str, folder: Path, key: PrivateKey
) -> StudySiteService:
    def make_roster(
        file: LoadedSiteConfig, study: Study, run: str, patient_ids: Mapping[str, str]
    ) -> ConsentRoster:
        return _ReadOnlyRoster(
            file, study, run, patient_ids, lambda seconds: datetime.fromtimestamp(seconds, UTC)
        )

    release_log = ReleaseLog(
        folder / "releases.json", lambda patient: patient, min_cell_count(file.config, study)
    )
    return StudySiteService(
        file,
        study,
        WorkerSettings(role, folder, study.hash),
        make_roster,
        release_log,
        key,
        preview_release_gate(file, study, folder),
    )


def _single_site_recoding(study: Study, ingest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preview's recoding for this site only; the finest levels if it alone cannot be k-anonymous."""
    anonymity = study.privacy.anonymity
    if anonymity is None:
        return {}
    histogram = CombinationHistogram.from_row(ingest["histogram"])
    try:
        recoding = choose_recoding([histogram], anonymity)
    except RefusedError:
        finest = frozenset(histogram.names(cell) for cell in histogram.cells)
        recoding = RecodingChoice(histogram.base, finest, 0.0, 0, sum(histogram.counts))
    return {"k": ingest["k"], "recoding": recoding.row()}


def _format_field(name: str, reply: Message) -> str:
    if name.startswith("body/"):
        value = message_body(reply)[name.removeprefix("body/")]
    elif name in reply.attachments:
        return f"{len(reply.attachments[name])} bytes"
    else:
        value = reply.header[name]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"
