"""Metric series that ranks log."""

from __future__ import annotations

import json
import re
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Literal

from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.log_buffer import PoolActivity
from skyward_core.views.outliers import Trace, find_outliers, median

Kind = Literal["loss", "time", "rate", ""]

RECOVERY_COUNT = 20  # finite values after which one that was none is over
BLOCK_SIZE = 50  # values of which the median counts as one
PLATEAU_BLOCKS = 4  # such medians in which nothing got better
PLATEAU_SECONDS = 300.0  # they span at least that: who logs twenty times a second has 200 values in ten
MIN_FALL = 0.01  # of the first median that it has to have fallen by; what never fell is no training
MIN_IMPROVEMENT = 0.001  # of the whole fall, that counts as better
PACE_SIZE = 8  # values whose median is a pace: one hiccup is none
MAX_PACES = 256  # of them that are kept; beyond that two become one

_LOSS = re.compile(r"(^|[^a-z])(loss|nll|ppl|perplexity)($|[^a-z])")
_TIME = re.compile(
    r"(^|[^a-z])(step|iter|iteration|batch)([^a-z]?(time|seconds|duration)|[^a-z](ms|s|sec))$"
    r"|(^|_)(s|ms|sec|seconds)(/|_per_)(it|iter|step|batch)$"
)
_RATE = re.compile(r"(/|_per_)(s|sec|second)$|(^|[^a-z])throughput($|[^a-z])")


def classify_metric(name: str) -> Kind:
    """What a number is, by its name: a loss, the time of a step, a rate, or nothing that is known."""
    lower = name.lower()
    if _LOSS.search(lower):
        return "loss"
    if _TIME.search(lower):
        return "time"
    return "rate" if _RATE.search(lower) else ""


class SeriesDiagnostics:
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
        self.kind: Kind = classify_metric(name)
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
        self._recent: deque[float] = deque(maxlen=PACE_SIZE)
        self.paces: tuple[tuple[float, float], ...] = ()
        self.next_at: float | None = None
        self._each = PACE_SIZE  # values of a stretch

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
            if self._good >= RECOVERY_COUNT:
                self.bad_at = None
        self._recent.append(value)
        if self.kind == "loss":
            self._block.append(value)
            if len(self._block) >= BLOCK_SIZE:
                self._check_plateau(median(self._block), at)
                self._block = []
        elif self.kind:
            self._add_pace(at, value)

    def _add_pace(self, at: float, value: float) -> None:
        since = self.next_at = at if self.next_at is None else self.next_at
        self._block.append(value)
        if len(self._block) < self._each:
            return
        paces = (*self.paces, (since, median(self._block)))
        if len(paces) >= MAX_PACES:
            pairs = zip(paces[::2], paces[1::2], strict=True)
            paces = tuple((since, (one + other) / 2) for (since, one), (_, other) in pairs)
            self._each *= 2
        self.paces, self.next_at, self._block = paces, None, []

    def _check_plateau(self, now: float, at: float) -> None:
        if self._best_at is None:
            self._first = self._best = now
            self._best_at = at
            return
        if self._best - now > MIN_IMPROVEMENT * max(self._first - now, 0.0) and now < self._best:
            self._best, self._best_at, self._worse = now, at, 0
            self.rests_since = None
            return
        self._worse += 1
        fell = self._first - self._best > MIN_FALL * abs(self._first)
        if fell and self._worse >= PLATEAU_BLOCKS and at - self._best_at >= PLATEAU_SECONDS:
            self.rests_since = self._best_at

    def recent_median(self) -> float | None:
        """The median of its last values that are finite: of a pace, what that is now. None where there are too few to
        tell it from a hiccup."""
        recent = list(self._recent)
        return median(recent) if len(recent) >= PACE_SIZE else None

    def is_all_beyond(self, value: float) -> bool:
        """Whether its last values that are finite are all above that, or all below."""
        recent = list(self._recent)
        return bool(recent) and (min(recent) > value or max(recent) < value)

    @property
    def non_finite_label(self) -> str:
        """``NaN``, ``inf``, ``-inf``."""
        return "NaN" if self.bad != self.bad else str(self.bad)


