"""What ``breakpoint()`` and ``pdb.set_trace()`` mean in a rank, whose standard input is empty: pdb would read its end,
and end the rank. Loaded when somebody imports pdb."""

# A rank has no pathlib.
# ruff: noqa: PTH109

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType
from typing import Any

from ...runtime.info import instance_info

_told: set[tuple[str, str, int]] = set()  # run, file and line, of which the log has a line already
_stdin = sys.stdin


def catch(pdb: Any, wait: float) -> None:
    """Put ours in the place of pdb's functions; who has put a file in the place of standard input has pdb's.

    Args:
        pdb: the module, as soon as it is imported.
        wait: seconds that a rank waits for somebody who debugs it.
    """
    set_trace, post_mortem = getattr(pdb, "set_trace", None), getattr(pdb, "post_mortem", None)
    if set_trace is None or post_mortem is None:
        return  # another module of that name

    def at_line(**given: Any) -> None:
        """Stop here; with a ``header`` that is said first."""
        at = sys._getframe(1)
        if not _reads_nothing():
            own = pdb.Pdb()
            if given.get("header") is not None:
                own.message(given["header"])
            own.set_trace(at)
            return
        _go_on(at, at.f_lineno, "comes to a breakpoint")

    def at_error(*given: Any) -> None:
        """Stop where an exception was raised, the one that is being handled unless one, or its traceback, is given."""
        if not _reads_nothing():
            post_mortem(*given)
            return
        error: Any = given[0] if given else sys.exc_info()[1]
        trace: TracebackType | None = getattr(error, "__traceback__", error)
        if trace is None:
            raise ValueError("A valid traceback must be passed if no exception is being handled")
        while trace.tb_next is not None:
            trace = trace.tb_next
        _go_on(trace.tb_frame, trace.tb_lineno, "looks at an exception")

    pdb.set_trace, pdb.post_mortem = at_line, at_error


def _reads_nothing() -> bool:
    """Whether standard input is what each rank has."""
    if sys.stdin is not _stdin:
        return False
    try:
        found, null = os.fstat(0), os.stat(os.devnull)
    except OSError:
        return True
    return found.st_rdev == null.st_rdev and found.st_ino == null.st_ino


def _go_on(at: FrameType, line: int, does: str) -> None:
    """Say once for each place and run that nobody stopped there."""
    info = instance_info()
    file = at.f_code.co_filename
    key = (info.run, file, line)
    if key in _told:
        return
    _told.add(key)
    _say(
        f"rank {info.rank} {does} at {_place(at, line)} and goes on: with "
        "sky.Options(debug_wait=600) it waits 600 s for somebody who debugs it"
    )


def _say(what: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"skyward: {what}\n")
        sys.stderr.flush()


def _place(at: FrameType, line: int) -> str:
    file = at.f_code.co_filename
    folder = os.getcwd() + "/"
    return f"{file.removeprefix(folder)}:{line} in {at.f_code.co_name}()"
