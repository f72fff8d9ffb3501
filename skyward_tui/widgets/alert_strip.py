"""One line above the panels that says what is amiss, as long as something is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content
from textual.widgets import Static

from skyward_core.model.states import AlertKind
from skyward_core.views.alerts import Alert

from ..styles import beside
from ..theme import look
from ..words import clip, clock

_SEVERE: tuple[AlertKind, ...] = ("gpu", "nan", "stall", "memory")


class AlertStrip(Static):
    """The worst one with its rank or machine and since when, and how many more there are; away while there is none."""

    DEFAULT_CSS = beside(__file__)

    def __init__(self) -> None:
        super().__init__()
        self._alerts: Sequence[Alert] = ()
        self._shown: object = None

    def show(self, alerts: Sequence[Alert]) -> None:
        """Show them, the worst first."""
        self._alerts = alerts
        shown = ([alert.key for alert in alerts[:1]], len(alerts), line(alerts, self.app.size.width).plain)
        if shown != self._shown:
            self._shown = shown
            self.set_class(bool(alerts), "-there")
            self.update(line(alerts, self.app.size.width), layout=False)

    def on_resize(self) -> None:
        self.show(self._alerts)


def line(alerts: Sequence[Alert], width: int) -> Content:
    """``✗ NaN  rank 5 since 12:01:07: loss is NaN from step 103 on  +2 more``; of little room the words take what is
    left."""
    if not alerts:
        return Content("")
    worst = alerts[0]
    mark = look(worst.kind)
    more = f"  +{len(alerts) - 1:,} more " if alerts[1:] else " "
    head = f" {mark.text}  {worst.who} since {clock(worst.since)}"
    words = clip(f": {worst.words}", max(0, width - len(head) - len(more)))
    return Content.assemble((head, f"bold {mark.style}"), (words, mark.style), (more, "bold"))


def notices(new: Sequence[Alert]) -> Iterator[tuple[str, str, str]]:
    """Title, text, and the kind of message: one for each kind, so that 256 ranks with the same trouble are one.

    A stall is told by the panel of ranks, with the key that shows where they are.
    """
    for kind in dict.fromkeys(alert.kind for alert in new if alert.kind != "stall"):
        first, *others = (alert for alert in new if alert.kind == kind)
        more = f" (+{len(others):,} more)" if others else ""
        yield look(kind).text, f"{first.who}: {first.words}{more}", "error" if kind in _SEVERE else "info"


def severe(new: Sequence[Alert]) -> Iterator[Alert]:
    """Those for which somebody should be called: the first of each kind."""
    firsts = {alert.kind: alert for alert in reversed(new) if alert.kind in _SEVERE}
    yield from firsts.values()
