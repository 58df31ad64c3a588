"""Live updates: one poll for all viewers, no queue, and the end of sessions."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from tests.dashboard.example_store import serve_in_thread, write_run

from abaton.dashboard import DashboardState
from abaton.dashboard.response_cache import ResponseCache
from abaton.dashboard.state import LiveUpdates
from abaton.store import Journal, ModelRow


async def collect(live, run, limit, is_valid=lambda: True):
    messages = []
    async for message in live.messages(run, is_valid):
        messages.append(message)
        if len(messages) == limit:
            break
    return messages


def test_viewers_receive_states_and_the_end(store):
    write_run(store, "r", status="running")
    live = LiveUpdates(store, poll_seconds=0.02)

    async def scene():
        with store.lock_run("r"):
            viewers = [asyncio.create_task(collect(live, "r", 9)) for _ in range(20)]
            await asyncio.sleep(0.4)
            assert live.viewers == 20
            journal = Journal(store, "r")
            journal.length = journal.stored_events
            journal.append("learner_left", {"timestamp": 99.0, "learner": "kos"})
            journal.publish(ModelRow(19, 99.0, "d19", {"auroc": 0.99}), updates=19, size=1)
            journal.flush()
            await asyncio.sleep(0.4)
            store.finish_run("r", "finished", {})
            return await asyncio.gather(*viewers)

    messages_by_viewer = asyncio.run(scene())
    assert live.viewers == 0
    for messages in messages_by_viewer:
        states = [json.loads(m.split(b"data: ")[1]) for m in messages if m.startswith(b"event: state")]
        assert [state["version"] for state in states] == [18, 19, 19]
        assert [state["status"] for state in states] == ["running", "running", "finished"]
        assert messages[-1].startswith(b"event: end")
    assert len({messages[0] for messages in messages_by_viewer}) == 1


def test_one_poll_serves_all_viewers(store, monkeypatch):
    write_run(store, "r", status="running")
    polls = []
    from abaton.dashboard import state as module

    run_head = module.run_head
    monkeypatch.setattr(module, "run_head", lambda *arguments: polls.append(1) or run_head(*arguments))
    live = LiveUpdates(store, poll_seconds=0.1, keep_alive_seconds=0.05)

    async def scene():
        with store.lock_run("r"):
            viewers = [asyncio.create_task(collect(live, "r", 3)) for _ in range(50)]
            return await asyncio.gather(*viewers)

    messages_by_viewer = asyncio.run(scene())
    assert len(polls) < 10
    assert all(
        messages[0].startswith(b":") or messages[0].startswith(b"event: state")
        for messages in messages_by_viewer
    )


def test_a_slow_viewer_skips_states(store):
    write_run(store, "r", status="running")
    live = LiveUpdates(store, poll_seconds=0.01)

    async def scene():
        with store.lock_run("r"):
            journal = Journal(store, "r")
            journal.length = journal.stored_events
            received = []
            async for message in live.messages("r"):
                received.append(message)
                for _ in range(5):
                    journal.append("learner_left", {"timestamp": 1.0, "learner": "kos"})
                    journal.flush()
                await asyncio.sleep(0.3)
                if len(received) == 4:
                    return received

    messages = asyncio.run(scene())
    assert len(messages) == 4
    assert all(message.startswith(b"event: state") for message in messages), "the latest state is not missed"


def test_updates_stop_with_the_session(store):
    write_run(store, "r", status="running")
    live = LiveUpdates(store, poll_seconds=0.02, keep_alive_seconds=0.02)
    turns = iter([True, True, False])

    async def scene():
        with store.lock_run("r"):
            return await collect(live, "r", 50, lambda: next(turns))

    assert len(asyncio.run(scene())) <= 4


@pytest.mark.network
def test_updates_arrive_over_http_and_viewers_are_limited(store):
    import httpx

    write_run(store, "r", status="running")
    dashboard = DashboardState(store, poll_seconds=0.05)
    dashboard.live.max_viewers = 1
    finish = threading.Timer(1.0, lambda: store.finish_run("r", "finished", {}))
    with (
        serve_in_thread(dashboard) as address,
        store.lock_run("r"),
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        finish.start()
        with client.stream("GET", "/runs/r/live") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.iter_lines()
            assert next(lines) == "event: state"
            assert client.get("/runs/r/live").status_code == 503
            remaining = list(lines)
        assert "event: end" in remaining
        assert client.get("/runs/absent/live").status_code == 404


def test_a_response_is_computed_once_and_not_too_often():
    now, calls = [0.0], []

    def make():
        calls.append(1)
        now[0] += 1.0  # the response takes a second
        return b"x%d" % len(calls)

    async def scene():
        cache = ResponseCache(2, clock=lambda: now[0])
        first = await asyncio.gather(*(cache.get("a", lambda: 1, make) for _ in range(10)))
        recent = await cache.get("a", lambda: 2, make)  # changed, but recent
        now[0] += 25.0
        later = await cache.get("a", lambda: 2, make)
        now[0] += 25.0
        same = await cache.get("a", lambda: 2, make)
        for name in "bcd":
            await cache.get(name, lambda: 1, make)
        assert len(cache._entries) == 2
        return {response.body for response in first}, recent.body, later.body, same.body

    assert asyncio.run(scene()) == ({b"x1"}, b"x1", b"x2", b"x2")
