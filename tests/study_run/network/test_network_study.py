"""A network study: prepared, trained and evaluated from sums, counts and updates only."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import numpy as np
import pytest
from tests.study_run.network.network_loopback import Loop

from abaton.engines.flower import Message
from abaton.errors import RefusedError, SettingsError
from abaton.federation.federation import state_folder
from abaton.governance import ConsentRegistry, metadata
from abaton.learners import SiteReply, SiteRequest
from abaton.report.pages import render_run_report, render_site_report
from abaton.report.run_report import make_run_report
from abaton.site import build_site, load_site, subject_pseudonym
from abaton.site.factory import registry_key
from abaton.store import Database, Journal, Store
from abaton.study_run import FIELDS, NetworkRunOptions, StudyOptions, evaluation, run_study, site_service
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.local_benefit import load_personal_model, personal_models_path
from abaton.study_run.messages import field_names
from abaton.study_run.site_report import read_site_report, site_report_path
from abaton.study_run.site_run_state import SiteRunFolder

OPTIONS = NetworkRunOptions(min_sites=4, seed=5, bootstrap_resamples=0, poll_seconds=0.0)


THREE_SITES = replace(OPTIONS, min_sites=3)


@pytest.fixture(scope="module", autouse=True)
def _small_sites_contribute():
    """Let the small hospitals of these tests contribute to results of all sites: with `min_cell_count` cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_CONTRIBUTION_FACTOR", 1)
        yield


@pytest.fixture
def three_sites(rounds):
    """Return the three smaller hospitals, which are read in half the time."""
    return replace(rounds, sites=[site for site in rounds.sites if site.parent.name != "athens"])


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def test_a_network_gives_the_same_digests_and_site_metrics_as_one_machine(
    rounds, store, tmp_path, monkeypatch
):
    """With a common order of rows, which otherwise depends on a secret of each site.

    What a site computes itself is equal. Over all sites one machine has exact counts, and a network merges subjects
    into groups of five: of 18 to 74 test subjects of a site this changes the AUROC by up to .1.
    """
    monkeypatch.setattr(ConsentedLearner, "has_secret_order", False)
    there = Loop(tmp_path, rounds.study, rounds.sites, replace(OPTIONS, bootstrap_resamples=20)).run(store)
    here = run_study(
        rounds.study, rounds.sites, store, StudyOptions(seed=5, bootstrap_resamples=20), now=datetime.now(UTC)
    ).row
    assert there.status == "finished"
    digests = [[model.digest for model in store.models(row.run)] for row in (there, here)]
    assert digests[0] == digests[1]
    assert there.recipe["tables"].keys() == here.recipe["tables"].keys()
    assert there.recipe["tables"] != here.recipe["tables"], "each site has its own key for each run"
    assert there.recipe["anonymity"] == here.recipe["anonymity"]
    assert_same_evaluation(there.result["evaluation"], here.result["evaluation"])
    assert there.result["interpretability"]["sites"] == ["athens", "kos", "pergamon", "trikala"]
    for key in ("metric", "sites", "excluded_sites", "partial_dependence", "coefficients"):
        assert there.result["interpretability"][key] == here.result["interpretability"][key]
    assert [point["auroc"] for point in there.result["progress"]] == pytest.approx(
        [point["auroc"] for point in here.result["progress"]], abs=0.1
    )
    assert not list((tmp_path / "sites").glob("*/*/*.safetensors")), "sites delete the rows of a finished run"
    assert_own_models_stay(tmp_path / "sites", store, there, here)
    assert_own_reports_stay(tmp_path / "sites", there, here)


def assert_own_reports_stay(sites_folder, there, here):
    """Each site has its own report, which only it can read, with the exact numbers of one machine."""
    exact = {row["group"]: row for row in here.result["evaluation"]["rows"]}
    for site, pair in here.result["evaluation"]["local_benefit"]["sites"].items():
        path = site_report_path(sites_folder / site, there.run)
        assert path.stat().st_mode & 0o777 == 0o600
        report = read_site_report(sites_folder / site, there.run)
        (row,) = [row for row in report["rows"] if row["group"] == site]
        assert row["subjects"] == exact[site]["subjects"]
        if pair:
            assert row["metrics"]["auroc"] == exact[site]["metrics"]["auroc"]
        at_site = report["performance"]["heterogeneity"]["sites"][site]
        assert at_site == here.result["performance"]["heterogeneity"]["sites"][site]
        described = here.result["cohort_description"]
        assert report["characteristics"]["sites"] == {site: described["characteristics"]["sites"][site]}
        page = render_site_report(report)
        assert "Events per parameter" in page
        assert site in page
    with pytest.raises(SettingsError, match="has no report"):
        read_site_report(sites_folder, "another run")


