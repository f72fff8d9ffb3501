"""Exit of a rank's process, signal handlers of user code, and memory of workers."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import skyward_core as sky
from skyward_core.client.run_history import RunLogs, follow_output, load_preview
from skyward_core.plugins import Plugin
from skyward_core.store.ledger import Ledger
from tests.support.pool_logs import last_run, log_of, settled, stored
from tests.support.waiting import wait_until

STARTS_WORKERS = True

SCRIPT = """
import atexit, logging, logging.handlers, sys, threading, time
from pathlib import Path
import skyward_core as sky

kept = None

@sky.function
def work(folder: str, how: str = "return") -> int:
    global kept
    folder = Path(folder)
    kept = open(folder / "buffered", "w")
    kept.write("of a global file")
    atexit.register(lambda: (folder / "atexit").write_text("by atexit"))
    atexit.register(print, "printed at exit")
    handler = logging.handlers.MemoryHandler(1000, target=logging.FileHandler(folder / "logged"))
    logging.getLogger("x").addHandler(handler)
    logging.getLogger("x").warning("by a MemoryHandler")

    def late() -> None:
        time.sleep(0.3)
        (folder / "thread").write_text("by a thread")

    threading.Thread(target=late).start()
    if how == "exit":
        sys.exit(3)
    if how == "sleep":
        (folder / "sleeps").touch()
        time.sleep(600)
    return 1
"""

WRITTEN = {
    "buffered": "of a global file",
    "atexit": "by atexit",
    "logged": "by a MemoryHandler\n",
    "thread": "by a thread",
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., sky.PendingFunction]:
    """Run the script's function, as user code that nodes import."""
    namespace = {"__name__": "__main__"}
    exec(compile(SCRIPT, "job.py", "exec"), namespace)
    return namespace["work"]  # type: ignore[return-value]


def read_written_files(folder: Path) -> dict[str, str]:
    return {name: path.read_text() if (path := folder / name).exists() else "-" for name in WRITTEN}


def pool_for(home: Path, **options: Any) -> sky.Compute:
    return sky.Compute(provider=sky.Local(), nodes=1, options=sky.Options(console=False, **options))


def test_atexit_handlers_and_threads_end_before_the_pool_returns(
    home: Path, tmp_path: Path, work: Callable[..., sky.PendingFunction]
) -> None:
    with pool_for(home) as pool:
        assert work(str(tmp_path)) @ pool == [1]
    assert read_written_files(tmp_path) == WRITTEN


def test_atexit_output_after_exit_or_cancel_belongs_to_the_run(
    home: Path, tmp_path: Path, work: Callable[..., sky.PendingFunction]
) -> None:
    with pool_for(home) as pool:
        with pytest.raises(sky.RunError, match="called sys"):
            work(str(tmp_path), "exit") @ pool
        assert read_written_files(tmp_path) == WRITTEN, "it is there when the run's end is told"
        settled(pool)
        assert log_of(pool, last_run(pool), 0) == b"printed at exit\n"
        other = tmp_path / "cancelled"
        other.mkdir()
        running = work(str(other), "sleep") > pool
        wait_until((other / "sleeps").exists, what="the function's sleep")
        running.cancel()
        wait_until(lambda: read_written_files(other) == WRITTEN, what="all that the cancelled run wrote")


def test_atexit_handlers_and_threads_end_when_the_gang_is_formed_again(
    home: Path, tmp_path: Path, work: Callable[..., sky.PendingFunction]
) -> None:
    def die() -> None:
        import os

        if sky.instance_info().rank:
            os._exit(7)

    with sky.Compute(provider=sky.Local(), nodes=2, options=sky.Options(console=False)) as pool:
        for rank in range(2):
            (tmp_path / str(rank)).mkdir()
        sky.function(lambda: work.__wrapped__(str(tmp_path / str(sky.instance_info().rank))))() @ pool  # type: ignore[attr-defined]
        with pytest.raises(sky.RunError):
            sky.function(die)() @ pool
        assert sky.function(lambda: 1)() @ pool == [1, 1]
    assert read_written_files(tmp_path / "0") == WRITTEN


