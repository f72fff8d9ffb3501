"""Entries of recordings: encoding, and decoding with validation, of events, logs and metrics.

An entry has its Unix time in seconds under "at" and its kind under "k". Recordings may come from strangers: invalid
entries are skipped, and the views make their text safe for terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from skyward_core.model.outcomes_states_and_alerts import json_key
from skyward_core.protocol.node_paths import METRICS
from skyward_core.protocol.validators import is_count, is_log_name, is_number, is_plain, is_rank, is_run_id
from skyward_core.views import events
from skyward_core.views.machine_metrics import MachineMetrics
from skyward_core.views.pool_view import PoolView, apply
from skyward_core.views.sweep_argument_combinations import TrialSheet

TEXT = 1 << 20  # maximum characters of a text in a recording
NODES = 4096
RANKS = 4096  # maximum number of ranks of a recorded pool
LATEST = 1 << 36  # largest valid Unix time in seconds, within the range of calendar functions
_PLACES = ("rank", "node", "index")


class MisfitError(ValueError):
    """Error: a recorded value does not match the type of its field."""


def parse_event(data: Any) -> events.Event | None:
    """Decode an event that ``events.to_json`` encoded. Return None if the data is invalid or of an unknown kind."""
    kind: Any = (
        events.Event.kinds.get(data["event"]) if isinstance(data, dict) and type(data.get("event")) is str else None
    )
    if kind is None:
        return None
    try:
        event = _parse_object(kind, data)
    except MisfitError:
        return None
    run, total, receipt = (getattr(event, name, None) for name in ("run", "total", "receipt"))
    good = (
        0 <= event.at < LATEST
        and (run is None or is_run_id(run))
        and (total is None or is_count(total))
        and (receipt is None or (is_plain(receipt) and isinstance(receipt.get("gone", []), list)))
        and (not isinstance(event, events.PoolOpened) or _is_spec(event.spec))
        and all(is_rank(each) for name in _PLACES if (each := getattr(event, name, None)) is not None)
        and (not isinstance(event, events.RankEnded) or all(is_rank(getattr(event.outcome, each)) for each in _PLACES))
    )
    return event if good else None


def parse_attempt_ends(pool: str, run: str, rows: Iterable[Mapping[str, Any]]) -> list[events.AttemptEnded]:
    """Decode the ends of a run's attempts from the run's ledger row. Skip invalid ones."""
    found = (parse_event({**row, "event": "AttemptEnded", "pool": pool, "run": run}) for row in rows)
    return [each for each in found if isinstance(each, events.AttemptEnded)]


def _is_spec(spec: Mapping[str, Any]) -> bool:
    """Check the values of a pool's recorded specification that views and screens use."""
    worker, options = spec.get("worker", {}), spec.get("options", {})
    if not (is_plain(spec) and isinstance(worker, dict) and isinstance(options, dict)):
        return False
    nodes, ranks = spec.get("nodes", 0), worker.get("ranks_per_node", 1)
    limits = (options.get("ttl"), options.get("budget"))
    return (
        type(nodes) is int
        and 0 <= nodes <= NODES
        and (ranks == "gpu" or (type(ranks) is int and ranks > 0 and max(1, nodes) * ranks <= RANKS))
        and type(spec.get("provider", "")) is str
        and all(limit is None or is_number(limit) for limit in limits)
    )


