"""Preview of records before and after de-identification, with the outcome and reason of each value.

Records are de-identified first, as at a site. The outcome of each value is read from the output bytes, not from the
rules, so that the preview cannot differ from what is sealed. Invariants:

(1) :attr:`PreviewResult.content` is exactly what would be sent;
(2) each value of each record is in exactly one row: unchanged, changed or removed;
(3) each value that is new in the output (a label, a pseudonym, an age) has its own row: added.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from abaton.canonical_json import to_canonical_json
from abaton.deid.deidentifier import Deidentifier
from abaton.deid.pseudonyms import Pseudonyms
from abaton.deid.settings import DataRequest
from abaton.deid.transform_counts import TransformCounts
from abaton.fhir.bundles import bundle_resources

Json = dict[str, Any]
_LONG_LIST = 200


class ValueOutcome(StrEnum):
    """Outcome of a value."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"


class PreviewRow(NamedTuple):
    """Path, value before and after, and outcome."""

    path: str
    before: Any
    after: Any
    outcome: ValueOutcome


@dataclass(frozen=True, slots=True)
class PreviewCard:
    """One record before and after."""

    resource_type: str
    rows: tuple[PreviewRow, ...]


@dataclass(frozen=True, slots=True)
class PreviewResult:
    """Content to send, and the outcome of each original value."""

    content: bytes
    cards: tuple[PreviewCard, ...]
    reasons: dict[str, tuple[str, str]]

    @property
    def counts(self) -> Counter[str]:
        """Number of values of each outcome in the preview."""
        return Counter(row.outcome.value for card in self.cards for row in card.rows)


def prepare_preview(
    documents: Iterable[Json], request: DataRequest, pseudonyms: Pseudonyms, *, year: int
) -> PreviewResult:
    """Prepare the citizen's preview: de-identify documents and pair each value with its output.

    Args:
        documents: Documents from :func:`abaton.citizen.uploads.read_upload`.
        request: Data that the study requests.
        pseudonyms: Pseudonyms of the citizen for this study.
        year: Current year, for ages.
    """
    deidentifier = Deidentifier(request, pseudonyms, year=year, trace=True)
    originals: list[Json] = []
    outputs: list[Json] = []
    for document in _linked_documents(documents):
        originals += bundle_resources(document)
        output = deidentifier.deidentify_content(document)
        outputs += bundle_resources(output) if output is not None else ()
    content = b"".join(to_canonical_json(record) + b"\n" for record in outputs)
    return PreviewResult(
        content, tuple(_cards(originals, outputs, pseudonyms)), _reasons(deidentifier.take_counts())
    )


def _linked_documents(documents: Iterable[Json]) -> Iterator[Json]:
    """Yield a preview's Bundles unchanged, and single resources in one Bundle, so their references resolve.

    Search results of a server are pages of single resources.
    """
    entries: list[Json] = []
    for document in documents:
        if document.get("type") == "searchset" and isinstance(document.get("entry"), list):
            entries += (entry for entry in document["entry"] if isinstance(entry, dict))
        elif document.get("resourceType") == "Bundle":
            yield document
        else:
            entries.append({"resource": document})
    if entries:
        yield {"resourceType": "Bundle", "type": "collection", "entry": entries}


def _cards(originals: list[Json], outputs: list[Json], pseudonyms: Pseudonyms) -> Iterator[PreviewCard]:
    """Yield each original of the preview with its output, then outputs without an original."""
    unmatched: dict[tuple[str, str], deque[Json]] = defaultdict(deque)
    for record in outputs:
        unmatched[record["resourceType"], record["id"]].append(record)
    for original in originals:
        resource_type, original_id = str(original.get("resourceType")), original.get("id")
        candidates = (
            unmatched[resource_type, pseudonyms.identity(resource_type, original_id)]
            if isinstance(original_id, str) and original_id
            else ()
        )
        after = candidates.popleft() if candidates else None
        yield PreviewCard(resource_type, tuple(_rows(original, after, resource_type)))
    for remaining in unmatched.values():
        for record in remaining:
            yield PreviewCard(record["resourceType"], tuple(_added_rows(record, record["resourceType"])))


def _rows(before: Any, after: Any, path: str) -> Iterator[PreviewRow]:
    if isinstance(before, dict):
        after_fields = after if isinstance(after, dict) else {}
        for key, value in before.items():
            if key != "resourceType":
                yield from _rows(value, after_fields.get(key), f"{path}.{key}")
        for key in after_fields.keys() - before.keys():
            yield from _added_rows(after_fields[key], f"{path}.{key}")
    elif isinstance(before, list):
        counterparts, added = _match_elements(before, after if isinstance(after, list) else [])
        for value, counterpart in zip(before, counterparts, strict=True):
            yield from _rows(value, counterpart, path)
        for value in added:
            yield from _added_rows(value, path)
    elif after is None or isinstance(after, dict | list):
        yield PreviewRow(path, before, None, ValueOutcome.REMOVED)
        yield from _added_rows(after, path) if after is not None else ()
    else:
        same = after == before and type(after) is type(before)
        yield PreviewRow(path, before, after, ValueOutcome.UNCHANGED if same else ValueOutcome.CHANGED)


def _added_rows(value: Any, path: str) -> Iterator[PreviewRow]:
    if isinstance(value, dict):
        for key in value:
            if key != "resourceType":
                yield from _added_rows(value[key], f"{path}.{key}")
    elif isinstance(value, list):
        for element in value:
            yield from _added_rows(element, path)
    else:
        yield PreviewRow(path, None, value, ValueOutcome.ADDED)


def _match_elements(before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return, for each element of a previewed list, its counterpart in the output, and added output elements."""
    counterparts: list[Any] = [None] * len(before)
    if len(before) == len(after) and (len(before) == 1 or len(before) > _LONG_LIST):
        is_match = [_similarity(one, other) >= 0 for one, other in zip(before, after, strict=True)]
        return [b if ok else None for b, ok in zip(after, is_match, strict=True)], [
            b for b, ok in zip(after, is_match, strict=True) if not ok
        ]
    added, start = [], 0
    for value in after:
        best = max(range(start, len(before)), key=lambda i: (_similarity(before[i], value), -i), default=-1)
        if best < 0 or _similarity(before[best], value) < 0:
            added.append(value)
            continue
        counterparts[best], start = value, best + 1
    return counterparts, added


def _similarity(before: Any, after: Any) -> int:
    """Return the number of common values of two previewed elements; negative if they cannot be a pair."""
    if isinstance(before, dict) and isinstance(after, dict):
        common = before.keys() & after.keys()
        same = sum(max(_similarity(before[key], after[key]), 0) for key in common)
        url = before.get("url"), after.get("url")  # identifies an extension
        return -1 if not common or url[0] != url[1] else same
    if isinstance(before, list) and isinstance(after, list):
        return sum(max((_similarity(one, other) for one in before), default=0) > 0 for other in after)
    if isinstance(before, dict | list) or isinstance(after, dict | list):
        return -1
    return int(before == after)


def _reasons(counts: TransformCounts) -> dict[str, tuple[str, str]]:
    """Return, for each path of the preview, the rule that passed a value and the reason that removed one."""
    passed = {
        path: reason.split(" ", 1)[0] if reason != "rules of its elements" else ""
        for path, reason in counts.passed
    }
    removed = {path: reason for path, reason in (*counts.dropped, *counts.dropped_resources)}
    return {
        path: (passed.get(path, ""), removed.get(path, "")) for path in sorted(passed.keys() | removed.keys())
    }
