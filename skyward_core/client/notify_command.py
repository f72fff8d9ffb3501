"""The person's own command that tells them of what has happened: bounded in time, and in nobody's way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from skyward_core.store.state_folder import state_home
from skyward_core.tasks.bounded_subprocess import QueryTimeout, is_exiting, run_bounded
from skyward_core.util.user_files import expand_user

COMMAND_TIMEOUT = 10.0  # seconds that it may take
MAX_COMMANDS = 4

_running: set[threading.Thread] = set()
_lock = threading.Lock()


def run_command(words: Sequence[str], told: Mapping[str, str], failed: Callable[[str], None]) -> None:
    """Start it, without a shell, in a thread of its own; returns at once.

    It reads nothing, and what it writes goes nowhere. It runs in the home, so that no file of a project's folder is
    taken for it. At the limit it is killed with all that it has started, and when we end.

    Args:
        told: what it finds in its environment beside ours.
        failed: is told, in that thread, what went wrong.
    """
    with _lock:
        if len(_running) < MAX_COMMANDS:
            thread = threading.Thread(target=_run, args=(words, told, failed), daemon=True)
            _running.add(thread)
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
    try:
        _run_to_end(words, told)
    except (OSError, ValueError, _CommandError) as error:
        if not is_exiting():
            failed(str(error))
    finally:
        with _lock:
            _running.discard(threading.current_thread())


class _CommandError(Exception):
    """It has not done its work; says why."""


def _run_to_end(words: Sequence[str], told: Mapping[str, str]) -> None:
    program, *others = (str(expand_user(word)) if word.startswith("~/") else word for word in words)
    try:
        done = run_bounded(
            [program, *others],
            (time.monotonic_ns(),),  # one that was silent is run again
            patience=COMMAND_TIMEOUT,
            discard=True,
            cwd=state_home(),
            env=os.environ | told,
        )
    except QueryTimeout:
        raise _CommandError(f"it had not ended after {COMMAND_TIMEOUT:g} s, and was killed") from None
    if status := done.returncode:
        raise _CommandError(f"it was killed by signal {-status}" if status < 0 else f"it ended with status {status}")
