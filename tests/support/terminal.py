"""The app in a real pseudo-terminal, with key input and the screen as text."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pexpect
import pyte

PATIENCE = 60.0


class Terminal:
    """``python -m skyward_tui`` on a pseudo-terminal of its own.

    Args:
        program: Code that Python runs instead of the app.
    """

    def __init__(
        self,
        home: Path,
        size: tuple[int, int] = (120, 40),
        cwd: Path | None = None,
        program: Sequence[str] = ("-m", "skyward_tui"),
    ) -> None:
        self.columns, self.rows = size
        self.screen = pyte.Screen(self.columns, self.rows)
        self._stream = pyte.ByteStream(self.screen)
        self._read_text: str | None = None  # of the screen as it stands
        env = {k: v for k, v in os.environ.items() if k not in ("SSH_CONNECTION", "NO_COLOR", "COLUMNS", "LINES")}
        env |= {"SKYWARD_HOME": str(home), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.child = pexpect.spawn(
            sys.executable,
            list(program),
            dimensions=(self.rows, self.columns),
            env=env,  # type: ignore[arg-type]
            cwd=None if cwd is None else str(cwd),
            timeout=5,
        )

    @property
    def text(self) -> str:
        if self._read_text is None:  # pyte looks at every cell for it
            self._read_text = "\n".join(line.rstrip() for line in self.screen.display)
        return self._read_text

    def look(self, text: str) -> pyte.screens.Char:
        """Return the style of the first letter of a shown text."""
        for row, line in enumerate(self.screen.display):
            if text in line:
                return self.screen.buffer[row][line.index(text)]
        raise AssertionError(f"{text!r} is not there; the screen is\n{self.text}")

    def read(self, seconds: float = 0.1) -> bool:
        """Read the app's output. Return False if the app has ended."""
        try:
            data = self.child.read_nonblocking(1 << 16, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        # pyte takes a private SGR-like sequence (keyboard protocol, "ESC [ > 1 u") for text.
        for sequence in (b"\x1b[>1u", b"\x1b[<u", b"\x1b[>25u", b"\x1b[<1u"):
            data = data.replace(sequence, b"")
        self._feed(data)
        return True

    def _feed(self, data: bytes) -> None:
        self._stream.feed(data)
        self._read_text = None

    def drain(self) -> None:
        """Read all output of a stopped app."""
        with suppress(pexpect.TIMEOUT):
            while True:
                self._feed(self.child.read_nonblocking(1 << 16, timeout=0.1))

    def until(self, seen: str | Callable[[str], bool], patience: float = PATIENCE) -> str:
        """Wait until the screen shows a text, and return the screen."""
        true = seen if callable(seen) else lambda text: seen in text
        deadline = time.monotonic() + patience
        while not true(self.text):
            if time.monotonic() > deadline or not self.read():
                raise AssertionError(f"{seen!r} never showed; the screen was\n{self.text}")
        return self.text

    def press(self, *keys: str, until: str | Callable[[str], bool] = "") -> None:
        """Press keys, and wait until the screen shows a text."""
        for key in keys:
            self.child.send(_KEYS.get(key, key))
        if until:
            self.until(until)

    def ended(self) -> int:
        """Wait for the app to end, and return its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self.read():
            if time.monotonic() > deadline:
                raise AssertionError(f"the app did not end; the screen was\n{self.text}")
        self.child.wait()
        return -1 if self.child.exitstatus is None else self.child.exitstatus

    def vanish(self) -> int:
        """Close the terminal, and return the app's exit status as ``subprocess`` reports it."""
        self.child.ptyproc.fileobj.close()
        return self.ended_alone()

    def ended_alone(self) -> int:
        """Wait for the app to end without reading its output. Return its exit status as ``subprocess`` reports it."""
        deadline = time.monotonic() + PATIENCE
        while not (ended := os.waitpid(self.child.pid, os.WNOHANG))[0]:
            assert time.monotonic() < deadline, "the app did not end"
            time.sleep(0.02)
        self.child.ptyproc.terminated = True
        return os.waitstatus_to_exitcode(ended[1])

    def close(self) -> None:
        with suppress(pexpect.ExceptionPexpect):  # on a busy machine, it is not gone as soon as it expects
            self.child.close(force=True)
            return
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.child.pid, signal.SIGKILL)
            os.waitpid(self.child.pid, 0)
        self.child.ptyproc.terminated = True


_KEYS = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "shift+tab": "\x1b[Z", "ctrl+o": "\x0f", "ctrl+r": "\x12",
    "ctrl+c": "\x03", "f4": "\x1bOS",
}  # fmt: skip
