"""Scheduler of delayed functions: one waiting thread, and a few worker threads."""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Timers:
    """Scheduler that runs functions at their times, concurrently."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._doers = ThreadPoolExecutor(16, thread_name_prefix="bed")
        self._is_open = True
        self._waiter = threading.Thread(target=self._wait, daemon=True, name="bed-timers")
        self._waiter.start()

    def after(self, seconds: float, do: Callable[[], object]) -> Timer:
        timer = Timer(do)
        with self._changed:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._number), timer))
            self._changed.notify()
        return timer

    def close(self) -> None:
        """Finish running functions, and drop all others."""
        with self._changed:
            self._is_open = False
            self._heap.clear()
            self._changed.notify()
        self._waiter.join()
        self._doers.shutdown()

    def _wait(self) -> None:
        with self._changed:
            while self._is_open:
                if not self._heap:
                    self._changed.wait()
                elif (left := self._heap[0][0] - time.monotonic()) > 0:
                    self._changed.wait(left)
                else:
                    self._doers.submit(self._do, heapq.heappop(self._heap)[2])

    @staticmethod
    def _do(timer: Timer) -> None:
        if timer.is_cancelled:
            return
        try:
            timer.do()
        except Exception:  # noqa: BLE001 - one machine's trouble is shown, and the others go on
            traceback.print_exc(file=sys.stderr)


class Timer:
    def __init__(self, do: Callable[[], object]) -> None:
        self.do = do
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