def assert_same_evaluation(network, machine):
    # The mean over sites needs standard errors, which stay at the sites.
    assert network["local_benefit"] == {k: v for k, v in machine["local_benefit"].items() if k != "overall"}
    assert machine["local_benefit"]["overall"]["sites"] >= 2
    assert (network["is_exact"], machine["is_exact"]) == (False, True)
    rows, exact = ({row["group"]: row for row in part["rows"]} for part in (network, machine))
    assert rows["all sites"]["metrics"]["auroc"]["value"] == pytest.approx(
        exact["all sites"]["metrics"]["auroc"]["value"], abs=0.1
    )
    sites = [site for site, pair in network["local_benefit"]["sites"].items() if pair]
    assert sites
    for site in sites:
        auroc = rows[site]["metrics"]["auroc"]
        assert (
            auroc == exact[site]["metrics"]["auroc"] == network["local_benefit"]["sites"][site]["community"]
        )


def test_small_sites_release_no_counts_and_have_their_own_metric(rounds, store, tmp_path, monkeypatch):
    """Below 15 cases a site is in no result of several sites; its local benefit is its row."""
    monkeypatch.setattr(evaluation, "_CONTRIBUTION_FACTOR", 3)
    released = []

    def intercept(service, message):
        reply = service.reply(message)
        if message.message_type == "evaluate_test":
            released.extend(json.loads(reply.attachments["body"])["counts"])
        return reply

    loop = Loop(tmp_path, rounds.study, rounds.sites, replace(OPTIONS, bootstrap_resamples=20))
    loop.transport.intercept = intercept
    row = loop.run(store)
    sizes = [
        [sum(bin_counts[i] for bin_counts in histogram) for i in (1, 2)]
        for model_counts in released
        for _, _, histograms in model_counts
        for histogram in histograms
    ]
    assert sizes
    assert all(min(pair) >= 15 or pair == [0, 0] for pair in sizes), "never controls without their cases"
    rows = {line["group"]: line for line in row.result["evaluation"]["rows"]}
    pairs = row.result["evaluation"]["local_benefit"]["sites"]
    without_counts = [site for site, pair in pairs.items() if pair and rows[site]["subjects"] == "–"]
    assert without_counts
    for site in without_counts:
        assert rows[site]["metrics"] == {"auroc": pairs[site]["community"]}
        assert rows["all sites"]["sites"] <= len(pairs) - len(without_counts)
    page = render_run_report(make_run_report(row, []))
    assert "as many controls" in page
    assert row.result["evaluation"]["recalibration"]["community"]["status"] == "not released"
    assert "Recalibration of log odds: not released" in page


def assert_own_models_stay(sites_folder, store, there, here):
    """Personal models are reported alike and stored at the sites: the same as on one machine."""
    there_rows, here_rows = (
        [{k: v for k, v in line.items() if k != "subjects"} for line in row.result["personal_models"]["rows"]]
        for row in (there, here)
    )
    assert there_rows == here_rows
    models = {(row["site"], row["model"]) for row in there.result["personal_models"]["rows"]}
    sites = [
        site
        for site, gain in there.result["evaluation"]["local_benefit"]["sites"].items()
        if gain is not None
    ]
    assert models == set(product(sites, ("local_only", "community", "recalibrate", "interpolate")))
    assert sites
    for site in ("athens", "kos", "pergamon", "trikala"):
        path = personal_models_path(sites_folder / site, there.run)
        assert path.stat().st_mode & 0o077 == 0
        for method in ("recalibrate", "interpolate"):
            remote, local = (
                load_personal_model(path, method),
                load_personal_model(personal_models_path(state_folder(store, here.run), site), method),
            )
            np.testing.assert_array_equal(
                remote.community, store.model_files.get(store.models(there.run)[-1].digest)
            )
            np.testing.assert_array_equal(remote.fine_tuned, local.fine_tuned)
            assert (remote.weight, remote.calibration) == (local.weight, local.calibration)


