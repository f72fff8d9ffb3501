"""Asynchronous functions and awaited calls, and executors on a pool."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import BrokenExecutor, Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

import skyward_core as sky
from tests.support.processes import exists
from tests.support.waiting import wait_until

STARTS_WORKERS = True  # `pthread_kill` fails in a cloned process, for which libc keeps its parent's thread id


@sky.function
async def plus(a: int, b: int = 1) -> int:
    await asyncio.sleep(0.001)
    return a + b


@sky.function
async def counted(count: int, end_file: str = "") -> AsyncIterator[int]:
    try:
        for number in range(count):
            await asyncio.sleep(0)
            yield number
    finally:
        await asyncio.sleep(0)
        if end_file:
            Path(end_file).write_text("closed")


@sky.function
@sky.stdout(only="head")
async def print_word() -> str:
    await asyncio.sleep(0)
    print("said")
    return "said"


@sky.function
async def for_ever(started: str) -> None:
    Path(started).touch()
    await asyncio.Event().wait()


async def spins(_: Path) -> None:
    while True:
        sum(range(5_000))
        await asyncio.sleep(0)


async def blocks(here: Path) -> None:
    try:
        time.sleep(600)  # noqa: ASYNC251  it is to block the loop
    finally:
        await asyncio.sleep(0)
        (here / "child").touch()


def calls_itself() -> None:
    sum(range(5_000))
    asyncio.get_running_loop().call_soon(calls_itself)


@asynccontextmanager
async def told_of(here: Path) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.sleep(0.01)
        (here / "left").touch()


@sky.function
async def stopped(folder: str) -> None:
    """Block until stopped: in another task that awaits or blocks, in its own coroutine, or in a callback."""
    rank = sky.instance_info().rank
    here = Path(folder, str(rank))
    here.mkdir()
    children = []
    try:
        async with told_of(here):
            if rank < 2:
                children.append(asyncio.create_task((spins, blocks)[rank](here)))
            elif rank == 2:
                calls_itself()
            (here / "began").write_text(str(os.getpid()))
            if rank == 3:
                time.sleep(600)  # noqa: ASYNC251
            await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)
        (here / "finally").touch()


@sky.function
async def stopped_while_it_makes_a_value(folder: str) -> AsyncIterator[int]:
    here = Path(folder)
    child = asyncio.create_task(spins(here))
    try:
        yield 1
        (here / "began").write_text(str(os.getpid()))
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)
        (here / "finally").touch()
        child.cancel()


class Model:
    @sky.function
    async def grown(self, by: int) -> int:
        return by + 1


def raise_lookup_error(number: int) -> None:
    raise LookupError(f"no {number}")


def locked() -> Any:
    return threading.Lock()


def twice(number: int) -> int:
    return 2 * number


def raise_system_exit(how: object) -> None:
    raise SystemExit(how)


def interrupt() -> None:
    raise KeyboardInterrupt


class Leaves:
    """Object that exits the process which pickles or loads it."""

    def __init__(self, pickled: bool = True) -> None:
        self.pickled = pickled

    def __reduce__(self) -> Any:
        if self.pickled:
            raise SystemExit(3)
        return raise_system_exit, (3,)


def wait_for_file(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.01)
    return path


def exit_at_file(path: str) -> NoReturn:
    wait_for_file(path)
    os._exit(3)


# -- async def functions in ranks ----------------------------------------------------------------------------


def test_async_function_returns_its_value(pool: sky.Compute) -> None:
    assert plus(1) >> pool == 2
    assert plus(1, b=2) @ pool == [3] * 4
    assert Model().grown(1) >> pool == 2
    assert list(pool.map(plus, range(3))) == [1, 2, 3]
    assert print_word() @ pool == ["said"] * 4
    with pytest.raises(TypeError, match=r"plus\(a: .* cannot be called with these arguments"):
        plus() >> pool  # type: ignore[call-overload]


def test_async_generator_yields_its_values_and_is_closed(pool: sky.Compute, tmp_path: Path) -> None:
    assert list(counted(3) >> pool) == [0, 1, 2]
    assert [list(values) for values in counted(2) @ pool] == [[0, 1]] * 4
    file = tmp_path / "told"
    values: Any = counted(10_000, str(file)) >> pool
    assert next(values) == 0
    values.close()
    wait_until(file.exists, what="the generator's finally block has run")


@pytest.mark.parametrize(
    "begin",
    [
        lambda call, pool: call > pool,
        lambda call, pool: call.on(pool),
        lambda call, pool: call.on_all(pool),
        lambda call, pool: pool.run_async(call),
    ],
    ids=[">", "on", "on_all", "run_async"],
)
def test_future_of_a_generator_function_is_rejected(pool: sky.Compute, begin: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(sky.UsageError, match="counted is a generator function, but a future has one value"):
        begin(counted(3), pool)


@pytest.mark.proof("5 s of a processor", after=1)
@pytest.mark.parametrize("by", ["cancel", "time limit"])
def test_cancel_or_timeout_stops_an_async_function(pool: sky.Compute, tmp_path: Path, by: str) -> None:
    def have(name: str) -> list[Path]:
        return list(tmp_path.glob(f"*/{name}"))

    call = stopped(str(tmp_path))
    future = (call.with_timeout(5.0) if by == "time limit" else call).on_all(pool)
    wait_until(lambda: len([each for each in have("began") if each.read_text()]) == 4, what="all wait")
    if by == "cancel":
        future.cancel()
    else:
        with pytest.raises(TimeoutError, match="timeout of 5 s"):
            future.result(timeout=60)
    pids = [int(each.read_text()) for each in have("began")]
    wait_until(lambda: not any(exists(pid) for pid in pids), what="all have ended")
    assert (len(have("left")), len(have("finally")), len(have("child"))) == (4, 4, 1)


@pytest.mark.proof("1 s of a processor")
def test_timeout_stops_an_async_generator_between_values(pool: sky.Compute, tmp_path: Path) -> None:
    values: Any = stopped_while_it_makes_a_value(str(tmp_path)).with_timeout(1.0) >> pool
    assert next(values) == 1
    with pytest.raises(TimeoutError, match="timeout of 1 s"):
        next(values)
    pid = int((tmp_path / "began").read_text())
    wait_until(lambda: not exists(pid), what="it has ended")
    assert (tmp_path / "finally").exists()


def test_output_decorator_on_async_generator_is_rejected() -> None:
    with pytest.raises(TypeError, match="values is an async generator function"):

        @sky.stdout
        async def values() -> AsyncIterator[int]:
            yield 1


# -- asynchronous code around calls --------------------------------------------------------------------------


def test_futures_of_calls_can_be_awaited(pool: sky.Compute, tmp_path: Path) -> None:
    async def main() -> None:
        assert await plus(1).on(pool) == 2
        assert await plus(1).on_all(pool) == [2] * 4
        assert await (plus(1) & plus(2)).on(pool) == (2, 3)
        assert await asyncio.gather(*(plus(n).on(pool) for n in range(6))) == [1, 2, 3, 4, 5, 6]
        with pytest.raises(LookupError, match="no 3"):
            await sky.function(raise_lookup_error)(3).on(pool)
        with pytest.raises(sky.UsageError, match="Run it with >>"):
            sky.gather(plus(1), stream=True).on(pool)

    asyncio.run(main())


def test_cancelling_an_awaiting_task_cancels_the_run(pool: sky.Compute, tmp_path: Path) -> None:
    started = tmp_path / "started"

    async def main() -> str:
        future = for_ever(str(started)).on(pool)
        waiting = asyncio.ensure_future(future)
        await asyncio.sleep(0)  # a task that has not begun awaits nothing yet
        while not started.exists():
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return future.run

    run = asyncio.run(main())
    wait_until(lambda: pool.pool.view.runs[run].state == "cancelled", what="the run is cancelled")
    assert plus(1) >> pool == 2


def test_pool_works_with_async_with(module_home: Path) -> None:
    async def main() -> sky.Compute:
        async with sky.Compute(nodes=1, options=sky.Options(console=False)) as compute:
            assert await plus(1).on(compute) == 2
            async with sky.attach(compute.name) as attached:
                assert await plus(2).on(attached) == 3
        return compute

    receipt = asyncio.run(main()).receipt
    assert receipt is not None and receipt.ok and len(receipt.gone) == 1


@pytest.mark.parametrize("ready", [False, True], ids=["before startup", "during startup"])
def test_cancelled_start_with_async_with_leaves_nothing(
    module_home: Path, ready: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    compute = sky.Compute(nodes=2, options=sky.Options(console=False))

    async def start() -> None:
        async with compute:
            raise AssertionError("it was cancelled before it was up")

    async def main() -> None:
        starting = asyncio.create_task(start())
        await asyncio.sleep(0)
        while ready and compute._pool is None:
            await asyncio.sleep(0.001)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(main())
    assert compute._pool is None
    assert compute.receipt is None or compute.receipt.ok
    assert "never retrieved" not in capfd.readouterr().err


# -- a pool as an executor -----------------------------------------------------------------------------------


def test_executor_runs_plain_functions(pool: sky.Compute) -> None:
    with sky.Executor(pool) as executor:
        assert executor.submit(pow, 2, 10).result() == 1024
        assert executor.submit(plus, 1, b=3).result() == 4
        assert list(executor.map(twice, range(50))) == [2 * n for n in range(50)]
        assert list(executor.map(max, range(9), [4] * 9, chunksize=4)) == [max(n, 4) for n in range(9)]
        assert list(executor.map(plus, range(5), chunksize=2)) == [1, 2, 3, 4, 5]
        assert asyncio.run(run_in_executor(executor)) == 8
        refused = executor.submit(raise_lookup_error, 3)
        with pytest.raises(LookupError, match="no 3") as raised:
            refused.result()
        assert "in raise_lookup_error" in str(raised.value.__cause__)
        with pytest.raises(sky.NotPicklableError, match=r"the result of locked\(\) cannot be sent back"):
            executor.submit(locked).result()
        with pytest.raises(sky.NotPicklableError, match="cannot be pickled"):
            executor.submit(abs, threading.Lock()).result()  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="cannot be called with these arguments"):
            executor.submit(twice)  # type: ignore[call-arg]
        with pytest.raises(sky.UsageError, match="generator function"):
            executor.submit(counted, 3)
        assert executor.submit(twice, 4).result() == 8  # what failed took nobody along
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(twice, 1)
    (run,) = [run for run in pool.pool.view.runs.values() if run.function == "executor"]
    wait_until(lambda: run.state == "done", what="its run has ended")


def test_timeout_of_a_mapped_executor_call_applies_to_each_call(pool: sky.Compute, tmp_path: Path) -> None:
    """Without a timeout a chunk would never end; with one timeout for a chunk it would end too early."""
    there, never = tmp_path / "there", tmp_path / "never"
    there.touch()
    with sky.Executor(pool) as executor:
        limited = sky.function(timeout=60.0)(wait_for_file)
        assert list(executor.map(limited, [str(there)] * 4, chunksize=4)) == [str(there)] * 4
    run = [run for run in pool.pool.view.runs.values() if run.function == "executor"][-1]
    wait_until(lambda: run.state == "done", what="its run has ended")
    assert sum(task.outcome.items for task in run.tasks.values() if task.outcome) == 4, "each went by itself"
    with sky.Executor(pool) as executor:
        values = executor.map(sky.function(timeout=0.5)(wait_for_file), [str(there), str(never)], chunksize=2)
        with pytest.raises(BrokenExecutor, match=r"longer than its timeout of 0\.5 s"):
            list(values)


async def run_in_executor(executor: sky.Executor) -> int:
    return await asyncio.get_running_loop().run_in_executor(executor, twice, 4)


def test_exit_in_an_executor_call_ends_only_that_call(pool: sky.Compute, capsys: pytest.CaptureFixture[str]) -> None:
    with sky.Executor(pool) as executor:
        for code in (0, 2, "words"):
            with pytest.raises(SystemExit) as left:
                executor.submit(raise_system_exit, code).result(timeout=60)
            assert left.value.code == code
        with pytest.raises(KeyboardInterrupt):
            executor.submit(interrupt).result(timeout=60)
        with pytest.raises(sky.NotPicklableError):
            executor.submit(repr, Leaves()).result(timeout=60)
        with pytest.raises(sky.RunError, match="its result cannot be loaded here: SystemExit: 3"):
            executor.submit(Leaves, False).result(timeout=60)
        future = executor.submit(twice, 1)
        future.add_done_callback(raise_system_exit)
        assert future.result(timeout=60) == 2
        assert executor.submit(twice, 2).result(timeout=60) == 4
    with sky.Executor(pool) as executor:
        executor.submit(twice, 1).result(timeout=60)
        child = os.fork()
        if not child:
            try:
                executor.submit(twice, 1)
            except sky.PoolError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_undispatched_executor_calls_can_be_cancelled(pool: sky.Compute, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    executor = sky.Executor(pool)
    futures = [executor.submit(wait_for_file, str(gate)) for _ in range(40)]
    wait_until(futures[0].running, what="the first is at work")
    assert futures[-1].cancel() and not futures[0].cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    assert sum(future.cancelled() for future in futures) >= 20
    gate.touch()
    assert all(future.result(timeout=60) == str(gate) for future in futures if not future.cancelled())


def test_dead_rank_breaks_the_executor(pool: sky.Compute, tmp_path: Path) -> None:
    executor = sky.Executor(pool)
    dies: Future[Any] = executor.submit(exit_at_file, str(tmp_path / "go"))
    left = [executor.submit(wait_for_file, str(tmp_path / "never")) for _ in range(30)]
    (tmp_path / "go").touch()
    for future in [dies, *left]:
        with pytest.raises(BrokenExecutor, match="exited with status 3"):
            future.result(timeout=60)
    with pytest.raises(BrokenExecutor, match="rejects new calls"):
        executor.submit(twice, 1)
    executor.shutdown()
    with sky.Executor(pool) as another:
        assert another.submit(twice, 1).result() == 2


def test_interrupted_executor_block_waits_for_no_call(pool: sky.Compute, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), sky.Executor(pool) as executor:
        futures = [executor.submit(wait_for_file, str(tmp_path / "never")) for _ in range(20)]
        wait_until(futures[0].running, what="it is at work")
        raise KeyboardInterrupt
    assert all(isinstance(future.exception(), BrokenExecutor) for future in futures)


def test_pool_end_breaks_its_executors(module_home: Path, tmp_path: Path) -> None:
    with sky.Compute(nodes=1, options=sky.Options(console=False, grace=1.0)) as compute:
        executor = sky.Executor(compute)
        future = executor.submit(wait_for_file, str(tmp_path / "never"))
        wait_until(future.running, what="it is at work")
    with pytest.raises(BrokenExecutor):
        future.result(timeout=60)
    executor.shutdown()
