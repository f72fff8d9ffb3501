"""Generators of one run: an iterator per rank, or per call of a group."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ...pool.runs.run import Run


def split(run: Run, cancel: Callable[[], None], *, ahead: bool = False) -> list[Iterator[Any]]:
    """Iterators over the values of each rank, by rank, or of each call; they may be read in any order, by any threads.

    A rank whose iterator is not read waits once it is a few values ahead; so do, then, its peers in collectives:
    read them in turns (``zip``).

    Args:
        cancel: called when an iterator is closed before its end, or raises.
        ahead: take values as they come, whoever reads them: with fewer places than calls one that waits for its reader
            would have the place of another, for which the reader may wait.
    """
    inboxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(run.total)]

    def sort() -> None:
        while True:
            kind, *rest = run.arrivals.get()
            if kind == "item":
                values = run.item(*rest)
                inboxes[rest[1]["i"]].put(_taken(values) if ahead else values)
            elif kind == "outcome":
                if rest[1] == "returned":
                    inboxes[rest[0]].put(None)
            else:
                for inbox in inboxes:
                    inbox.put(None)
                return

    threading.Thread(target=sort, name=f"run {run.id}", daemon=True).start()

    def items(index: int) -> Iterator[Any]:
        try:
            while (found := inboxes[index].get()) is not None:
                yield from found
            if run.state not in ("running", "done"):
                raise run.error()
        except BaseException:  # closed, or a value that does not load: nobody reads any more
            cancel()
            raise

    return [items(index) for index in range(run.total)]


def _taken(values: Iterator[Any]) -> Iterator[Any]:
    """The same values, taken now; what came in the way is raised to who reads them."""
    try:
        return iter(list(values))
    except BaseException as error:  # noqa: BLE001  user code may run as they are loaded
        return _raised(error)


def _raised(error: BaseException) -> Iterator[Any]:
    raise error
    yield
