"""What ends a machine that costs money: its first boot arms a shutdown, and this puts that off for as long as the agent
lives. An agent that dies without a word leaves it armed."""

from __future__ import annotations

import subprocess
import time

PARTS = 5  # it is put off this often in the time after which it ends the machine
LONGEST = 60.0  # seconds between two times


class Deadman:
    """The shutdown of one machine.

    Args:
        minutes: after which it comes, unless it is put off; 0 where there is none.
    """

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes
        self._due = 0.0

    def put_off(self) -> None:
        """Have it come later, where it is time for that."""
        now = time.monotonic()
        if self._minutes and now >= self._due:
            self._due = now + min(LONGEST, self._minutes * 60 / PARTS)
            _shutdown(f"+{self._minutes}")

    def end_now(self) -> None:
        """Have it come at once."""
        if self._minutes:
            _shutdown("now")


def _shutdown(when: str) -> None:
    """Ask the system for it, as root where we are not, and wait for no answer: the next time comes soon."""
    command = f"sudo -n shutdown --no-wall -P {when} || shutdown --no-wall -P {when}"
    subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends with the agent does not end this
    )
