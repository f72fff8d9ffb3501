"""Metric series that ranks log, checks of each series with each new value, and the progress of ranks."""

from __future__ import annotations

import json
from array import array
from binascii import a2b_base64
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, NamedTuple

from skyward_core.model.metric_definitions_series_and_export import METRIC_ORIGINS
from skyward_core.util.number_size_and_time_format import number
from skyward_core.util.terminal_safe_text import sanitize_line
from skyward_core.views.log_buffers_and_rank_activity import PoolActivity
from skyward_core.views.metric_kinds_and_order import STEP_NAMES, TOTALS, Kind, classify_metric, run_value, sort_names
from skyward_core.views.outliers_and_bands import Trace, find_outliers, median

RECOVERY_COUNT = 20  # number of finite values after which an earlier non-finite value is no longer reported
BLOCK_SIZE = 50  # number of successive values of a loss whose median is compared to detect a plateau
PLATEAU_BLOCKS = 4  # number of successive medians without improvement after which a loss is on a plateau
# minimum seconds without improvement for a plateau, because some ranks log many times per second
PLATEAU_SECONDS = 300.0
MIN_FALL = 0.01  # share of its first median by which a metric must have fallen to count as a training loss
MIN_IMPROVEMENT = 0.001  # share of the total fall by which a new minimum must be lower to count as an improvement
PACE_SIZE = 8  # number of values whose median is a rank's pace, so that a single slow step has no effect
MAX_PACES = 256  # maximum number of stored paces per series; beyond it, neighboring paces are merged in pairs


class SeriesDiagnostics:
    """Checks of one metric of one rank in one run, updated with each value: non-finite values, plateaus, pace.

    Attributes:
        bad_at: Unix time of the first non-finite value that is still reported. None if there is none.
        bad: The value at ``bad_at``.
        bad_step: Step that was logged with ``bad``, or None.
        bad_place: Number of values before ``bad``.
        rests_since: Unix time since which a loss has not improved. None if it improves, or if too little is known.
        paces: Start and median of each stretch (group of successive values), oldest first. Replaced, never modified.
        next_at: Unix time of the first value of the unfinished stretch, or None.
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
        self._each = PACE_SIZE  # number of values whose median is one pace; doubled whenever paces are merged

    def add(self, at: float, value: float, step: float | None) -> None:
        """Check the next value of the series."""
        self.seen += 1
        if value - value != 0:  # The difference is NaN for NaN and infinities.
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
        """Return the median of the latest finite values; None if there are too few values for a reliable median."""
        recent = list(self._recent)
        return median(recent) if len(recent) >= PACE_SIZE else None

    def is_all_beyond(self, value: float) -> bool:
        """Check whether the latest finite values are all above, or all below, a value."""
        recent = list(self._recent)
        return bool(recent) and (min(recent) > value or max(recent) < value)

    @property
    def non_finite_label(self) -> str:
        """First reported non-finite value as text: ``NaN``, ``inf`` or ``-inf``."""
        return "NaN" if self.bad != self.bad else str(self.bad)


MAX_POINTS = 512  # maximum points per metric series; of a full series, every other point is dropped
MAX_NAMES = 64  # maximum number of metrics per rank and run
MAX_IMAGE_TEXT = 400  # maximum characters of the name and of the path of an image
MAX_IMAGES = 16  # maximum number of names of images per run; only the newest image of a name is stored
MAX_RUNS = 64  # number of runs per pool whose metrics are in memory
MAX_TIME = 1 << 40  # largest valid Unix time in seconds
MAX_VALUE = 1e308
# maximum bytes of an unfinished line of a metrics file; longer than any line that a rank writes
MAX_LINE_BYTES = 1 << 16
REQUIRED_VALUES = 3  # number of consistent values after which a rank's progress is shown
MAX_PROGRESS_VALUES = 64  # maximum number of stored values per progress of a rank
RATE_VALUES = 24  # number of latest values from which a rank's rate of progress is computed
MAX_PROGRESSES = 8  # maximum number of different progresses (kind and total) that are observed per rank
MIN_STALE_SECONDS = 10.0  # minimum seconds without progress after which the time left counts as unknown
STALE_INTERVALS = 3.0  # minimum number of usual intervals without progress after which the time left counts as unknown
EPOCH_KINDS = (2, 4)  # kinds of progress that do not count steps; see `printed_metrics_and_library_hooks`


class Series:
    """Values of one metric of one rank in one run.

    Args:
        name: Name of the metric.
        most: Maximum number of points; None for all.

    A full series is thinned to every other point, and later values are thinned in the same way. The series therefore
    always covers the whole run evenly, in at most ``most`` points.

    Attributes:
        line: Times and values. Replaced, never modified in place, when the series is thinned.
        origin: Source of the values: "" for ``sky.log``, else a key of `METRIC_ORIGINS`.
        latest, latest_at: Newest value and its Unix time, even if thinning removed them from the line.
        diagnostics: Diagnostics of all values so far.
    """

    __slots__ = ("_most", "_seen", "_stride", "diagnostics", "latest", "latest_at", "line", "origin")

    def __init__(self, name: str, most: int | None = MAX_POINTS, origin: str = "") -> None:
        self.origin = origin
        self.diagnostics = SeriesDiagnostics(name)
        self._most = most
        self.line = Trace(array("d"), array("d"))
        self.latest = self.latest_at = 0.0
        self._stride = 1
        self._seen = 0

    def add(self, at: float, value: float, step: float | None = None) -> None:
        self.latest, self.latest_at = value, at
        self.diagnostics.add(at, value, step)
        if self._seen % self._stride == 0:
            if self._most is not None and len(self.line.at) >= self._most:
                self.line = Trace(self.line.at[::2], self.line.values[::2])
                self._stride *= 2
            self.line.values.append(value)
            # Append the time last, because concurrent readers take the number of points from it.
            self.line.at.append(at)
        self._seen += 1


class Progress(NamedTuple):
    """Progress of a rank in its run.

    Attributes:
        value, total: Completed part and whole, in the same unit.
        rate: Units per second; None if unknown.
        at: Unix time of the value.
        interval: Usual seconds between two values.
        is_step: Whether the unit is a step, not an epoch.
    """

    value: float
    total: float
    rate: float | None
    at: float
    interval: float
    is_step: bool

    @property
    def fraction(self) -> float:
        """Completed part, from 0 to 1."""
        return self.value / self.total

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated seconds until the run is complete; None if unknown, for example after a long pause."""
        if not self.rate or now - self.at > max(MIN_STALE_SECONDS, STALE_INTERVALS * self.interval):
            return None
        return max(0.0, (self.total - self.value) / self.rate - max(0.0, now - self.at))


