"""Kind of the terminal, and clipboard of a terminal multiplexer."""

from __future__ import annotations

import os


def is_dumb() -> bool:
    """Check whether the terminal cannot move its cursor, which a full-screen app needs."""
    return os.environ.get("TERM", "").lower() in ("dumb", "unknown")


TMUX_TIMEOUT = 5.0  # seconds; time limit for a tmux command, because a hanging tmux would block copying forever


class CopyError(Exception):
    """Failure to copy a text. The message states the reason."""


def copy_to_multiplexer(text: str) -> str:
    """Copy a text to the clipboard of a terminal multiplexer, if the app runs in one. Blocks until tmux has answered.

    Returns:
        Note for the user about where the text is; "" without a multiplexer.

    Raises:
        CopyError: If the text was not copied.
    """
    if os.environ.get("TMUX"):
        return _copy_to_tmux(text)
    if os.environ.get("STY"):
        raise CopyError("GNU screen does not support the clipboard; {run.save} saves to files")
    return ""


def _copy_to_tmux(text: str) -> str:
    try:
        _run_tmux("load-buffer", "-w", "-", text=text)
    except CopyError:  # tmux older than version 3.2 has no -w, which also sets the terminal's clipboard
        _run_tmux("load-buffer", "-", text=text)
        return "only to tmux's buffer: paste with prefix ]"
    if "clipboard" in _run_tmux("display-message", "-p", "#{client_termfeatures}").split(","):
        return "also to tmux's buffer"
    return "only to tmux's buffer (tmux found no terminal clipboard): paste with prefix ]"


def _run_tmux(*words: str, text: str | None = None) -> str:
    import subprocess  # imported late, because most sessions copy nothing

    data = None if text is None else text.encode()
    try:
        done = subprocess.run(["tmux", *words], input=data, capture_output=True, timeout=TMUX_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CopyError(f"cannot run tmux: {error}") from error
    if done.returncode:
        raise CopyError(f"tmux failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace").strip()
