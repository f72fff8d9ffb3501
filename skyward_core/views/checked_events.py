"""Events of a file that a stranger may have written: made only where every value is of the kind that its field says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
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
    kind: Any = (
        ev.Event.kinds.get(data["event"])
        if isinstance(data, dict) and type(data.get("event")) is str
        else None
    )
    if kind is None:
        return None
    try:
        event = _maker(kind)(data)
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


Maker = Callable[[Any], Any]
"""Gives a value as its type hint says; raises MisfitError where it is none such."""


@cache
def _maker(hint: Any) -> Maker:
    """That of a hint: worked out once, as a journal has thousands of events."""
    if is_dataclass(hint):
        return _object(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _one_of(hint, list(map(_maker, parts)))
    if origin in (dict, Mapping):
        return _table(hint, *map(_maker, parts))
    if origin is Sequence:
        return _list(hint, _maker(parts[0]))
    return _plain(hint, _check(hint, origin, parts))


def _check(hint: Any, origin: Any, parts: tuple[Any, ...]) -> Callable[[Any], object]:
    if origin is Literal:
        return lambda value: type(value) is str and value in parts
    if hint is float:
        return is_number
    if hint is int:
        return lambda value: type(value) is int and is_number(value)
    if hint is str:
        return lambda value: type(value) is str and len(value) <= TEXT
    if hint is Any:
        return lambda value: True
    return lambda value: type(value) is hint  # also that of None


def _plain(hint: Any, good: Callable[[Any], object]) -> Maker:
    def make(value: Any) -> Any:
        if not good(value):
            raise MisfitError(f"{value!r:.80} is no {hint}")
        return value

    return make


def _table(hint: Any, key: Maker, each: Maker) -> Maker:
    def make(value: Any) -> Any:
        if type(value) is not dict:
            raise MisfitError(f"{value!r:.80} is no {hint}")
        return {key(name): each(of) for name, of in value.items()}

    return make


def _list(hint: Any, each: Maker) -> Maker:
    def make(value: Any) -> Any:
        if type(value) is not list:
            raise MisfitError(f"{value!r:.80} is no {hint}")
        return list(map(each, value))

    return make


def _one_of(hint: Any, makers: Sequence[Maker]) -> Maker:
    def make(value: Any) -> Any:
        for each in makers:
            try:
                return each(value)
            except MisfitError:
                continue
        raise MisfitError(f"{value!r:.80} is no {hint}")

    return make


def _object(kind: Any) -> Maker:
    hints = get_type_hints(kind)
    makers = {field.name: _maker(hints[field.name]) for field in fields(kind)}
    wanted = {
        field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    }

    def make(value: Any) -> Any:
        if type(value) is not dict:
            raise MisfitError(f"{value!r:.80} is no {kind.__name__}")
        if not value.keys() >= wanted:
            raise MisfitError(f"{kind.__name__} lacks {', '.join(sorted(wanted - value.keys()))}")
        # What a newer release tells beside it is left out.
        return kind(**{name: makers[name](each) for name, each in value.items() if name in makers})

    return make
