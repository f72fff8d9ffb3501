"""Notifications to a user who is not watching the terminal: bell, terminal notification (OSC 9), or the user's own
command."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.notification_rules import Notification
from skyward_tui.text.number_and_time_format import precise_duration
from skyward_tui.text.text_width_and_tables import clip

if TYPE_CHECKING:
    from skyward_core.client.user_settings_and_app_state import NotifySettings

MOST_CELLS = 200  # maximum cells of a terminal notification
BELL = "\a"


def message(notification: Notification) -> str:
    """Return the notification as one line of printable text."""
    about = f"{notification.what} ({notification.run})" if notification.run else notification.what
    match notification.kind:
        case "budget":
            text = f"pool {notification.pool} has reached its budget. Raise the budget, or tear the pool down"
        case "breakpoint":
            text = f"{about} of pool {notification.pool} waits at a breakpoint: skyward-tui debug {notification.pool}"
        case "hostkey":
            text = f"the key of {notification.what} is unknown. Accept or reject it"
        case "alert":
            text = f"{about} on {notification.pool}: {notification.detail}"
        case "lost":
            text = f"{about} on {notification.pool} is lost: its outcome is unknown"
        case _:
            took = "" if notification.seconds is None else f" after {precise_duration(notification.seconds)}"
            detail = f": {notification.detail}" if notification.detail else ""
            text = f"{about} on {notification.pool} {notification.kind}{took}{detail}"
    return sanitize_line(text)


def environment_variables(notification: Notification) -> dict[str, str]:
    """Return the environment variables that describe the notification to the user's command."""
    return {
        "SKYWARD_POOL": sanitize_line(notification.pool),
        "SKYWARD_RUN": sanitize_line(notification.run),
        "SKYWARD_OUTCOME": notification.kind,
        "SKYWARD_MESSAGE": message(notification),
    }


def is_worth_notifying(notification: Notification, *, looks: bool, untouched: float, after: float) -> bool:
    """Check whether the user should be notified.

    Args:
        notification: The notification.
        looks: Whether the terminal has the focus, as far as known.
        untouched: Seconds since the user last pressed a key.
        after: Seconds; even a user with the focus on the terminal is notified of an event that took this long.
    """
    took = untouched if notification.seconds is None or notification.kind == "cancelled" else notification.seconds
    return not looks or took >= after


def osc9(text: str, environment: Mapping[str, str]) -> str:
    """Return the OSC 9 sequence that makes a terminal show a notification.

    tmux forwards the sequence if its option ``allow-passthrough`` is set.
    """
    # The sequence ends with ST, because a terminal that does not support OSC 9 would ring at BEL. The text must not
    # begin with a digit, which would have another meaning.
    asked = f"\x1b]9;{clip(f'skyward: {sanitize_line(text)}', MOST_CELLS)}\x1b\\"
    return "\x1bPtmux;" + asked.replace("\x1b", "\x1b\x1b") + "\x1b\\" if environment.get("TMUX") else asked


class Notifier:
    """Sender of notifications, in all ways that the settings enable.

    Args:
        ways: Settings of notifications.
        write: Writes control sequences to the terminal.
        failed: Called once, from any thread, with an error of the user's command.
    """

    def __init__(self, ways: NotifySettings, write: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self.ways = ways
        self._write = write
        self._failed = failed
        self._has_failed = False

    def notify_unless_seen(self, notification: Notification, looks: bool, untouched: float) -> None:
        """Notify the user unless they are watching the app; see :func:`is_worth_notifying`. Returns at once."""
        if not is_worth_notifying(notification, looks=looks, untouched=untouched, after=self.ways.after):
            return
        calls = osc9(message(notification), os.environ) if self.ways.terminal and _shows_notifications() else ""
        if calls := calls + (BELL if self.ways.bell else ""):
            self._write(calls)
        if self.ways.command:
            from skyward_core.client.notify_command import run_command

            run_command(self.ways.command, environment_variables(notification), self._command_failed)

    def _command_failed(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._failed(f"the command of [notify], {self.ways.command[0]}, does not work: {reason}")


def _shows_notifications() -> bool:
    """Check whether the terminal may support OSC 9. The Linux console does not, and would print the sequence."""
    return os.environ.get("TERM", "") not in ("", "dumb", "linux")