MAX_POINTS = 512  # of one name's history; beyond that every other point goes
MAX_NAMES = 64  # of one rank in one run
MAX_RUNS = 64  # of one pool
MAX_TIME = 1 << 40  # seconds since 1970 beyond which a clock's word is none
MAX_VALUE = 1e308
MAX_LINE_BYTES = 1 << 16  # bytes of a line that has no end yet; longer than any that a rank writes


class Series:
    """One name's numbers of one rank in one run.

    A history that is full is thinned to every other point, and from then on takes half as many: it always spans
    the whole run, evenly, in at most ``POINTS`` points.

    Attributes:
        line: times and values; replaced, never changed in place, when it is thinned.
        latest, latest_at: the newest value and its time, whether or not it is in the line.
        signs: what all values so far tell of it.
    """

    __slots__ = ("_seen", "_stride", "latest", "latest_at", "line", "signs")

    def __init__(self, name: str) -> None:
        self.signs = SeriesDiagnostics(name)
        self.line = Trace(array("d"), array("d"))
        self.latest = self.latest_at = 0.0
        self._stride = 1
        self._seen = 0

    def add(self, at: float, value: float, step: float | None = None) -> None:
        self.latest, self.latest_at = value, at
        self.signs.add(at, value, step)
        if self._seen % self._stride == 0:
            if len(self.line.at) >= MAX_POINTS:
                self.line = Trace(self.line.at[::2], self.line.values[::2])
                self._stride *= 2
            self.line.values.append(value)
            self.line.at.append(at)  # last: who reads meanwhile goes by the times
        self._seen += 1


