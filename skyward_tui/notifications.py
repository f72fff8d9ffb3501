"""A person who looks elsewhere is called: by the terminal's bell or notification (OSC 9), by a command of theirs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.notification_rules import Notification
from skyward_tui.text.number_and_time_format import clip, precise_duration

if TYPE_CHECKING:
    from skyward_core.client.settings import NotifySettings

MOST_CELLS = 200  # of what a terminal is given to show
BELL = "\a"


def message(told: Notification) -> str:
    """What happened, to what, in one line of printable text."""
    about = f"{told.what} ({told.run})" if told.run else told.what
    match told.kind:
        case "budget":
            said = f"pool {told.pool} has cost what it may, and asks what becomes of it"
        case "breakpoint":
            said = f"{about} of pool {told.pool} waits at a breakpoint: skyward-tui debug {told.pool}"
        case "hostkey":
            said = f"the key of {told.what} is unknown, and somebody has to judge it"
        case "alert":
            said = f"{about} on {told.pool}: {told.detail}"
        case "lost":
            said = f"{about} on {told.pool} is lost: nobody knows how it went"
        case _:
            how = told.kind if told.seconds is None else f"{told.kind} after {precise_duration(told.seconds)}"
            said = f"{about} on {told.pool} {how}" + (f": {told.detail}" if told.detail else "")
    return sanitize_line(said)


def environment_variables(told: Notification) -> dict[str, str]:
    """The same for a command, by the names of the environment."""
    return {
        "SKYWARD_POOL": sanitize_line(told.pool),
        "SKYWARD_RUN": sanitize_line(told.run),
        "SKYWARD_OUTCOME": told.kind,
        "SKYWARD_MESSAGE": message(told),
    }


def is_worth_notifying(told: Notification, *, looks: bool, untouched: float, after: float) -> bool:
    """Whether it is worth a call.

    Args:
        looks: whether the terminal has the person's eyes, as far as is known.
        untouched: seconds since they pressed a key.
        after: seconds that a thing takes for which nobody sits and waits.
    """
    took = untouched if told.seconds is None or told.kind == "cancelled" else told.seconds
    return not looks or took >= after


def osc9(text: str, environment: Mapping[str, str]) -> str:
    """What has a terminal show a text; tmux hands it on where it is told to (``allow-passthrough``)."""
    # Ended by ST: who does not know it hears no bell. No text begins with a digit, which means other things there.
    asked = f"\x1b]9;{clip(f'skyward: {sanitize_line(text)}', MOST_CELLS)}\x1b\\"
    if environment.get("TMUX"):
        return "\x1bPtmux;" + asked.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return asked


class Notifier:
    """Calls by all ways that are on.

    Args:
        write: hands the terminal what makes it call.
        failed: is told once, from any thread, that the person's command does not work.
    """

    def __init__(self, ways: NotifySettings, write: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self.ways = ways
        self._write = write
        self._failed = failed
        self._has_failed = False

    def notify_unless_seen(self, told: Notification, looks: bool, untouched: float) -> None:
        """Call, unless the person sits and watches; returns at once. See :func:`is_worth_notifying`."""
        if not is_worth_notifying(told, looks=looks, untouched=untouched, after=self.ways.after):
            return
        calls = osc9(message(told), os.environ) if self.ways.terminal and _shows_notifications() else ""
        if calls := calls + (BELL if self.ways.bell else ""):
            self._write(calls)
        if self.ways.command:
            from skyward_core.client.notify_command import run_command

            run_command(self.ways.command, environment_variables(told), self._command_failed)

    def _command_failed(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._failed(f"the command of [notify], {self.ways.command[0]}, does not work: {reason}")


def _shows_notifications() -> bool:
    """Whether the terminal may know OSC 9; Linux's own console would show what it does not know."""
    return os.environ.get("TERM", "") not in ("", "dumb", "linux")