def test_worker_exit_that_takes_too_long_is_killed_and_reported(home: Path, tmp_path: Path) -> None:
    def never_ends() -> None:
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()

    with pool_for(home, grace=3.0) as pool:
        sky.function(never_ends)() @ pool
        shown = pool.pool.view.logs.rank(0)
        logs = pool.pool.archive.logs
    assert pool.receipt is not None
    assert pool.receipt.ok
    output = (logs / "r000.err").read_text()
    assert "Timeout (0:00:02.7" in output, "where it hung"
    assert "is killed (the pool is torn down): exit handlers" in output
    assert any("are interrupted" in line for line in shown.lines(0, shown.end))


def test_report_of_a_killed_worker_is_not_in_the_logs_of_the_next_run(home: Path, tmp_path: Path) -> None:
    def never_ends() -> None:
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()
        sys.exit(3)

    def waits(folder: str) -> None:
        (Path(folder) / "begun").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.01)
        print("second")

    with pool_for(home, grace=2.0) as pool:
        with pytest.raises(sky.RunError, match="called sys"):
            sky.function(never_ends)() @ pool
        first = last_run(pool)
        running = sky.function(waits)(str(tmp_path)) > pool
        wait_until((tmp_path / "begun").exists, what="the second run")
        settled(pool)
        assert load_preview(Ledger(), last_run(pool)).lines == []
        (tmp_path / "go").touch()
        running.result(60)
        settled(pool)
        assert [line.text for line in stored(pool, last_run(pool))] == ["second"]
        logs = pool.pool.view.logs
        assert logs.for_run(last_run(pool)).rank(0).last(9) == ["second"]
        assert "is killed" in logs.for_run(first).rank(0).last(1)[0]


def test_logs_of_an_active_run_omit_the_exit_output_of_an_earlier_run(home: Path, tmp_path: Path) -> None:
    def prints_at_exit(folder: str) -> None:
        atexit.register(lambda: print("from an exit handler", flush=True))
        atexit.register(lambda: print("and on stderr", file=sys.stderr, flush=True))
        print("first")
        if sky.instance_info().rank == 1:
            while not (Path(folder) / "first").exists():
                time.sleep(0.01)
            sys.exit(3)  # replaces the workers of both ranks
        (Path(folder) / "first").touch()

    def waits(folder: str) -> None:
        print("second")
        (Path(folder) / f"begun{sky.instance_info().rank}").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.01)

    options = sky.Options(console=False)
    with ThreadPoolExecutor(1) as threads, sky.Compute(provider=sky.Local(), nodes=2, options=options) as pool:
        with pytest.raises(sky.RunError, match="called sys"):
            sky.function(prints_at_exit)(str(tmp_path)) @ pool
        running = threads.submit(lambda: sky.function(waits)(str(tmp_path)) @ pool)
        wait_until(lambda: len(list(tmp_path.glob("begun?"))) == 2, 20, what="the second run")
        settled(pool)
        folder = RunLogs(Ledger(), last_run(pool)).folder
        assert [path.read_text() for path in folder.glob("r00?.out")] == ["first\nfrom an exit handler\nsecond\n"] * 2
        texts = [piece.data.decode() for piece in follow_output(Ledger(), last_run(pool), None)]
        assert "".join(texts) == "second\nsecond\n" and [line.text for line in stored(pool, last_run(pool))] == [
            "second"
        ]
        (tmp_path / "go").touch()
        running.result(60)


def test_slow_memory_release_at_exit_is_not_reported_as_a_hang(home: Path) -> None:
    def holds_much() -> None:
        import sys

        class Much:
            def __init__(self) -> None:
                self.sleep = time.sleep

            def __del__(self) -> None:
                self.sleep(600)

        sys.much = Much()  # type: ignore[attr-defined]

    with pool_for(home, grace=1.0) as pool:
        sky.function(holds_much)() @ pool
        logs = pool.pool.archive.logs
    output = (logs / "r000.err").read_text()
    assert "is killed (the pool is torn down)" in output
    assert "Timeout" not in output


