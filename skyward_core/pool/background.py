"""What a pool does beside, on its loop: work that nobody waits for, and small things put off by a moment."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

A_MOMENT = 0.003  # seconds; longer than a small call takes
FAREWELL = 1.0  # seconds that what goes on beside may take to be broken off


class Background:
    """One pool's."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside; its failure is reported like any other error of the loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, work: Callable[..., None], *args: Any) -> None:
        """Do a moment later what nobody waits for, in order: a caller who has its result may send the next run first.

        Then it is done while that one's calls are on their way, and costs no time that anybody sees.
        """
        self._later.append((work, args))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(A_MOMENT, self._moment_over)

    def _moment_over(self) -> None:
        self._timer = None
        self.catch_up()

    def catch_up(self) -> None:
        """Do now what was left for later."""
        while self._later:
            work, args = self._later.popleft()
            work(*args)

    async def stop(self) -> None:
        """Break off what goes on beside."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:  # one that is still there when the process ends has asyncio complain
            await asyncio.wait(tasks, timeout=FAREWELL)
