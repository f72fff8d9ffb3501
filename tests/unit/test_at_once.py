"""A key is painted for twice at most, and not each of many keys that come together."""

from __future__ import annotations

import pytest
from textual import events

from skyward_tui.ui import refresh_and_repaint
from skyward_tui.ui.refresh_and_repaint import MIN_KEY_INTERVAL, PAINTS_PER_KEY, REPAINT_SECONDS, ImmediateRepaint


def test_a_key_is_painted_for_soon_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(refresh_and_repaint, "monotonic", lambda: now)
    asked = ImmediateRepaint()
    assert not asked.consume_paint(), "no key has come"
    asked.on_input(events.Resize(None, None))  # type: ignore[arg-type]
    assert not asked.consume_paint()
    asked.on_input(events.Key("x", "x"))
    assert [asked.consume_paint() for _ in range(PAINTS_PER_KEY + 1)] == [True] * PAINTS_PER_KEY + [False]
    now += MIN_KEY_INTERVAL / 2
    asked.on_input(events.Key("x", "x"))
    assert not asked.consume_paint(), "it comes together with the one before"
    now += MIN_KEY_INTERVAL
    asked.on_input(events.Key("x", "x"))
    now += 2 * REPAINT_SECONDS
    assert not asked.consume_paint(), "what comes now is hardly the key's doing"
