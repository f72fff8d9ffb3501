"""The event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import sys
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

# Seconds. An import that takes longer (a script's own, say, which serves in it) is not worth holding up a fork.
IMPORT_TIMEOUT = 2.0
_LOOK = 0.001


def wait_for_imports() -> None:
    """Return when no other thread is importing, or after :data:`PATIENCE`."""
    me, until = threading.get_ident(), time.monotonic() + IMPORT_TIMEOUT
    while any(owner not in (None, me) for owner in _import_lock_owners()) and time.monotonic() < until:
        time.sleep(_LOOK)


def _import_lock_owners() -> Iterator[int | None]:
    """The threads that hold modules' locks; Python has no public word for it."""
    locks: dict[str, Any] = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    for lock in list(locks.values()):
        yield getattr(lock(), "owner", None)


T = TypeVar("T")

SWITCH_INTERVAL = 0.0005  # seconds; Python's own is 0.005, and a login takes eight turns

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_short_interval_users = 0  # threads inside of prompt()
_normal_interval = 0.0  # the length of a turn outside of it
_parents: list[asyncio.AbstractEventLoop] = []  # in a forked child; see _forked


_process = os.getpid()


def process_id() -> int:
    """Its number, without a word to the system: this is asked for every call."""
    return _process


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop, started when first asked for. A daemon: it never keeps the interpreter from ending."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=(_loop,), name="skyward", daemon=True).start()
            atexit.register(_stop, _loop)
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. A task that exits ends the task alone: its future has the exception."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the background loop, from any other thread."""
    return asyncio.run_coroutine_threadsafe(work, background_loop())


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Inside it the loop's thread gets its turn soon while this one computes (imports, say): it is answering hosts that
    wait for every word."""
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
    """Wait for all; the first failure cancels the others and is raised itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _reset_after_fork() -> None:
    """In a forked child: none of our threads is here, so that what it does by itself begins anew.

    The loop is kept: closing it would take connections out of the kernel's list that the parent waits on.
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
