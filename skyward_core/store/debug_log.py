"""Debug log of the client, which redacts secrets and names the pool of each record.

Loggers print nothing unless an application configures :mod:`logging` or ``SKYWARD_LOG`` is set. Nodes do not import
this module.
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

MAX_MESSAGE_LENGTH = 2000  # maximum characters of a log record, because hosts may send messages of any length

# Pool of the current task. Tasks and connections that the task starts inherit it.
pool: ContextVar[str] = ContextVar("skyward_pool", default="-")

logging.getLogger("skyward").addHandler(logging.NullHandler())

_secrets: set[str] = set()


def get_logger(part: str) -> logging.Logger:
    """Return the logger "skyward.PART" of a part of the client."""
    found = logging.getLogger(f"skyward.{part}")
    # The filter belongs to the logger, so that an application's own handlers get redacted text, too.
    found.addFilter(_filter)
    return found


@contextmanager
def log_duration(log: logging.Logger, operation: str) -> Iterator[None]:
    """Log the duration of a ``with`` block, or the error that it raised."""
    begun = time.monotonic()
    try:
        yield
    except Exception as error:
        log.info("%s: failed after %.3f s: %s: %s", operation, time.monotonic() - begun, type(error).__name__, error)
        raise
    log.debug("%s: %.3f s", operation, time.monotonic() - begun)


def add_secrets(values: Iterable[str]) -> None:
    """Redact the given secrets of a pool in all later log records."""
    _secrets.update(values)


class _RedactingFilter(logging.Filter):
    """Logging filter that redacts a record's text and adds its pool."""

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
        # Redacted before sanitizing, because a secret may have several lines. Redacted again after sanitizing, because
        # removed characters may have split a secret.
        line = redactor.redact_text(sanitize_line(redactor.redact_text(text)))
        return line if len(line) <= MAX_MESSAGE_LENGTH else f"{line[:MAX_MESSAGE_LENGTH]}… ({len(line):,} characters)"


_filter = _RedactingFilter()


LEVELS = ("debug", "info", "warning", "error")
MAX_FILE_BYTES = 4 << 20  # bytes of the log file after which it is rotated
LEVEL_VARIABLE = "SKYWARD_LOG"

_lock = threading.Lock()
_handler: _FileHandler | None = None


def log_folder() -> Path:
    """Return the folder of the log files. It may not exist."""
    return state_home() / "debug"


def log_files() -> list[Path]:
    """Return the existing log files, older one first."""
    return [path for name in ("debug.log.1", "debug.log") if (path := log_folder() / name).is_file()]


def start_logging() -> str:
    """Write the log to a file from now on, if ``SKYWARD_LOG`` names a level.

    Only the first call that finds a level has an effect.

    Returns:
        The reason why the log cannot be written, in a sentence. "" if the log can be written, was not requested, or if
            the reason was reported before.

    Raises:
        UsageError: If the level is unknown.
    """
    global _handler
    level = os.environ.get(LEVEL_VARIABLE, "")
    if not level:
        return ""
    if level.lower() not in LEVELS:
        raise UsageError(f"Unknown log level {LEVEL_VARIABLE}={level!r}. Use one of: {', '.join(LEVELS)}.")
    with _lock:
        if _handler is not None:
            return ""
        _handler = _FileHandler()
        root = logging.getLogger("skyward")
        root.setLevel(level.upper())
        root.addHandler(_handler)
        # The root logger of a script may write to the terminal, where users do not expect the records of this library.
        root.propagate = False
    _handler.handle(logging.LogRecord("skyward", logging.INFO, "", 0, f"the log begins: {level.lower()}", None, None))
    return f"Cannot write the debug log: {_handler.write_error}" if _handler.write_error else ""


class _FileHandler(logging.Handler):
    """Handler that writes a line per record and rotates the file.

    :class:`logging.handlers.RotatingFileHandler` does not support several processes, which would each continue to write
    to a file that another process has renamed.
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
        except (OSError, UsageError) as error:
            # Keep the reason, and continue: the program must not stop because it cannot write its log.
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
        """Check whether the open log file is still the current one. Another process may have rotated or removed it."""
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
        """Rotate the file under a lock, unless another process has just rotated it."""
        guard = os.open(self.path.with_name("lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            self._open()
            if os.fstat(self._file).st_size + more > MAX_FILE_BYTES:
                self.path.replace(self.path.with_name("debug.log.1"))
                self._open()
        finally:
            os.close(guard)
