"""Python functions that the citizen page calls: text and bytes in, text and bytes out.

The module runs in a web worker. Records are kept in memory only, until the page is closed or other files are chosen.
The only key it receives is the one that pseudonyms are derived from.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, date, datetime
from typing import Any

from pydantic import ValidationError

from abaton.citizen.preview import PreviewResult, prepare_preview
from abaton.citizen.study_facts import study_facts_for_page
from abaton.citizen.uploads import UnusableReason, UploadError, check_one_patient, read_upload
from abaton.deid.pseudonyms import Pseudonyms
from abaton.errors import AbatonError, RefusedError
from abaton.fhir.bundles import bundle_resources
from abaton.governance.consent import ConsentAction, ConsentQuery, make_consent
from abaton.study.document import FORMAT, Study
from abaton.study.eligibility.criterion_evaluation import evaluate_eligibility

Json = dict[str, Any]
_MAX_TEXT_LENGTH = 200


class BrowserApi:
    """One study on one citizen's device."""

    def __init__(self) -> None:
        self._study: Study | None = None
        self._documents: list[Json] = []
        self._preview: PreviewResult | None = None

    def open_study(self, content: str, document: str, today: str) -> str:
        """Parse a study document in the browser, verify its digest, and return its facts for the page as JSON.

        Args:
            content: The document as served by the intake.
            document: Requested digest.
            today: Current date, as YYYY-MM-DD.
        """
        table = json.loads(content)
        if not isinstance(table, dict) or table.pop("format", None) != FORMAT:
            raise RefusedError("the study document has an unknown format", remedy="reload the page")
        try:
            study = Study.model_validate_json(json.dumps(table), strict=True)
        except ValidationError:
            raise RefusedError("the study document is invalid", remedy="inform the research centre") from None
        if study.hash != document:
            raise RefusedError(
                "the study document differs from the requested digest", remedy="inform the research centre"
            )
        self._study = study
        return json.dumps(study_facts_for_page(study, date.fromisoformat(today)))

    def add_file(self, raw: bytes) -> str:
        """Add a file of records in the browser; return the number of records, or the problem that prevents its use."""
        try:
            documents = read_upload(bytes(raw))
            check_one_patient([*self._documents, *documents])
        except UploadError as error:
            return json.dumps({"problem": error.code.value})
        except (RefusedError, RecursionError, MemoryError):
            return json.dumps({"problem": UnusableReason.UNCLEAR.value})
        self._documents += documents
        self._preview = None
        return json.dumps(
            {"records": sum(1 for document in self._documents for _ in bundle_resources(document))}
        )

    def clear_records(self) -> None:
        """Remove all records from the browser's memory."""
        self._documents, self._preview = [], None

    def check_eligibility(self, today: str) -> str:
        """Return to the browser whether the citizen is eligible, with the result of each criterion."""
        records = [record for document in self._documents for record in bundle_resources(document)]
        result = evaluate_eligibility(self._opened_study().eligibility, records, date.fromisoformat(today))
        criteria = [
            {"answer": criterion.answer.value, "reason": criterion.reason} for criterion in result.results
        ]
        return json.dumps({"eligible": result.eligible, "criteria": criteria})

    def prepare_records(self, key: bytes, today: str) -> str:
        """Return the preview for the browser: rows before and after de-identification, counts, reasons by path.

        Args:
            key: 32 bytes from which pseudonyms for this study are derived.
            today: Current date, as YYYY-MM-DD.
        """
        study, day = self._opened_study(), date.fromisoformat(today)
        pseudonyms = Pseudonyms(study.study.id, bytes(key))
        try:
            self._preview = prepare_preview(
                self._documents, study.data_request(day), pseudonyms, year=day.year
            )
        except (AbatonError, RecursionError):
            self._preview = None
            return json.dumps({"problem": UnusableReason.UNCLEAR.value})
        return json.dumps(_preview_json(self._preview), ensure_ascii=False)

    def content(self) -> bytes:
        """Return to the browser the exact bytes to send, one record per line."""
        if self._preview is None:
            raise RefusedError("no records were prepared", remedy="choose a file first")
        return self._preview.content

    def consents(self, subject: str, now: str) -> str:
        """Return to the browser the citizen's two FHIR Consents: general opt-in, and study consent.

        Args:
            subject: Registry pseudonym of the citizen in this study.
            now: Current time in UTC, as the browser writes it.
        """
        study, start = self._opened_study(), datetime.fromisoformat(now).astimezone(UTC)
        query = ConsentQuery(subject, study.study.id, study.hash)
        actions = (ConsentAction.COLLECT, ConsentAction.SEND, ConsentAction.TRAIN)
        resource_types = sorted({requirement.type for requirement in study.data})
        study_consent = make_consent(query, start, study.end, actions=actions, resource_types=resource_types)
        return json.dumps([make_consent(ConsentQuery(subject), start, study.end), study_consent])

    def _opened_study(self) -> Study:
        if self._study is None:
            raise RefusedError("no study is open", remedy="reload the page")
        return self._study


def _preview_json(preview: PreviewResult) -> Json:
    """Return the preview as JSON for the browser; long texts are shortened for display."""
    counts = preview.counts
    return {
        "cards": [
            {
                "resource_type": card.resource_type,
                "rows": [
                    [row.path, _shorten(row.before), _shorten(row.after), row.outcome.value]
                    for row in card.rows
                ],
            }
            for card in preview.cards
        ],
        "values": sum(counts[outcome] for outcome in ("unchanged", "changed", "removed")),
        "released": counts["unchanged"] + counts["changed"],
        "counts": dict(counts),
        "reasons": preview.reasons,
        "bytes": len(preview.content),
        "sha256": hashlib.sha256(preview.content).hexdigest(),
    }


def _shorten(value: Any) -> Any:
    return (
        f"{value[:_MAX_TEXT_LENGTH]}…" if isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH else value
    )
