"""Where a rank spends its time: py-spy looks at it a hundred times a second, and never stops it."""

from __future__ import annotations

import os
from contextlib import suppress

from . import py_spy
from .py_spy import CannotRead

RATE = 100  # looks a second
LONGEST = 600.0  # seconds
MORE = 20.0  # seconds that py-spy may take beside those
MOST = 8 << 20  # bytes of what it tells


def record(program: str, pid: int, seconds: float, file: str) -> bytes:
    """Stacks and how often each was seen, a line each: frames from the outermost on, between semicolons. Blocks.

    Args:
        file: where py-spy writes it; removed again.

    Raises:
        CannotRead: says why there is none.
    """
    if not program:
        raise CannotRead(py_spy.ABSENT)
    whole = max(1, round(min(seconds, LONGEST)))
    options = [
        "--format",
        "raw",
        "--nonblocking",
        "--full-filenames",
        "--rate",
        str(RATE),
        "--duration",
        str(whole),
    ]
    try:
        said, errors = py_spy.run(
            [program, "record", *options, "--output", file, "--pid", str(pid)], whole + MORE
        )
        try:
            with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as written:
                told = written.read(MOST + 1)
        except FileNotFoundError:
            raise CannotRead(py_spy.in_words(errors or said)) from None
    finally:
        with suppress(OSError):
            os.unlink(file)  # noqa: PTH108
    if len(told) > MOST:
        raise CannotRead("its stacks are too many to be told: try fewer seconds")
    return told
