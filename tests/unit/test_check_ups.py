"""Whether a provider can do what will be asked of it: its own words, a time-out, and what it raises."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.session import RETRY_PAUSES, BackOff, ReadOnlySession, Session, run_provider_check
from skyward_core.model.errors import UsageError
from skyward_core.model.machines import Check
from skyward_core.providers.local.provider import Local


async def test_a_provider_is_asked_with_what_its_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = await run_provider_check("local", {})
    assert [line.subject for line in lines] == ["local", "local disk"]
    assert (await run_provider_check("local", {"color": "red"}))[0].state == "fail"
    assert "cupboard" in (await run_provider_check("cupboard", {}))[0].detail


async def test_hosts_that_do_not_answer_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(self: Any) -> list[Check]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(Local, "check", silent)
    assert await run_provider_check("local", {}, 0.05) == [Check("local", "fail", "no answer within 0.05 s")]


async def test_one_that_blocks_its_thread_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    async def stuck(self: Any) -> list[Check]:
        free.wait(30)
        return []

    monkeypatch.setattr(Local, "check", stuck)
    began = time.monotonic()
    try:
        assert (await run_provider_check("local", {}, 0.05))[0].state == "fail"
        assert time.monotonic() - began < 30
    finally:
        free.set()


async def test_what_it_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Any) -> list[Check]:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Local, "check", broken)
    assert await run_provider_check("local", {}) == [Check("local", "fail", "ZeroDivisionError: oh")]


def test_a_session_asks_and_one_that_only_looks_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path / "home"))
    session, looking = Session(), ReadOnlySession()
    try:
        assert [line.subject for line in session.check_provider("local", {}).result(20)] == [
            "local",
            "local disk",
        ]
        with pytest.raises(UsageError, match="only looks"):
            looking.check_provider("local", {}).result(20)
    finally:
        session.detach()
        looking.detach()


# What does not answer is asked ever less often.


def test_each_failure_doubles_the_pause_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    waits = BackOff()
    pauses = []
    for _ in range(8):
        assert waits.is_due("a")
        waits.record_failure("a")
        began = now
        while not waits.is_due("a"):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60] and (pauses[0], pauses[-1]) == RETRY_PAUSES
    waits.record_failure("a")
    waits.record_failure("b")
    waits.retain_only({"b"})
    assert waits.is_due("a") and not waits.is_due("b")
    waits.reset("b")
    assert waits.is_due("b")
