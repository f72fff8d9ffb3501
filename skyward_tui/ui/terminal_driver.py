"""Textual's driver for terminals that may vanish, and their clipboard.

Textual's own driver does not think of that. Its writing thread dies of the first error, and the app then waits for
good to hand it more. Its reading thread turns round and round at the end of input. And with the SIGHUP comes a SIGCONT,
for which it begins everything a second time.
"""

from __future__ import annotations

import os
import subprocess
from threading import Event
from typing import TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from collections.abc import Callable

    from skyward_tui.app import SkywardApp


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
        self._file = cast(Any, Output(self._file.fileno() if self._file else 2, self._report_terminal_lost))
        self.exit_event = _Exit(lambda: self.is_gone)
        self._away = False  # in the shell, by ctrl+z

    @property
    def is_gone(self) -> bool:
        """Whether there was a terminal, and there is none any more."""
        return self.input_tty and not os.isatty(self.fileno)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size that the app lays out for; a terminal that reports 0x0 has two defaults in Textual."""
        return self._app.console.size

    def _report_terminal_lost(self) -> None:
        cast("SkywardApp", self._app).on_terminal_lost()

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
            self._report_terminal_lost()

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
            self._report_terminal_lost()
        elif self._away:
            super()._sigcont_application()
        else:  # it was stopped by a SIGSTOP, with no time to leave the terminal as it was
            self._loop.call_soon_threadsafe(self._restart_application_mode)

    def _restart_application_mode(self) -> None:
        if not self.is_gone:
            self.suspend_application_mode()
            self._must_signal_resume = True
            self.resume_application_mode()


PATIENCE = 5.0  # seconds for tmux


class CopyError(Exception):
    """The text did not get there; the message says why."""


def copy_to_multiplexer(text: str) -> str:
    """Hand a text to what stands between us and the terminal; blocks while that takes it.

    Returns:
        what the person should know of where it is; "" where there is nothing to say.

    Raises:
        NotCopied: it was not taken.
    """
    if os.environ.get("TMUX"):
        return _copy_to_tmux(text)
    if os.environ.get("STY"):
        raise CopyError("GNU screen passes nothing on to the clipboard; {run.save} saves to files")
    return ""


def _copy_to_tmux(text: str) -> str:
    try:
        _run_tmux("load-buffer", "-w", "-", text=text)
    except CopyError:  # a tmux older than 3.2 knows no -w
        _run_tmux("load-buffer", "-", text=text)
        return "in tmux's buffer only: prefix ] pastes it"
    if "clipboard" in _run_tmux("display-message", "-p", "#{client_termfeatures}").split(","):
        return "in tmux's buffer too"
    return "in tmux's buffer only, as it knows no clipboard of this terminal: prefix ] pastes it"


def _run_tmux(*words: str, text: str | None = None) -> str:
    given = None if text is None else text.encode()
    try:
        done = subprocess.run(["tmux", *words], input=given, capture_output=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CopyError(f"tmux cannot be asked: {error}") from error
    if done.returncode:
        raise CopyError(f"tmux refused it: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace").strip()
