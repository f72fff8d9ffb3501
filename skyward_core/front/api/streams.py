"""Generators of one run: an iterator per rank, or per call of a group."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ...pool.runs.run import Run


def split(run: Run, cancel: Callable[[], None]) -> list[Iterator[Any]]:
    """Iterators over the values of each rank, by rank, or of each call; they may be read in any order, by any threads.

    A rank whose iterator is not read waits once it is a few values ahead; so do, then, its peers in collectives:
    read them in turns (``zip``).
    """
    inboxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(run.total)]

    def sort() -> None:
        while True:
            kind, *rest = run.arrivals.get()
            if kind == "item":
                inboxes[rest[1]["i"]].put(rest)
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
                yield from run.item(*found)
            if run.state not in ("running", "done"):
                raise run.error()
        except GeneratorExit:
            cancel()
            raise

    return [items(index) for index in range(run.total)]
