"""Shutdown of the app by signals or by loss of its terminal, with a time limit."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

# seconds until the kernel kills a process that a signal has asked to exit; longer than detaching from all pools takes,
# even if a pool does not answer
LAST_RESORT = 15
EXIT_SECONDS = 0.5  # seconds for threads that still work after the app has restored the terminal

_MAIN = threading.main_thread()


class ShutdownSignals:
    """Handler of SIGTERM, SIGHUP and the loss of the terminal. Asks the app to exit, within a time limit.

    The handlers are registered with ``signal``, not with the event loop: a loop that is blocked by writing to a
    terminal would not receive signals.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: Callable[[int], None] | None = None
        self._unblock: Callable[[], None] = lambda: None
        self._status = 0

    def install(self, end: Callable[[int], None], unblock: Callable[[], None]) -> None:
        """Register the handlers. Signals that the parent process ignores stay ignored.

        Args:
            end: Called with an exit status on the running event loop, after a signal.
            unblock: Called before ``end``, in any thread. Must wake up an event loop that is blocked by writing to the
                terminal.
        """
        self._loop, self._end, self._unblock = asyncio.get_running_loop(), end, unblock
        if threading.current_thread() is not _MAIN:
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    def trigger(self, number: int) -> None:
        """Act as if the signal had arrived. May be called from any thread."""
        # A timer of the kernel ends the process at the time limit, even if all threads are blocked.
        signal.alarm(LAST_RESORT)
        self._status = 128 + number
        self._unblock()
        if self._loop is not None and self._end is not None:
            with suppress(RuntimeError):  # the event loop has ended, so the app is exiting anyway
                self._loop.call_soon_threadsafe(self._end, 128 + number)

    def limit_exit(self) -> None:
        """If a signal has caused the exit, end the process within ``EXIT_SECONDS`` even if threads still work. Restore
        the terminal before this call.
        """
        if self._status:
            timer = threading.Timer(EXIT_SECONDS, os._exit, [self._status])
            timer.daemon = True
            timer.start()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.trigger(number)


def run_in_daemon_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run work in a daemon thread, which does not prevent the process from exiting. Cancelling the caller does not stop
    the work."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def set_outcome(setter: Callable[[Any], None], outcome: Any) -> None:
        if not done.done():
            setter(outcome)

    def report(setter: Callable[[Any], None], outcome: Any) -> None:
        with suppress(RuntimeError):  # the event loop has ended, so no coroutine waits for the result any more
            loop.call_soon_threadsafe(set_outcome, setter, outcome)

    def act() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  raised by the future
            report(done.set_exception, error)
        else:
            report(done.set_result, result)

    threading.Thread(target=act, daemon=True).start()
    return done
