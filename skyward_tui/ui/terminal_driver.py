"""Textual driver that handles the loss of its terminal.

Textual's own driver does not. Its writing thread ends at the first error, and the app then blocks when it queues more
output. Its reading thread loops without pause at the end of input. The SIGCONT that follows a SIGHUP makes it
initialize the terminal a second time.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from skyward_tui.app import SkywardApp


STALLED_SECONDS = 0.3  # seconds; while the app exits, output that the terminal does not accept for this long is dropped


class Output:
    """File object for Textual's writing thread; discards output after the first error.

    Uses ``os.write`` instead of a buffered file object. A terminal that does not read may block the writing thread, and
    a thread that is blocked when the process exits must not hold a lock.

    Args:
        number: File descriptor of the terminal.
        failed: Called once, on the writing thread, when writing fails.
    """

    def __init__(self, number: int, failed: Callable[[], None]) -> None:
        self._number = number
        self._failed = failed
        self._works = True
        self._is_ending = False
        self._woken, self._wake = os.pipe()
        # If the output is not a terminal, or the terminal of another user, use the given descriptor, whose writes may
        # block.
        with suppress(OSError):
            # Open the terminal again for non-blocking writes. The given descriptor must stay blocking, because other
            # programs share it.
            self._number = os.open(os.ttyname(number), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)

    def write(self, text: str) -> int:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data and self._works:
            try:
                data = data[os.write(self._number, data) :]
            except BlockingIOError:
                self._wait_for_terminal()
            except OSError:
                self._works = False
                self._failed()
        return len(text)

    def _wait_for_terminal(self) -> None:
        """Wait until the terminal accepts output. While the app ends, discard the output of a stalled terminal."""
        if not self._is_ending:
            select.select([self._woken], [self._number], [])
        elif not select.select([], [self._number], [], STALLED_SECONDS)[1]:
            self._works = False

    def end(self) -> None:
        """Stop waiting for a stalled terminal. May be called from any thread and from signal handlers."""
        self._is_ending = True
        os.write(self._wake, b"\0")

    def flush(self) -> None:
        """Do nothing: output is not buffered."""

    def fileno(self) -> int:
        return self._number


class _Exit(Event):
    """Exit event of Textual's reading thread, which also counts as set while a predicate is true."""

    def __init__(self, predicate: Callable[[], bool]) -> None:
        super().__init__()
        self._predicate = predicate

    def is_set(self) -> bool:
        return super().is_set() or self._predicate()


class TerminalDriver(LinuxDriver):
    """Textual driver that ends the app when the terminal is lost."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._output = Output(self._file.fileno() if self._file else 2, self._report_terminal_lost)
        self._file = cast(Any, self._output)
        # If the terminal does not report its size, set a size here, because otherwise driver and layout would use
        # different defaults.
        self._size = self._size or self._get_terminal_size()
        self.exit_event = _Exit(lambda: self.is_gone)
        self._is_suspended = False  # whether ctrl+z has suspended the app to the shell

    @property
    def is_gone(self) -> bool:
        """Whether the terminal of the app no longer exists."""
        return self.input_tty and not os.isatty(self.fileno)

    def end_output(self) -> None:
        """Discard output that the terminal does not accept, because the app ends."""
        self._output.end()

    def _report_terminal_lost(self) -> None:
        cast("SkywardApp", self._app).on_terminal_lost()

    def write(self, data: str) -> None:
        """Queue output if the writing thread is alive; otherwise discard it."""
        if self._writer_thread is not None and self._writer_thread.is_alive():
            super().write(data)

    def run_input_thread(self) -> None:
        """Read input until the app ends or the terminal is lost."""
        try:
            super().run_input_thread()
        except OSError:
            if not self.is_gone:
                raise
        if self.is_gone:
            self._report_terminal_lost()

    def close(self) -> None:
        super().close()
        cast("SkywardApp", self._app).on_terminal_restored()

    def suspend_application_mode(self) -> None:
        self._is_suspended = True
        super().suspend_application_mode()

    def resume_application_mode(self) -> None:
        self._is_suspended = False
        super().resume_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        if self.is_gone:
            self._report_terminal_lost()
        elif self._is_suspended:
            super()._sigcont_application()
        else:  # SIGSTOP has stopped the app before the app could restore the terminal
            self._loop.call_soon_threadsafe(self._restart_application_mode)

    def _restart_application_mode(self) -> None:
        if not self.is_gone:
            self.suspend_application_mode()
            self._must_signal_resume = True
            self.resume_application_mode()
