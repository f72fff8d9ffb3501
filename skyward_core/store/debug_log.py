"""The file that the client's loggers write to when somebody asks: ``SKYWARD_LOG``, or the command line's ``--debug``.

``debug/debug.log`` in the home, and the one before it, each of at most ``LIMIT`` bytes. Several processes write to it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from ..model.errors import UsageError
from .home import home

LEVELS = ("debug", "info", "warning", "error")
LIMIT = 4 << 20  # bytes of a file
VARIABLE = "SKYWARD_LOG"

_lock = threading.Lock()
_handler: _File | None = None


def folder() -> Path:
    """Where the files are, if there are any."""
    return home() / "debug"


def files() -> list[Path]:
    """Those that are there, the older one first."""
    return [path for name in ("debug.log.1", "debug.log") if (path := folder() / name).is_file()]


def begin() -> str:
    """Have the log written from now on, if ``SKYWARD_LOG`` asks for it: records of that level, and graver ones.

    The first call that is asked decides for the process.

    Returns:
        Why it cannot be written, in a sentence; "" where it can, or nobody asked, or that was said before.

    Raises:
        UsageError: there is no such level.
    """
    global _handler
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return ""
    if asked.lower() not in LEVELS:
        raise UsageError(f"{VARIABLE}={asked!r} is no level; there are {', '.join(LEVELS)}")
    with _lock:
        if _handler is not None:
            return ""
        _handler = _File()
        ours = logging.getLogger("skyward")
        ours.setLevel(asked.upper())
        ours.addHandler(_handler)
        # Whoever asks for the file does not ask for every frame on the terminal, where a script's root logger writes.
        ours.propagate = False
    _handler.handle(
        logging.LogRecord("skyward", logging.INFO, "", 0, f"the log begins: {asked.lower()}", None, None)
    )
    return f"the log cannot be written: {_handler.trouble}" if _handler.trouble else ""


class _File(logging.Handler):
    """A line for each record.

    :class:`logging.handlers.RotatingFileHandler` is for one process: of two, each would go on in a file that the other
    has put aside, and put that of the other aside in turn.
    """

    def __init__(self) -> None:
        super().__init__()
        text = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(pool)s [%(process)d] %(message)s"
        formatter = logging.Formatter(text, "%Y-%m-%dT%H:%M:%S", defaults={"pool": "-"})
        formatter.converter = time.gmtime
        self.setFormatter(formatter)
        self.path = Path("debug.log")
        self.trouble = ""
        self._file = -1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(f"{self.format(record)}\n".encode("utf-8", "replace"))
        except (OSError, UsageError) as error:  # a log that cannot be written keeps nothing from going on
            self.trouble = str(error)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()

    def _write(self, line: bytes) -> None:
        if self._file < 0 or not self._is_current():
            self._open()
        if os.fstat(self._file).st_size + len(line) > LIMIT:
            self._turn(len(line))
        os.write(self._file, line)

    def _is_current(self) -> bool:
        """Whether another process has put our file aside, or somebody has removed it."""
        with suppress(FileNotFoundError):
            return self.path.stat().st_ino == os.fstat(self._file).st_ino
        return False

    def _open(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.path = folder() / "debug.log"
        self.path.parent.mkdir(exist_ok=True, mode=0o700)
        if self.path.parent.stat().st_mode & 0o077:
            self.path.parent.chmod(0o700)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._file).st_mode & 0o077:
            os.fchmod(self._file, 0o600)

    def _turn(self, more: int) -> None:
        """Put the file aside, one process at a time, unless another has just done so."""
        guard = os.open(self.path.with_name("lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            self._open()
            if os.fstat(self._file).st_size + more > LIMIT:
                self.path.replace(self.path.with_name("debug.log.1"))
                self._open()
        finally:
            os.close(guard)
