"""Signals as calls on an agent's loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter

import pytest

from skyward_core.node.agent.worker_processes import add_signal_handlers


@pytest.fixture
def put_back() -> object:
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("put_back")
async def test_each_is_acted_on_once_or_more() -> None:
    seen: Counter[str] = Counter()
    both = asyncio.Event()

    def see(name: str) -> None:
        seen[name] += 1
        if len(seen) == 2:
            both.set()

    add_signal_handlers({signal.SIGUSR1: lambda: see("one"), signal.SIGUSR2: lambda: see("two")})
    for _ in range(3):
        seen.clear()
        both.clear()
        for _ in range(100):  # more than anybody counts
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        await asyncio.wait_for(both.wait(), 10)


@pytest.mark.usefixtures("put_back")
async def test_one_that_comes_while_the_loop_sleeps_wakes_it() -> None:
    woken = asyncio.Event()
    add_signal_handlers({signal.SIGUSR1: woken.set})
    killer = await asyncio.create_subprocess_exec("kill", "-USR1", str(os.getpid()))
    await asyncio.wait_for(woken.wait(), 10)
    await killer.wait()
