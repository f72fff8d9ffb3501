"""A script's view of its ranks: whole lines, each with its rank, whatever becomes of the terminal."""

from __future__ import annotations

import io
import os
import threading
from typing import Any

import pytest

from skyward_core.console import Console
from skyward_core.loop import submit


class Pool:
    """Stands for a pool: passes on bytes, on the pools' thread, to who has subscribed."""

    def __init__(self) -> None:
        self.take: Any = None

    def subscribe(self, on_event: Any, on_log: Any, *, missed: bool) -> Any:
        assert missed  # what a pool's ranks print while it comes up is shown too
        self.take = on_log
        return self._stop

    def _stop(self) -> None:
        self.take = None

    def print(self, rank: int, stream: str, data: bytes) -> None:
        async def give() -> None:
            if self.take is not None:
                self.take(rank, stream, 0, data)

        submit(give()).result(20)


def console(pool: Pool, out: Any) -> Console:
    return Console(pool, out)  # type: ignore[arg-type]


def test_lines_are_whole_and_carry_their_rank() -> None:
    pool, out = Pool(), io.StringIO()
    shown = console(pool, out)
    pool.print(3, "out", b"one\ntw")
    pool.print(0, "out", b"zero\n")
    pool.print(3, "err", b"oops\n")
    pool.print(3, "out", b"o\n")
    shown.close()
    assert out.getvalue() == "r003| one\nr000| zero\nr003| oops\nr003| two\n"


def test_unfinished_lines_come_at_the_end_and_nothing_after_it() -> None:
    pool, out = Pool(), io.StringIO()
    shown = console(pool, out)
    pool.print(1, "out", b"no newline")
    pool.print(2, "err", b"\r50%\r100%")
    shown.close()
    pool.print(1, "out", b" too late\n")
    assert out.getvalue() == "r001| no newline\nr002| 100%\n"


def test_a_terminal_that_is_gone_is_no_trouble_and_takes_no_memory() -> None:
    readable, writable = os.pipe()
    pool, out = Pool(), open(writable, "w", buffering=1)  # noqa: SIM115
    shown = console(pool, out)
    os.close(readable)
    pool.print(0, "out", b"x\n")
    shown._thread.join(20)
    for _ in range(1000):
        pool.print(0, "out", b"y" * 1000 + b"\n")
    assert shown._queue.empty()
    shown.close()
    with pytest.raises(BrokenPipeError):
        out.close()


def test_a_stream_that_the_script_closed_is_no_trouble() -> None:
    pool, out = Pool(), io.StringIO()
    shown = console(pool, out)
    out.close()
    pool.print(0, "out", b"x\n")
    shown.close()


def test_a_terminal_that_cannot_show_a_character_shows_the_rest() -> None:
    pool, raw = Pool(), io.BytesIO()
    shown = console(pool, io.TextIOWrapper(raw, encoding="latin-1"))
    pool.print(0, "out", "fünf 🚀\n".encode())
    pool.print(0, "out", b"\xff and on\n")
    shown.close()
    assert raw.getvalue() == b"r000| f\xfcnf \\U0001f680\nr000| \\ufffd and on\n"


def test_a_slow_terminal_does_not_hold_up_the_pool() -> None:
    class Slow(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.go = threading.Event()

        def write(self, text: str) -> int:
            assert self.go.wait(20)
            return super().write(text)

    pool, out = Pool(), Slow()
    shown = console(pool, out)
    for number in range(100):
        pool.print(0, "out", f"{number}\n".encode())  # returns, although nothing can be written
    out.go.set()
    shown.close()
    assert out.getvalue().splitlines() == [f"r000| {number}" for number in range(100)]
