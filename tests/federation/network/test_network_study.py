"""A study over a post: prepared, trained and judged from sums, counts and updates alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import numpy as np
import pytest
from tests.federation.network.loops import Loop

from abaton.engines.flower import Parcel
from abaton.errors import Refused
from abaton.federation import StudyOptions, run_study
from abaton.federation.federation import states_of
from abaton.governance import Registry, metadata
from abaton.learners import Reply, Request
from abaton.site import load_site, open_site, subject_tag
from abaton.site.factory import tags_key
from abaton.store import Database, Journal, Store
from abaton.study_run import FIELDS, Wish
from abaton.study_run.consented_learner import ConsentedLearner
from abaton.study_run.local_benefit import kept_own, own_path
from abaton.study_run.messages import fields_of
from abaton.study_run.site_service import Folder

WISH = Wish(sites=4, seed=5, resamples=0, poll=0.0)


FEW = replace(WISH, sites=3)


@pytest.fixture
def few(rounds):
    """The three smaller hospitals, which are read in half the time: enough where one of them goes wrong."""
    return replace(rounds, sites=[site for site in rounds.sites if site.parent.name != "athens"])


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as opened:
        yield opened


def test_a_network_gives_the_same_digests_and_measures_as_one_machine(rounds, store, tmp_path, monkeypatch):
    """But for the order of rows, which each site draws itself."""
    monkeypatch.setattr(ConsentedLearner, "own_order", False)
    there = Loop(tmp_path, rounds.study, rounds.sites, replace(WISH, resamples=20)).run(store)
    here = run_study(
        rounds.study, rounds.sites, store, StudyOptions(seed=5, resamples=20), now=datetime.now(UTC)
    ).row
    assert there.status == "finished"
    digests = [[model.digest for model in store.models(row.run)] for row in (there, here)]
    assert digests[0] == digests[1]
    assert there.recipe["tables"].keys() == here.recipe["tables"].keys()
    assert there.recipe["tables"] != here.recipe["tables"], "each site has a key of its own for each run"
    assert there.recipe["anonymity"] == here.recipe["anonymity"]
    assert there.result["evaluation"] == here.result["evaluation"]
    assert there.result["explanation"] == here.result["explanation"]
    assert there.result["explanation"]["sites"] == ["athens", "kos", "pergamon", "trikala"]
    assert [each["auroc"] for each in there.result["progress"]] == [
        each["auroc"] for each in here.result["progress"]
    ]
    assert not list((tmp_path / "members").glob("*/*/*.safetensors")), "sites forget a run that has ended"
    assert_own_models_stay(tmp_path / "members", store, there, here)


def assert_own_models_stay(members, store, there, here):
    """What sites make of the community model is told alike, and lies with them: the same as on one machine."""
    assert there.result["personal"] == here.result["personal"]
    models = {(line["site"], line["model"]) for line in there.result["personal"]["lines"]}
    told = [site for site, gain in there.result["evaluation"]["gains"]["sites"].items() if gain is not None]
    assert models == set(product(told, ("own", "community", "recalibrate", "interpolate")))
    assert told
    for site in ("athens", "kos", "pergamon", "trikala"):
        path = own_path(members / site, there.run)
        assert path.stat().st_mode & 0o077 == 0
        for way in ("recalibrate", "interpolate"):
            mine, same = kept_own(path, way), kept_own(own_path(states_of(store, here.run), site), way)
            np.testing.assert_array_equal(
                mine.community, store.vectors.get(store.models(there.run)[-1].digest)
            )
            np.testing.assert_array_equal(mine.tuned, same.tuned)
            assert (mine.weight, mine.line) == (same.weight, same.line)


@pytest.mark.slow
def test_an_asynchronous_run_with_consents_goes_from_records_to_a_judged_model(four, store, tmp_path):
    loop = Loop(tmp_path, four.study, four.sites, WISH)
    row = loop.run(store)
    assert row.status == "finished"
    arrived = [body for kind, body in Journal(store, row.run).rows() if kind == "Arrived"]
    assert all(len(body["cohort"]) == 64 for body in arrived)
    assert {line["subset"] for line in row.result["evaluation"]["lines"]} >= {"all sites", "kos"}
    assert not any("Patient/" in json.dumps(part) for part in (row.recipe, row.result))


class Board:
    """A site's policy that refuses one kind of question, before work or after it."""

    def __init__(self, kind: str, *, after: bool) -> None:
        self.kind, self.after, self.asked = kind, after, []

    def admits(self, asked: Request) -> None:
        self.asked.append(asked.kind)
        if asked.kind == self.kind and not self.after:
            raise Refused("the board of St Elsewhere has not met")

    def releases(self, asked: Request, reply: Reply) -> Reply:
        if asked.kind == self.kind and self.after:
            raise Refused("the board of St Elsewhere has not met")
        return reply


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["read", "deal", "scale"])
def test_a_question_that_a_sites_policy_refuses_leaves_the_site_out(
    few, store, tmp_path, caplog, kind, after
):
    loop, board = Loop(tmp_path, few.study, few.sites, FEW), Board(kind, after=after)
    for desk in loop.post.desks.values():
        if desk.name == "kos":
            desk.policy = board
    row = loop.run(store)
    assert row.status == "finished"
    assert row.recipe["left_out"] == {"kos": "task was refused"}
    assert "the board of St Elsewhere has not met" in caplog.text, "the site's own log says why"
    assert "Elsewhere" not in json.dumps([row.recipe, row.result, loop.said])


