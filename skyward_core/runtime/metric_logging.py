"""Sky.log in a rank.

A call only leaves its numbers where a thread of this module finds them; that thread writes JSON lines to a
file of the spool, at most ``RATE`` a second, which the agent follows like a log. Training never waits for a
reader.
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

from skyward_core.runtime.instance_info import call_in_progress, instance_info

WRITES_PER_SECOND = 20  # lines a second of one run


def log(**numbers: SupportsFloat) -> None:
    """Send numbers to the live panes: ``sky.log(step=step, loss=loss.item())``.

    Takes a few microseconds and never blocks. More than 20 calls a second are thinned: of those in between,
    each name keeps its latest value. Off a pool it does nothing.

    Args:
        **numbers: name and number; anything ``float()`` takes (for a tensor on a GPU that waits for the GPU).

    Raises:
        TypeError: a value is no number; the message names it.
    """
    for name, value in numbers.items():
        if type(value) is not float and type(value) is not int:
            numbers[name] = _to_float(name, value)
    if _writer is not None:
        _writer.add(instance_info().run, numbers, call=call_in_progress())


def pop_call_metrics(run: str, call: int) -> dict[str, list[float | None]]:
    """What is left of the numbers of a call that has ended; see ``runtime.metric_logging``. The worker asks once."""
    return _writer.summaries.pop(run, call) if _writer and _writer.summaries else {}


def record_yielded(run: str, seq: int, value: Any, call: int = -1) -> None:
    """Keep the numbers of a dict that a generator yielded, for clients that come later (the worker does this).

    Args:
        seq: the value's place among all that it yields.
    """
    if _writer is None or type(value) is not dict:
        return
    numbers = {name: number for name, number in value.items() if type(name) is str and type(number) in (int, float)}
    if numbers:
        _writer.add(run, numbers, seq, call)


def _to_float(name: str, value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError(f"log() takes numbers; {name} is a {type(value).__name__}")
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"log() takes numbers; {name} is a {type(value).__name__} ({error})") from error


def start_writer(path: str) -> Callable[[], None]:
    """Write this process's numbers to a file from now on (the worker does this); the first ones create it.

    Each line is ``{"at": Unix time, "run": id, "values": {name: number}}``, of what was yielded with its "seq"; NaN and
    infinities are written as Python's ``json`` does.

    Returns:
        What writes all that waits, at once; the worker calls it at the end of every call.
    """
    global _writer
    _writer = _Writer(path)
    return _writer.flush


class _Writer:
    """Holds the latest numbers of every run, and writes them when it is time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1  # opened, and the thread started, by the first numbers: most ranks never send any
        self._latest: dict[tuple[str, bool], dict[str, Any]] = {}  # by run, and whether they were yielded
        self._seqs: dict[tuple[str, bool], int] = {}
        self.summaries: MetricSummaries | None = None  # loaded by the first numbers, too
        self._lock = threading.Lock()  # held for moments only, as user code takes it
        self._writing = threading.Lock()
        self._has_values = threading.Event()
        self._broken = False
        self._thread: threading.Thread | None = None

    def add(self, run: str, numbers: dict[str, Any], seq: int | None = None, call: int = -1) -> None:
        key = run, seq is not None
        with self._lock:
            if self.summaries is None:
                self.summaries = MetricSummaries()
            self.summaries.add(run, call, numbers)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
                self._thread.start()
            held = self._latest.get(key)
            if held is None:
                self._latest[key] = numbers
            else:
                held.update(numbers)
            if seq is not None:
                self._seqs[key] = seq
        if not self._has_values.is_set():
            self._has_values.set()

    def flush(self) -> None:
        if self._thread is None:
            return  # there were never any numbers
        with self._writing:
            with self._lock:
                latest, self._latest = self._latest, {}
                seqs, self._seqs = self._seqs, {}
                self._has_values.clear()
            if self._broken or not latest:
                return
            at = time()
            lines = [
                json.dumps({"at": at, "run": key[0], "values": values} | ({"seq": seqs[key]} if key in seqs else {}))
                for key, values in latest.items()
            ]
            try:
                if self._file < 0:
                    self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.write(self._file, ("\n".join(lines) + "\n").encode())
            except OSError as error:
                # A full disk must not end the training: the panes stand still, and the log says why.
                self._broken = True
                sys.stderr.write(f"sky.log stopped: its file cannot be written ({error})\n")

    def _serve(self) -> None:
        while True:
            self._has_values.wait()
            self.flush()
            sleep(1 / WRITES_PER_SECOND)


_writer: _Writer | None = None


MAX_NAMES = 64  # of one call
MAX_NAME_LENGTH = 200  # characters of a name
MAX_CALLS = 1024  # whose ends nobody has asked about


class MetricSummaries:
    """Those of the calls of one process."""

    def __init__(self) -> None:
        self._by_call: dict[tuple[str, int], dict[str, list[Any]]] = {}

    def add(self, run: str, call: int, numbers: Mapping[str, Any]) -> None:
        """Take numbers of a call; of none (-1), nothing is kept."""
        if call < 0:
            return
        found = self._by_call.setdefault((run, call), {})
        if len(self._by_call) > MAX_CALLS:
            del self._by_call[next(iter(self._by_call))]
        for name, value in numbers.items():
            gist = found.get(name)
            if gist is None:
                if len(found) >= MAX_NAMES or len(name) > MAX_NAME_LENGTH:
                    continue
                gist = found[name] = [value, inf, -inf]
            gist[0] = value
            if value < gist[1]:
                gist[1] = value
            if value > gist[2]:
                gist[2] = value

    def pop(self, run: str, call: int) -> dict[str, list[float | None]]:
        """A call's, once; None stands for what is not finite."""
        found = self._by_call.pop((run, call), {})
        return {name: [_to_finite(each) for each in gist] for name, gist in found.items()}


def _to_finite(number: Any) -> float | None:
    try:
        found = float(number)
    except OverflowError:  # a whole number may be longer than any float
        return None
    return found if isfinite(found) else None


def emit(name: str, payload: Any = None) -> None:
    """Tell something: a line of the log has it, and its numbers are logged, too, ``NAME.KEY`` each, by ``sky.log``.

    Args:
        name: what is told.
        payload: a mapping, a number, or whatever else JSON takes.
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
