"""A key is painted for twice at most, and not each of many keys that come together."""

from __future__ import annotations

import pytest
from textual import events

from skyward_tui.ui import app_interface
from skyward_tui.ui.app_interface import FOR_SECONDS, LEAST_SECONDS, PAINTS, AtOnce


def test_a_key_is_painted_for_soon_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(app_interface, "monotonic", lambda: now)
    asked = AtOnce()
    assert not asked.take(), "no key has come"
    asked.heed(events.Resize(None, None))  # type: ignore[arg-type]
    assert not asked.take()
    asked.heed(events.Key("x", "x"))
    assert [asked.take() for _ in range(PAINTS + 1)] == [True] * PAINTS + [False]
    now += LEAST_SECONDS / 2
    asked.heed(events.Key("x", "x"))
    assert not asked.take(), "it comes together with the one before"
    now += LEAST_SECONDS
    asked.heed(events.Key("x", "x"))
    now += 2 * FOR_SECONDS
    assert not asked.take(), "what comes now is hardly the key's doing"
