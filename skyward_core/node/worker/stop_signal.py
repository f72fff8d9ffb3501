"""Handling of SIGTERM, and of the signal for stack dumps, in a rank's process.

SIGTERM raises an exception in user code, so that ``finally`` blocks run, and ends the process if no Python code runs.
"""

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
from time import sleep  # imported by name, because user code may replace the functions of `time`
from types import FrameType
from typing import Any

from skyward_core.protocol.node_paths import ANSWER, ASK, EXCEPTION_REQUEST, STACK_SIGNAL
from skyward_core.runtime import preemption

MAX_DESCRIPTION = 200  # maximum characters of an exception's message
RETRY_DELAY = 0.01  # seconds until SIGTERM is sent again if it could not raise its exception
NATIVE_CODE_TIMEOUT = 1.0  # seconds after SIGTERM for Python code to react; native code that blocks never reacts
KILLED_MESSAGE = (
    "skyward: this process got SIGTERM in native code and did not return to Python within "
    f"{NATIVE_CODE_TIMEOUT:g} s: "
    "its exit handlers did not run\n"
).encode()


_stacks: list[int] = []  # contains the descriptor of the file for stack dumps once it is open


def enable_stack_dumps(path: str) -> None:
    """Write the stacks of all threads to a file whenever the signal for stack dumps arrives.

    The handler is in C, so it works while native code blocks or holds the GIL. The signal can interrupt a blocking
    call, so the agent sends it only at the user's request, after checking that the handler and the file exist.
    """
    if STACK_SIGNAL not in signal.valid_signals():
        return
    with suppress(OSError):  # Ignore a full disk here, because other code reports it.
        _stacks.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600))
        # Do not chain to the previous handler of the signal, which would end the process.
        faulthandler.register(STACK_SIGNAL, file=_stacks[0], all_threads=True, chain=False)


def _disable_stack_dumps() -> None:
    """Stop handling the signal for stack dumps, because user code installs its own handler."""
    while _stacks:
        faulthandler.unregister(STACK_SIGNAL)
        with suppress(OSError):
            os.close(_stacks.pop())


def _open_pipe(path: str) -> tuple[int, int]:
    """Open the pipe for wake-up bytes. With a path, it is a named pipe, into which the agent writes requests."""
    if path:
        with suppress(OSError):  # The disk is full, or the file system has no named pipes.
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108  of an earlier worker, which must not get the bytes of this one
            os.mkfifo(path, 0o600)
            readable = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                writable = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                os.close(readable)
                raise
            os.set_blocking(readable, True)
            return readable, writable
    return os.pipe()


def _describe_exception(handled: Any) -> str:
    """Return type, message and place of an exception that a thread handles (from ``sys._current_exceptions``)."""
    from skyward_core.node.worker.result_pickles_and_summaries import safe_text

    # Python 3.11 has a tuple (type, exception, traceback) instead of the exception.
    error = handled[1] if isinstance(handled, tuple) else handled
    if error is None:
        return ""
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {safe_text(error)[:MAX_DESCRIPTION]}{place}"