@cache
def _split_hint(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of a type hint. Cached, because a journal has thousands of events."""
    return get_origin(hint), get_args(hint)


def _parse(hint: Any, value: Any) -> Any:
    """Convert a recorded value to the type that a type hint names.

    Raises:
        MisfitError: If the value does not match.
    """
    if type(hint) is type:
        if hint in _CHECKS:
            if _CHECKS[hint](value):
                return value
        elif hasattr(hint, "__dataclass_fields__"):
            return _parse_object(hint, value)
        elif type(value) is hint:  # accepts None, too, because the hint is then the type of None
            return value
        raise MisfitError(f"{value!r:.80} is not a {hint}")
    if hint is Any:
        return value
    origin, parts = _split_hint(hint)
    if origin in (Union, UnionType):
        for each in parts:
            try:
                return _parse(each, value)
            except MisfitError:
                continue
    elif origin is Literal and type(value) is str and value in parts:
        return value
    elif origin in (dict, Mapping) and type(value) is dict:
        return {_parse(parts[0], name): _parse(parts[1], each) for name, each in value.items()}
    elif origin is Sequence and type(value) is list:
        return [_parse(parts[0], each) for each in value]
    raise MisfitError(f"{value!r:.80} is not a {hint}")


_CHECKS: dict[type, Callable[[Any], bool]] = {
    float: is_number,
    int: lambda value: type(value) is int and is_number(value),
    str: lambda value: type(value) is str and len(value) <= TEXT,
}


def _parse_object(kind: Any, value: Any) -> Any:
    parsed_fields, required = _fields_of(kind)
    if type(value) is not dict:
        raise MisfitError(f"{value!r:.80} is not a {kind.__name__}")
    if not value.keys() >= required:
        raise MisfitError(f"{kind.__name__} lacks {', '.join(sorted(required - value.keys()))}")
    # Ignore unknown fields, which newer releases may add.
    known = [(*parsed_fields[key], each) for key, each in value.items() if key in parsed_fields]
    return kind(**{name: _parse(hint, each) for name, hint, each in known})


@cache
def _fields_of(kind: Any) -> tuple[dict[str, tuple[str, Any]], set[str]]:
    """Return name and type hint of each field of a dataclass by JSON key, and the fields without a default."""
    hints = get_type_hints(kind)
    required = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    return {json_key(kind, field.name): (field.name, hints[field.name]) for field in fields(kind)}, required


Entry = dict[str, Any]
STREAMS = ("out", "err")
ROWS, SHEETS = 4_096, 1_024  # maximum number of rows of a sweep, and of sweeps of a recording
MAX_CLOCK_DIFFERENCE = 1e7  # maximum seconds by which the clocks of client and node may differ


def event_entry(event: events.Event) -> Entry:
    """Encode an event as an entry."""
    return {"at": event.at, "k": "event", "event": events.to_json(event)}


def log_entry(at: float, stem: str, stream: str, run: str, data: bytes) -> Entry:
    """Encode a worker's output as an entry. ``stem`` is the name of the worker's log files without the ending."""
    return {"at": at, "k": "log", "of": stem, "stream": stream, "run": run, "text": _to_text(data)}


def metrics_entry(at: float, name: str, data: bytes) -> Entry:
    """Encode whole lines of a rank's metrics file as an entry."""
    return {"at": at, "k": "numbers", "of": name, "text": _to_text(data)}


def machine_entry(at: float, node: int, data: bytes, ahead: float) -> Entry:
    """Encode samples of a node's machine as an entry; see ``machine_metrics.MachineMetrics.feed``."""
    return {"at": at, "k": "figures", "node": node, "ahead": ahead, "text": _to_text(data)}


def silence_entry(at: float, node: int, reason: str) -> Entry:
    """Encode the reason why a node sends no machine metrics as an entry; "" if it sends them again."""
    return {"at": at, "k": "silence", "node": node, "why": reason}


def cpu_time_entry(at: float, spent: Mapping[int, float]) -> Entry:
    """Encode the CPU time of ranks, in seconds, as an entry."""
    return {"at": at, "k": "work", "spent": {str(rank): seconds for rank, seconds in spent.items()}}


def sheet_entry(at: float, run: str, sheet: TrialSheet) -> Entry:
    """Encode the trial sheet of a sweep, with its run (in a sweep by gangs, its first run), as an entry."""
    return {"at": at, "k": "sheet", "run": run, "sheet": sheet.to_json()}


def entry_time(entry: Entry) -> float | None:
    """Return the Unix time of an entry; None if it is missing or invalid."""
    at: Any = entry.get("at")
    return at if is_number(at) and 0 <= at < LATEST else None


def apply_entry(view: PoolView, entry: Entry) -> bool:
    """Update a pool's view with an entry of a recording. Return whether the entry was valid."""
    at, kind = entry_time(entry), entry.get("k")
    apply_kind = _APPLIERS.get(kind) if isinstance(kind, str) else None
    if at is None or apply_kind is None:
        return False
    try:
        apply_kind(view, entry, at)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        # An entry of this kind is not part of a valid recording: for example, its node does not exist.
        return False
    return True


def _require(good: bool) -> None:
    if not good:
        raise MisfitError("a value of an entry is out of range")


def _apply_event(view: PoolView, entry: Entry, at: float) -> None:
    if (event := parse_event(entry.get("event"))) is None:
        raise MisfitError("an entry contains no valid event")
    apply(view, event)


def _apply_log(view: PoolView, entry: Entry, at: float) -> None:
    stem, stream, run, data = entry["of"], entry["stream"], entry["run"], _to_bytes(entry["text"])
    _require(stream in STREAMS and is_log_name(f"{stem}.{stream}") and (run == "" or is_run_id(run)))
    view.logs.feed(parse_rank(stem), stream, data, at, run or view.only_run, stem)


def _apply_metrics(view: PoolView, entry: Entry, at: float) -> None:
    name = entry["of"]
    _require(is_log_name(name) and name.endswith(METRICS))
    view.metrics.feed(name, parse_rank(name), _to_bytes(entry["text"]))


def _apply_machine_samples(view: PoolView, entry: Entry, at: float) -> None:
    node, ahead = entry["node"], entry["ahead"]
    _require(_is_node(node) and is_number(ahead) and abs(ahead) < MAX_CLOCK_DIFFERENCE)
    _machine_metrics(view).feed(node, _to_bytes(entry["text"]), ahead)


def _apply_silence(view: PoolView, entry: Entry, at: float) -> None:
    node, reason = entry["node"], entry["why"]
    _require(_is_node(node) and type(reason) is str)
    _machine_metrics(view).set_silence_reason(node, reason)


def _apply_cpu_time(view: PoolView, entry: Entry, at: float) -> None:
    for rank, seconds in entry["spent"].items():
        if is_number(seconds):
            view.activity.record_cpu_time(int(rank), seconds, at)


def _apply_sheet(view: PoolView, entry: Entry, at: float) -> None:
    run, sheet = entry["run"], TrialSheet.from_json(entry["sheet"])
    _require(is_run_id(run) and len(sheet.rows) <= ROWS and len(view.sheets) < SHEETS)
    view.sheets[run] = sheet


_APPLIERS = {
    "event": _apply_event,
    "log": _apply_log,
    "numbers": _apply_metrics,
    "figures": _apply_machine_samples,
    "silence": _apply_silence,
    "work": _apply_cpu_time,
    "sheet": _apply_sheet,
}


def _machine_metrics(view: PoolView) -> MachineMetrics:
    if view.machines is None:
        view.machines = MachineMetrics()
    return view.machines


def _is_node(node: Any) -> bool:
    return type(node) is int and 0 <= node < NODES


def parse_rank(name: str) -> int:
    """Return the rank of a log file: ``r003.out`` -> 3, ``r003.1.err`` -> 3."""
    return int(name[1:].partition(".")[0])


def _to_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _to_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # Some surrogate does not represent a byte. Replace it.
        return text.encode("utf-8", "replace")
