"""SIGTERM in a rank's process: an exception in user code, so that ``finally`` runs; its end where nothing hears it. And
the signal at which it writes down where its threads are."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from time import sleep  # user code may replace the functions of `time`
from types import FrameType
from typing import Any

from skyward_core.protocol.node_paths import STACK_SIGNAL
from skyward_core.runtime import preemption

RETRY_DELAY = 0.01  # seconds after which SIGTERM is sent anew where Python had no place for its exception
NATIVE_CODE_TIMEOUT = (
    1.0  # seconds after SIGTERM in which Python code must have reacted; native code that blocks never does
)
KILLED_MESSAGE = (
    "skyward: this process was told to end while it was in native code, and did not come out of it within "
    f"{NATIVE_CODE_TIMEOUT:g} s: "
    "its exit handlers did not run\n"
).encode()


_stacks: list[int] = []  # the descriptor of the file that they are written to


def enable_stack_dumps(path: str) -> None:
    """From now on write the stacks of all threads there at the signal for it: in its handler, in C, so also while
    native code blocks or holds the GIL. The agent sends it only where a person has said so, for a blocking
    call may end early with it; and never to a process that has not got here, or that has closed the file."""
    if not hasattr(signal, "SIGRTMAX"):
        return
    with suppress(OSError):  # a full disk is said by others
        _stacks.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
        # Not chained: what the signal does to a process that does not handle it is to end it.
        faulthandler.register(STACK_SIGNAL, file=_stacks[0], all_threads=True, chain=False)


def _disable_stack_dumps() -> None:
    """User code wants the signal for itself."""
    while _stacks:
        faulthandler.unregister(STACK_SIGNAL)
        with suppress(OSError):
            os.close(_stacks.pop())


class Stopped(SystemExit):
    """Raised in user code by SIGTERM, so that ``finally`` blocks and context managers run.

    A SystemExit, for an event loop keeps other exceptions of a task in that task, where nobody may ever look.
    """

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class StopSignal:
    """Turns SIGTERM into :class:`Stopped` in user code: in the body of ``with`` on it.

    A rank that hangs in native code (a collective, say) never runs a Python handler: the C-level wake-up byte
    still arrives, and a watching thread then ends the process, so that the grace is spent only by code that uses it.

    Code that takes SIGTERM for itself has all of the grace, until the end of its call; then the signal is ours again.

    One that comes as the node's machine is taken back stops nothing where code has said what to do then.

    Where an event loop of asyncio runs, the exception leaves it between two steps: then each of its tasks is cancelled
    once, the call's own too, as ``asyncio.run`` does it. Only a step that takes longer is interrupted.
    """

    def __init__(self, *, interrupts: bool) -> None:
        self.is_ending = False
        self._interrupts = interrupts
        self._stopping_loop: Any = None  # the event loop that has been told to stop, and has not got to it yet
        self._repeated = False  # the next signal is our own, for a loop that may not get to it
        self._active_calls = 0
        self._handler_ran = threading.Event()
        self._main = threading.get_ident()
        self._was_overridden = False  # by what runs, or ran last: it may have put our handler back before we look
        self._changed = False  # it has set a handler, of whichever signal
        self._idle_handler: Callable[..., Any] = self._handle  # has the signal when no call runs
        self._forking = threading.local()
        self._hooks = (type(self)._hold_back.__code__, type(self)._let_through.__code__)
        readable, self._writable = os.pipe()
        os.set_blocking(self._writable, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._restore_handler()
        self._patch_signal()
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        threading.Thread(target=self._watch, args=(readable,), name="stop-watch", daemon=True).start()
        os.register_at_fork(before=self._hold_back, after_in_parent=self._let_through, after_in_child=self._on_fork)

    def _hold_back(self) -> None:
        """A child that user code forks gets no SIGTERM before it takes it as every process does: what it wrote to the
        wake-up descriptor would end its parent."""
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _let_through(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _on_fork(self) -> None:
        self._main = 0  # no thread of a child has anything to put back
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._let_through()

    def _handle(self, number: int, at: FrameType | None) -> None:
        self._handler_ran.set()
        if self.is_ending:
            return  # it is on its way, and is killed when it takes too long
        if self._is_in_hook(at):
            start_new_thread(self._resend_sigterm, ())
            return
        if not self._repeated and preemption.is_preemption_sigterm():
            if self._active_calls and not preemption.run_callbacks():
                os.killpg(os.getpid(), signal.SIGTERM)  # a stop: for all that we have started, and for us
            return
        if self._active_calls and self._interrupts:
            if not self._stop_in_loop():
                raise Stopped
            return
        self.is_ending = True
        sys.exit(128 + signal.SIGTERM)

    def _stop_in_loop(self) -> bool:
        """Whether the event loop that runs just now has the stop, or has had it."""
        repeated, self._repeated = self._repeated, False
        if repeated:
            asked, self._stopping_loop = self._stopping_loop, None
            return asked is None
        asyncio = sys.modules.get("asyncio")
        loop = asyncio and asyncio._get_running_loop()
        if loop is None:
            return False
        self._stopping_loop = loop
        loop.call_soon_threadsafe(self._stop_loop)
        start_new_thread(self._interrupt_loop, (loop,))
        return True

    def _stop_loop(self) -> None:
        if self._stopping_loop is not None:
            self._stopping_loop = None
            raise Stopped

    def _interrupt_loop(self, loop: Any) -> None:
        """Code that does not await, or a loop that stands still, is interrupted where it is."""
        sleep(RETRY_DELAY)
        if self._stopping_loop is loop:
            self._repeated = True
            signal.pthread_kill(self._main, signal.SIGTERM)

    def _is_in_hook(self, at: FrameType | None) -> bool:
        """Whether a signal came to our hooks around a fork, which have a mask to set. (It blocks the signal for one
        thread, and others take it meanwhile.)"""
        while at is not None and at.f_code not in self._hooks:
            at = at.f_back
        return at is not None

    def _on_unraisable(self, told: Any) -> None:
        """Python discards what is raised in others' hooks around a fork, in ``__del__`` and the like: a stop that came
        there has to come again."""
        if told.exc_type is Stopped:
            start_new_thread(self._resend_sigterm, ())
        else:
            self._unraisable(told)

    def _resend_sigterm(self) -> None:
        """Let the code that was interrupted, which may hold locks, go on a bit; then interrupt it anew."""
        sleep(RETRY_DELAY)
        signal.pthread_kill(self._main, signal.SIGTERM)

    def _watch(self, readable: int) -> None:
        with suppress(OSError):  # user code has closed what it does not know
            while number := os.read(readable, 1):
                if number[0] == signal.SIGTERM and self._ignores_sigterm():
                    os.write(2, KILLED_MESSAGE)
                    os._exit(128 + signal.SIGTERM)

    def _ignores_sigterm(self) -> bool:
        """Whether the signal that has just come is ours, and no Python code hears it."""
        # Where the machine is taken back, native code may come to its end until then.
        awaited = (
            preemption.is_sigterm_pending()
            or self._handler_ran.wait(NATIVE_CODE_TIMEOUT)
            or preemption.is_sigterm_pending()
        )
        return self._is_ours() and not awaited and self._is_ours()

    @property
    def was_overridden(self) -> bool:
        """Whether what ran last had the signal for itself."""
        return self._was_overridden

    def _is_ours(self) -> bool:
        return not self._was_overridden and signal.getsignal(signal.SIGTERM) == self._handle

    def _patch_signal(self) -> None:
        """Know of others' handlers while they are there: when the watching thread gets to look, one may have had the
        signal and be gone."""
        set_handler = signal.signal

        @wraps(set_handler)
        def noting(signalnum: Any, handler: Any) -> Any:
            self._was_overridden |= signalnum == signal.SIGTERM
            self._changed = True
            if signalnum == STACK_SIGNAL:
                _disable_stack_dumps()  # the agent sees that
            return set_handler(signalnum, handler)

        signal.signal = noting

    def preserve_handler(self) -> None:
        """What has the signal now is to have it in all calls, where that is a plugin's handler."""
        found = signal.getsignal(signal.SIGTERM)
        self._idle_handler = found if callable(found) else self._handle
        preemption.keep_callbacks()

    def _restore_handler(self) -> None:
        """Undo what user code made of the signal. A loop of asyncio, say, leaves it without a handler, and the wake-up
        descriptor unset."""
        if signal.getsignal(signal.SIGTERM) != self._idle_handler:
            signal.signal(signal.SIGTERM, self._idle_handler)
        with suppress(OSError, ValueError):  # user code has closed it
            signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)

    def __enter__(self) -> None:
        self._was_overridden = False
        self._active_calls += 1

    def __exit__(self, *exc: object) -> None:
        try:
            # (Asking each time costs more than a small call's other work; and no other thread can have changed it.)
            if self._changed and threading.get_ident() == self._main:
                self._restore_handler()
                self._changed = False
        finally:
            self._active_calls -= 1
            if not self._active_calls:
                preemption.drop_callbacks()
