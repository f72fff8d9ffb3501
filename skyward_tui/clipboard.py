"""Text on its way to the person's clipboard, where a program stands between us and the terminal.

Textual sends it to the terminal (OSC 52). tmux does not pass that on from a program unless it is told to
(``set-clipboard on``), but takes it from its own command and then passes it on itself.
"""

from __future__ import annotations

import os
import subprocess

PATIENCE = 5.0  # seconds for tmux


class NotCopied(Exception):
    """The text did not get there; the message says why."""


def pass_on(text: str) -> str:
    """Hand a text to what stands between us and the terminal; blocks while that takes it.

    Returns:
        what the person should know of where it is; "" where there is nothing to say.

    Raises:
        NotCopied: it was not taken.
    """
    if os.environ.get("TMUX"):
        return _to_tmux(text)
    if os.environ.get("STY"):
        raise NotCopied("GNU screen passes nothing on to the clipboard; {run.save} saves to files")
    return ""


def _to_tmux(text: str) -> str:
    try:
        _tmux("load-buffer", "-w", "-", text=text)
    except NotCopied:  # a tmux older than 3.2 knows no -w
        _tmux("load-buffer", "-", text=text)
        return "in tmux's buffer only: prefix ] pastes it"
    if "clipboard" in _tmux("display-message", "-p", "#{client_termfeatures}").split(","):
        return "in tmux's buffer too"
    return "in tmux's buffer only, as it knows no clipboard of this terminal: prefix ] pastes it"


def _tmux(*words: str, text: str | None = None) -> str:
    given = None if text is None else text.encode()
    try:
        done = subprocess.run(
            ["tmux", *words], input=given, capture_output=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotCopied(f"tmux cannot be asked: {error}") from error
    if done.returncode:
        raise NotCopied(f"tmux refused it: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace").strip()
