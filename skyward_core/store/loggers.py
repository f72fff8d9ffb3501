"""The client's loggers, all below "skyward": what they tell is one line, without secrets, whoever listens.

They print nothing unless somebody asks: an application that sets up :mod:`logging`, or :mod:`.debug_log`. Nodes load
nothing of this; the client has :mod:`logging` from asyncio.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..wire.redact import Redactor, secret_values
from ..wire.safe_text import field

LONGEST = 2000  # characters of a message; a host may say as much as it likes

pool: ContextVar[str] = ContextVar("skyward_pool", default="-")
"""The pool that the current task is about; what it starts, connections too, goes on being about it."""

logging.getLogger("skyward").addHandler(logging.NullHandler())

_secrets: set[str] = set()


def logger(part: str) -> logging.Logger:
    """The logger of a part of the client, "skyward.PART"."""
    found = logging.getLogger(f"skyward.{part}")
    found.addFilter(_filter)  # of the logger and not of a handler: an application's own get the same text
    return found


@contextmanager
def timed(log: logging.Logger, what: str) -> Iterator[None]:
    """Have a log tell how long a block took, or after how long it failed, and at what."""
    begun = time.monotonic()
    try:
        yield
    except Exception as error:
        log.info(
            "%s: failed after %.3f s: %s: %s", what, time.monotonic() - begun, type(error).__name__, error
        )
        raise
    log.debug("%s: %.3f s", what, time.monotonic() - begun)


def blank(values: Iterable[str]) -> None:
    """Secrets that a pool knows, and that no logger tells from now on."""
    _secrets.update(values)


class _Clean(logging.Filter):
    """Makes a record's text fit to be seen, and says which pool it is about."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._redactor: Redactor | None = None
        self._known = 0

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._clean(record.getMessage()), None
        record.pool = getattr(record, "pool", None) or pool.get()
        return True

    def _clean(self, text: str) -> str:
        with self._lock:
            if self._redactor is None:
                self._redactor = Redactor(secret_values(os.environ))
            if len(_secrets) != self._known:
                secrets = list(_secrets)
                self._redactor.add(secrets)
                self._known = len(secrets)
            redactor = self._redactor
        # Before, as a secret may have several lines; and after, as what is taken out may have stood within one.
        line = redactor.text(field(redactor.text(text)))
        return line if len(line) <= LONGEST else f"{line[:LONGEST]}… ({len(line):,} characters)"


_filter = _Clean()
