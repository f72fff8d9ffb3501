"""Signals as calls on a loop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping


def act_on(actions: Mapping[int, Callable[[], object]]) -> None:
    """Have the running loop call these from now on, each when its signal has come, however often that was.

    The loop's own ``add_signal_handler`` would load ``inspect`` to look at what it is given, which takes longer than
    all else that an agent does before it listens.
    """
    readable, writable = os.pipe()
    for end in (readable, writable):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in actions:
        signal.signal(number, _seen)
        signal.siginterrupt(number, False)

    def act() -> None:
        for number in set(os.read(readable, 1 << 16)) & actions.keys():
            actions[number]()

    asyncio.get_running_loop().add_reader(readable, act)


def _seen(*_: object) -> None:
    """Its number is in the pipe already; but without a handler there would be none."""
