"""Requests of the centre to the sites of a study, before and after training.

The steps are those of a run on one machine (`abaton.study_run.preparation`), with sites that only release sums,
suppressed counts and digests: ingest, anonymity over the union, split, common scaling; in the end, evaluation. A site
that cannot reply is excluded.

Each site receives one message through its node. A lost message is sent again when the node is back; a site that is
absent too long, or whose processes keep ending, has not replied.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from abaton.anonymity import AnonymitySettings
from abaton.anonymity.federated_recoding import CombinationHistogram, RecodingChoice, merge
from abaton.engines.base import INVALID_REPLY, PROCESS_EXITED, TIMEOUT
from abaton.engines.flower.flower_engine import MAX_EVALUATIONS
from abaton.engines.flower.flower_messages import (
    NODE_GONE,
    Message,
    MessageLost,
    MessageTransport,
    SentModelCache,
)
from abaton.engines.task_queue import MAX_DEATHS
from abaton.errors import AbatonError
from abaton.features import feature_columns
from abaton.layout import Vector
from abaton.study import Study
from abaton.study_run.evaluation import SiteCounts, expand_counts, expand_groups
from abaton.study_run.ingest import ProgressCallback
from abaton.study_run.interpretability import SiteInterpretability
from abaton.study_run.local_benefit import SiteBenefit
from abaton.study_run.messages import (
    benefit_from_row,
    counts_from_row,
    interpretability_from_row,
    invalid_reply_error,
    make_message,
    message_body,
    parse_cohort,
    parse_count,
    parse_histogram,
    parse_text,
    sums_from_row,
)
from abaton.study_run.preparation import (
    MIN_SITES,
    NO_COMMON_RECODING,
    NO_RELEASABLE_COMBINATION,
    SiteSums,
    anonymity_summary,
    check_min_sites,
    choose_common_recoding,
    common_scale,
)
from abaton.study_run.preparation_state import CommonScale
from abaton.study_run.response_checks import check_benefit, check_counts, check_interpretability
from abaton.study_run.site_releases import check_scale, cohort_report

MAX_MIN_CELL_COUNT = 100
"""Results use the largest min_cell_count of all sites: one with a larger value would suppress the results of all."""


@dataclass(frozen=True, slots=True)
class PreparationResult:
    """Preparation of a run by the replies of its sites.

    Attributes:
        tables, cohorts, min_cell_counts: Digests and min_cell_count of every site that takes part.
        excluded_sites: Reasons by excluded site.
        cohort_reports: Released cohort report of every site.
        anonymity: Anonymity settings and the common recoding; None if the study requires no anonymity.
        scale: The common scaling.
        recoding: The common recoding, if the study requires anonymity.
    """

    tables: Mapping[str, str]
    cohorts: Mapping[str, str]
    min_cell_counts: Mapping[str, int]
    excluded_sites: Mapping[str, str]
    cohort_reports: Mapping[str, Mapping[str, Any]]
    anonymity: Mapping[str, Any] | None
    scale: CommonScale
    recoding: RecodingChoice | None


@dataclass(slots=True)
class RemotePreparation:
    """Preparation of the sites of a study by requests; sites that cannot take part are excluded.

    Args:
        study: The study.
        requests: Sends requests and waits for replies.
        run: The run's name.
        seed: Seed of the split.
        on_progress: Receives progress texts without record content.
    """

    study: Study
    requests: SiteRequests
    run: str
    seed: int
    on_progress: ProgressCallback
    excluded_sites: dict[str, str] = field(default_factory=dict)

    def __call__(self, names: Sequence[str]) -> PreparationResult:
        """Prepare remote sites through requests of the centre; exclude those that cannot take part.

        Raises:
            RefusedError: Too few sites remain, or anonymity cannot be reached; nothing was trained.
        """
        assert self.study.learning is not None
        self.on_progress(f"{', '.join(names)}: reading records")
        ingests = self._request("ingest", names, {}, self._parse_ingest)
        cohort_reports = {name: ingest["cohort_report"] for name, ingest in ingests.items()}
        able = {name: ingest for name, ingest in ingests.items() if self._has_no_problem(name, ingest)}
        self._check_min_sites(able)
        recoding = self._choose_recoding(able)
        body: dict[str, Any] = {"seed": self.seed}
        if recoding is not None:
            body |= {"k": recoding[1].k, "recoding": recoding[0].row()}
        self.on_progress("splitting subjects and summing columns at the sites")
        sums = self._request("split", list(able), body, self._parse_sums)
        self._check_min_sites(sums)
        scale = self._agree_scale(sums)
        prepared = self._request(
            "scale", list(sums), {**body, "scale": scale.to_row()}, self._parse_scale_reply
        )
        self._check_min_sites(prepared)
        histograms: dict[str, CombinationHistogram] = {}
        if recoding is not None:
            histograms = {name: able[name]["histogram"] for name in sorted(able)}
        return self._result(prepared, cohort_reports, scale, recoding, histograms)

    def _result(
        self,
        prepared: Mapping[str, Mapping[str, Any]],
        cohort_reports: Mapping[str, Any],
        scale: CommonScale,
        recoding: tuple[RecodingChoice, AnonymitySettings] | None,
        histograms: Mapping[str, CombinationHistogram],
    ) -> PreparationResult:
        min_cell_counts = {name: site["min_cell_count"] for name, site in prepared.items()}
        anonymity = None
        if recoding is not None:
            anonymity = anonymity_summary(*recoding, min(min_cell_counts.values()), histograms)
        return PreparationResult(
            {name: site["table"] for name, site in prepared.items()},
            {name: site["cohort"] for name, site in prepared.items()},
            min_cell_counts,
            dict(sorted(self.excluded_sites.items())),
            {name: cohort_reports.get(name, {}) for name in sorted({*cohort_reports, *self.excluded_sites})},
            anonymity,
            scale,
            None if recoding is None else recoding[0],
        )

    def _request(
        self,
        message_type: str,
        names: Sequence[str],
        body: Mapping[str, Any],
        parse: Callable[[Mapping[str, Any]], Any],
    ) -> dict[str, Any]:
        """Request one preparation step from remote sites and parse the replies; exclude sites without a valid one."""
        header = {"run": self.run, "study_hash": self.study.hash}
        replies = self.requests.request_all(
            {name: make_message(message_type, header, body) for name in names}
        )
        parsed = {}
        for name, reply in replies.items():
            try:
                if reply.reason is not None:
                    self._exclude(name, reply.reason)
                else:
                    parsed[name] = parse(message_body(reply))
            except _SiteProblemError as error:
                self._exclude(name, error.what)
            except _ANY_ERROR:
                self._exclude(name, INVALID_REPLY)
        return parsed

    def _exclude(self, name: str, reason: str) -> None:
        self.excluded_sites[name] = reason
        self.on_progress(f"{name} is excluded: {reason}")

    def _check_min_sites(self, able: Mapping[str, Any]) -> None:
        check_min_sites(list(able), self.excluded_sites)

    def _has_no_problem(self, name: str, ingest: Mapping[str, Any]) -> bool:
        if ingest["problem"]:
            self._exclude(name, ingest["problem"])
        return not ingest["problem"]

    def _parse_ingest(self, body: Mapping[str, Any]) -> dict[str, Any]:
        released = parse_cohort(body["cohort_report"])
        ingest: dict[str, Any] = {
            "cohort_report": cohort_report(released) if released else {},
            "problem": parse_text(body["problem"]),
        }
        anonymity = self.study.privacy.anonymity
        if anonymity is not None and not ingest["problem"]:
            ingest["k"] = max(anonymity.k, parse_count(body["k"]))
            ingest["histogram"] = parse_histogram(body["histogram"])
            if not ingest["histogram"].cells:
                raise _SiteProblemError(NO_RELEASABLE_COMBINATION)
            # An invalid histogram fails here, and not later together with those of other sites.
            merge([ingest["histogram"]], replace(anonymity, k=ingest["k"]))
        return ingest

    def _choose_recoding(self, able: dict[str, Any]) -> tuple[RecodingChoice, AnonymitySettings] | None:
        """Return the common recoding for remote sites; exclude a site if a recoding exists only without it."""
        anonymity = self.study.privacy.anonymity
        if anonymity is None:
            return None
        histograms = {name: ingest["histogram"] for name, ingest in able.items()}
        k = {name: ingest["k"] for name, ingest in able.items()}
        recoding, settings, excluded = choose_common_recoding(histograms, k, anonymity)
        if excluded:
            self._exclude(excluded, NO_COMMON_RECODING)
            del able[excluded]
        return recoding, settings

    def _agree_scale(self, sums: dict[str, SiteSums]) -> CommonScale:
        """Return the common scaling of remote sites; exclude sites whose sums make other sites refuse it."""
        while (refusals := self._count_refusals(sums)) and len(sums) > MIN_SITES:
            refusals_without = {name: self._count_refusals(sums, name) for name in sorted(sums)}
            worst = min(refusals_without, key=refusals_without.__getitem__)
            if refusals_without[worst] >= refusals:
                break
            self._exclude(worst, "its sums are far from those of the other sites")
            del sums[worst]
        return self._pooled_scale(sums)

    def _pooled_scale(self, sums: Mapping[str, SiteSums], without: str = "") -> CommonScale:
        assert self.study.learning is not None
        return common_scale(
            self.study.learning, [site_sums for name, site_sums in sorted(sums.items()) if name != without]
        )

    def _count_refusals(self, sums: Mapping[str, SiteSums], without: str = "") -> int:
        """Return how many remote sites would refuse the common scaling of all sites, or of all but one."""
        assert self.study.learning is not None
        scale, count = self._pooled_scale(sums, without), 0
        for name, site_sums in sums.items():
            try:
                check_scale(self.study.learning, scale, site_sums)
            except AbatonError:
                count += name != without
        return count

    def _parse_sums(self, body: Mapping[str, Any]) -> SiteSums:
        if body["problem"]:
            raise _SiteProblemError(parse_text(body["problem"]))
        sums = sums_from_row(body["sums"])
        all_columns = feature_columns(self.study.feature_spec())
        if list(sums.columns.columns) != [column.name for column in all_columns if column.has_statistics]:
            raise invalid_reply_error()
        return sums

    def _parse_scale_reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "table": _parse_digest(body["table"]),
            "cohort": _parse_digest(body["cohort"]),
            "min_cell_count": parse_count(body["min_cell_count"], MAX_MIN_CELL_COUNT),
        }


class _SiteProblemError(AbatonError):
    """Reason for which a site cannot take part."""


_ANY_ERROR = (Exception,)  # any error while parsing a site's bytes makes the reply invalid


def _parse_digest(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise invalid_reply_error()
    return value


def request_evaluations(
    requests: SiteRequests,
    header: Mapping[str, Any],
    names: Sequence[str],
    models: Sequence[Vector],
    study: Study,
) -> list[list[SiteCounts]]:
    """Request each model's evaluation counts from the sites; return those of the sites that replied.

    A site whose reply timed out receives no further request.

    Args:
        requests: Sends requests and waits for replies.
        header: The run, its study and its layout.
        names: The sites.
        models: The models.
        study: The study.
    """
    counts: list[list[SiteCounts]] = []
    for start in range(0, len(models), MAX_EVALUATIONS):
        batch = models[start : start + MAX_EVALUATIONS]
        replies = requests.request_all(dict.fromkeys(names, _model_message(header, batch)))
        names = [name for name in names if replies[name].reason != TIMEOUT]
        parsed = (_parse_counts(reply, len(batch), name, study) for name, reply in replies.items())
        valid = [site_counts for site_counts in parsed if site_counts is not None]
        counts += [[site_counts[i] for site_counts in valid] for i in range(len(batch))]
    return counts


def request_local_benefit(
    requests: SiteRequests,
    header: Mapping[str, Any],
    names: Sequence[str],
    model: Vector,
    settings: Mapping[str, int],
    study: Study,
) -> dict[str, SiteBenefit]:
    """Request the local benefit from each site; return the valid replies.

    Args:
        requests: Sends requests and waits for replies.
        header: The run, its study and its layout.
        names: The sites.
        model: The community model.
        settings: Epochs, seed and bootstrap resamples.
        study: The study.
    """
    assert study.learning is not None
    message = _model_message({**header, **settings}, [model], "local_benefit")
    benefits = {}
    for name, reply in requests.request_all(dict.fromkeys(names, message)).items():
        if reply.reason is None:
            with suppress(*_ANY_ERROR):
                benefit = benefit_from_row(message_body(reply), study.learning.personalise)
                benefits[name] = check_benefit(benefit, study)
    return benefits


def request_interpretability(
    requests: SiteRequests, header: Mapping[str, Any], names: Sequence[str], model: Vector, study: Study
) -> dict[str, SiteInterpretability | str]:
    """Request interpretability counts from each site; return them, or the reason why there are none.

    Args:
        requests: Sends requests and waits for replies.
        header: The run, its study and its layout.
        names: The sites.
        model: The model.
        study: The study.
    """
    message = _model_message(header, [model], "interpretability")
    replies = requests.request_all(dict.fromkeys(names, message))
    return {name: _parse_interpretability(replies.get(name), name, study) for name in names}


def _parse_interpretability(reply: Message | None, site: str, study: Study) -> SiteInterpretability | str:
    assert study.learning is not None
    section, spec = study.learning.interpretability, study.feature_spec()
    assert section is not None
    if reply is None or reply.reason is not None:
        return "the site did not reply"
    try:
        body = message_body(reply)
        if reason := parse_text(body["reason"]):
            return reason
        result = interpretability_from_row(
            body["interpretability"], section, feature_columns(spec), case_count(spec.label.class_names)
        )
        check_interpretability(result, site, study)
        return replace(
            result,
            counts=expand_counts(result.counts),
            permuted={
                name: [expand_groups(counts) for counts in repeats]
                for name, repeats in result.permuted.items()
            },
        )
    except _ANY_ERROR:
        return INVALID_REPLY


def case_count(classes: Sequence[str]) -> int:
    """Return the number of case classes that a site client expects in replies; none for regression, survival."""
    return len(classes) if len(classes) != 2 else 1


def _model_message(
    header: Mapping[str, Any], models: Sequence[Vector], message_type: str = "evaluate_test"
) -> Message:
    cache = SentModelCache()
    packed = [cache.pack(model, ()) for model in models]
    evaluations = [model_header for model_header, _ in packed]
    attachments = {f"model/{i}": data for i, (_, data) in enumerate(packed)}
    return Message(message_type, {**header, "evaluations": evaluations}, attachments)


def _parse_counts(reply: Message, models: int, site: str, study: Study) -> list[SiteCounts] | None:
    """Parse a site's reply with evaluation counts of each model at the client; None if it is invalid."""
    if reply.reason is not None:
        return None
    try:
        cases = case_count(study.feature_spec().label.class_names)
        counts = [
            expand_counts(check_counts(counts_from_row(rows, cases), site, study))
            for rows in message_body(reply)["counts"]
        ]
    except _ANY_ERROR:
        return None
    return counts if len(counts) == models else None


