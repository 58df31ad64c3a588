"""Live updates: one look for all, nothing piles up, nobody looks longer than they may."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from tests.dashboard.told import served, tell

from abaton.dashboard import Dashboard
from abaton.dashboard.response_cache import Cache
from abaton.dashboard.state import Live
from abaton.store import Journal, ModelRow


async def collect(live, run, most, stays=lambda: True):
    made = []
    async for message in live.messages(run, stays):
        made.append(message)
        if len(made) == most:
            break
    return made


def test_viewers_hear_what_happens_and_that_it_has_ended(store):
    tell(store, "r", status="running")
    live = Live(store, pause=0.02)

    async def scene():
        with store.holding("r"):
            viewers = [asyncio.create_task(collect(live, "r", 9)) for _ in range(20)]
            await asyncio.sleep(0.4)
            assert live.viewers == 20
            journal = Journal(store, "r")
            journal.length = journal.known
            journal.append("Left", {"at": 99.0, "learner": "kos"})
            journal.publish(ModelRow(19, 99.0, "d19", {"auroc": 0.99}), updates=19, size=1)
            journal.flush()
            await asyncio.sleep(0.4)
            store.finish_run("r", "finished", {})
            return await asyncio.gather(*viewers)

    heard = asyncio.run(scene())
    assert live.viewers == 0
    for messages in heard:
        states = [json.loads(m.split(b"data: ")[1]) for m in messages if m.startswith(b"event: head")]
        assert [state["version"] for state in states] == [18, 19, 19]
        assert [state["status"] for state in states] == ["running", "running", "finished"]
        assert messages[-1].startswith(b"event: end")
    assert len({messages[0] for messages in heard}) == 1


def test_one_look_serves_everybody(store, monkeypatch):
    tell(store, "r", status="running")
    looks = []
    from abaton.dashboard import state as module

    real = module.head
    monkeypatch.setattr(module, "head", lambda *given: looks.append(1) or real(*given))
    live = Live(store, pause=0.1, patience=0.05)

    async def scene():
        with store.holding("r"):
            viewers = [asyncio.create_task(collect(live, "r", 3)) for _ in range(50)]
            return await asyncio.gather(*viewers)

    heard = asyncio.run(scene())
    assert len(looks) < 10
    assert all(messages[0].startswith(b":") or messages[0].startswith(b"event: head") for messages in heard)


def test_a_slow_viewer_leaves_states_out(store):
    tell(store, "r", status="running")
    live = Live(store, pause=0.01)

    async def scene():
        with store.holding("r"):
            journal = Journal(store, "r")
            journal.length = journal.known
            made = []
            async for message in live.messages("r"):
                made.append(message)
                for _ in range(5):
                    journal.append("Left", {"at": 1.0, "learner": "kos"})
                    journal.flush()
                await asyncio.sleep(0.3)
                if len(made) == 4:
                    return made

    heard = asyncio.run(scene())
    assert len(heard) == 4
    assert all(message.startswith(b"event: head") for message in heard), (
        "what happens meanwhile is not missed"
    )


def test_a_viewer_whose_session_ends_hears_no_more(store):
    tell(store, "r", status="running")
    live = Live(store, pause=0.02, patience=0.02)
    turns = iter([True, True, False])

    async def scene():
        with store.holding("r"):
            return await collect(live, "r", 50, lambda: next(turns))

    assert len(asyncio.run(scene())) <= 4


@pytest.mark.network
def test_a_run_is_heard_over_http_and_too_many_viewers_are_sent_away(store):
    import httpx

    tell(store, "r", status="running")
    dashboard = Dashboard(store, pause=0.05)
    dashboard.live.most = 1
    ended = threading.Timer(1.0, lambda: store.finish_run("r", "finished", {}))
    with (
        served(dashboard) as address,
        store.holding("r"),
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        ended.start()
        with client.stream("GET", "/runs/r/live") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.iter_lines()
            assert next(lines) == "event: head"
            assert client.get("/runs/r/live").status_code == 503
            rest = list(lines)
        assert "event: end" in rest
        assert client.get("/runs/absent/live").status_code == 404


def test_an_answer_is_made_once_and_not_too_often():
    now, made = [0.0], []

    def make():
        made.append(1)
        now[0] += 1.0  # it takes a second
        return b"x%d" % len(made)

    async def scene():
        cache = Cache(2, tick=lambda: now[0])
        first = await asyncio.gather(*(cache.get("a", lambda: 1, make) for _ in range(10)))
        again = await cache.get("a", lambda: 2, make)  # changed, but it was made just now
        now[0] += 25.0
        later = await cache.get("a", lambda: 2, make)
        now[0] += 25.0
        same = await cache.get("a", lambda: 2, make)
        for name in "bcd":
            await cache.get(name, lambda: 1, make)
        assert len(cache._kept) == 2
        return {each.body for each in first}, again.body, later.body, same.body

    assert asyncio.run(scene()) == ({b"x1"}, b"x1", b"x2", b"x2")
