"""Work that ends with the client that wants it, however that one ended, and although the work says nothing.

Who only noticed that at its next line would go on for as long as a silent installer does, or hangs, and nobody else
could make the same environment meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def ends_with_client(reads: int | None) -> Iterator[None]:
    """End this process, and all that it has started, once nobody reads any more what it says.

    Args:
        reads: our end of the pipe or socket at whose other end the client reads; None for no client.
    """
    if reads is None:
        yield
        return
    done, tell = os.pipe()
    watch = threading.Thread(target=_watch, args=(reads, done), daemon=True)
    watch.start()
    try:
        yield
    finally:
        os.close(tell)
        watch.join()  # not before the client was looked for once more
        os.close(done)


def _watch(reads: int, done: int) -> None:
    poll = select.poll()
    poll.register(reads, 0)  # which tells of errors and the other side's end alone
    poll.register(done, select.POLLIN)
    if any(descriptor == reads for descriptor, _ in poll.poll()):
        _end()


def _end() -> None:
    """Stopped first, so that none starts another between our look and its end."""
    stopped: set[int] = set()
    while new := _below(os.getpid()) - stopped:
        _tell(new, signal.SIGSTOP)
        stopped |= new
    _tell(stopped, signal.SIGKILL)
    os._exit(1)


def _tell(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(
            ProcessLookupError, PermissionError
        ):  # it has ended; it is sudo's, and ends by itself
            os.kill(pid, number)


def _below(root: int) -> set[int]:
    """Processes that run below one; none where there is no /proc."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc")) if os.path.isdir("/proc") else ()):  # noqa: PTH208, PTH112
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state not in (b"Z", b"X"):
                parents[pid] = int(parent)
    found: set[int] = set()
    while new := {pid for pid, parent in parents.items() if parent == root or parent in found} - found:
        found |= new
    return found