@pytest.mark.slow
def test_an_asynchronous_run_with_consents_goes_from_records_to_an_evaluated_model(four, store, tmp_path):
    loop = Loop(tmp_path, four.study, four.sites, replace(OPTIONS, bootstrap_resamples=20))
    row = loop.run(store)
    assert row.status == "finished"
    updates = [body for kind, body in Journal(store, row.run).rows() if kind == "update_received"]
    assert all(len(body["cohort"]) == 64 for body in updates)
    assert {line["group"] for line in row.result["evaluation"]["rows"]} >= {"all sites", "athens"}
    assert not any("Patient/" in json.dumps(part) for part in (row.recipe, row.result))


class RefusingPolicy:
    """Site policy that refuses one message type, before or after the work."""

    def __init__(self, message_type: str, *, after: bool) -> None:
        self.message_type, self.after, self.requests = message_type, after, []

    def admit(self, request: SiteRequest) -> None:
        self.requests.append(request.message_type)
        if request.message_type == self.message_type and not self.after:
            raise RefusedError("the ethics board has not met")

    def release(self, request: SiteRequest, reply: SiteReply) -> SiteReply:
        if request.message_type == self.message_type and self.after:
            raise RefusedError("the ethics board has not met")
        return reply


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("message_type", ["ingest", "split", "scale"])
def test_a_refused_preparation_request_excludes_the_site(
    three_sites, store, tmp_path, caplog, message_type, after
):
    loop, policy = (
        Loop(tmp_path, three_sites.study, three_sites.sites, THREE_SITES),
        RefusingPolicy(message_type, after=after),
    )
    for service in loop.transport.workers.values():
        if service.name == "kos":
            service.policy = policy
    row = loop.run(store)
    assert row.status == "finished"
    assert row.recipe["excluded_sites"] == {"kos": "refused"}
    assert "the ethics board has not met" in caplog.text, "the reason is in the site's log"
    assert "ethics" not in json.dumps([row.recipe, row.result, loop.log])


def test_every_request_of_a_run_passes_the_site_policy(three_sites, store, tmp_path):
    loop, policy = (
        Loop(tmp_path, three_sites.study, three_sites.sites, THREE_SITES),
        RefusingPolicy("nothing", after=False),
    )
    for service in loop.transport.workers.values():
        service.policy = policy
    assert loop.run(store).status == "finished"
    assert {message.message_type for _, message in loop.transport.sent} == set(policy.requests)


@pytest.mark.parametrize("after", [False, True])
def test_a_training_refused_by_the_site_policy_is_a_failed_task(three_sites, store, tmp_path, after):
    loop = Loop(tmp_path, three_sites.study, three_sites.sites, THREE_SITES)
    for service in loop.transport.workers.values():
        if service.name == "kos":
            service.policy = RefusingPolicy("train", after=after)
    row = loop.run(store)
    rows = list(Journal(store, row.run).rows())
    assert {body["reason"] for kind, body in rows if kind == "task_failed"} == {"refused"}
    assert {body["learner"] for kind, body in rows if kind == "task_failed"} == {"kos"}
    assert "kos" not in {body["learner"] for kind, body in rows if kind == "update_received"}
    assert "ethics" not in json.dumps(rows)


class PowerCut(Exception):
    """Simulated power cut."""


def test_an_interrupted_network_run_is_resumed(four, store, tmp_path):
    loop = Loop(tmp_path, four.study, four.sites, OPTIONS)
    trained = []

    def intercept(service, message):
        if message.message_type == "train":
            trained.append(service.name)
            if len(trained) == 9:
                raise PowerCut

    loop.transport.intercept = intercept
    with pytest.raises(PowerCut):
        loop.run(store)
    row = loop.run(store)
    assert row.status == "finished"
    assert [run.run for run in store.runs()] == [row.run]
    assert f"run {row.run} is resumed" in loop.log