class Stopped(SystemExit):
    """Raised in user code by SIGTERM, so that ``finally`` blocks and context managers run.

    Derives from SystemExit, because an event loop stores other exceptions in their task, where they may be ignored.
    """

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class StopSignal:
    """Converter of SIGTERM into the exception :class:`Stopped` in user code, which runs inside ``with`` this object.

    A rank that hangs in native code, such as a collective, never runs a Python handler. Python's C-level handler still
    writes its wake-up byte. A thread that reads this byte then ends the process without waiting for the grace period.

    User code with its own SIGTERM handler gets the whole grace period, which is then longer by default. Its handler is
    removed at the end of the call.

    A SIGTERM that announces a preemption stops nothing if user code has registered callbacks for preemptions.

    If an asyncio event loop runs, the exception is raised between two steps of the loop. Then each task is cancelled
    once, as in ``asyncio.run``. A step is interrupted only if it takes too long.

    The thread also answers the agent, which asks for the exception that user code handles: the stack of a rank that
    waits in a ``finally`` block does not show this exception.

    Args:
        interrupts: Whether SIGTERM interrupts user code. Otherwise SIGTERM ends the process.
        on_handler: Called when user code installs or removes its own handler, with whether there is one.
        stacks: Path of the worker's stack dumps; "" if no agent asks for exceptions.
    """

    def __init__(
        self, *, interrupts: bool, on_handler: Callable[[bool], None] = lambda handles: None, stacks: str = ""
    ) -> None:
        self._answers = stacks + ANSWER
        self.is_ending = False
        self._on_handler = on_handler
        self.handles = False  # whether user code has a SIGTERM handler installed
        self._interrupts = interrupts
        self._stopping_loop: Any = None  # asyncio event loop that a SIGTERM asked to stop and that still runs
        self._repeated = False  # whether this object sends the next SIGTERM itself, because an event loop did not stop
        self._active_calls = 0
        self._handler_ran = threading.Event()
        self._main = threading.get_ident()
        # whether the latest call installed its own SIGTERM handler, even if it has removed the handler
        self.was_overridden = False
        self._changed = False  # whether user code has set a handler of any signal since the last restoration
        self._idle_handler: Callable[..., Any] = self._handle  # SIGTERM handler that is installed while no call runs
        self._forking = threading.local()
        self._hooks = (type(self)._hold_back.__code__, type(self)._let_through.__code__)
        readable, self._writable = _open_pipe(stacks and stacks + ASK)
        os.set_blocking(self._writable, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._restore_handler()
        self._patch_signal()
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        threading.Thread(target=self._watch, args=(readable,), name="stop-watch", daemon=True).start()
        os.register_at_fork(before=self._hold_back, after_in_parent=self._let_through, after_in_child=self._on_fork)

    def _hold_back(self) -> None:
        """Block SIGTERM during a fork.

        The child first shares the parent's wake-up pipe, so a SIGTERM to the child would end the parent.
        """
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _let_through(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _on_fork(self) -> None:
        self._main = 0  # In a forked child, no thread may restore the handler.
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._let_through()

    def _handle(self, number: int, at: FrameType | None) -> None:
        self._handler_ran.set()
        if self.is_ending:
            # Ignore SIGTERM, because the process is already exiting, and the agent kills it after the grace period.
            return
        if self._is_in_hook(at):
            start_new_thread(self._resend_sigterm, ())
            return
        if not self._repeated and preemption.is_preemption_sigterm():
            # Lightning, for example, installs a handler that calls this handler. It then saves and ends the rank by
            # itself.
            is_chained = signal.getsignal(signal.SIGTERM) != self._handle
            if self._active_calls and not preemption.run_callbacks() and not is_chained:
                # No callback and no handler saves the rank's state, so end this process and all its children.
                os.killpg(os.getpid(), signal.SIGTERM)
            return
        if self._active_calls and self._interrupts:
            if not self._stop_in_loop():
                raise Stopped
            return
        self.is_ending = True
        sys.exit(128 + signal.SIGTERM)

    def _stop_in_loop(self) -> bool:
        """Ask the running asyncio event loop to stop. Return whether a loop will raise the exception."""
        repeated, self._repeated = self._repeated, False
        if repeated:
            pending, self._stopping_loop = self._stopping_loop, None
            return pending is None
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
        """Interrupt a task of the event loop with another SIGTERM if it does not yield to the loop in time."""
        sleep(RETRY_DELAY)
        if self._stopping_loop is loop:
            self._repeated = True
            signal.pthread_kill(self._main, signal.SIGTERM)

    def _is_in_hook(self, at: FrameType | None) -> bool:
        """Check whether the signal arrived in a fork hook, which must not be interrupted.

        (The hooks block the signal only in their own thread.)
        """
        while at is not None and at.f_code not in self._hooks:
            at = at.f_back
        return at is not None

    def _on_unraisable(self, unraisable: Any) -> None:
        """Repeat SIGTERM if Python discarded the exception, for example in ``__del__`` or a fork hook of other code."""
        if unraisable.exc_type is Stopped:
            start_new_thread(self._resend_sigterm, ())
        else:
            self._unraisable(unraisable)

    def _resend_sigterm(self) -> None:
        """Wait briefly, because the interrupted code may hold locks, then send SIGTERM again."""
        sleep(RETRY_DELAY)
        signal.pthread_kill(self._main, signal.SIGTERM)

    def _watch(self, readable: int) -> None:
        with suppress(OSError):  # OSError means that user code has closed the descriptor.
            while number := os.read(readable, 1):
                if number == EXCEPTION_REQUEST:
                    self._answer_exception()
                elif number[0] == signal.SIGTERM and self._ignores_sigterm():
                    os.write(2, KILLED_MESSAGE)
                    os._exit(128 + signal.SIGTERM)

    def _answer_exception(self) -> None:
        """Write the exception that the main thread handles to the answer file; if it handles none, another thread's."""
        handled = sys._current_exceptions()
        threads = (self._main, *(each for each in handled if each != threading.get_ident()))
        text = next(filter(None, (_describe_exception(handled.get(each)) for each in threads)), "")
        with suppress(OSError):  # If the file cannot be written, the agent shows no exception.
            with open(f"{self._answers}.new", "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            os.replace(f"{self._answers}.new", self._answers)  # noqa: PTH105  workers have no pathlib

    def _ignores_sigterm(self) -> bool:
        """Check whether no Python code reacts to the latest SIGTERM."""
        # A pending preemption notice counts as a reaction, because native code may continue until the machine is
        # reclaimed.
        handled = (
            preemption.is_sigterm_pending()
            or self._handler_ran.wait(NATIVE_CODE_TIMEOUT)
            or preemption.is_sigterm_pending()
        )
        return self._is_ours() and not handled and self._is_ours()

    def _is_ours(self) -> bool:
        return not self.was_overridden and signal.getsignal(signal.SIGTERM) == self._handle

    def _patch_signal(self) -> None:
        """Patch ``signal.signal`` to record handlers of user code, which may remove them before a later check."""
        set_handler = signal.signal

        @wraps(set_handler)
        def record(signalnum: Any, handler: Any) -> Any:
            self.was_overridden |= signalnum == signal.SIGTERM
            self._changed = True
            if signalnum == STACK_SIGNAL:
                # Stop dumping stacks on this signal. The agent detects that the rank no longer handles it.
                _disable_stack_dumps()
            before = set_handler(signalnum, handler)
            if signalnum == signal.SIGTERM and self._main:
                self._report_handler(callable(handler) and handler != self._handle)
            return before

        signal.signal = record

    def _report_handler(self, handles: bool) -> None:
        """Notify the agent whether user code handles SIGTERM, because the agent gives such a process more time."""
        if handles != self.handles:
            self.handles = handles
            self._on_handler(handles)

    def preserve_handler(self) -> None:
        """Keep the current SIGTERM handler, which a plugin installed, for all calls."""
        found = signal.getsignal(signal.SIGTERM)
        self._idle_handler = found if callable(found) else self._handle
        preemption.keep_callbacks()

    def _restore_handler(self) -> None:
        """Restore the SIGTERM handler and the wake-up descriptor. An asyncio loop, for example, removes them."""
        if signal.getsignal(signal.SIGTERM) != self._idle_handler:
            signal.signal(signal.SIGTERM, self._idle_handler)
        with suppress(OSError, ValueError):  # User code may have closed the descriptor.
            signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)

    def __enter__(self) -> None:
        self.was_overridden = False
        self._active_calls += 1

    def __exit__(self, *exc: object) -> None:
        try:
            # Restore the handler only if it was changed, because a check after each call would cost more than a small
            # call. Only the main thread can set handlers.
            if self._changed and threading.get_ident() == self._main:
                self._restore_handler()
                self._changed = False
        finally:
            self._active_calls -= 1
            if not self._active_calls:
                preemption.drop_callbacks()
