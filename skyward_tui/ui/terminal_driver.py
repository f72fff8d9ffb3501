"""Textual driver that handles the loss of its terminal.

Textual's own driver does not. Its writing thread ends at the first error, and the app then blocks when it queues more
output. Its reading thread loops without pause at the end of input. The SIGCONT that follows a SIGHUP makes it
initialize the terminal a second time.
"""

from __future__ import annotations

import os
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from skyward_tui.app import SkywardApp


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

    def write(self, text: str) -> int:
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data and self._works:
            try:
                data = data[os.write(self._number, data) :]
            except OSError:
                self._works = False
                self._failed()
        return len(text)

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
        self._file = cast(Any, Output(self._file.fileno() if self._file else 2, self._report_terminal_lost))
        self.exit_event = _Exit(lambda: self.is_gone)
        self._is_suspended = False  # whether ctrl+z has suspended the app

    @property
    def is_gone(self) -> bool:
        """Whether the terminal of the app no longer exists."""
        return self.input_tty and not os.isatty(self.fileno)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the app's layout size. Textual has two different default sizes for terminals that report 0x0."""
        return self._app.console.size

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
        else:  # the app was stopped by SIGSTOP before it could restore the terminal
            self._loop.call_soon_threadsafe(self._restart_application_mode)

    def _restart_application_mode(self) -> None:
        if not self.is_gone:
            self.suspend_application_mode()
            self._must_signal_resume = True
            self.resume_application_mode()
