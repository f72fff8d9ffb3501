"""The client's debug log.

They print nothing unless somebody asks: an application that sets up :mod:`logging`, or ``store.debug_log``. Nodes load
nothing of this; the client has :mod:`logging` from asyncio.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from skyward_core.model.errors import UsageError
from skyward_core.store.state_folder import state_home
from skyward_core.util.redaction import Redactor, secret_values
from skyward_core.util.terminal_safe_text import sanitize_line

MAX_MESSAGE_LENGTH = 2000  # characters of a message; a host may say as much as it likes

pool: ContextVar[str] = ContextVar("skyward_pool", default="-")
"""The pool that the current task is about; what it starts, connections too, goes on being about it."""

logging.getLogger("skyward").addHandler(logging.NullHandler())

_secrets: set[str] = set()


def get_logger(part: str) -> logging.Logger:
    """The logger of a part of the client, "skyward.PART"."""
    found = logging.getLogger(f"skyward.{part}")
    found.addFilter(_filter)  # of the logger and not of a handler: an application's own get the same text
    return found


@contextmanager
def log_duration(log: logging.Logger, what: str) -> Iterator[None]:
    """Have a log tell how long a block took, or after how long it failed, and at what."""
    begun = time.monotonic()
    try:
        yield
    except Exception as error:
        log.info("%s: failed after %.3f s: %s: %s", what, time.monotonic() - begun, type(error).__name__, error)
        raise
    log.debug("%s: %.3f s", what, time.monotonic() - begun)


def add_secrets(values: Iterable[str]) -> None:
    """Secrets that a pool knows, and that no logger tells from now on."""
    _secrets.update(values)


class _RedactingFilter(logging.Filter):
    """Makes a record's text fit to be seen, and says which pool it is about."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._redactor: Redactor | None = None
        self._secret_count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redact(record.getMessage()), None
        record.pool = getattr(record, "pool", None) or pool.get()
        return True

    def _redact(self, text: str) -> str:
        with self._lock:
            if self._redactor is None:
                self._redactor = Redactor(secret_values(os.environ))
            if len(_secrets) != self._secret_count:
                secrets = list(_secrets)
                self._redactor.add(secrets)
                self._secret_count = len(secrets)
            redactor = self._redactor
        # Before, as a secret may have several lines; and after, as what is taken out may have stood within one.
        line = redactor.redact_text(sanitize_line(redactor.redact_text(text)))
        return line if len(line) <= MAX_MESSAGE_LENGTH else f"{line[:MAX_MESSAGE_LENGTH]}… ({len(line):,} characters)"


_filter = _RedactingFilter()


LEVELS = ("debug", "info", "warning", "error")
MAX_FILE_BYTES = 4 << 20  # bytes of a file
LEVEL_VARIABLE = "SKYWARD_LOG"

_lock = threading.Lock()
_handler: _FileHandler | None = None


def log_folder() -> Path:
    """Where the files are, if there are any."""
    return state_home() / "debug"


def log_files() -> list[Path]:
    """Those that are there, the older one first."""
    return [path for name in ("debug.log.1", "debug.log") if (path := log_folder() / name).is_file()]


def start_logging() -> str:
    """Have the log written from now on, if ``SKYWARD_LOG`` asks for it: records of that level, and graver ones.

    The first call that is asked decides for the process.

    Returns:
        Why it cannot be written, in a sentence; "" where it can, or nobody asked, or that was said before.

    Raises:
        UsageError: there is no such level.
    """
    global _handler
    asked = os.environ.get(LEVEL_VARIABLE, "")
    if not asked:
        return ""
    if asked.lower() not in LEVELS:
        raise UsageError(f"{LEVEL_VARIABLE}={asked!r} is no level; there are {', '.join(LEVELS)}")
    with _lock:
        if _handler is not None:
            return ""
        _handler = _FileHandler()
        ours = logging.getLogger("skyward")
        ours.setLevel(asked.upper())
        ours.addHandler(_handler)
        # Whoever asks for the file does not ask for every frame on the terminal, where a script's root logger writes.
        ours.propagate = False
    _handler.handle(logging.LogRecord("skyward", logging.INFO, "", 0, f"the log begins: {asked.lower()}", None, None))
    return f"the log cannot be written: {_handler.write_error}" if _handler.write_error else ""


class _FileHandler(logging.Handler):
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
        self.write_error = ""
        self._file = -1

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(f"{self.format(record)}\n".encode("utf-8", "replace"))
        except (OSError, UsageError) as error:  # a log that cannot be written keeps nothing from going on
            self.write_error = str(error)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()

    def _write(self, line: bytes) -> None:
        if self._file < 0 or not self._is_current():
            self._open()
        if os.fstat(self._file).st_size + len(line) > MAX_FILE_BYTES:
            self._rotate(len(line))
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
        self.path = log_folder() / "debug.log"
        self.path.parent.mkdir(exist_ok=True, mode=0o700)
        if self.path.parent.stat().st_mode & 0o077:
            self.path.parent.chmod(0o700)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._file).st_mode & 0o077:
            os.fchmod(self._file, 0o600)

    def _rotate(self, more: int) -> None:
        """Put the file aside, one process at a time, unless another has just done so."""
        guard = os.open(self.path.with_name("lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            self._open()
            if os.fstat(self._file).st_size + more > MAX_FILE_BYTES:
                self.path.replace(self.path.with_name("debug.log.1"))
                self._open()
        finally:
            os.close(guard)
