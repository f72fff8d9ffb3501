"""External programs run with limits on time and output."""

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
DEFAULT_TIMEOUT = 20  # seconds that a program may take; long enough for a disk that has to spin up
# Unset these variables, because git sets them in hooks and they would refer to the repository of the hook.
_GIT_HOOK_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
)
# These options, and GIT_NO_LAZY_FETCH, keep git from running programs that a repository's configuration names.
_SAFE_GIT_OPTIONS = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
_EMPTY_VARIABLE = "SKYWARD_EMPTY"
TIMEOUT_MEMORY_SECONDS = 60  # seconds for which a program that timed out is not started again

_running: set[subprocess.Popen[bytes]] = set()
_timed_out: dict[tuple[object, ...], float] = {}
_is_exiting = False


class QueryTimeout(Exception):
    """Program that did not answer within its time limit. The message does not name the program."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer for {seconds:g} s")
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
    """Run a program without input until it ends.

    Args:
        unchanged: Values that change whenever the program changes. A program that timed out is not started again for a
            minute, unless these values change.
        patience: Time limit in seconds; None for 20.
        most: Bytes of output to read; then the program is killed, and its standard error is discarded. None for all
            output.
        discard: Whether to discard all output.
        cwd: Working folder; None for the present one.
        env: Environment variables; None for those of this process.

    Raises:
        OSError: If the program cannot be started.
        QueryTimeout: If the program did not end in time. The program and its children were killed.
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
        # In its own session, a wrapper script can be killed together with the processes that it starts.
        start_new_session=True,
    ) as process:
        _running.add(process)
        try:
            if _is_exiting:
                raise QueryTimeout(0)
            if most is None:
                output, errors = process.communicate(timeout=patience)
            else:
                output, errors = _read_output(process, most, patience), b""
        except subprocess.TimeoutExpired:
            _timed_out[key] = monotonic() + TIMEOUT_MEMORY_SECONDS
            raise QueryTimeout(patience) from None
        finally:
            _running.discard(process)
            kill_group(process)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def git_command(folder: str, *words: str, without: Sequence[str] = ()) -> list[str]:
    """Return a git command line that runs no program that the repository configures.

    Args:
        without: Names of settings to override with an empty value.
    """
    variables = (*(f"-u{name}" for name in _GIT_HOOK_VARIABLES), "GIT_NO_LAZY_FETCH=1", f"{_EMPTY_VARIABLE}=")
    # --config-env, because -c would split a setting whose name contains "=".
    emptied = (f"--config-env={name}={_EMPTY_VARIABLE}" for name in without)
    return ["env", *variables, "git", "--no-optional-locks", *_SAFE_GIT_OPTIONS, *emptied, "-C", folder, *words]


def _read_output(process: subprocess.Popen[bytes], most: int, patience: float) -> bytes:
    """Return the first bytes of a program's output. If the output is shorter, wait until the program has ended.

    Raises:
        subprocess.TimeoutExpired: If the program took too long.
    """
    output, deadline = bytearray(), monotonic() + patience
    if (out := process.stdout) is None:
        return b""
    ready = select.poll()
    ready.register(out, select.POLLIN)
    while len(output) < most:
        if not ready.poll(1000 * max(0.0, deadline - monotonic())):
            raise subprocess.TimeoutExpired(process.args, patience)
        piece = os.read(out.fileno(), min(CHUNK_BYTES, most - len(output)))
        if not piece:
            process.wait(max(0.0, deadline - monotonic()))
            break
        output += piece
    return bytes(output)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads its own session, and all processes in its group."""
    if process.returncode is None:  # as long as the process is not reaped, its id cannot belong to another process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@atexit.register
def _kill_running() -> None:
    """Kill all running programs at exit, because the threads that wait for them are not joined."""
    global _is_exiting
    _is_exiting = True
    for process in list(_running):
        kill_group(process)


def is_exiting() -> bool:
    """Check whether this process is exiting and has killed the programs that it had started."""
    return _is_exiting


class CancellationToken:
    """Token with which any thread can cancel the loading of a script."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._is_cancelled = False

    def cancel(self) -> None:
        """Request the cancellation and run the registered callbacks."""
        with self._lock:
            self._is_cancelled = True
            for callback in self._callbacks:
                callback()

    @contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Register a callback for a cancellation during the block. If the token is cancelled already, run it at once.

        Raises:
            Cancelled: If the token was cancelled.
        """
        with self._lock:
            self._callbacks.append(callback)
            if self._is_cancelled:
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)
        if self._is_cancelled:
            raise Cancelled("The loading of the script was cancelled")
