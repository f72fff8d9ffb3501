"""What one line of numbers tells of itself, kept up with each value: not finite, at rest, its pace of late. A few
operations a value, and nothing goes through a history."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal

from .spread import median

Kind = Literal["loss", "time", "rate", ""]

CALM = 20  # finite values after which one that was none is over
BLOCK = 50  # values of which the median counts as one
REST = 4  # such medians in which nothing got better
REST_SECONDS = 300.0  # they span at least that: who logs twenty times a second has 200 values in ten
LEAST_FALL = 0.01  # of the first median that it has to have fallen by; what never fell is no training
BETTER = 0.001  # of the whole fall, that counts as better
PACE = 8  # values whose median is a pace: one hiccup is none
PACES = 256  # of them that are kept; beyond that two become one

_LOSS = re.compile(r"(^|[^a-z])(loss|nll|ppl|perplexity)($|[^a-z])")
_TIME = re.compile(
    r"(^|[^a-z])(step|iter|iteration|batch)([^a-z]?(time|seconds|duration)|[^a-z](ms|s|sec))$"
    r"|(^|_)(s|ms|sec|seconds)(/|_per_)(it|iter|step|batch)$"
)
_RATE = re.compile(r"(/|_per_)(s|sec|second)$|(^|[^a-z])throughput($|[^a-z])")


def kind_of(name: str) -> Kind:
    """What a number is, by its name: a loss, the time of a step, a rate, or nothing that is known."""
    lower = name.lower()
    if _LOSS.search(lower):
        return "loss"
    if _TIME.search(lower):
        return "time"
    return "rate" if _RATE.search(lower) else ""


class Signs:
    """Of one name of one rank in one run.

    Attributes:
        bad_at: when the first value came that is no finite number, of those that are not over; None: there is none.
        bad: that value.
        bad_step: the step that was logged with it, or None.
        bad_place: how many values came before it.
        rests_since: since when a loss has not got better; None where it does, or too little is known.
        paces: of a pace, when each of its stretches began and what it was there, the oldest first; replaced, never
            changed in place.
        next_at: when the stretch began that has too few values yet; None where there is none.
    """

    __slots__ = (
        "_best", "_best_at", "_block", "_each", "_first", "_good", "_recent", "_worse",
        "bad", "bad_at", "bad_place", "bad_step", "kind", "next_at", "paces", "rests_since", "seen",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.kind: Kind = kind_of(name)
        self.seen = 0
        self.bad, self.bad_place = 0.0, 0
        self.bad_at: float | None = None
        self.bad_step: float | None = None
        self.rests_since: float | None = None
        self._good = 0
        self._block: list[float] = []
        self._first = self._best = 0.0
        self._best_at: float | None = None
        self._worse = 0
        self._recent: deque[float] = deque(maxlen=PACE)
        self.paces: tuple[tuple[float, float], ...] = ()
        self.next_at: float | None = None
        self._each = PACE  # values of a stretch

    def add(self, at: float, value: float, step: float | None) -> None:
        """Take the next value."""
        self.seen += 1
        if value - value != 0:  # not finite
            if self.bad_at is None:
                self.bad, self.bad_step, self.bad_place = value, step, self.seen - 1
                self.bad_at = at
            self._good = 0
            return
        if self.bad_at is not None:
            self._good += 1
            if self._good >= CALM:
                self.bad_at = None
        self._recent.append(value)
        if self.kind == "loss":
            self._block.append(value)
            if len(self._block) >= BLOCK:
                self._weigh(median(self._block), at)
                self._block = []
        elif self.kind:
            self._pace(at, value)

    def _pace(self, at: float, value: float) -> None:
        since = self.next_at = at if self.next_at is None else self.next_at
        self._block.append(value)
        if len(self._block) < self._each:
            return
        paces = (*self.paces, (since, median(self._block)))
        if len(paces) >= PACES:
            pairs = zip(paces[::2], paces[1::2], strict=True)
            paces = tuple((since, (one + other) / 2) for (since, one), (_, other) in pairs)
            self._each *= 2
        self.paces, self.next_at, self._block = paces, None, []

    def _weigh(self, now: float, at: float) -> None:
        if self._best_at is None:
            self._first = self._best = now
            self._best_at = at
            return
        if self._best - now > BETTER * max(self._first - now, 0.0) and now < self._best:
            self._best, self._best_at, self._worse = now, at, 0
            self.rests_since = None
            return
        self._worse += 1
        fell = self._first - self._best > LEAST_FALL * abs(self._first)
        if fell and self._worse >= REST and at - self._best_at >= REST_SECONDS:
            self.rests_since = self._best_at

    def lately(self) -> float | None:
        """The median of its last values that are finite: of a pace, what that is now. None where there are too few to
        tell it from a hiccup."""
        recent = list(self._recent)
        return median(recent) if len(recent) >= PACE else None

    def all_beyond(self, value: float) -> bool:
        """Whether its last values that are finite are all above that, or all below."""
        recent = list(self._recent)
        return bool(recent) and (min(recent) > value or max(recent) < value)

    @property
    def bad_word(self) -> str:
        """``NaN``, ``inf``, ``-inf``."""
        return "NaN" if self.bad != self.bad else str(self.bad)