def test_every_question_of_a_run_is_put_to_the_sites_policy(few, store, tmp_path):
    loop, board = Loop(tmp_path, few.study, few.sites, FEW), Board("nothing", after=False)
    for desk in loop.post.desks.values():
        desk.policy = board
    assert loop.run(store).status == "finished"
    assert {parcel.kind for _, parcel in loop.post.sent} == set(board.asked)


@pytest.mark.parametrize("after", [False, True])
def test_a_training_that_a_sites_policy_refuses_is_a_failed_task(few, store, tmp_path, after):
    loop = Loop(tmp_path, few.study, few.sites, FEW)
    for desk in loop.post.desks.values():
        if desk.name == "kos":
            desk.policy = Board("train", after=after)
    row = loop.run(store)
    rows = list(Journal(store, row.run).rows())
    assert {body["reason"] for kind, body in rows if kind == "Failed"} == {"task was refused"}
    assert {body["learner"] for kind, body in rows if kind == "Failed"} == {"kos"}
    assert "kos" not in {body["learner"] for kind, body in rows if kind == "Arrived"}
    assert "Elsewhere" not in json.dumps(rows)


class Cut(Exception):
    """The power went."""


def test_a_run_that_was_cut_off_is_gone_on_with(four, store, tmp_path):
    loop = Loop(tmp_path, four.study, four.sites, WISH)
    trained = []

    def fate(desk, parcel):
        if parcel.kind == "train":
            trained.append(desk.name)
            if len(trained) == 9:
                raise Cut

    loop.post.fate = fate
    with pytest.raises(Cut):
        loop.run(store)
    row = loop.run(store)
    assert row.status == "finished"
    assert [each.run for each in store.runs()] == [row.run]
    assert f"run {row.run} is resumed" in loop.said


def test_who_withdraws_is_out_of_the_file_too(four, store, tmp_path):
    loop = Loop(tmp_path, four.study, four.sites, WISH)
    registry = Registry(Database(four.sites[0].parent / "consents.db", metadata))
    sizes, left, stayed = [], set(), []
    file = load_site(four.sites[0])

    def fate(desk, parcel):
        if parcel.kind != "train" or desk.name != "athens":
            return
        for path in (tmp_path / "members" / "athens").glob("*/member.*"):
            sizes.append(path.stat().st_size)
            if len(sizes) == 2:
                left.update(list(registry.subjects(four.study.study.id))[:20])
                for person in left:
                    registry.withdraw(person, four.study.study.id, datetime.now(UTC))
            if (
                len(sizes) > 3
            ):  # the task after they left has been done: ids, test rows and groups are gone, too
                member = Folder(path.parent).kept(file).member
                stayed.append({subject_tag(tags_key(file), patient) for patient in member.people.values()})
                assert set(member.everybody) <= set(member.people)
                assert all(len(of) == len(member.test.subjects) for of in member.groups.values())

    loop.post.fate = fate
    row = loop.run(store)
    assert row.status == "finished"
    examples = [
        body["examples"]
        for kind, body in Journal(store, row.run).rows()
        if kind == "Arrived" and body["learner"] == "athens"
    ]
    assert examples[0] > examples[-1]
    assert sizes[-1] < sizes[0]
    assert len(left) == 20
    assert stayed
    assert not left & set().union(*stayed)


def test_every_answer_holds_listed_fields_only_and_every_listed_field_is_used(rounds, store, tmp_path):
    loop = Loop(tmp_path, rounds.study, rounds.sites, replace(WISH, resamples=20))
    standing = {
        "value": [0.7, 0.6, 0.8],
        "over_own": [0, 0, 0],
        "over_community": [0, 0, 0],
        "chosen": {"row 7": 1},
    }
    said = {"why": "", "gain": {"own": standing, "community": standing}}
    spoilt = Parcel("answer", {"holds": []}, {"body": json.dumps(said).encode()})
    loop.post.fate = lambda desk, parcel: spoilt if (desk.name, parcel.kind) == ("kos", "gain") else None
    seen: dict[str, set[str]] = {}

    class Listening:
        nodes, collect, silence = loop.post.nodes, loop.post.collect, loop.post.silence

        def send(self, node: int, parcel: Parcel, ttl: float) -> str:
            letter = loop.post.send(node, parcel, ttl)
            seen.setdefault(parcel.kind, set()).update(fields_of(loop.post.answers[letter]))
            return letter

    row = loop.run(store, Listening())
    assert set(row.result["evaluation"]["gains"]["sites"]) == {"athens", "pergamon", "trikala"}
    assert all(names <= set(FIELDS[kind]) for kind, names in seen.items())
    assert {kind: set(FIELDS[kind]) for kind in seen} == seen
    assert set(seen) == set(FIELDS) - {"tell"}