class MetricStore:
    """All numbers of a pool, by run, rank and name. One thread writes, others may read.

    Attributes:
        version: raised by all that is taken, so that a screen paints only what is new.
    """

    def __init__(self) -> None:
        self.version = 0
        self.activity = PoolActivity()  # what is heard goes there, too
        self._runs: dict[str, dict[int, dict[str, Series]]] = {}
        self._yielded: dict[tuple[str, int], int] = {}
        self._partial_lines: dict[str, bytes] = {}  # by file: a line of which the end has not come

    def feed(self, name: str, rank: int, data: bytes) -> None:
        """Take the next bytes of a metrics file; a line that is none (its beginning was cut off) is passed over.

        Args:
            name: of the file; lines of each are put together by themselves.
        """
        *lines, rest = (self._partial_lines.get(name, b"") + data).split(b"\n")
        self._partial_lines[name] = rest if len(rest) <= MAX_LINE_BYTES else b""
        for line in lines:
            try:
                told = json.loads(line)
                run, at, values = str(told["run"]), float(told["at"]), dict(told["values"])
                seq = None if "seq" not in told else int(told["seq"])
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                continue
            if not 0 <= at < MAX_TIME:
                continue
            self.add_values(run, rank, at, values, seq, name)

    def add_values(
        self,
        run: str,
        rank: int,
        at: float,
        values: dict[str, Any],
        seq: int | None = None,
        source: str = "",
    ) -> None:
        """Take numbers of a rank; whatever else is among the values is passed over.

        Args:
            seq: of what was yielded, its place among all that was: it is told by the agent and by the file, and
                taken once.
            source: the file that they stand in, with times of the node's clock.
        """
        if seq is not None:
            if seq <= self._yielded.get((run, rank), -1):
                return
            self._yielded[run, rank] = seq
        numbers = {k: v for k, v in values.items() if _is_number(v)}
        if not numbers:
            return
        if run not in self._runs and len(self._runs) >= MAX_RUNS:
            self._runs = dict(list(self._runs.items())[1 - MAX_RUNS :])
            self._yielded = {key: seq for key, seq in self._yielded.items() if key[0] in self._runs}
        series = self._runs.setdefault(run, {}).setdefault(rank, {})
        step = numbers.get("step")
        for told, value in numbers.items():
            name = sanitize_line(str(told))
            if name not in series:
                if len(series) >= MAX_NAMES:
                    continue
                series[name] = Series(name)
            series[name].add(at, float(value), step)
        self.activity.record_activity(run, rank, at, source)
        self.version += 1

    def latest(self, run: str, rank: int) -> dict[str, float]:
        """The newest value of every name of a rank, in the order in which the names came."""
        return {name: one.latest for name, one in list(self._series_by_name(run, rank).items())}

    def latest_since(self, run: str, rank: int, at: float) -> dict[str, float]:
        """The same of those that came at a time or after it."""
        found = list(self._series_by_name(run, rank).items())
        return {name: one.latest for name, one in found if one.latest_at >= at}

    def history(self, run: str, rank: int, name: str) -> list[tuple[float, float]]:
        """(Unix time, value) of one name, oldest first, at most ``POINTS``."""
        return list(zip(*self.trace(run, rank, name), strict=True))

    def trace(self, run: str, rank: int, name: str) -> Trace:
        """The same in arrays of its own."""
        found = self._series_by_name(run, rank).get(name)
        if found is None:
            return Trace(array("d"), array("d"))
        at, values = found.line
        times = at[:]
        return Trace(times, values[: len(times)])

    def traces(self, run: str, name: str) -> dict[int, Trace]:
        """One name's numbers of every rank that sent it."""
        return {
            rank: self.trace(run, rank, name) for rank in self.ranks(run) if name in self._series_by_name(run, rank)
        }

    def first_trace(self, run: str, name: str) -> Trace:
        """One name's numbers of the lowest rank that sent it."""
        return self.trace(run, next((r for r in self.ranks(run) if name in self._series_by_name(run, r)), 0), name)

    def latest_by_rank(self, run: str, name: str) -> dict[int, float]:
        """One name's newest value of every rank that sent it."""
        found = {rank: self._series_by_name(run, rank).get(name) for rank in self.ranks(run)}
        return {rank: one.latest for rank, one in found.items() if one is not None}

    def outlier_ranks(self, run: str, name: str) -> list[int]:
        """Whose last few values of a name are far from all others', the farthest first: their median is, and all lie on
        the same side of what the others have, so that neither a hiccup nor noise is odd. Ranks that have sent fewer are
        left out; one whose newest is no finite number is odd, however many came before."""
        found = {
            rank: one for rank in self.ranks(run) if (one := self._series_by_name(run, rank).get(name)) is not None
        }
        values: dict[int, float] = {}
        for rank, one in found.items():
            value = one.signs.recent_median() if isfinite(one.latest) else one.latest
            if value is not None:
                values[rank] = value
        odd = find_outliers(values)
        middle = median([value for value in values.values() if isfinite(value)]) if odd else 0.0
        return [rank for rank in odd if not isfinite(values[rank]) or found[rank].signs.is_all_beyond(middle)]

    def diagnostics(self, run: str) -> Iterator[tuple[int, str, SeriesDiagnostics]]:
        """Rank, name and what its values tell, of all that ranks sent in a run."""
        for rank, names in sorted(self._runs.get(run, {}).items()):
            for name, series in list(names.items()):
                yield rank, name, series.signs

    def names(self, run: str) -> list[str]:
        """All names that ranks sent in a run, in the order in which they came, lowest rank first."""
        return list(dict.fromkeys(name for rank in self.ranks(run) for name in list(self._series_by_name(run, rank))))

    def ranks(self, run: str) -> list[int]:
        """The ranks that have sent numbers in a run."""
        return sorted(self._runs.get(run, {}))

    def _series_by_name(self, run: str, rank: int) -> dict[str, Series]:
        return self._runs.get(run, {}).get(rank, {})


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -MAX_VALUE < value < MAX_VALUE  # whole numbers may be longer than what a float can hold
    return isinstance(value, float)


def format_metrics(values: Mapping[str, float]) -> str:
    """``step 1,234  loss 2.31``: four significant digits of what is no whole number."""
    return "  ".join(
        f"{name} {int(value):,}" if isfinite(value) and value == int(value) and abs(value) < 1e15
        else f"{name} {value:.4g}"
        for name, value in values.items()
    )  # fmt: skip
