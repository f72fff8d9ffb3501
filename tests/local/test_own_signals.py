"""User code and the signal that stops it: it may take SIGTERM for itself, and it may be anywhere when that comes."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.plugins import Plugin


@pytest.fixture
def pool(home: Path) -> Iterator[sky.Compute]:
    """Two nodes, with a grace that none of these ranks needs all of."""
    with sky.Compute(provider=sky.Local(), nodes=2, options=sky.Options(console=False, grace=30)) as compute:
        yield compute


def stopped(pool: sky.Compute, folder: Path, work: Callable[[Callable[[], None]], Any]) -> sky.RunError:
    """What becomes of a run whose rank 1 fails as soon as rank 0, which does ``work``, says that it has begun."""
    begun = folder / "begun"
    begun.unlink(missing_ok=True)

    def body() -> Any:
        if sky.instance_info().rank == 0:
            return work(begun.touch)
        while not begun.exists():
            time.sleep(0.01)
        raise ValueError("now")

    with pytest.raises(sky.RunError, match="now") as caught:
        sky.function(body)() @ pool
    assert sky.function(lambda: 1)() @ pool == [1, 1]
    return caught.value


def said(pool: sky.Compute) -> str:
    """What rank 0, and the agent about it, have written to its standard error."""
    return (Path(pool.pool.context.machines[0].extra["folder"]) / "spool" / "r000.err").read_text()


def by_flag(begun: Callable[[], None]) -> str:
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    begun()
    while not stop:
        time.sleep(0.01)
    time.sleep(1.5)  # longer than native code is given
    return "early"


def by_exception(begun: Callable[[], None]) -> str:
    """With the handler that was there put back at once, before anybody sees that there was another one."""

    class Preempted(Exception):
        pass

    def preempt(*_: object) -> None:
        raise Preempted

    before = signal.signal(signal.SIGTERM, preempt)
    try:
        begun()
        time.sleep(600)
    except Preempted:
        signal.signal(signal.SIGTERM, before)
        time.sleep(1.5)
    return "early"


def by_asyncio(begun: Callable[[], None]) -> str:
    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        begun()
        await stop.wait()
        await asyncio.sleep(1.5)

    asyncio.run(serve())
    return "early"


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("work", [by_exception, by_asyncio, by_flag])
def test_code_with_a_handler_of_its_own_comes_to_its_end(
    pool: sky.Compute, tmp_path: Path, work: Callable[[Callable[[], None]], str]
) -> None:
    error = stopped(pool, tmp_path, work)
    assert error.results == {0: "early"}
    assert said(pool) == "", "its worker ends when it has returned, and nobody has to kill it"


@pytest.mark.proof("1 s of a processor")
def test_to_leave_well_when_told_to_is_no_result(pool: sky.Compute, tmp_path: Path) -> None:
    """As handlers do that save a checkpoint: what was stopped is told as stopped, and what took too long as that."""

    def leaves(begun: Callable[[], None]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        begun()
        time.sleep(600)

    error = stopped(pool, tmp_path, leaves)
    assert error.results == {} and error.outcomes[0].kind == "collateral"
    assert said(pool) == ""
    script = tmp_path / "falls_off.py"
    script.write_text("import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: 1 / 0)\n")
    with script.open("a") as file:
        file.write("try:\n    time.sleep(600)\nexcept ZeroDivisionError:\n    print('saved')\n")
    for call in (sky.script(script, timeout=0.5), sky.function(leaves)(lambda: None).with_timeout(0.5)):
        with pytest.raises(sky.RunError, match=r"ran longer than its timeout of 0.5 s") as late:
            call >> pool
        assert late.value.outcomes[0].kind == "exited"
    assert sky.function(lambda: 1)() @ pool == [1, 1]


def leaves_handler() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)


def leaves_none() -> None:
    async def serve() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaves_handler)

    asyncio.run(serve())


@pytest.mark.proof("1 s of a processor", after=1)
@pytest.mark.parametrize("before", [leaves_handler, leaves_none])
def test_what_one_call_made_of_the_signal_is_undone_for_the_next(
    pool: sky.Compute, tmp_path: Path, before: Callable[[], None]
) -> None:
    def patient(begun: Callable[[], None]) -> None:
        try:
            begun()
            time.sleep(600)
        finally:
            (tmp_path / "cleaned").touch()

    def blocks(begun: Callable[[], None]) -> None:
        mutex = ctypes.create_string_buffer(64)
        lock = ctypes.CDLL(None).pthread_mutex_lock
        lock(mutex)
        begun()
        lock(mutex)  # for ever

    sky.function(before)() @ pool
    stopped(pool, tmp_path, patient)
    assert (tmp_path / "cleaned").exists()
    sky.function(before)() @ pool
    stopped(pool, tmp_path, blocks)
    assert "in native code" in said(pool)


def forks(begun: Callable[[], None]) -> None:
    kept = b"x" * (128 << 20)  # so that this process is mostly about to fork
    begun()
    while kept:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def forks_when_stopped(begun: Callable[[], None]) -> None:
    """The signal comes to another hook than the worker's own."""

    def wait_for_it() -> None:
        begun()
        time.sleep(600)

    os.register_at_fork(before=wait_for_it)
    if os.fork() == 0:
        os._exit(0)
    time.sleep(600)


def finalizes(begun: Callable[[], None]) -> None:
    class Slow:
        def __del__(self) -> None:
            begun()
            time.sleep(600)

    Slow()
    time.sleep(600)


@pytest.mark.proof("1 s of a processor")
@pytest.mark.parametrize("work, times", [(forks, 4), (forks_when_stopped, 1), (finalizes, 1)])
def test_a_stop_reaches_code_where_python_discards_exceptions(
    pool: sky.Compute, tmp_path: Path, work: Callable[[Callable[[], None]], None], times: int
) -> None:
    def cleans(begun: Callable[[], None]) -> None:
        try:
            work(begun)
        finally:
            (tmp_path / "cleaned").touch()

    for _ in range(times):
        stopped(pool, tmp_path, cleans)
        (tmp_path / "cleaned").unlink()
    assert said(pool) == ""


def test_a_child_that_comes_to_the_end_of_a_call_is_none_of_the_worker(pool: sky.Compute, tmp_path: Path) -> None:
    def body() -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            atexit.register(lambda: (tmp_path / "handler").write_text(str(signal.getsignal(signal.SIGTERM))))

    sky.function(body)() >> pool
    assert (tmp_path / "handler").read_text() == str(signal.SIG_DFL)


class Preempts(Plugin):
    """Takes the signal for all of the worker's life."""

    name = "preempts"

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        signal.signal(signal.SIGTERM, self.preempt)
        yield

    def preempt(self, *_: object) -> None: ...


def test_a_handler_of_a_plugin_is_there_in_every_call(home: Path) -> None:
    def body() -> str:
        found = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return getattr(found, "__qualname__", str(found))

    options = sky.Options(console=False)
    with sky.Compute(provider=sky.Local(), nodes=1, plugins=[Preempts()], options=options) as pool:
        assert [sky.function(body)() @ pool for _ in range(2)] == [["Preempts.preempt"]] * 2
