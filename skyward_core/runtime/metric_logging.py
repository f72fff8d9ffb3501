"""``sky.log`` in a rank.

A call only stores its metrics in memory. A background thread writes a JSON line for each call to a spool file, at most
``WRITES_PER_SECOND`` times per second, and the agent follows that file like a log. Training never waits for a reader.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from math import inf, isfinite
from time import sleep, time  # user code may replace the functions of `time`
from typing import Any, SupportsFloat

from skyward_core.runtime.instance_info_and_attempt import call_in_progress, instance_info

WRITES_PER_SECOND = 20  # maximum writes per second
MAX_PENDING = 20_000  # calls between two writes; of further calls, only the latest value of each metric is written


def log(**numbers: SupportsFloat) -> None:
    """Log metrics: ``sky.log(step=step, loss=loss.item())``.

    Takes a few microseconds and never blocks. Screens show up to 512 values of a metric, spread evenly over the run;
    exports have all values, up to ``log_limit`` bytes of a run. Off a pool it does nothing.

    Args:
        **numbers: Values by name of the metric; any type that ``float()`` accepts. A GPU tensor is read after the GPU
            is done.

    Raises:
        TypeError: If a value is not a number. The message names the metric.
    """
    for name, value in numbers.items():
        if type(value) is not float and type(value) is not int:
            numbers[name] = _to_float(name, value)
    if _writer is not None:
        _writer.add(instance_info().run, numbers, call=call_in_progress())


def pop_call_metrics(run: str, call: int) -> dict[str, list[float | None]]:
    """Return and remove the metric summaries of an ended call. The worker calls this once."""
    return _writer.summaries.pop(run, call) if _writer and _writer.summaries else {}


def record_yielded(run: str, seq: int, value: Any, call: int = -1) -> None:
    """Log the numbers of a dictionary that a generator yielded. The worker calls this.

    Args:
        seq: Index of the value among all yielded values.
    """
    if _writer is None or type(value) is not dict:
        return
    numbers = {name: number for name, number in value.items() if type(name) is str and type(number) in (int, float)}
    if numbers:
        _writer.add(run, numbers, seq, call)


def _to_float(name: str, value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"sky.log() takes numbers, but {name} is a {type(value).__name__}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"sky.log() takes numbers, but {name} is a {type(value).__name__} ({error})") from error


def start_writer(path: str, limit: int = 0) -> Callable[[], None]:
    """Write this process's metrics to a file from now on. The worker calls this. The first metrics create the file.

    Each line is ``{"at": Unix time, "run": id, "values": {name: number}}``. Lines of yielded values also have "seq".
    NaN and infinities are written as Python's ``json`` module writes them.

    Args:
        path: Path of the file.
        limit: Bytes that one run may write; 0 for no limit.

    Returns:
        A function that writes all pending metrics. The worker calls it at the end of every call.
    """
    global _writer
    _writer = _Writer(path, limit or inf)
    return _writer.flush


class _Writer:
    """Writer of the metrics of every call of ``sky.log``."""

    def __init__(self, path: str, limit: float) -> None:
        self._path, self._limit = path, limit
        self._left: dict[str, float] = {}  # bytes that a run may still write; negative after its limit
        self._file = -1  # opened by the first metrics, which also start the thread; most ranks log nothing
        self._entries: list[dict[str, Any]] = []
        self.summaries: MetricSummaries | None = None  # created by the first metrics
        self._lock = threading.Lock()  # held briefly, because user code acquires it
        self._writing = threading.Lock()
        self._has_values = threading.Event()
        self._broken = False
        self._thread: threading.Thread | None = None

    def add(self, run: str, numbers: dict[str, Any], seq: int | None = None, call: int = -1) -> None:
        entry: dict[str, Any] = {"at": time(), "run": run, "values": numbers}
        if seq is not None:
            entry["seq"] = seq
        with self._lock:
            if self.summaries is None:
                self.summaries = MetricSummaries()
            self.summaries.add(run, call, numbers)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
                self._thread.start()
            if len(self._entries) >= MAX_PENDING and self._entries[-1]["run"] == run:
                entry["values"] = self._entries.pop()["values"] | numbers
            self._entries.append(entry)
        if not self._has_values.is_set():
            self._has_values.set()

    def flush(self) -> None:
        if self._thread is None:
            return  # no metrics were logged
        with self._writing:
            with self._lock:
                pending, self._entries = self._entries, []
                self._has_values.clear()
            if self._broken or not pending:
                return
            data = b"".join(map(self._encode, pending))
            try:
                if self._file < 0:
                    self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                while data:  # a write may be short
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                # A full disk must not stop the training. Metrics are no longer written, and the log has the reason.
                self._broken = True
                sys.stderr.write(f"sky.log stopped: cannot write its file ({error})\n")

    def _encode(self, entry: dict[str, Any]) -> bytes:
        """Return the line of an entry; b"" beyond the limit of its run."""
        line, run = json.dumps(entry).encode() + b"\n", entry["run"]
        before = self._left.pop(run, self._limit)
        self._left[run] = left = before - len(line)
        if len(self._left) > MAX_CALLS:
            del self._left[next(iter(self._left))]
        if left < 0 <= before:
            limit = f"its limit of {self._limit:,} bytes (Options(log_limit=...))"
            sys.stderr.write(f"sky.log: run {run} reached {limit}; further metrics are dropped\n")
        return line if left >= 0 else b""

    def _serve(self) -> None:
        while True:
            self._has_values.wait()
            self.flush()
            sleep(1 / WRITES_PER_SECOND)


_writer: _Writer | None = None


MAX_NAMES = 64  # metrics per call
MAX_NAME_LENGTH = 200  # characters of a name
MAX_CALLS = 1024  # stored calls whose summaries nothing has requested


class MetricSummaries:
    """Metric summaries (last, minimum, maximum) of the calls of one process."""

    def __init__(self) -> None:
        self._by_call: dict[tuple[str, int], dict[str, list[Any]]] = {}

    def add(self, run: str, call: int, numbers: Mapping[str, Any]) -> None:
        """Update the summaries with metrics of a call. Metrics outside of calls (-1) are ignored."""
        if call < 0:
            return
        found = self._by_call.setdefault((run, call), {})
        if len(self._by_call) > MAX_CALLS:
            del self._by_call[next(iter(self._by_call))]
        for name, value in numbers.items():
            summary = found.get(name)
            if summary is None:
                if len(found) >= MAX_NAMES or len(name) > MAX_NAME_LENGTH:
                    continue
                summary = found[name] = [value, inf, -inf]
            summary[0] = value
            if value < summary[1]:
                summary[1] = value
            if value > summary[2]:
                summary[2] = value

    def pop(self, run: str, call: int) -> dict[str, list[float | None]]:
        """Return and remove the summaries of a call, with None for non-finite values."""
        found = self._by_call.pop((run, call), {})
        return {name: [_to_finite(each) for each in summary] for name, summary in found.items()}


def _to_finite(number: Any) -> float | None:
    try:
        found = float(number)
    except OverflowError:  # an int may exceed the range of float
        return None
    return found if isfinite(found) else None


def emit(name: str, payload: Any = None) -> None:
    """Print an event to the log, and log its numbers as metrics ``NAME.KEY`` with ``sky.log``.

    Args:
        name: Name of the event.
        payload: A mapping, a number, or any other JSON value.
    """
    parts = payload if isinstance(payload, Mapping) else {"": payload}
    numbers = {
        f"{name}.{key}".removesuffix("."): value
        for key, value in parts.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if numbers:
        log(**numbers)
    print(name if payload is None else f"{name} {json.dumps(payload, default=str)}", flush=True)  # noqa: T201