@pytest.mark.parametrize("opens", [False, True])
def test_exit_collects_imported_objects_only_if_user_code_left_a_file_open(
    home: Path, tmp_path: Path, opens: bool
) -> None:
    def prints_and_logs() -> None:
        import gc
        import sys

        def record(phase: str, info: object) -> None:
            gc.callbacks.remove(record)
            gc.callbacks.append(record)  # the last callback, so that it sees the state after the collection
            (tmp_path / phase).write_text(str(gc.get_freeze_count() > 0))

        gc.freeze()  # as after the import of a large package
        print("epoch 1")
        sky.log(loss=1.0)
        if opens:
            sys.left_open = (tmp_path / "left_open").open("w")  # type: ignore[attr-defined]
        atexit.register(gc.callbacks.append, record)

    with pool_for(home) as pool:
        sky.function(prints_and_logs)() @ pool
    assert (tmp_path / "stop").read_text() == str(not opens)


@pytest.fixture
def pool(home: Path) -> Iterator[sky.Compute]:
    """Pool of two nodes with a grace period that is longer than these ranks need."""
    with sky.Compute(provider=sky.Local(), nodes=2, options=sky.Options(console=False, grace=30)) as compute:
        yield compute


def stopped(pool: sky.Compute, folder: Path, work: Callable[[Callable[[], None]], Any]) -> sky.RunError:
    """Return the outcome of a run whose rank 1 fails as soon as rank 0, which runs ``work``, reports its start."""
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


def rank_and_agent_stderr(pool: sky.Compute) -> str:
    """Return the standard error of rank 0, and the agent's messages in it."""
    return (Path(pool.pool.context.machines[0].extra["folder"]) / "spool" / "r000.err").read_text()


def stop_by_flag(begun: Callable[[], None]) -> str:
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    begun()
    while not stop:
        time.sleep(0.01)
    time.sleep(1.5)  # longer than native code is given
    return "early"


def stop_by_exception(begun: Callable[[], None]) -> str:
    """Raise in a handler that is replaced by the previous one at once, before the change is noticed."""

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


def stop_by_asyncio(begun: Callable[[], None]) -> str:
    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        begun()
        await stop.wait()
        await asyncio.sleep(1.5)

    asyncio.run(serve())
    return "early"


@pytest.mark.proof("0.5 s of a processor", after=1)
@pytest.mark.parametrize("work", [stop_by_exception, stop_by_asyncio, stop_by_flag])
def test_stopped_code_with_its_own_handler_runs_to_its_end(
    pool: sky.Compute, tmp_path: Path, work: Callable[[Callable[[], None]], str]
) -> None:
    error = stopped(pool, tmp_path, work)
    assert error.results == {0: "early"}
    assert rank_and_agent_stderr(pool) == "", "its worker ends when it has returned, and nobody has to kill it"


