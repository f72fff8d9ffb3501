"""Printing of rank output by scripts: whole lines with rank prefixes, progress bars and broken terminals."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyte
import pytest

from skyward_core.api import rank_output_printer
from skyward_core.api.pool_operations import print_safely
from skyward_core.api.rank_output_printer import ScriptConsole
from skyward_core.model.errors import NotPicklableError
from skyward_core.model.function import PendingFunction
from skyward_core.tasks import script_stdout_beside_rank_lines
from skyward_core.tasks.function_pickling import make_task
from skyward_core.transport.background_loop import submit
from tests.support.waiting import wait_until


class News:
    """Fake publisher of a pool that sends bytes to its subscribers on the pools' thread."""

    def __init__(self) -> None:
        self.enqueue: Any = None

    def subscribe(self, on_event: Any, on_log: Any, *, missed: bool) -> Any:
        assert missed  # what a pool's ranks print while it comes up is shown too
        self.enqueue = on_log
        return self._stop

    def _stop(self) -> None:
        self.enqueue = None

    def print(self, rank: int, stream: str, data: bytes) -> None:
        async def give() -> None:
            if self.enqueue is not None:
                self.enqueue(rank, stream, 0, data, "")

        submit(give()).result(20)


Opens = Callable[[Any], tuple[ScriptConsole, News]]


@pytest.fixture(autouse=True)
def own_stdout_comes_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = sys.stdout
    yield
    monkeypatch.undo()
    assert sys.stdout is own