def test_no_name_id_pseudonym_or_record_is_in_any_answer(rounds, store, tmp_path):
    canaries = {b'"resourceType"', b"Canaria-Serinus"}
    for path in rounds.sites:
        file = path.parent / "Patient.ndjson"
        patients = [json.loads(line) for line in file.read_text().splitlines()]
        for patient in patients:
            patient["name"] = [{"family": "Canaria-Serinus"}]
        file.write_text("".join(json.dumps(patient) + "\n" for patient in patients))
        site = open_site(load_site(path), rounds.study, datetime.now(UTC))
        site.table()
        for key, person in site.people.items():
            canaries |= {key.removeprefix("Patient/").encode(), person.encode()}
    loop, said = Loop(tmp_path, rounds.study, rounds.sites, WISH), bytearray()

    class Listening:
        nodes, collect, silence = loop.post.nodes, loop.post.collect, loop.post.silence

        def send(self, node: int, parcel: Parcel, ttl: float) -> str:
            letter = loop.post.send(node, parcel, ttl)
            answer = loop.post.answers[letter]
            said.extend(json.dumps(answer.about).encode())
            said.extend(b"".join(answer.blobs.values()))
            return letter

    loop.run(store, Listening())
    assert len(canaries) > 100
    assert not [canary for canary in canaries if canary in said]


@pytest.mark.parametrize(
    ("kind", "answer", "why"),
    [
        ("read", Parcel("answer", {}, {"body": b"rubbish"}), "unreadable answer"),
        ("read", Parcel("answer", {"reason": "other terms"}), "other terms"),
        ("read", Parcel("answer", {}, {"body": b'{"told": {"x": 1}, "problem": ""}'}), "unreadable answer"),
        (
            "deal",
            Parcel("answer", {}, {"body": b'{"problem": "", "sums": {"columns": {}}}'}),
            "unreadable answer",
        ),
        ("deal", Parcel("answer", {}, {"body": b'{"problem": "too few"}'}), "too few"),
        ("scale", Parcel("answer", {}, {"body": b'{"table": "x"}'}), "unreadable answer"),
        ("scale", Parcel("answer", {}, {"body": b"[" * 100_000}), "unreadable answer"),
    ],
)
def test_a_site_that_answers_rubbish_is_left_out_and_the_others_go_on(
    few, store, tmp_path, kind, answer, why
):
    loop = Loop(tmp_path, few.study, few.sites, FEW)
    loop.post.fate = lambda desk, parcel: answer if (desk.name, parcel.kind) == ("kos", kind) else None
    row = loop.run(store)
    assert row.status == "finished"
    assert row.recipe["left_out"] == {"kos": why}
    assert set(row.recipe["tables"]) == {"pergamon", "trikala"}


def test_too_few_sites_are_refused(rounds, store, tmp_path):
    loop = Loop(tmp_path, rounds.study, rounds.sites, WISH)
    loop.post.fate = lambda desk, parcel: (
        None if desk.name == "kos" else Parcel("answer", {"reason": "another study"})
    )
    with pytest.raises(Refused, match="1 of 4 sites can take part"):
        loop.run(store)
    assert store.runs() == []


def test_a_judgement_that_is_not_readable_is_not_counted(few, store, tmp_path):
    loop = Loop(tmp_path, few.study, few.sites, FEW)
    spoilt = Parcel("answer", {}, {"body": b'{"told": [[["all sites", "all", [[[9999, 1, 1]]]]]]}'})
    loop.post.fate = lambda desk, parcel: spoilt if (desk.name, parcel.kind) == ("kos", "judge") else None
    row = loop.run(store)
    (line,) = [each for each in row.result["evaluation"]["lines"] if each["of"] == "all"]
    assert line["sites"] == 2


@pytest.mark.parametrize(
    "spoilt", [b"{}", b'{"why": "", "explained": {"subjects": 9, "told": [], "shuffled": {}, "means": {}}}']
)
def test_an_explanation_that_is_not_readable_is_left_out(rounds, store, tmp_path, spoilt):
    loop = Loop(tmp_path, rounds.study, rounds.sites, WISH)
    other = Parcel("answer", {}, {"body": spoilt})
    loop.post.fate = lambda desk, parcel: other if (desk.name, parcel.kind) == ("kos", "explain") else None
    told = loop.run(store).result["explanation"]
    assert told["left_out"] == {"kos": "unreadable answer"}
    assert told["sites"] == ["athens", "pergamon", "trikala"]
    assert told["importance"]
