"""What goes on while a session, or the app, leaves ends with it, and no error of it is left for nobody."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyward_core.client.session import Session
from skyward_core.model.errors import LedgerError
from skyward_core.store.ledger import Ledger
from skyward_tui.ui.session_futures import wait_shielded
from tests.support.waiting import wait_until


def test_a_look_that_goes_on_is_broken_off_before_the_ledger_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYWARD_HOME", str(tmp_path))
    ledger = Ledger()
    ledger.record_intent("t", "p", {"provider": "local"}, {"provider": "local", "nodes": 1})
    ledger.close()
    went: list[str] = []

    async def come(self: Session, row: Any, *, observer: bool) -> None:
        went.append("there")
        try:
            await asyncio.Event().wait()
        finally:
            went.append("ledger open" if self.ledger.find_pool("p") is not None else "")

    monkeypatch.setattr(Session, "_watch", come)
    session = Session()
    looking = session.refresh()
    wait_until(lambda: went == ["there"])
    session.detach()
    with pytest.raises(CancelledError):
        looking.result(60)
    assert went == ["there", "ledger open"]


async def test_who_does_not_wait_any_more_leaves_no_error_behind() -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: complaints.append(about["message"]))
    verb: Future[None] = Future()
    waiting = asyncio.create_task(wait_shielded(verb))
    await asyncio.sleep(0)
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    assert not verb.cancelled(), "it goes on"
    verb.set_exception(LedgerError("Cannot operate on a closed database."))
    for _ in range(3):
        await asyncio.sleep(0)
    del verb, waiting
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