@pytest.fixture
def long_lock_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_stdout_beside_rank_lines, "LOCK_TIMEOUT", 60.0)  # however slow the machine is


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Opens:
    def console(out: Any) -> tuple[ScriptConsole, News]:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out)
        news = News()
        return ScriptConsole(news), news  # type: ignore[arg-type]

    return console


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize("closed", [False, True])
def test_rank_output_stream_recovers_from_a_write_failure(
    console: Opens, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    shown, news = console(out := io.StringIO())
    other = Broken()
    if closed:
        other.close()
    with contextlib.redirect_stderr(other):
        news.print(0, "err", b"lost\n")
        shown.flush()
    news.print(0, "out", b"shown\n")
    news.print(0, "err", b"shown, too\n")
    shown.close()
    assert out.getvalue() == "r000| shown\nr000| shown, too\n"


def test_rank_output_follows_redirection_of_stdout(console: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    first, later, err = io.StringIO(), io.StringIO(), io.StringIO()
    shown, news = console(first)
    monkeypatch.setattr(sys, "stderr", err)
    news.print(0, "out", b"one\n")
    shown.flush()
    assert first.getvalue() == "r000| one\n", "it is there at once"
    with contextlib.redirect_stdout(later):
        news.print(0, "out", b"two\n")
        news.print(1, "err", b"oops\n")
        shown.flush()
        assert (later.getvalue(), err.getvalue()) == ("r000| two\n", "r001| oops\n")
    news.print(0, "out", b"three\n")
    shown.close()
    assert first.getvalue() == "r000| one\nr000| three\n"


def test_ended_call_does_not_wait_for_a_stuck_terminal(console: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_output_printer, "FLUSH_TIMEOUT", 0.01)
    gate = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            gate.wait(60)
            return super().write(text)

    shown, news = console(out := Stuck())
    for number in range(100):
        news.print(0, "out", b"%d\n" % number)  # returns, although nothing can be written
    shown.flush()
    assert out.getvalue() == ""
    gate.set()
    shown.close()
    assert out.getvalue().splitlines() == [f"r000| {number}" for number in range(100)]


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stderr", [None, Broken(), object(), Full()])
def test_print_safely_survives_a_failing_stderr(monkeypatch: pytest.MonkeyPatch, stderr: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    assert not print_safely("pool p is down")
    monkeypatch.setattr(sys, "stderr", raw := io.TextIOWrapper(io.BytesIO(), encoding="cp437", newline=""))
    assert print_safely("© ✗ ñ")  # the first is not in that code page, though it is in latin-1
    assert raw.buffer.getvalue() == b"\\xa9 \\u2717 \xa4\n"  # type: ignore[attr-defined]


def test_characters_missing_from_the_encoding_are_escaped(console: Opens) -> None:
    shown, news = console(io.TextIOWrapper(raw := io.BytesIO(), encoding="latin-1"))
    news.print(0, "out", "fünf 🚀\n".encode())
    news.print(0, "out", b"\xff and on\n")
    shown.close()
    assert raw.getvalue() == b"r000| f\xfcnf \\U0001f680\nr000| \\ufffd and on\n"


class Screen(io.StringIO):
    """Terminal of 30 columns and 8 lines, and its content."""

    def __init__(self) -> None:
        super().__init__()
        self._screen = pyte.Screen(30, 8)
        self._stream = pyte.Stream(self._screen)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._stream.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display if line.strip()]


def test_progress_bars_are_drawn_only_during_a_blocking_call(
    console: Opens, long_lock_timeout: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_output_printer, "get_terminal_size", lambda: os.terminal_size((30, 8)))
    monkeypatch.setenv("TERM", "xterm")
    shown, news = console(out := Screen())
    news.print(0, "err", b"\r 10%")
    print("before")
    with shown.live():
        wait_until(lambda: out.lines == ["before", "r000|  10%"])
        news.print(1, "err", b"\r 20%\x1b[2J\x1b]0;owned\x07 and more than there is room for")
        wait_until(lambda: out.lines == ["before", "r000|  10%", "r001|  20% and more than the…"])
        news.print(0, "out", b"a line\n")
        wait_until(lambda: "r000| a line" in out.lines)
        print("of another thread")
        news.print(0, "err", b"\r 30%")
        bars = ["r000|  30%", "r001|  20% and more than the…"]
        wait_until(lambda: out.lines == ["before", "r000| a line", "of another thread", *bars])
        sys.stdout.write("begun")
        news.print(0, "err", b"\r 40%")
        news.print(0, "err", b"\r 50%")
        assert out.lines == ["before", "r000| a line", "of another thread", "begun"], "nothing is drawn over it"
        sys.stdout.write("\n")
    assert out.lines == ["before", "r000| a line", "of another thread", "begun"]
    news.print(0, "err", b"\r 60%")
    shown.flush()
    assert "60%" not in out.getvalue(), "the script may ask for something now"
    news.print(0, "err", b"\r    \r")
    shown.close()
    assert out.lines[4:] == ["r001|  20% and more than there", " is room for"]
    assert "owned" not in out.getvalue() and "[2J" not in out.getvalue()


def test_call_ends_although_the_terminal_accepts_no_output(console: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_stdout_beside_rank_lines, "LOCK_TIMEOUT", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    gate, stuck = threading.Event(), threading.Event()

    class Stopped(Screen):
        def write(self, text: str) -> int:
            stuck.set()
            gate.wait(60)
            return super().write(text)

    shown, news = console(out := Stopped())
    with shown.live():
        news.print(0, "err", b"\r 10%")
        assert stuck.wait(60)
    gate.set()
    print("the script goes on")
    shown.close()
    assert out.lines == ["the script goes on", "r000|  10%"]


@pytest.mark.parametrize("which", ["stdout", "stderr", "TERM"])
def test_progress_bars_are_not_drawn_without_a_terminal(
    console: Opens, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setenv("TERM", "dumb" if which == "TERM" else "xterm")
    shown, news = console(out := Screen())
    if which != "TERM":
        monkeypatch.setattr(sys, which, io.StringIO())
    with shown.live():
        news.print(0, "err", b"\r 10%")
        news.print(0, "err", b"\r 20%\n")
        shown.flush()
    shown.close()
    assert "10%" not in out.getvalue()


class Watched(io.StringIO):
    """Stream that signals when lines have been written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = threading.Event()

    def flush(self) -> None:
        self.flushed.set()


def test_rank_output_does_not_split_a_line_of_the_script(console: Opens, long_lock_timeout: None) -> None:
    shown, news = console(out := Watched())
    sys.stdout.write("[1, 2]")  # as print([1, 2], 3) does, piece by piece
    news.print(0, "out", b"zero\n")
    sys.stdout.write(" ")
    sys.stdout.write("3")
    sys.stdout.write("\n")
    assert out.flushed.wait(20)
    shown.close()
    assert out.getvalue() == "[1, 2] 3\nr000| zero\n"


def test_unfinished_line_of_the_script_does_not_delay_rank_output(console: Opens) -> None:
    shown, news = console(out := Watched())
    print("training ... ", end="")
    news.print(0, "out", b"zero\n")
    assert out.flushed.wait(20)
    print("done")
    shown.close()
    assert out.getvalue() == "training ... \nr000| zero\ndone\n"


def test_concurrent_threads_and_ranks_print_whole_lines(console: Opens, long_lock_timeout: None) -> None:
    shown, news = console(out := io.StringIO())

    def script() -> None:
        for number in range(300):
            print("script", number, "of", 300)

    thread = threading.Thread(target=script)
    thread.start()
    for number in range(300):
        news.print(1, "out", b"rank %d\n" % number)
    thread.join(20)
    shown.close()
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line[0] == "s"] == [f"script {n} of 300" for n in range(300)]
    assert [line for line in lines if line[0] == "r"] == [f"r001| rank {n}" for n in range(300)]


def test_consoles_closed_in_any_order_restore_stdout(console: Opens) -> None:
    out = io.StringIO()
    first, _ = console(out)
    second = ScriptConsole(news := News())  # type: ignore[arg-type]
    first.close()
    news.print(0, "out", b"still shown\n")
    second.close()
    assert sys.stdout is out
    assert out.getvalue() == "r000| still shown\n"


def test_forked_child_prints_although_console_holds_its_lock(console: Opens) -> None:
    class Slow(Watched):
        def write(self, text: str) -> int:
            if text.startswith("r000"):
                self.flushed.set()
                assert self.go.wait(20)
            return super().write(text)

        go = threading.Event()

    shown, news = console(out := Slow())
    news.print(0, "out", b"x\n")
    assert out.flushed.wait(20)  # the console's thread holds the lock now
    child = os.fork()
    if not child:
        print("from the child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    out.go.set()
    shown.close()


def test_function_holding_stdout_is_pickled_while_console_is_open() -> None:
    own = io.TextIOWrapper(io.BytesIO(), write_through=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", own)
        shown = ScriptConsole(News())  # type: ignore[arg-type]
        try:
            stand_in = sys.stdout
            assert stand_in is not own
            held = (lambda: own, lambda: stand_in)
            blobs = [make_task(PendingFunction(each)).fn.read() for each in held]
        finally:
            shown.close()
        assert [pickle.loads(blob)() for blob in blobs] == [own, own]  # as a node has its own
    with tempfile.TemporaryFile("w") as other, pytest.raises(NotPicklableError, match="TextIOWrapper"):
        make_task(PendingFunction(lambda: other))
