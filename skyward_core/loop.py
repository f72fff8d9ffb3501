"""The one background thread on which all pools of this process live."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def background() -> asyncio.AbstractEventLoop:
    """The loop, started when first asked for. A daemon: it never keeps the interpreter from ending."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="skyward", daemon=True).start()
            atexit.register(_stop, _loop)
        return _loop


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the background loop, from any other thread."""
    return asyncio.run_coroutine_threadsafe(work, background())


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)
