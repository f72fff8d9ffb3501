"""Execution of the user's notification command, with a time limit and without delaying the app."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from skyward_core.store.state_folder import state_home
from skyward_core.tasks.bounded_subprocess import QueryTimeout, is_exiting, run_bounded
from skyward_core.util.safe_file_access import expand_user

COMMAND_TIMEOUT = 10.0  # seconds after which a notification command is killed
MAX_COMMANDS = 4

_running: set[threading.Thread] = set()
_lock = threading.Lock()


def run_command(words: Sequence[str], variables: Mapping[str, str], failed: Callable[[str], None]) -> None:
    """Start the command in a separate thread, without a shell, and return at once.

    The command has no input, and its output is discarded. Its working folder is the state folder, so that no file of a
    project is executed by mistake. The command is killed with all its child processes at the time limit, and when this
    process exits.

    Args:
        variables: Additional environment variables.
        failed: Called in the thread with a description of an error.
    """
    with _lock:
        if len(_running) < MAX_COMMANDS:
            thread = threading.Thread(target=_run, args=(words, variables, failed), daemon=True)
            _running.add(thread)
            thread.start()
            return
    failed(f"{MAX_COMMANDS} notification commands are already running; this one was skipped")


def wait_for_commands() -> None:
    """Wait for the running commands to end, which takes at most their time limit."""
    with _lock:
        threads = list(_running)
    for thread in threads:
        thread.join()


def _run(words: Sequence[str], variables: Mapping[str, str], failed: Callable[[str], None]) -> None:
    try:
        _run_to_end(words, variables)
    except (OSError, ValueError, _CommandError) as error:
        if not is_exiting():
            failed(str(error))
    finally:
        with _lock:
            _running.discard(threading.current_thread())


class _CommandError(Exception):
    """Failure of the command. The message states the reason."""


def _run_to_end(words: Sequence[str], variables: Mapping[str, str]) -> None:
    program, *others = (str(expand_user(word)) if word.startswith("~/") else word for word in words)
    try:
        done = run_bounded(
            [program, *others],
            (time.monotonic_ns(),),  # unique key, so that the same command can run again after a time-out
            patience=COMMAND_TIMEOUT,
            discard=True,
            cwd=state_home(),
            env=os.environ | variables,
        )
    except QueryTimeout:
        raise _CommandError(f"it did not end within {COMMAND_TIMEOUT:g} s and was killed") from None
    if status := done.returncode:
        raise _CommandError(f"it was killed by signal {-status}" if status < 0 else f"it exited with status {status}")
