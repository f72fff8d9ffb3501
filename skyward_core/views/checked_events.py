"""Events of a file that a stranger may have written: made only where every value is of the kind that its field says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..wire.value_checks import is_count, is_number, is_plain, is_rank, is_run
from . import events as ev

TEXT = 1 << 20  # characters of a text
NODES = 4096
RANKS = 4096  # of a pool, which screens go through
LATEST = 1 << 36  # seconds since 1970; calendars know what day that is
_PLACES = ("rank", "node", "index")


class MisfitError(ValueError):
    """A value is not what its field says."""


def event_of(data: Any) -> ev.Event | None:
    """The event that :func:`.events.to_json` made this of; None where it is none, or of a kind not known here."""
    kind = (
        ev.Event.kinds.get(data["event"])
        if isinstance(data, dict) and type(data.get("event")) is str
        else None
    )
    if kind is None:
        return None
    try:
        event = _made(kind, data)
    except MisfitError:
        return None
    run, total, receipt = (getattr(event, name, None) for name in ("run", "total", "receipt"))
    good = (
        0 <= event.at < LATEST
        and (run is None or is_run(run))
        and (total is None or is_count(total))
        and (receipt is None or _is_receipt(receipt))
        and (not isinstance(event, ev.PoolOpened) or _is_spec(event.spec))
        and all(is_rank(each) for name in _PLACES if (each := getattr(event, name, None)) is not None)
        and (not isinstance(event, ev.RankEnded) or _is_place(event.outcome))
    )
    return event if good else None


def _is_place(outcome: Any) -> bool:
    return all(is_rank(getattr(outcome, name)) for name in _PLACES)


def _is_receipt(receipt: Mapping[str, Any]) -> bool:
    return is_plain(receipt) and isinstance(receipt.get("gone", []), list)


def _is_spec(spec: Mapping[str, Any]) -> bool:
    """Whether what views and screens ask of a spec is what they expect."""
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
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _made(hint: Any, value: Any) -> Any:
    """A value as its type hint says.

    Raises:
        MisfitError: it is none such.
    """
    if is_dataclass(hint):
        return _object(hint, value)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _one_of(parts, value)
    if origin in (dict, Mapping) and type(value) is dict:
        return {_made(parts[0], key): _made(parts[1], each) for key, each in value.items()}
    if origin is Sequence and type(value) is list:
        return [_made(parts[0], each) for each in value]
    if origin is Literal:
        good = type(value) is str and value in parts
    elif hint is float:
        good = is_number(value)
    elif hint is int:
        good = type(value) is int and is_number(value)
    elif hint is str:
        good = type(value) is str and len(value) <= TEXT
    elif hint is NoneType:
        good = value is None
    else:
        good = hint is Any or (isinstance(hint, type) and type(value) is hint)
    if not good:
        raise MisfitError(f"{value!r} is no {hint}")
    return value


def _one_of(hints: tuple[Any, ...], value: Any) -> Any:
    for hint in hints:
        try:
            return _made(hint, value)
        except MisfitError:
            continue
    raise MisfitError(f"{value!r} is none of {hints}")


def _object(kind: Any, value: Any) -> Any:
    if type(value) is not dict:
        raise MisfitError(f"{value!r} is no {kind.__name__}")
    hints = _hints(kind)
    for field in fields(kind):
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise MisfitError(f"{kind.__name__} lacks {field.name}")
    # What a newer release tells beside it is left out.
    return kind(**{name: _made(hint, value[name]) for name, hint in hints.items() if name in value})
