"""Every type that a journal or a checkpoint stores has a written tag: renaming a class changes no file."""

from __future__ import annotations

import re
from typing import get_args

from abaton.controller import events, state


def test_every_event_has_a_tag():
    assert set(get_args(events.Event)) == set(events.EVENT_TYPES.values())


def test_every_type_of_a_state_has_a_tag():
    stored = {*events.EVENT_TYPES, *state.CHECKPOINT_TYPES}
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", tag) for tag in stored)
    assert state.from_json_value(
        state.to_json_value(state.ControllerState(version=3))
    ) == state.ControllerState(version=3)
