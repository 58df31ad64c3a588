"""Questions to all sites: lost ones are asked again, those who stay away are given up."""

from __future__ import annotations

from tests.engines.flower.loop import LoopPost

from abaton.engines.base import DIED, LATE
from abaton.engines.flower import Lost, Parcel
from abaton.study_run.site_client import Survey

NODES = {1: "a", 3: "b"}


class Says:
    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, parcel: Parcel) -> Parcel:
        return Parcel("answer", {"site": self.name})


class Clock:
    def __init__(self) -> None:
        self.now, self.then = 0.0, lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


def surveyed(**settings):
    post, clock = LoopPost({node: Says(site) for node, site in NODES.items()}), Clock()
    made = Survey(post, lambda: NODES, clock=lambda: clock.now, sleep=clock.sleep, **settings)
    return post, clock, made


def asked(survey: Survey) -> dict[str, str]:
    answers = survey.ask(dict.fromkeys(("a", "b"), Parcel("read", {})))
    return {name: answer.reason or answer.about["site"] for name, answer in answers.items()}


def test_every_site_is_asked_once():
    post, _, survey = surveyed()
    assert asked(survey) == {"a": "a", "b": "b"}
    assert [node for node, _ in post.sent] == [1, 3]


def test_a_lost_message_is_sent_again():
    post, _, survey = surveyed()
    fates = [Lost(5), Lost(5), Lost(5), Lost(5), Parcel("answer", {"reason": DIED})]
    post.fate = lambda desk, parcel: fates.pop() if fates and desk.name == "b" else None
    assert asked(survey) == {"a": "a", "b": "b"}
    assert len(post.sent) == 7


def test_a_site_whose_processes_keep_ending_is_given_up():
    post, _, survey = surveyed()
    post.fate = lambda desk, parcel: Lost(8) if desk.name == "b" else None
    assert asked(survey) == {"a": "a", "b": LATE}
    assert len(post.sent) == 1 + 4


def test_a_site_that_is_away_is_waited_for_as_long_as_absence_allows():
    post, clock, survey = surveyed(absence=20.0)
    away = post.desks.pop(3)
    clock.then = lambda: post.desks.update({3: away}) if clock.now > 10 else None
    assert asked(survey) == {"a": "a", "b": "b"}
    post.desks.pop(3)
    clock.then = lambda: None
    assert asked(survey) == {"a": "a", "b": LATE}


def test_an_answer_that_does_not_come_is_given_up():
    post, _, survey = surveyed(patience=30.0)
    post.busy = {3}
    assert asked(survey) == {"a": "a", "b": LATE}


def test_a_site_is_there_when_its_node_is():
    post, clock, survey = surveyed()
    away = post.desks.pop(3)
    assert survey.there() == ("a",)
    clock.then = lambda: post.desks.update({3: away})
    assert survey.wait(2) == ("a", "b")
