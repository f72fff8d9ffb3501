"""What packages ranks had is written down by whoever gets to it, though the one before was called off."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from skyward_core.pool.startup import EnvironmentLocks
from skyward_core.util.redaction import Redactor


async def test_one_that_is_called_off_leaves_it_to_the_next(tmp_path: Path) -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def installed() -> dict[str, str]:
        asked.set()
        await told.wait()
        return {"numpy": "2.0"}

    archive, news = SimpleNamespace(folder=tmp_path), SimpleNamespace(redactor=Redactor())
    context: Any = SimpleNamespace(name="p", is_local=True, archive=archive, news=news)
    link: Any = SimpleNamespace(node=0, transport=SimpleNamespace(installed=installed))
    locks = EnvironmentLocks(context)
    locks.save(link, {"image": {"pip": []}, "interpreter": None}, None)
    a_while_after_the_start = asyncio.create_task(locks.save_remaining())
    await asyncio.wait_for(asked.wait(), 10)
    the_pool_ends = asyncio.create_task(locks.save_remaining())
    await asyncio.sleep(0)
    a_while_after_the_start.cancel()
    told.set()
    await asyncio.wait_for(the_pool_ends, 10)
    (kept,) = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert "numpy" in kept.read_text()
