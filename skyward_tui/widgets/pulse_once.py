"""What has changed stands out for a moment, once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from textual.widget import Widget

PULSE_SECONDS = 0.8
PULSE_STYLE = "reverse"


def changed(before: Mapping[Hashable, str], now: Mapping[Hashable, str]) -> frozenset[Hashable]:
    """What was there before, and is in another state now."""
    return frozenset(key for key, state in now.items() if before.get(key, state) != state)


class PulseOnce:
    """Of one widget. No timer goes on but the one that ends what stands out.

    Attributes:
        lit: what stands out now.
    """

    def __init__(self, widget: Widget) -> None:
        self._widget = widget
        self._states: Mapping[Hashable, str] = {}
        self.lit: frozenset[Hashable] = frozenset()

    def look(self, states: Mapping[Hashable, str], *, moves: bool) -> None:
        """Take the states of all that is shown.

        Args:
            moves: whether the person wants to see that.
        """
        new = changed(self._states, states)
        self._states = states
        if new and moves:
            self.lit |= new
            self._widget.set_timer(PULSE_SECONDS, lambda: self._end(new))

    def _end(self, those: frozenset[Hashable]) -> None:
        self.lit -= those
        self._widget.refresh()
