"""Rules for refreshing displayed times, for immediate repaints after a key, and for the widgets of a repaint.

Ages and countdowns are redrawn only as often as needed: every second while a displayed timer runs, otherwise every ten
seconds. An idle app therefore uses almost no CPU time.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

from textual import events
from textual._compositor import Compositor

from skyward_tui.text.number_and_time_format import LAST_MINUTES, next_preempted

if TYPE_CHECKING:
    from textual.geometry import Region
    from textual.strip import Strip

    from skyward_core.views.pool_view import PoolView

IDLE_SECONDS = 10  # seconds; interval at which displayed ages and costs of idle pools are redrawn


def refresh_token(pools: Iterable[PoolView], now: float) -> int:
    """Return a number that changes whenever displayed times must be redrawn.

    The number changes every second while a pool has a running timer, otherwise every ten seconds.

    Args:
        now: Unix time in seconds.
    """
    return int(now) if any(has_running_timer(pool, now) for pool in pools if not pool.is_over) else idle_token(now)


def idle_token(now: float) -> int:
    """Return the token for idle pools. It is negative, so that it never equals a token for running timers."""
    return -(int(now) // IDLE_SECONDS)


def has_running_timer(pool: PoolView, now: float) -> bool:
    """Check whether a displayed time of the pool changes every second."""
    lease_left = pool.lease_left(now)
    return (
        pool.state in ("starting", "stopping")
        or any(run.state == "running" for run in list(pool.runs.values()))
        or (lease_left is not None and lease_left < LAST_MINUTES)
        or next_preempted(pool.nodes) is not None
        or (pool.is_live and any(node.phase not in ("ready", "gone") for node in pool.nodes))
    )


# seconds; keys at shorter intervals are pasted or auto-repeated, and need no repaint of their own
MIN_KEY_INTERVAL = 1 / 60
REPAINT_SECONDS = 0.1  # seconds after a key during which its effect is painted at once
PAINTS_PER_KEY = 2  # one repaint for the key's direct effect, and one for a message that the effect has posted


class ImmediateRepaint:
    """Counter of the immediate repaints that are still allowed after recent keys."""

    def __init__(self) -> None:
        self._last_key_at = 0.0
        self._paints_left = 0

    def on_input(self, event: events.Event) -> None:
        """Allow immediate repaints after a key."""
        now = monotonic()
        if isinstance(event, events.Key) and now - self._last_key_at >= MIN_KEY_INTERVAL:
            self._last_key_at, self._paints_left = now, PAINTS_PER_KEY

    def consume_paint(self) -> bool:
        """Return whether to paint now. If so, one of the allowed repaints is used up."""
        if self._paints_left and monotonic() - self._last_key_at < REPAINT_SECONDS:
            self._paints_left -= 1
            return True
        return False


class CroppedCompositor(Compositor):
    """Compositor that renders only the widgets in the repainted region. Textual's renders all widgets of each container
    that touches the region, which doubles the CPU time of a typed character.
    """

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        for widget, (region, clip) in self.visible_widgets.items():
            if crop is not None and not crop.overlaps(region):
                continue
            visible = region.intersection(clip)
            if visible and (crop is None or crop.overlaps(visible)):
                yield region, clip, widget.render_lines(visible.translate(-region.offset))