def test_withdrawn_subjects_are_deleted_from_the_stored_rows(four, store, tmp_path):
    loop = Loop(tmp_path, four.study, four.sites, OPTIONS)
    registry = ConsentRegistry(Database(four.sites[0].parent / "consents.db", metadata))
    sizes, withdrawn, remaining = [], set(), []
    file = load_site(four.sites[0])

    def intercept(service, message):
        if message.message_type != "train" or service.name != "athens":
            return
        for path in (tmp_path / "sites" / "athens").glob("*/preparation.*"):
            sizes.append(path.stat().st_size)
            if len(sizes) == 2:
                withdrawn.update(list(registry.subjects(four.study.study.id))[:20])
                for pseudonym in withdrawn:
                    registry.withdraw(pseudonym, four.study.study.id, datetime.now(UTC))
            if len(sizes) > 3:  # the next task is done: ids, test rows and groups are deleted as well
                site = SiteRunFolder(path.parent).load_preparation(file).site
                remaining.append(
                    {subject_pseudonym(registry_key(file), patient) for patient in site.patient_ids.values()}
                )
                assert set(site.all_subjects) <= set(site.patient_ids)
                assert all(len(labels) == len(site.test.subjects) for labels in site.groups.values())

    loop.transport.intercept = intercept
    row = loop.run(store)
    assert row.status == "finished"
    examples = [
        body["examples"]
        for kind, body in Journal(store, row.run).rows()
        if kind == "update_received" and body["learner"] == "athens"
    ]
    assert examples[0] > examples[-1]
    assert sizes[-1] < sizes[0]
    assert len(withdrawn) == 20
    assert remaining
    assert not withdrawn & set().union(*remaining)


def test_replies_contain_exactly_the_listed_fields(rounds, store, tmp_path):
    loop = Loop(tmp_path, rounds.study, rounds.sites, replace(OPTIONS, bootstrap_resamples=20))
    benefit = {
        "value": [0.7, 0.6, 0.8],
        "gain_over_local_only": [0, 0, 0],
        "gain_over_community": [0, 0, 0],
        "selected": {"row 7": 1},
    }
    body = {"reason": "", "benefits": {"local_only": benefit, "community": benefit}}
    invalid = Message("reply", {"held_models": []}, {"body": json.dumps(body).encode()})
    loop.transport.intercept = lambda service, message: (
        invalid if (service.name, message.message_type) == ("kos", "local_benefit") else None
    )
    seen: dict[str, set[str]] = {}

    class RecordingTransport:
        nodes, collect, silence = loop.transport.nodes, loop.transport.collect, loop.transport.silence

        def send(self, node: int, message: Message, ttl: float) -> str:
            message_id = loop.transport.send(node, message, ttl)
            seen.setdefault(message.message_type, set()).update(
                field_names(loop.transport.replies[message_id])
            )
            return message_id

    row = loop.run(store, RecordingTransport())
    assert set(row.result["evaluation"]["local_benefit"]["sites"]) == {"athens", "pergamon", "trikala"}
    assert all(names <= set(FIELDS[kind]) for kind, names in seen.items())
    assert {kind: set(FIELDS[kind]) for kind in seen} == seen
    assert set(seen) == set(FIELDS) - {"progress"}


def test_no_reply_contains_a_name_id_pseudonym_or_record(rounds, store, tmp_path):
    canaries = {b'"resourceType"', b"Canaria-Serinus"}
    for path in rounds.sites:
        file = path.parent / "Patient.ndjson"
        patients = [json.loads(line) for line in file.read_text().splitlines()]
        for patient in patients:
            patient["name"] = [{"family": "Canaria-Serinus"}]
        file.write_text("".join(json.dumps(patient) + "\n" for patient in patients))
        site = build_site(load_site(path), rounds.study, datetime.now(UTC))
        site.table()
        for key, patient_id in site.patient_ids.items():
            canaries |= {key.removeprefix("Patient/").encode(), patient_id.encode()}
    loop, sent = Loop(tmp_path, rounds.study, rounds.sites, OPTIONS), bytearray()

    class RecordingTransport:
        nodes, collect, silence = loop.transport.nodes, loop.transport.collect, loop.transport.silence

        def send(self, node: int, message: Message, ttl: float) -> str:
            message_id = loop.transport.send(node, message, ttl)
            reply = loop.transport.replies[message_id]
            sent.extend(json.dumps(reply.header).encode())
            sent.extend(b"".join(reply.attachments.values()))
            return message_id

    loop.run(store, RecordingTransport())
    assert len(canaries) > 100
    assert not [canary for canary in canaries if canary in sent]


