"""Requests to all sites: lost messages are sent again, absent sites are given up."""

from __future__ import annotations

from tests.engines.flower.loopback import LoopbackTransport

from abaton.engines.base import PROCESS_EXITED, TIMEOUT
from abaton.engines.flower import Message, MessageLost
from abaton.study_run.site_client import SiteRequests

NODES = {1: "a", 3: "b"}


class NamedSite:
    def __init__(self, name: str) -> None:
        self.name = name

    def reply(self, message: Message) -> Message:
        return Message("reply", {"site": self.name})


class Clock:
    def __init__(self) -> None:
        self.now, self.then = 0.0, lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


def make_requests(**settings):
    transport, clock = LoopbackTransport({node: NamedSite(site) for node, site in NODES.items()}), Clock()
    requests = SiteRequests(transport, lambda: NODES, clock=lambda: clock.now, sleep=clock.sleep, **settings)
    return transport, clock, requests


def replies_of(requests: SiteRequests) -> dict[str, str]:
    replies = requests.request_all(dict.fromkeys(("a", "b"), Message("ingest", {})))
    return {name: reply.reason or reply.header["site"] for name, reply in replies.items()}


def test_every_site_receives_one_request():
    transport, _, requests = make_requests()
    assert replies_of(requests) == {"a": "a", "b": "b"}
    assert [node for node, _ in transport.sent] == [1, 3]


def test_a_lost_message_is_sent_again():
    transport, _, requests = make_requests()
    planned = [
        MessageLost(5),
        MessageLost(5),
        MessageLost(5),
        MessageLost(5),
        Message("reply", {"reason": PROCESS_EXITED}),
    ]
    transport.intercept = lambda service, message: planned.pop() if planned and service.name == "b" else None
    assert replies_of(requests) == {"a": "a", "b": "b"}
    assert len(transport.sent) == 7


def test_a_site_with_repeated_crashes_is_given_up():
    transport, _, requests = make_requests()
    transport.intercept = lambda service, message: MessageLost(8) if service.name == "b" else None
    assert replies_of(requests) == {"a": "a", "b": TIMEOUT}
    assert len(transport.sent) == 1 + 4


def test_an_absent_site_is_waited_for_until_the_absence_timeout():
    transport, clock, requests = make_requests(absence_timeout=20.0)
    away = transport.workers.pop(3)
    clock.then = lambda: transport.workers.update({3: away}) if clock.now > 10 else None
    assert replies_of(requests) == {"a": "a", "b": "b"}
    transport.workers.pop(3)
    clock.then = lambda: None
    assert replies_of(requests) == {"a": "a", "b": TIMEOUT}


def test_a_missing_reply_times_out():
    transport, _, requests = make_requests(answer_timeout=30.0)
    transport.busy = {3}
    assert replies_of(requests) == {"a": "a", "b": TIMEOUT}


def test_a_site_is_connected_when_its_node_is():
    transport, clock, requests = make_requests()
    away = transport.workers.pop(3)
    assert requests.connected_sites() == ("a",)
    clock.then = lambda: transport.workers.update({3: away})
    assert requests.wait_for_sites(2) == ("a", "b")