# ---- requests to all sites at once --------------------------------------------------------------------------------

_POLL_GROWTH, _MAX_POLL_FACTOR = 1.3, 5.0  # the poll interval grows while there are no replies

Admitted = Callable[[], Mapping[int, str]]


@dataclass(slots=True)
class _PendingRequest:
    """Request without a reply so far."""

    message: Message
    waiting_since: float
    message_id: str = ""
    crashes: int = 0


class SiteRequests:
    """Client that sends requests to all sites at once and waits for the replies.

    Args:
        transport: Carries the messages.
        admitted: Returns the site of each admitted node.
        answer_timeout: Seconds after which a message without a reply is given up.
        absence_timeout: Seconds after which an absent node is given up.
        clock: Returns the time in seconds.
        sleep: Waits for a number of seconds.
        poll_seconds: Shortest interval between polls for replies.
    """

    def __init__(
        self,
        transport: MessageTransport,
        admitted: Admitted,
        *,
        answer_timeout: float = 3600.0,
        absence_timeout: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        poll_seconds: float = 0.1,
    ) -> None:
        self._transport, self._admitted = transport, admitted
        self._answer_timeout, self._absence_timeout = answer_timeout, absence_timeout
        self._clock, self._sleep, self._poll_seconds = clock, sleep, poll_seconds

    def connected_sites(self) -> tuple[str, ...]:
        """Return the sites with a connected node that the centre's client can request from, sorted by name."""
        return tuple(sorted(self._nodes()))

    def wait_for_sites(self, min_sites: int) -> tuple[str, ...]:
        """Wait until the centre's client can reach at least this many sites; return all connected sites."""
        while len(sites := self.connected_sites()) < min_sites:
            self._sleep(_MAX_POLL_FACTOR * self._poll_seconds)
        return sites

    def request_all(self, messages: Mapping[str, Message]) -> dict[str, Message]:
        """Send each site a request as its client; return the replies, with a failure code for a site without one."""
        pending = {site: _PendingRequest(message, self._clock()) for site, message in messages.items()}
        replies: dict[str, Message] = {}
        pause = self._poll_seconds
        while pending:
            self._send(pending)
            self._collect(pending, replies)
            for site in [site for site, request in pending.items() if self._is_expired(request)]:
                del pending[site]
                replies[site] = Message("reply", {"reason": TIMEOUT})
            if pending:
                self._sleep(pause)
                pause = min(_POLL_GROWTH * pause, _MAX_POLL_FACTOR * self._poll_seconds)
        return dict(sorted(replies.items()))

    def _nodes(self) -> dict[str, int]:
        admitted = self._admitted()
        return {admitted[node]: node for node in self._transport.nodes() if node in admitted}

    def _send(self, pending: Mapping[str, _PendingRequest]) -> None:
        unsent = [(site, request) for site, request in pending.items() if not request.message_id]
        nodes = self._nodes() if unsent else {}
        for site, request in unsent:
            node = nodes.get(site)
            if node is not None:
                request.message_id = self._transport.send(node, request.message, self._answer_timeout)
                request.waiting_since = self._clock()

    def _collect(self, pending: dict[str, _PendingRequest], replies: dict[str, Message]) -> None:
        sites = {request.message_id: site for site, request in pending.items() if request.message_id}
        received = self._transport.collect(list(sites)) if sites else {}
        for message_id, reply in received.items():
            site = sites[message_id]
            if isinstance(reply, MessageLost) or reply.reason == PROCESS_EXITED:
                pending[site].message_id, pending[site].waiting_since = "", self._clock()
                pending[site].crashes += not isinstance(reply, MessageLost) or reply.code != NODE_GONE
            else:
                del pending[site]
                replies[site] = reply

    def _is_expired(self, request: _PendingRequest) -> bool:
        limit = self._answer_timeout if request.message_id else self._absence_timeout
        return request.crashes > MAX_DEATHS or self._clock() > request.waiting_since + limit
