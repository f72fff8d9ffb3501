"""The client's asyncio event loop in a background thread, safe across forks."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

# seconds that a fork waits for imports of other threads; a script that serves requests while it is imported would delay
# the fork forever
IMPORT_TIMEOUT = 2.0
_IMPORT_POLL_INTERVAL = 0.001  # seconds between checks whether other threads are importing


def wait_for_imports() -> None:
    """Wait until no other thread is importing a module, but at most :data:`IMPORT_TIMEOUT` seconds."""
    me, until = threading.get_ident(), time.monotonic() + IMPORT_TIMEOUT
    while any(owner not in (None, me) for owner in _import_lock_owners()) and time.monotonic() < until:
        time.sleep(_IMPORT_POLL_INTERVAL)


def _import_lock_owners() -> Iterator[int | None]:
    """Yield the threads that hold import locks, which Python does not expose publicly."""
    locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    yield from (getattr(lock(), "owner", None) for lock in list(locks.values()))


T = TypeVar("T")

# Interpreter's switch interval in seconds during short_switch_interval(). A login takes eight thread switches, each of
# which may take as long as this interval (by default 0.005 s).
SWITCH_INTERVAL = 0.0005

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_short_interval_users = 0  # number of threads inside short_switch_interval()
_normal_interval = 0.0  # switch interval in seconds that applies outside short_switch_interval()
# event loops of the parent processes, in a forked child; see _reset_after_fork
_parents: list[asyncio.AbstractEventLoop] = []

_process = os.getpid()


def process_id() -> int:
    """Return this process's id from a cache, because every call needs the id and a system call would be too slow."""
    return _process


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the client's event loop, started on first use. Its daemon thread never delays the interpreter's exit."""
    global _loop
    with _lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            executor = _PatientExecutor(thread_name_prefix="asyncio")
            # Start one thread at once, because later work such as a teardown needs a thread even if no other can be
            # started.
            executor.submit(bool)
            loop.set_default_executor(executor)
            with _named_limit():
                threading.Thread(target=_serve, args=(loop,), name="skyward", daemon=True).start()
            atexit.register(_stop, loop)
            _loop = loop
        return _loop


class _PatientExecutor(ThreadPoolExecutor):
    """Executor that continues with its existing threads if the user's limit of processes permits no new thread."""

    def _adjust_thread_count(self) -> None:
        try:
            with _named_limit():
                super()._adjust_thread_count()
        except OSError:
            if not self._threads:
                raise


@contextmanager
def _named_limit() -> Iterator[None]:
    """Context manager that raises an OSError with the system's limit if no thread can be started."""
    try:
        yield
    except RuntimeError as error:
        from skyward_core.node.agent.worker_processes import describe_shortage

        raise OSError(describe_shortage(error, "this machine")) from error


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the event loop until it is stopped. SystemExit in a task ends only this task."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the background loop. May be called from any thread except the loop's own."""
    try:
        return asyncio.run_coroutine_threadsafe(work, background_loop())
    except OSError:
        work.close()
        raise


def call_on_loop(work: Callable[[], T]) -> T:
    """Run a function on the background loop and return its result. May be called from any other thread."""

    async def run() -> T:
        return work()

    return submit(run()).result()


@contextmanager
def set_for_tasks(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable during the block. Tasks that the block starts on the loop inherit its value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


async def cancel_tasks(tasks: Iterable[asyncio.Future[Any]], patience: float | None = None) -> None:
    """Cancel tasks, and wait at most ``patience`` seconds until they have ended."""
    for task in (waiting := list(tasks)):
        task.cancel()
    if waiting:
        # Wait for the cancelled tasks, because asyncio prints a warning about each task that runs when its loop closes.
        await asyncio.wait(waiting, timeout=patience)


async def finish_despite_cancellation(working: asyncio.Future[T], cancel: Callable[[], None] | None = None) -> T:
    """Wait for work that must not be abandoned if its caller is cancelled, because the work holds resources.

    Args:
        working: The work.
        cancel: Called at each cancellation of the caller, to stop the work early.

    Raises:
        asyncio.CancelledError: If the caller was cancelled. The work has ended.
    """
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError as error:
            cancelled = error
            if cancel is not None:
                cancel()
    if cancelled is not None:
        # Retrieve the work's exception, so that asyncio does not log it. The cancellation is raised instead.
        working.exception()
        raise cancelled
    return working.result()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Make Python switch threads more often during the block, so that the loop answers hosts during computations."""
    global _short_interval_users, _normal_interval
    with _lock:
        if not _short_interval_users:
            _normal_interval = sys.getswitchinterval()
            sys.setswitchinterval(min(_normal_interval, SWITCH_INTERVAL))
        _short_interval_users += 1
    try:
        yield
    finally:
        with _lock:
            _short_interval_users -= 1
            if not _short_interval_users:
                sys.setswitchinterval(_normal_interval)


async def run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all coroutines concurrently. If one fails, cancel the other ones and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _reset_after_fork() -> None:
    """Reset this module's state in a forked child, where the loop's thread does not exist.

    A reference to the parent's loop remains, because closing the loop would remove connections from the epoll set that
    the parent uses.
    """
    global _lock, _loop, _short_interval_users, _process
    _process = os.getpid()
    if _loop is not None:
        _parents.append(_loop)
        atexit.unregister(_stop)
    _lock, _loop, _short_interval_users = threading.Lock(), None, 0


os.register_at_fork(before=wait_for_imports, after_in_child=_reset_after_fork)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)
