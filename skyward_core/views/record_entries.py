"""What is fed to a pool's view, as entries of a record, and back into a view.

An entry has its time under "at" (Unix, in seconds) and its kind under "k". A record may come from a stranger: what is
not as it should be is passed over, and text is made safe to show by the views, as that of ranks is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..wire.node_paths import METRICS
from ..wire.value_checks import is_log, is_number, is_run
from . import events as ev
from .checked_events import LATEST, NODES, event_of
from .machines import MachineBook
from .trial_sheet import TrialSheet
from .views import PoolView, apply

Entry = dict[str, Any]
STREAMS = ("out", "err")
ROWS, SHEETS = 4_096, 1_024  # of a sweep, and sweeps of a record
AHEAD = 1e7  # seconds that clocks may differ


def of_event(event: ev.Event) -> Entry:
    """Something that happened."""
    return {"at": event.at, "k": "event", "event": ev.to_json(event)}


def of_log(at: float, stem: str, stream: str, run: str, data: bytes) -> Entry:
    """What a worker printed; ``stem`` is its files' name without the ending."""
    return {"at": at, "k": "log", "of": stem, "stream": stream, "run": run, "text": _text(data)}


def of_numbers(at: float, name: str, data: bytes) -> Entry:
    """Whole lines of a file of the numbers that a rank logged."""
    return {"at": at, "k": "numbers", "of": name, "text": _text(data)}


def of_figures(at: float, node: int, data: bytes, ahead: float) -> Entry:
    """Lines of samples of a node's machine; see :meth:`.machines.MachineBook.feed`."""
    return {"at": at, "k": "figures", "node": node, "ahead": ahead, "text": _text(data)}


def of_silence(at: float, node: int, why: str) -> Entry:
    """Why nothing is measured of a node's machine, or "": something is."""
    return {"at": at, "k": "silence", "node": node, "why": why}


def of_work(at: float, spent: Mapping[int, float]) -> Entry:
    """What ranks had taken of the processor by then, in seconds."""
    return {"at": at, "k": "work", "spent": {str(rank): seconds for rank, seconds in spent.items()}}


def of_sheet(at: float, run: str, sheet: TrialSheet) -> Entry:
    """What a run was a sweep of; of one by gangs, its first."""
    return {"at": at, "k": "sheet", "run": run, "sheet": sheet.to_json()}


def time_of(entry: Entry) -> float | None:
    """When it was; None where it does not say."""
    at: Any = entry.get("at")
    return at if is_number(at) and 0 <= at < LATEST else None


def feed(view: PoolView, entry: Entry) -> bool:
    """Bring a view up to date with an entry; whether it was one that can be understood."""
    at, kind = time_of(entry), entry.get("k")
    take = _TAKERS.get(kind) if isinstance(kind, str) else None
    if at is None or take is None:
        return False
    try:
        return take(view, entry, at)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        # What a view cannot be (a node beyond the last one, say) is in no record of ours.
        return False


def _take_event(view: PoolView, entry: Entry, at: float) -> bool:
    event = event_of(entry.get("event"))
    if event is not None:
        apply(view, event)
    return event is not None


def _take_log(view: PoolView, entry: Entry, at: float) -> bool:
    stem, stream, run, data = entry["of"], entry["stream"], entry["run"], _data(entry["text"])
    good = stream in STREAMS and is_log(f"{stem}.{stream}") and (run == "" or is_run(run))
    if good:
        view.logs.feed(_rank_of(stem), stream, data, at, run or view.only_run, stem)
    return bool(good)


def _take_numbers(view: PoolView, entry: Entry, at: float) -> bool:
    name = entry["of"]
    good = is_log(name) and name.endswith(METRICS)
    if good:
        view.metrics.feed(name, _rank_of(name), _data(entry["text"]))
    return bool(good)


def _take_figures(view: PoolView, entry: Entry, at: float) -> bool:
    node, ahead = entry["node"], entry["ahead"]
    good = _is_node(node) and is_number(ahead) and abs(ahead) < AHEAD
    if good:
        _book(view).feed(node, _data(entry["text"]), ahead)
    return good


def _take_silence(view: PoolView, entry: Entry, at: float) -> bool:
    node, why = entry["node"], entry["why"]
    good = _is_node(node) and type(why) is str
    if good:
        _book(view).explain(node, why)
    return good


def _take_work(view: PoolView, entry: Entry, at: float) -> bool:
    for rank, seconds in entry["spent"].items():
        if is_number(seconds):
            view.rhythms.spent(int(rank), seconds, at)
    return True


def _take_sheet(view: PoolView, entry: Entry, at: float) -> bool:
    run, sheet = entry["run"], TrialSheet.from_json(entry["sheet"])
    good = is_run(run) and len(sheet.rows) <= ROWS and len(view.sheets) < SHEETS
    if good:
        view.sheets[run] = sheet
    return bool(good)


_TAKERS = {
    "event": _take_event,
    "log": _take_log,
    "numbers": _take_numbers,
    "figures": _take_figures,
    "silence": _take_silence,
    "work": _take_work,
    "sheet": _take_sheet,
}


def _book(view: PoolView) -> MachineBook:
    if view.machines is None:
        view.machines = MachineBook()
    return view.machines


def _is_node(node: Any) -> bool:
    return type(node) is int and 0 <= node < NODES


def _rank_of(name: str) -> int:
    return int(name[1:].partition(".")[0])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _data(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # halves of characters that no bytes were
        return text.encode("utf-8", "replace")