@pytest.mark.parametrize(
    ("message_type", "reply", "reason"),
    [
        ("ingest", Message("reply", {}, {"body": b"rubbish"}), "invalid_reply"),
        ("ingest", Message("reply", {"reason": "study_mismatch"}), "study_mismatch"),
        (
            "ingest",
            Message("reply", {}, {"body": b'{"cohort_report": {"x": 1}, "problem": ""}'}),
            "invalid_reply",
        ),
        (
            "split",
            Message("reply", {}, {"body": b'{"problem": "", "sums": {"columns": {}}}'}),
            "invalid_reply",
        ),
        ("split", Message("reply", {}, {"body": b'{"problem": "too few"}'}), "too few"),
        ("scale", Message("reply", {}, {"body": b'{"table": "x"}'}), "invalid_reply"),
        ("scale", Message("reply", {}, {"body": b"[" * 100_000}), "invalid_reply"),
    ],
)
def test_a_site_with_an_invalid_reply_is_excluded(three_sites, store, tmp_path, message_type, reply, reason):
    loop = Loop(tmp_path, three_sites.study, three_sites.sites, THREE_SITES)
    loop.transport.intercept = lambda service, message: (
        reply if (service.name, message.message_type) == ("kos", message_type) else None
    )
    row = loop.run(store)
    assert row.status == "finished"
    assert row.recipe["excluded_sites"] == {"kos": reason}
    assert set(row.recipe["tables"]) == {"pergamon", "trikala"}


def test_sites_whose_unweighted_counts_are_biased_do_not_take_part(rounds, store, tmp_path, monkeypatch):
    monkeypatch.setattr(site_service, "MAX_RISK_RATIO", 0.5)
    with pytest.raises(RefusedError, match="follow-up too short for the outcome window"):
        Loop(tmp_path, rounds.study, rounds.sites, OPTIONS).run(store)


def test_too_few_sites_are_refused(rounds, store, tmp_path):
    loop = Loop(tmp_path, rounds.study, rounds.sites, OPTIONS)
    loop.transport.intercept = lambda service, message: (
        None if service.name == "kos" else Message("reply", {"reason": "study_mismatch"})
    )
    with pytest.raises(RefusedError, match="1 of 4 sites can take part"):
        loop.run(store)
    assert store.runs() == []


def test_invalid_evaluation_counts_are_ignored(three_sites, store, tmp_path):
    loop = Loop(tmp_path, three_sites.study, three_sites.sites, THREE_SITES)
    invalid = Message("reply", {}, {"body": b'{"counts": [[["all sites", "all", [[[9999, 1, 1]]]]]]}'})
    loop.transport.intercept = lambda service, message: (
        invalid if (service.name, message.message_type) == ("kos", "evaluate_test") else None
    )
    row = loop.run(store)
    (evaluation,) = [
        evaluated for evaluated in row.result["evaluation"]["rows"] if evaluated["grouping"] == "all"
    ]
    assert evaluation["sites"] <= 2, "kos does not contribute"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"reason": "", "interpretability": {"subjects": 9, "counts": [], "permuted": {}, "means": {}}}',
    ],
)
def test_invalid_interpretability_counts_exclude_the_site(rounds, store, tmp_path, body):
    loop = Loop(tmp_path, rounds.study, rounds.sites, OPTIONS)
    invalid = Message("reply", {}, {"body": body})
    loop.transport.intercept = lambda service, message: (
        invalid if (service.name, message.message_type) == ("kos", "interpretability") else None
    )
    interpretability = loop.run(store).result["interpretability"]
    assert interpretability["excluded_sites"] == {"kos": "invalid_reply"}
    assert interpretability["sites"] == ["athens", "pergamon", "trikala"]
    assert interpretability["importance"]
