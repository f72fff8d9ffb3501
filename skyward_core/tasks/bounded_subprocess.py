"""Programs run with limits of time and output."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

from skyward_core.model.errors import Cancelled

CHUNK_BYTES = 1 << 16
DEFAULT_TIMEOUT = 20  # seconds; a disk that has to wake takes some
# Who starts us from a hook of another repository has that one's variables.
_GIT_HOOK_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
)
# A repository may configure programs for these. A missing object would be fetched by a program of its choice, too.
_SAFE_GIT_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_EMPTY_VARIABLE = "SKYWARD_EMPTY"
TIMEOUT_MEMORY_SECONDS = 60  # seconds; who asks again about the same form is not kept waiting again

_running: set[subprocess.Popen[bytes]] = set()
_timed_out: dict[tuple[object, ...], float] = {}
_is_exiting = False


class QueryTimeout(Exception):
    """A program has said nothing within its limit; says so, without its name."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it has not answered for {seconds:g} s")
        self.seconds = seconds


def run_bounded(
    command: Sequence[str],
    unchanged: tuple[int, ...],
    *,
    patience: float | None = None,
    most: int | None = None,
    discard: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program that reads nothing, to its end.

    Args:
        unchanged: differs once the program does: one that was silent is waited for again then, and not before.
        patience: seconds that it has; None for 20.
        most: bytes of its output that are wanted; it is ended once it has printed as much, and what it complains of is
            not read. None for all.
        discard: whether its output goes nowhere.
        cwd: its working folder; None for ours.
        env: its variables; None for ours.

    Raises:
        OSError: it cannot be run.
        Silence: it did not end in time. It and what it had started were killed.
    """
    patience = DEFAULT_TIMEOUT if patience is None else patience
    key = (*command, *unchanged)
    if monotonic() < _timed_out.get(key, 0):
        raise QueryTimeout(patience)
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if discard else subprocess.PIPE,
        stderr=subprocess.PIPE if most is None and not discard else subprocess.DEVNULL,
        cwd=cwd,
        env=env,
        start_new_session=True,  # a script in the place of an interpreter starts others: they end with it
    ) as process:
        _running.add(process)
        try:
            if _is_exiting:
                raise QueryTimeout(0)
            if most is None:
                said, complaint = process.communicate(timeout=patience)
            else:
                said, complaint = _read_output(process, most, patience), b""
        except subprocess.TimeoutExpired:
            _timed_out[key] = monotonic() + TIMEOUT_MEMORY_SECONDS
            raise QueryTimeout(patience) from None
        finally:
            _running.discard(process)
            kill_group(process)
    return subprocess.CompletedProcess(command, process.returncode, said, complaint)


def git_command(folder: str, *words: str, without: Sequence[str] = ()) -> list[str]:
    """Return a command line for git that runs no program which the repository configures.

    Args:
        without: names of settings that count as empty.
    """
    variables = (*(f"-u{name}" for name in _GIT_HOOK_VARIABLES), "GIT_NO_LAZY_FETCH=1", f"{_EMPTY_VARIABLE}=")
    emptied = (f"--config-env={name}={_EMPTY_VARIABLE}" for name in without)  # -c would split a name that has a "="
    return [
        "env",
        *variables,
        "git",
        "--no-optional-locks",
        *_SAFE_GIT_OPTIONS,
        *emptied,
        "-C",
        folder,
        *words,
    ]


def _read_output(process: subprocess.Popen[bytes], most: int, patience: float) -> bytes:
    """The first bytes that it prints; it is waited for where these are all.

    Raises:
        subprocess.TimeoutExpired: it took too long.
    """
    said, until = bytearray(), monotonic() + patience
    if (out := process.stdout) is None:
        return b""
    ready = select.poll()
    ready.register(out, select.POLLIN)
    while len(said) < most:
        if not ready.poll(1000 * max(0.0, until - monotonic())):
            raise subprocess.TimeoutExpired(process.args, patience)
        piece = os.read(out.fileno(), min(CHUNK_BYTES, most - len(said)))
        if not piece:
            process.wait(max(0.0, until - monotonic()))
            break
        said += piece
    return bytes(said)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its own session, and all that it has started there."""
    if process.returncode is None:  # until we have waited for it, no other has its number
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@atexit.register
def _kill_running() -> None:
    """Threads that wait are not waited for, and nobody else would end what they wait for."""
    global _is_exiting
    _is_exiting = True
    for process in list(_running):
        kill_group(process)


def is_exiting() -> bool:
    """Check whether this process is about to end, and has killed what ran."""
    return _is_exiting


class CancellationToken:
    """A wish that can be uttered once, from any thread: the work ends as soon as it can."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._is_cancelled = False

    def cancel(self) -> None:
        """Have the work end."""
        with self._lock:
            self._is_cancelled = True
            for end in self._callbacks:
                end()

    @contextmanager
    def on_cancel(self, end: Callable[[], None]) -> Iterator[None]:
        """While in it, the wish is fulfilled by ``end``; at once where it was uttered before.

        Raises:
            Cancelled: it was uttered.
        """
        with self._lock:
            self._callbacks.append(end)
            if self._is_cancelled:
                end()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(end)
        if self._is_cancelled:
            raise Cancelled("The loading of the script was given up")
