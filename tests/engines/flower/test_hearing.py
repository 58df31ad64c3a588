"""A silent network is noticed, once."""

from __future__ import annotations

from tests.engines.flower.loop import LoopPost

from abaton.control import Noted
from abaton.engines.flower import FlowerEngine, Network
from abaton.engines.flower.hearing import Heard


def test_how_long_the_network_was_silent_is_told_once():
    times = iter([0.0, 1.0, 10.0, 17.0, 20.0, 20.1])
    post = Heard(LoopPost({}), lambda: next(times))
    post.nodes()
    assert post.silence() == 0.0, "a second is not long"
    post.collect([])
    assert post.silence() == 7.0
    assert post.send(1, None, 1.0) == ""
    assert post.silence() == 0.0


def test_the_journal_tells_that_the_network_was_silent():
    now = [0.0]

    class Slow(LoopPost):
        def nodes(self):
            now[0] += 30.0
            return super().nodes()

    engine = FlowerEngine(
        Slow({}), Network("run", "layout"), keep=lambda data: "", check=lambda *_: None, clock=lambda: now[0]
    )
    (event,) = engine.events()
    assert isinstance(event, Noted)
    assert event.what == "the network did not answer for 30 s"
