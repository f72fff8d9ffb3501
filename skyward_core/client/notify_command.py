"""The person's own command that tells them of what has happened: bounded in time, and in nobody's way."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from skyward_core.store.state_folder import state_home
from skyward_core.util.user_files import expand_user

COMMAND_TIMEOUT = 10.0  # seconds that it may take
MAX_COMMANDS = 4

_running: dict[threading.Thread, subprocess.Popen[bytes] | None] = {}
_lock = threading.Lock()
_is_exiting = False


def run_command(words: Sequence[str], told: Mapping[str, str], failed: Callable[[str], None]) -> None:
    """Start it, without a shell, in a thread of its own; returns at once.

    It reads nothing, and what it writes goes nowhere. It runs in the home, so that no file of a project's folder is
    taken for it. At the limit it is killed with all that it has started, and when we end.

    Args:
        told: what it finds in its environment beside ours.
        failed: is told, in that thread, what went wrong.
    """
    with _lock:
        if len(_running) < MAX_COMMANDS and not _is_exiting:
            thread = threading.Thread(target=_run, args=(words, told, failed), daemon=True)
            _running[thread] = None
            thread.start()
            return
    failed(f"{MAX_COMMANDS} of it run already, and this one was left out")


def wait_for_commands() -> None:
    """Wait for those that run, which have a limit."""
    with _lock:
        threads = list(_running)
    for thread in threads:
        thread.join()


def _run(words: Sequence[str], told: Mapping[str, str], failed: Callable[[str], None]) -> None:
    thread = threading.current_thread()
    try:
        _run_to_end(thread, words, told)
    except (OSError, ValueError, _CommandError) as error:
        failed(str(error))
    finally:
        with _lock:
            _running.pop(thread, None)


class _CommandError(Exception):
    """It has not done its work; says why."""


def _run_to_end(thread: threading.Thread, words: Sequence[str], told: Mapping[str, str]) -> None:
    program, *others = (str(expand_user(word)) if word.startswith("~/") else word for word in words)
    with _lock:
        if _is_exiting:
            return
        process = _running[thread] = subprocess.Popen(
            [program, *others],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=state_home(),
            env=os.environ | told,
            start_new_session=True,  # what it starts ends with it, and a ctrl-c in the terminal is for us alone
        )
    try:
        status = process.wait(COMMAND_TIMEOUT)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()
        if not _is_exiting:
            raise _CommandError(f"it had not ended after {COMMAND_TIMEOUT:g} s, and was killed") from None
        return
    if status and not _is_exiting:
        raise _CommandError(f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # until we have waited for it, no other has its number
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    """Nobody else would end them."""
    global _is_exiting
    with _lock:
        _is_exiting = True
        left = [process for process in _running.values() if process is not None]
    for process in left:
        _kill(process)
