"""The one thread on which all pools of a process live."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from skyward_core.transport.background_loop import background_loop, short_switch_interval, submit


async def where() -> tuple[str, asyncio.AbstractEventLoop]:
    return threading.current_thread().name, asyncio.get_running_loop()


def test_work_of_all_threads_runs_on_one_loop() -> None:
    found, threads = [], []
    for _ in range(8):
        threads.append(threading.Thread(target=lambda: found.append(submit(where()).result(20))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert set(found) == {("skyward", background_loop())}


def test_errors_come_back_to_who_asked() -> None:
    async def fails() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        submit(fails()).result(20)


def test_a_cancelled_future_cancels_its_work() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = submit(waits())
    assert begun.wait(20)
    assert future.cancel()
    assert ended.wait(20)


def test_it_never_keeps_an_interpreter_from_ending() -> None:
    code = (
        "import asyncio\nfrom skyward_core.transport.background_loop import submit\n"
        "submit(asyncio.sleep(600))\nsubmit(asyncio.sleep(0)).result()\nprint('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.fixture
def usual() -> Iterator[float]:
    found = sys.getswitchinterval()  # an app that ran in this process has its own
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(found)


def test_turns_are_as_long_as_before_once_nobody_is_in_a_hurry(usual: float) -> None:
    first, second = short_switch_interval(), short_switch_interval()
    first.__enter__()
    assert sys.getswitchinterval() < usual
    second.__enter__()
    first.__exit__(None, None, None)  # as threads do, in any order
    assert sys.getswitchinterval() < usual
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual
    with pytest.raises(KeyError), short_switch_interval():
        raise KeyError
    assert sys.getswitchinterval() == usual


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_that_exits_does_not_end_the_loop(kind: type[BaseException]) -> None:
    async def leave() -> None:
        raise kind(3)

    async def stay() -> int:
        return 7

    assert type(submit(leave()).exception(20)) is kind
    assert submit(stay()).result(20) == 7
