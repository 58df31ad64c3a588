"""All that the page asks of Python: text and bytes in, text and bytes out.

It runs in a browser's worker as it runs here. Nothing of a record is written anywhere; it is gone when the page is
closed or another file is chosen. Keys never come here, but for the one from which the person's pseudonyms are made.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, date, datetime
from typing import Any

from pydantic import ValidationError

from abaton.citizen.preview import Prepared, prepare
from abaton.citizen.study_facts import told
from abaton.citizen.uploads import PickedError, Unusable, one_person, read_picked
from abaton.deid.pseudonyms import Pseudonyms
from abaton.errors import AbatonError, Refused
from abaton.fhir.bundles import opened
from abaton.governance.consent import Action, Ask, make_consent
from abaton.study.document import FORMAT, Study
from abaton.study.eligibility.criterion_evaluation import judge

Json = dict[str, Any]
_SHORTENED = 200


class Phone:
    """One study on one person's device."""

    def __init__(self) -> None:
        self._study: Study | None = None
        self._documents: list[Json] = []
        self._prepared: Prepared | None = None

    def open_study(self, content: str, document: str, today: str) -> str:
        """Read a study document, which must be the one with this fingerprint.

        Args:
            content: The document as the intake serves it.
            document: The fingerprint that was asked for.
            today: The day, as YYYY-MM-DD.
        """
        table = json.loads(content)
        if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
            raise Refused("this is no study document of this form", remedy="reload the page")
        try:
            study = Study.model_validate_json(json.dumps(table), strict=True)
        except ValidationError:
            raise Refused("the study document cannot be read", remedy="tell the research centre") from None
        if study.hash != document:
            raise Refused("this is not the study that was asked for", remedy="tell the research centre")
        self._study = study
        return json.dumps(told(study, date.fromisoformat(today)))

    def pick(self, raw: bytes) -> str:
        """Take one more file of the person's records; if it cannot be used, the answer says why and nothing changes."""
        try:
            found = read_picked(bytes(raw))
            one_person([*self._documents, *found])
        except PickedError as error:
            return json.dumps({"problem": error.code.value})
        except (Refused, RecursionError, MemoryError):
            return json.dumps({"problem": Unusable.DOUBTFUL.value})
        self._documents += found
        self._prepared = None
        return json.dumps({"records": sum(1 for each in self._documents for _ in opened(each))})

    def forget(self) -> None:
        """Let go of all records."""
        self._documents, self._prepared = [], None

    def eligible(self, today: str) -> str:
        """Whether the person may take part, with the answer on every criterion."""
        records = [record for each in self._documents for record in opened(each)]
        judged = judge(self._ready().eligibility, records, date.fromisoformat(today))
        verdicts = [{"answer": each.answer.value, "reason": each.reason} for each in judged.verdicts]
        return json.dumps({"eligible": judged.eligible, "verdicts": verdicts})

    def prepare(self, key: bytes, today: str) -> str:
        """What would leave, beside what there was: cards with rows, counts, and reasons by place.

        Args:
            key: 32 bytes from which the person's pseudonyms for this study are made.
            today: The day, as YYYY-MM-DD.
        """
        study, day = self._ready(), date.fromisoformat(today)
        names = Pseudonyms(study.study.id, bytes(key))
        try:
            self._prepared = prepare(self._documents, study.need(day), names, year=day.year)
        except (AbatonError, RecursionError):
            self._prepared = None
            return json.dumps({"problem": Unusable.DOUBTFUL.value})
        return json.dumps(_shown(self._prepared), ensure_ascii=False)

    def content(self) -> bytes:
        """What would be sent, to the byte: one record in a line."""
        if self._prepared is None:
            raise Refused("nothing was prepared", remedy="choose a file first")
        return self._prepared.content

    def consents(self, subject: str, now: str) -> str:
        """The two FHIR Consents of a person: to be told of this study, and to take part in it.

        Args:
            subject: The person's tag in this study.
            now: The time, as the browser writes it in UTC.
        """
        study, start = self._ready(), datetime.fromisoformat(now).astimezone(UTC)
        ask = Ask(subject, study.study.id, study.hash)
        actions = (Action.COLLECT, Action.SEND, Action.TRAIN)
        kinds = sorted({requirement.type for requirement in study.data})
        made = make_consent(ask, start, study.ends, actions=actions, kinds=kinds)
        return json.dumps([make_consent(Ask(subject), start, study.ends), made])

    def _ready(self) -> Study:
        if self._study is None:
            raise Refused("no study was opened", remedy="reload the page")
        return self._study


def _shown(made: Prepared) -> Json:
    """The preview in the form that the page draws; long texts are shortened for the eye only."""
    counts = made.counts
    return {
        "cards": [
            {
                "type": card.type,
                "rows": [
                    [row.path, _short(row.before), _short(row.after), row.fate.value] for row in card.rows
                ],
            }
            for card in made.cards
        ],
        "values": sum(counts[fate] for fate in ("kept", "changed", "removed")),
        "leave": counts["kept"] + counts["changed"],
        "counts": dict(counts),
        "reasons": made.reasons,
        "bytes": len(made.content),
        "sha256": hashlib.sha256(made.content).hexdigest(),
    }


def _short(value: Any) -> Any:
    return f"{value[:_SHORTENED]}…" if isinstance(value, str) and len(value) > _SHORTENED else value
