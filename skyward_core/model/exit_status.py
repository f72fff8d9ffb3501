"""What our commands end with, so that a shell script can tell what happened (``docs/exit-codes.md``)."""

from __future__ import annotations

from .errors import RunError, ScriptFailed, TeardownError, UsageError
from .outcome import RootCause

OK, FAILED, USAGE, UNVERIFIED, INTERRUPTED = 0, 1, 2, 3, 130


def of_root_cause(cause: RootCause | None) -> int:
    """The exit status of a failed run: that of the rank that failed first where it had one.

    A rank that left with status 0 before its function returned has failed too, so never 0.
    """
    return (cause.exit_code if cause else None) or FAILED


def of_error(error: BaseException) -> int:
    """The exit status of a command that an exception ended."""
    match error:
        case RunError():
            return of_root_cause(error.root_cause)
        case TeardownError():
            return UNVERIFIED
        case ScriptFailed():
            return FAILED
        case UsageError():
            return USAGE
        case KeyboardInterrupt():
            return INTERRUPTED
    return FAILED