class ProgressTracker:
    """Progress of one rank, computed from values that it logs and prints.

    Values count once three of them are consistent: of the same kind and total, and increasing. A progress bar that
    begins again in one process belongs to an epoch, not to the run.
    """

    __slots__ = ("_found", "_repeated", "_source")

    def __init__(self) -> None:
        self._repeated: set[float] = set()  # totals of progress bars that began again, so that they belong to an epoch
        self._source = ""
        # (kind, total) of a progress -> its times and values
        self._found: dict[tuple[int, float], list[tuple[float, float]]] = {}

    def add(self, at: float, done: object, source: str = "") -> None:
        """Add a progress value with its total and kind. Ignore invalid data, because ranks may send anything.

        Args:
            source: File of the process that gave the value.
        """
        if not (isinstance(done, list | tuple) and len(done) == 3 and all(map(_is_number, done))):
            return
        value, total, kind = float(done[0]), float(done[1]), int(done[2]) if isfinite(done[2]) else -1
        if not (0 <= value <= total < MAX_VALUE and total > 0 and 0 <= kind <= 5):
            return
        seen = list(self._found.get((kind, total), ()))
        if seen and kind == 0 and value < seen[-1][1] and source == self._source:
            self._repeated = {*list(self._repeated)[1 - MAX_PROGRESSES :], total}
        self._source = source
        if seen and (value < seen[-1][1] or at < seen[-1][0]):
            seen = []  # A smaller value, or an earlier time, means that the progress began again.
        if not seen or value > seen[-1][1]:
            seen.append((at, value))
        if len(seen) > MAX_PROGRESS_VALUES:
            del seen[1 : len(seen) // 2]
        self._found[kind, total] = seen  # Store a new list, because screens read the old one.
        if len(self._found) > MAX_PROGRESSES:
            del self._found[min(self._found, key=lambda key: self._found[key][-1][0])]

    @property
    def current(self) -> Progress | None:
        """The rank's progress: that of the highest kind. Logged values precede printed ones, and bars come last.

        Among bars, this is the oldest unfinished bar, because bars inside it are newer.
        """
        found = [(key, seen) for key, seen in list(self._found.items()) if len(seen) >= REQUIRED_VALUES]
        found = [(key, seen) for key, seen in found if key[0] or key[1] not in self._repeated]
        if not found:
            return None
        highest = max(kind for (kind, _), _ in found)
        found = [(key, seen) for key, seen in found if key[0] == highest]
        open_ones = [(key, seen) for key, seen in found if seen[-1][1] < key[1]]
        (kind, total), seen = (
            min(open_ones, key=lambda each: each[1][0][0]) if open_ones else max(found, key=lambda each: each[1][-1][0])
        )
        latest = seen[-RATE_VALUES:]
        (begin, first), (at, value) = latest[0], latest[-1]
        rate = (value - first) / (at - begin) if at > begin else None
        interval = (at - begin) / (len(latest) - 1)
        return Progress(value, total, rate, at, interval, kind not in EPOCH_KINDS)


class LoggedImage(NamedTuple):
    """Newest image that a rank logged under a name.

    Attributes:
        name: Name of the image.
        rank: The rank.
        step: Step of the training; None if the rank gave none.
        path: Path of the file in the working folder of the rank.
        preview: PNG or JPEG file from the rank, which may be invalid. Empty if the node could not create a preview.
    """

    name: str
    rank: int
    step: float | None
    path: str
    preview: bytes


class MetricStore:
    """Metrics of a pool by run, rank and name. One thread writes; other threads may read.

    Args:
        most: Maximum number of points of a metric; None for all.

    Attributes:
        version: Increased by each change, so that screens repaint only new data.
    """

    def __init__(self, most: int | None = MAX_POINTS) -> None:
        self._most = most
        self.version = 0
        self.activity = PoolActivity()  # receives the times of all values, to detect silent ranks
        self._runs: dict[str, dict[int, dict[str, Series]]] = {}
        self._yielded: dict[tuple[str, int], int] = {}
        self._progress: dict[str, dict[int, ProgressTracker]] = {}
        self._images: dict[str, dict[str, LoggedImage]] = {}  # run -> name -> image
        self._partial_lines: dict[str, bytes] = {}  # metrics file -> its unfinished last line

    def feed(self, name: str, rank: int, data: bytes) -> None:
        """Add the metrics in bytes of a metrics file. Skip invalid lines, such as truncated ones.

        Args:
            name: Name of the file. Each file has its own unfinished line.
            rank: Rank that writes the file.
            data: The bytes.
        """
        *lines, rest = (self._partial_lines.get(name, b"") + data).split(b"\n")
        self._partial_lines[name] = rest if len(rest) <= MAX_LINE_BYTES else b""
        for line in lines:
            try:
                record = json.loads(line)
                run, at, values = str(record["run"]), float(record["at"]), dict(record["values"])
                seq = None if "seq" not in record else int(record["seq"])
                origin, done = str(record.get("src", "")), record.get("done")
                if "image" in record:
                    self._add_image(run, rank, **record["image"])
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                continue
            if not 0 <= at < MAX_TIME:
                continue
            self.add_values(run, rank, at, values, seq, name, origin if origin in METRIC_ORIGINS else "", done)

    def _add_image(self, run: str, rank: int, name: Any, step: Any, path: Any, data: Any, **_: Any) -> None:
        """Add an image, unless a lower rank has logged an image of this name, or there are too many names.

        Raises:
            TypeError, ValueError: If a value is invalid.
        """
        step = step if _is_number(step) and isfinite(step) else None
        shown, path = (sanitize_line(str(text)[:MAX_IMAGE_TEXT]) for text in (name, path))
        found = LoggedImage(shown, rank, step, path, a2b_base64(data[:MAX_LINE_BYTES]))
        images = self._images.setdefault(run, {})
        if rank <= images[shown].rank if shown in images else len(images) < MAX_IMAGES:
            images[shown] = found
            self.version += 1
        if len(self._images) > MAX_RUNS:
            self._images = dict(list(self._images.items())[1:])

    def images(self, run: str) -> list[LoggedImage]:
        """Return the newest image of each name, by the lowest rank that logged it, in the order of appearance."""
        return list(self._images.get(run, {}).values())

    def add_values(
        self,
        run: str,
        rank: int,
        at: float,
        values: dict[str, Any],
        seq: int | None = None,
        source: str = "",
        origin: str = "",
        done: object = None,
    ) -> None:
        """Add metrics of a rank. Ignore values that are not numbers.

        Args:
            run: Id of the run.
            rank: The rank.
            at: Unix time in seconds.
            values: Values by name.
            seq: Index of a yielded item. The agent and the file both report the item; the second report is ignored.
            source: File that contained the values. Its times are on the node's clock.
            origin: Source of the values: "" for ``sky.log``, else a key of `METRIC_ORIGINS`. Values of ``sky.log``
                replace those of libraries, which replace those of printed lines.
            done: Value, total and kind of the rank's progress, or None.
        """
        if seq is not None:
            if seq <= self._yielded.get((run, rank), -1):
                return
            self._yielded[run, rank] = seq
        numbers = {k: v for k, v in values.items() if _is_number(v)}
        done = _logged_progress(numbers) if done is None and not origin else done
        if done is not None:
            ahead = self.activity.clocks.ahead(rank) if source and self.activity.clocks is not None else 0.0
            ranks = self._progress.setdefault(run, {})
            ranks.setdefault(rank, ProgressTracker()).add(at + ahead, done, source)
            if len(self._progress) > MAX_RUNS:
                self._progress = dict(list(self._progress.items())[1:])
            self.version += 1
        if not numbers:
            return
        if run not in self._runs and len(self._runs) >= MAX_RUNS:
            self._runs = dict(list(self._runs.items())[1 - MAX_RUNS :])
            self._yielded = {key: seq for key, seq in self._yielded.items() if key[0] in self._runs}
        series = self._runs.setdefault(run, {}).setdefault(rank, {})
        step = numbers.get("step")
        for key, value in numbers.items():
            name = sanitize_line(str(key))
            known = series.get(name)
            if known is None or _priority(origin) > _priority(known.origin):
                if known is None and len(series) >= MAX_NAMES:
                    continue
                series[name] = Series(name, self._most, origin)
            elif known.origin != origin and name not in ("step", "epoch"):
                continue
            series[name].add(at, float(value), step)
        self.activity.record_activity(run, rank, at, source)
        self.version += 1

    def origin(self, run: str, name: str) -> str:
        """Return the source of a metric as words, such as "from the log"; "" for ``sky.log``."""
        found = (names[name].origin for names in list(self._runs.get(run, {}).values()) if name in names)
        return METRIC_ORIGINS.get(next(found, ""), "")

    def progress_by_rank(self, run: str) -> dict[int, Progress]:
        """Return rank -> progress, without ranks whose progress is not reliable."""
        found = {rank: tracker.current for rank, tracker in sorted(self._progress.get(run, {}).items())}
        return {rank: progress for rank, progress in found.items() if progress is not None}

    def progress(self, run: str) -> Progress | None:
        """Return the progress of the rank that is behind all others; None if no rank's progress is reliable."""
        return min(self.progress_by_rank(run).values(), key=lambda found: found.fraction, default=None)

    def latest(self, run: str, rank: int) -> dict[str, float]:
        """Return the newest value of each metric of a rank, in the order in which the metrics were first logged."""
        return {name: one.latest for name, one in list(self._series_by_name(run, rank).items())}

    def latest_since(self, run: str, rank: int, at: float) -> dict[str, float]:
        """Return the newest values of a rank's metrics, without values from before a Unix time."""
        found = list(self._series_by_name(run, rank).items())
        return {name: one.latest for name, one in found if one.latest_at >= at}

    def max_step(self, run: str) -> float | None:
        """Return the largest step that a rank logged as the metric ``step``; None if there is none."""
        series = (names.get("step") for names in list(self._runs.get(run, {}).values()))
        steps = [max(one.latest, *one.line.values) for one in series if one is not None]
        return max((step for step in steps if isfinite(step)), default=None)

    def step_rate(self, run: str, rank: int) -> float | None:
        """Return the steps per second that a rank logs, from its latest steps; None if unknown."""
        names = self._series_by_name(run, rank)
        found = next((names[name] for name in STEP_NAMES if name in names), None)
        if found is None or len(found.line.at) < REQUIRED_VALUES:
            return None
        times, steps = (each[-RATE_VALUES:] for each in _copy(found.line))
        passed, done = times[-1] - times[0], steps[-1] - steps[0]
        return done / passed if passed > 0 and 0 < done < MAX_VALUE else None

    def repeated_work(self, run: str, at: float) -> tuple[float, float]:
        """Return the steps that a run logged again after an attempt ended, and the seconds lost with them.

        The lost time is the time between the first and the second start of these steps.

        Args:
            run: Id of the run.
            at: Unix time at which the attempt ended.
        """
        times, steps = self.first_trace(run, "step")
        end = bisect_right(times, at)
        if end in (0, len(times)):
            return 0.0, 0.0
        first = steps[end]
        begin = next((place for place in range(end - 1, -1, -1) if steps[place] < first), 0)
        return max(0.0, max(steps[:end]) - first + 1), times[end] - times[begin]

    def history(self, run: str, rank: int, name: str) -> list[tuple[float, float]]:
        """Return (Unix time, value) pairs of one metric, oldest first."""
        return list(zip(*self.trace(run, rank, name), strict=True))

    def trace(self, run: str, rank: int, name: str) -> Trace:
        """Return a copy of one metric's series."""
        found = self._series_by_name(run, rank).get(name)
        return Trace(array("d"), array("d")) if found is None else _copy(found.line)

    def traces(self, run: str, name: str) -> dict[int, Trace]:
        """Return one metric's series of each rank that logged it."""
        series = self._runs.get(run, {})
        return {rank: _copy(one.line) for rank in sorted(series) if (one := series[rank].get(name)) is not None}

    def first_trace(self, run: str, name: str) -> Trace:
        """Return one metric's series of the lowest rank that logged it."""
        return self.trace(run, next((r for r in self.ranks(run) if name in self._series_by_name(run, r)), 0), name)

    def run_value(self, run: str, name: str) -> float | None:
        """Return the run's value of a metric; see :func:`run_value`. None if it is not finite, or not logged."""
        own = self._series_by_name(run, 0).get(name)
        value = run_value(self.latest_by_rank(run, name)) if own is None else own.latest
        return value if value is not None and isfinite(value) else None

    def run_values(self, run: str) -> dict[str, float]:
        """Return the run's finite values by metric, in order of appearance."""
        return {name: value for name in self.names(run) if (value := self.run_value(run, name)) is not None}

    def latest_by_rank(self, run: str, name: str) -> dict[int, float]:
        """Return one metric's newest value of each rank that logged it."""
        found = {rank: self._series_by_name(run, rank).get(name) for rank in self.ranks(run)}
        return {rank: one.latest for rank, one in found.items() if one is not None}

    def outlier_ranks(self, run: str, name: str) -> list[int]:
        """Return the ranks whose last values of a metric are far from all others, farthest first.

        The median of a rank's last values must be an outlier, and all of these values must be on the same side of the
        other ranks' values, so that neither noise nor a single value counts. Ranks with too few values are omitted. A
        rank whose newest value is not finite is always included.
        """
        found = {
            rank: one for rank in self.ranks(run) if (one := self._series_by_name(run, rank).get(name)) is not None
        }
        values: dict[int, float] = {}
        for rank, one in found.items():
            value = one.diagnostics.recent_median() if isfinite(one.latest) else one.latest
            if value is not None:
                values[rank] = value
        odd = find_outliers(values)
        middle = median([value for value in values.values() if isfinite(value)]) if odd else 0.0
        return [rank for rank in odd if not isfinite(values[rank]) or found[rank].diagnostics.is_all_beyond(middle)]

    def diagnostics(self, run: str) -> Iterator[tuple[int, str, SeriesDiagnostics]]:
        """Yield rank, name and diagnostics of all metrics of a run."""
        for rank, names in sorted(self._runs.get(run, {}).items()):
            yield from ((rank, name, series.diagnostics) for name, series in list(names.items()))

    def names(self, run: str) -> list[str]:
        """Return the names of all metrics of a run in the order in which they were first logged, lowest rank first."""
        return list(dict.fromkeys(name for rank in self.ranks(run) for name in list(self._series_by_name(run, rank))))

    def sorted_names(self, run: str) -> tuple[list[str], list[str]]:
        """Return the names of a run's metrics and of its counters; see :func:`sort_names`."""
        return sort_names(self.names(run), lambda name: self.first_trace(run, name))

    def ranks(self, run: str) -> list[int]:
        """Return the ranks that logged metrics in a run."""
        return sorted(self._runs.get(run, {}))

    def _series_by_name(self, run: str, rank: int) -> dict[str, Series]:
        return self._runs.get(run, {}).get(rank, {})


def _priority(origin: str) -> int:
    return 2 if not origin else int(origin != "log")


def _logged_progress(numbers: Mapping[str, float]) -> tuple[float, float, int] | None:
    """Return the progress that a rank logged as metrics, such as ``step=5, total=100``; None if there is none."""
    for name, (kind, totals) in TOTALS.items():
        if name in numbers:
            for total in totals:
                if total in numbers:
                    return numbers[name], numbers[total], kind
    return None


def _copy(line: Trace) -> Trace:
    times = line.at[:]
    return Trace(times, line.values[: len(times)])


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -MAX_VALUE < value < MAX_VALUE  # Integers may exceed the range of floats.
    return isinstance(value, float)


def format_metrics(values: Mapping[str, float]) -> str:
    """Format metrics as ``step 12,345  loss 2.31``. Counters are complete; others have four significant digits."""
    return "  ".join(
        f"{name} {value:,.0f}" if name in (*TOTALS, *STEP_NAMES) and isfinite(value) else f"{name} {number(value)}"
        for name, value in values.items()
    )