@pytest.mark.proof("1 s of a processor")
def test_clean_exit_of_a_stopped_call_is_no_result(pool: sky.Compute, tmp_path: Path) -> None:
    """Handlers that save a checkpoint exit like this: the call is reported as stopped or timed out."""

    def leaves(begun: Callable[[], None]) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        begun()
        time.sleep(600)

    error = stopped(pool, tmp_path, leaves)
    assert error.results == {} and error.outcomes[0].kind == "collateral"
    assert rank_and_agent_stderr(pool) == ""
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
def test_signal_handlers_of_a_call_are_reset_for_the_next(
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
    assert "in native code" in rank_and_agent_stderr(pool)


def forks(begun: Callable[[], None]) -> None:
    memory = b"x" * (128 << 20)  # so that this process is mostly about to fork
    begun()
    while memory:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def forks_when_stopped(begun: Callable[[], None]) -> None:
    """Fork when stopped: the signal arrives in a hook of other code."""

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
def test_stop_reaches_code_where_python_discards_exceptions(
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
    assert rank_and_agent_stderr(pool) == ""


def test_forked_child_at_the_end_of_a_call_has_default_handlers(pool: sky.Compute, tmp_path: Path) -> None:
    def body() -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        else:
            atexit.register(lambda: (tmp_path / "handler").write_text(str(signal.getsignal(signal.SIGTERM))))

    sky.function(body)() >> pool
    assert (tmp_path / "handler").read_text() == str(signal.SIG_DFL)


class Preempts(Plugin):
    """Plugin that handles SIGTERM during the whole life of the worker."""

    name = "preempts"

    @contextmanager
    def around_process(self, info: sky.InstanceInfo) -> Iterator[None]:
        signal.signal(signal.SIGTERM, self.preempt)
        yield

    def preempt(self, *_: object) -> None: ...


def test_signal_handler_of_a_plugin_is_restored_for_every_call(home: Path) -> None:
    def body() -> str:
        found = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return getattr(found, "__qualname__", str(found))

    options = sky.Options(console=False)
    with sky.Compute(provider=sky.Local(), nodes=1, plugins=[Preempts()], options=options) as pool:
        assert [sky.function(body)() @ pool for _ in range(2)] == [["Preempts.preempt"]] * 2


glibc_only = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc", reason="the GNU C library's settings"
)

PAGES_OF_A_STEP = 2 * 20_000_000 // 4096


@sky.function
def step() -> int:
    """Allocate and free 40 MB, and return the number of page faults."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    made = bytearray(20_000_000)
    copy = bytes(made)
    del made, copy
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def later_steps(image: sky.Image) -> int:
    with sky.Compute(provider=sky.Local(), image=image, options=sky.Options(console=False)) as pool:
        return max([step() >> pool for _ in range(6)][3:])


@glibc_only
def test_memory_freed_by_a_call_is_reused_by_the_next(home: Path) -> None:
    assert later_steps(sky.Image()) < PAGES_OF_A_STEP / 10


@glibc_only
@sky.function
def look() -> tuple[list[str], list[str]]:

    names = ("ast", "dis", "inspect", "platform", "traceback", "uuid")
    loaded: list[str] = [name for name in names if name in sys.modules]
    return loaded, [name for name, module in sys.modules.items() if type(module).__name__ == "PutOff"]


@sky.function
def use() -> dict[str, object]:
    import dataclasses
    import dis
    import inspect
    import io
    import logging
    import platform
    import traceback
    import uuid

    import cloudpickle.cloudpickle

    kind = dataclasses.make_dataclass("Kind", [("x", int, 3)])
    written = io.StringIO()
    logger = logging.getLogger("put-off")
    logger.addHandler(logging.StreamHandler(written))
    try:
        print(1 / 0)
    except ZeroDivisionError:
        logger.exception("so it was")
        text = traceback.format_exc()
    return {
        "doc": kind.__doc__,
        "logged": "ZeroDivisionError" in written.getvalue() and "ZeroDivisionError" in text,
        "files": [str(module.__file__).rpartition("/")[2] for module in (dis, inspect, platform, traceback, uuid)],
        "same": sys.modules["inspect"] is inspect and not inspect.signature(lambda: 0).parameters,
        "known": [
            (cloudpickle.cloudpickle.HAVE_ARGUMENT, cloudpickle.cloudpickle.EXTENDED_ARG)
            == (dis.HAVE_ARGUMENT, dis.EXTENDED_ARG),
            (platform.python_implementation() == "PyPy") == cloudpickle.cloudpickle.PYPY,
        ],
        "class": cloudpickle.loads(cloudpickle.dumps(kind))().x,
        "by others": dataclasses.inspect.signature is inspect.signature,  # type: ignore[attr-defined]
    }


def test_deferred_standard_modules_behave_as_the_real_ones(home: Path) -> None:
    with sky.Compute(options=sky.Options(console=False)) as pool:
        assert look() >> pool == ([], [])
        assert use() >> pool == {
            "doc": "Kind(x: int = 3)",
            "logged": True,
            "files": ["dis.py", "inspect.py", "platform.py", "traceback.py", "uuid.py"],
            "known": [True, True],
            "same": True,
            "class": 3,
            "by others": True,
        }
