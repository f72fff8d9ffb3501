"""What a key has changed is painted at once. All else waits for Textual's next turn to paint, a sixtieth of a second at
most, so that what comes together is painted together."""

from __future__ import annotations

from time import monotonic

from textual import events

LEAST_SECONDS = (
    1 / 60
)  # between two keys of which both are painted for: pasted ones, or one that is held down
FOR_SECONDS = 0.1  # in which a key shows what it does, or waits like all else
PAINTS = 2  # for one key: of what it did, and of what followed from that


class AtOnce:
    """Keeps when a key came, and how often was painted for it."""

    def __init__(self) -> None:
        self._came = 0.0
        self._left = 0

    def heed(self, event: events.Event) -> None:
        """Something has come from the terminal."""
        now = monotonic()
        if isinstance(event, events.Key) and now - self._came >= LEAST_SECONDS:
            self._came, self._left = now, PAINTS

    def take(self) -> bool:
        """Whether to paint now what there is to paint."""
        if self._left and monotonic() - self._came < FOR_SECONDS:
            self._left -= 1
            return True
        return False
