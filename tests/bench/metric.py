"""One measured figure with the peer's figure and its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Bar:
    """Bounds of a figure; all given bounds must hold.

    Args:
        at_most, at_least: Bounds of our figure, in the metric's unit.
        ratio_at_most, ratio_at_least: Bounds of our figure divided by the peer's.
    """

    at_most: float | None = None
    at_least: float | None = None
    ratio_at_most: float | None = None
    ratio_at_least: float | None = None

    def met(self, ours: float | None, theirs: float | None) -> bool:
        """Check whether ``ours`` is within the bounds. A missing figure never is."""
        if ours is None:
            return False
        if self.at_most is not None and ours > self.at_most:
            return False
        if self.at_least is not None and ours < self.at_least:
            return False
        if self.ratio_at_most is None and self.ratio_at_least is None:
            return True
        if not theirs:
            return False
        ratio = ours / theirs
        low = -float("inf") if self.ratio_at_least is None else self.ratio_at_least
        high = float("inf") if self.ratio_at_most is None else self.ratio_at_most
        return low <= ratio <= high

    def __str__(self) -> str:
        bounds = [
            ("<= {:g}", self.at_most),
            (">= {:g}", self.at_least),
            ("<= {:.3g}x theirs", self.ratio_at_most),
            (">= {:.3g}x theirs", self.ratio_at_least),
        ]
        return ", ".join(text.format(bound) for text, bound in bounds if bound is not None) or "-"


@dataclass(frozen=True, slots=True)
class Metric:
    """Measured figure, whose name ends in its unit (``_s``, ``_ms``, ``_mb``, ``_per_s``).

    ``theirs`` is None if the peer has no comparable figure.
    """

    name: str
    ours: float | None
    theirs: float | None = None
    bar: Bar = Bar()

    @property
    def ratio(self) -> float | None:
        """Our figure divided by the peer's."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def ok(self) -> bool:
        return self.bar.met(self.ours, self.theirs)

    def to_json(self) -> dict[str, Any]:
        return {
            "ours": _rounded(self.ours),
            "theirs": _rounded(self.theirs),
            "ratio": _rounded(self.ratio),
            "bar": str(self.bar),
            "ok": self.ok,
        }


def table(metrics: list[Metric]) -> str:
    """Return the metrics as an aligned text table."""
    rows = [("metric", "ours", "theirs", "ratio", "bar", "")]
    rows += [
        (m.name, _text(m.ours), _text(m.theirs), _text(m.ratio), str(m.bar), "ok" if m.ok else "MISSED")
        for m in metrics
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 1 <= i <= 3 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
