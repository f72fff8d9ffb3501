"""How the app is made to end from outside, and how long that may take."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

LAST_RESORT = 15  # seconds; longer than the app takes to let go of its pools, whatever answers or does not

_MAIN = threading.main_thread()


class ShutdownSignals:
    """SIGTERM, SIGHUP, and a terminal that is gone: the app is told, and has so many seconds then.

    The handlers are the process's own, and not the loop's: a loop that waits for a terminal to take what it paints
    hears of no signal.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[int], None] | None = None

    def install(self, end: Callable[[int], None]) -> None:
        """Have it end so, with an exit status, on the loop that runs now. What was ignored from outside stays so."""
        self._loop, self._end = asyncio.get_running_loop(), end
        if threading.current_thread() is not _MAIN:
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Let signals do again what they did before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def trigger(self, number: int) -> None:
        """Do as if that signal had come; from any thread."""
        # By the system's own clock, which goes on whatever a thread of ours waits for. It ends the process.
        signal.alarm(LAST_RESORT)
        if self._loop is not None and self._end is not None:
            with suppress(RuntimeError):  # the loop has ended: so does the app
                self._loop.call_soon_threadsafe(self._end, 128 + number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.trigger(number)


def run_in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Do something in a thread that keeps no process from ending. Who waits no longer leaves it to itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[Any], None], what: Any) -> None:
        def told() -> None:
            if not done.done():
                settle(what)

        with suppress(RuntimeError):  # the loop has ended: nobody waits
            loop.call_soon_threadsafe(told)

    def act() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  whoever waits gets it
            tell(done.set_exception, error)
        else:
            tell(done.set_result, result)

    threading.Thread(target=act, daemon=True).start()
    return done
