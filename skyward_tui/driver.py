"""The terminal that the app paints on, which may vanish at any moment: its window is closed, its connection is cut.

Textual's own driver does not think of that. Its writing thread dies of the first error, and the app then waits for
good to hand it more. Its reading thread turns round and round at the end of input. And with the SIGHUP comes a SIGCONT,
for which it begins everything a second time.
"""

from __future__ import annotations

import os
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from .app_face import AppFace


class Output:
    """What Textual's writing thread writes to. Once that fails, what still comes goes nowhere.

    A terminal that does not read holds the thread up outside of Python, so that it is in nobody's way when the process
    ends.

    Args:
        number: the terminal's file descriptor.
        failed: called on the writing thread, once.
    """

    def __init__(self, number: int, failed: Callable[[], None]) -> None:
        self._number = number
        self._failed = failed
        self._works = True

    def write(self, text: str) -> int:
        """Write all of it."""
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data and self._works:
            try:
                data = data[os.write(self._number, data) :]
            except OSError:
                self._works = False
                self._failed()
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def fileno(self) -> int:
        """The terminal's file descriptor."""
        return self._number


class _Exit(Event):
    """Set, or true of itself: Textual's reading thread goes on until then."""

    def __init__(self, of_itself: Callable[[], bool]) -> None:
        super().__init__()
        self._of_itself = of_itself

    def is_set(self) -> bool:
        return super().is_set() or self._of_itself()


class TerminalDriver(LinuxDriver):
    """Textual's driver, for terminals that may vanish. It tells the app, which ends."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._file = cast(Any, Output(self._file.fileno() if self._file else 2, self._tell))
        self.exit_event = _Exit(lambda: self.is_gone)
        self._away = False  # in the shell, by ctrl+z

    @property
    def is_gone(self) -> bool:
        """Whether there was a terminal, and there is none any more."""
        return self.input_tty and not os.isatty(self.fileno)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size that the app lays out for; a terminal that reports 0x0 has two defaults in Textual."""
        return self._app.console.size

    def _tell(self) -> None:
        cast("AppFace", self._app).terminal_gone()

    def write(self, data: str) -> None:
        """Hand it to the writing thread, where there is one."""
        if self._writer_thread is not None and self._writer_thread.is_alive():
            super().write(data)

    def run_input_thread(self) -> None:
        """Read until the app ends, or the terminal is gone."""
        try:
            super().run_input_thread()
        except OSError:
            if not self.is_gone:
                raise
        if self.is_gone:
            self._tell()

    def suspend_application_mode(self) -> None:
        """Go to the shell."""
        self._away = True
        super().suspend_application_mode()

    def resume_application_mode(self) -> None:
        """Come back from it."""
        self._away = False
        super().resume_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        if self.is_gone:
            self._tell()
        elif self._away:
            super()._sigcont_application()
        else:  # it was stopped by a SIGSTOP, with no time to leave the terminal as it was
            self._loop.call_soon_threadsafe(self._begin_anew)

    def _begin_anew(self) -> None:
        if not self.is_gone:
            self.suspend_application_mode()
            self._must_signal_resume = True
            self.resume_application_mode()
