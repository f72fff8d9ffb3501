"""What stands in a rank for a run whose work Dask does: a call that lasts as long, so that all that the rank prints is
that run's, and a failure, a cancellation or a lost machine is seen where all others are.

Standard library only, until a worker stands here.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...runtime.info import instance_info, using

LOOK = 2.0  # seconds between looks at whether the client that gives the work is there
ANSWER = 20.0  # seconds that the scheduler has to say so
RANK = "skyward_rank"  # of an exception: where it was raised

_here: tuple[Any, Any, int] | None = None  # the worker in this process, its loop, and the rank
_gates: dict[str, CarrierGate] = {}
_lock = threading.Lock()


class CarrierGate:
    """One run's in this process.

    Attributes:
        begun: its call stands.
        over: its work is done.
    """

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()


def stand(worker: Any, loop: Any, rank: int) -> None:
    """A worker is in this process from now on, or (None) is no more."""
    global _here
    _here = (worker, loop, rank) if worker is not None else None


def carry(run: str, client: str) -> None:
    """Last as long as a run's work does.

    Args:
        run: its id.
        client: Dask's name of who gives the work.

    Raises:
        RuntimeError: Dask's scheduler, this rank's worker, or that client is gone.
    """
    gate = _gate(run)
    gate.begun.set()
    try:
        while not gate.over.wait(LOOK):
            _check(client)
    finally:
        with _lock:
            _gates.pop(run, None)


def begun(run: str) -> bool:
    """Whether a run's call stands in this process; asked through Dask."""
    return _gate(run).begun.is_set()


def release(run: str) -> None:
    """A run's work is done; told through Dask, and perhaps before its call stands here."""
    _gate(run).over.set()


def joined() -> None:
    """Does nothing: a rank that runs it has entered its plugins, and so has its worker."""


def executing() -> list[str]:
    """Keys of what the worker in this process is at; asked through Dask."""
    if _here is None:
        return []
    return [str(task.key) for task in _here[0].state.executing]


def _gate(run: str) -> CarrierGate:
    with _lock:
        return _gates.setdefault(run, CarrierGate())


def _check(client: str) -> None:
    if _here is None:
        raise RuntimeError("this rank has no Dask worker any more")
    worker, loop, _ = _here
    if worker.status.name in ("closing", "closed", "failed"):
        raise RuntimeError("this rank's Dask worker has ended: its scheduler, on the head, is gone")

    async def ask() -> bool:
        return bool(await worker.scheduler.skyward_knows(client=client))

    try:
        knows = asyncio.run_coroutine_threadsafe(ask(), loop).result(ANSWER)
    except (OSError, TimeoutError):
        return  # if it does not come back, the worker ends
    if not knows:
        raise RuntimeError("the client that gave Dask this work is gone")


def _called(fn: Callable[..., Any], item: Any) -> Any:
    """What a function makes of an item. What would end the thread that Dask works in, and with it all others' work, is
    an error like others; to leave by ``sys.exit(0)`` is to return None, as in any call."""
    try:
        return fn(item)
    except SystemExit as error:
        if not error.code:
            return None
        raise RuntimeError(f"called sys.exit({error.code!r:.200}) before it returned") from error
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"raised {type(error).__name__}: {error!s:.200}") from error


class DaskShare:
    """A function that takes one item, as Dask's workers call it with a few.

    Args:
        fn: the function.
        run: id of the run that it is of.
    """

    def __init__(self, fn: Callable[..., Any], run: str) -> None:
        self.fn = fn
        self.run = run

    def __call__(self, first: int, items: Sequence[Any]) -> tuple[int, list[Any], float]:
        """Rank, values, and seconds that they took.

        Args:
            first: the number of the first item, among all of the map.
        """
        rank = _here[2] if _here is not None else 0
        began = time.perf_counter()
        values: list[Any] = []
        with using(instance_info(), self.run, rank):
            for item in items:
                try:
                    values.append(_called(self.fn, item))
                except Exception as error:
                    error.add_note(f"while it worked on item {first + len(values):,} of the map")
                    setattr(error, RANK, rank)
                    raise
        return rank, values, time.perf_counter() - began
