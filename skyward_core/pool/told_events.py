"""What the log tells of a pool's events: how it and its nodes change, and its runs; nothing of single calls."""

from __future__ import annotations

from collections.abc import Callable
from logging import DEBUG, INFO, WARNING
from typing import Any

from ..store.loggers import logger
from ..views import events as ev

_log = logger("pool")

# By kind of event; most are of other kinds, and cost no more than the look for them here.
_WORDS: dict[type[ev.Event], tuple[int, Callable[[Any], str]]] = {
    ev.PoolOpened: (
        INFO,
        lambda event: f"pool: {event.spec.get('nodes')} nodes of {event.spec.get('provider')}",
    ),
    ev.PoolState: (INFO, lambda event: _with(f"pool: {event.state}", event.detail)),
    ev.PoolEnded: (INFO, lambda event: "pool: gone"),
    ev.NodePhase: (INFO, lambda event: _with(f"node {event.node}: {event.phase}", event.detail)),
    ev.NodeLink: (
        DEBUG,
        lambda event: _with(f"node {event.node}: link {'up' if event.up else 'down'}", event.detail),
    ),
    ev.RunOpened: (INFO, lambda event: f"run {event.run}: opened, {event.kind} of {event.total}"),
    ev.RunEnded: (INFO, lambda event: f"run {event.run}: {event.state}"),
}


def tell(event: ev.Event) -> None:
    """Have the log tell of an event, where it is one of those."""
    found = _WORDS.get(type(event))
    if found is None:
        return
    level, words = found
    if isinstance(event, ev.PoolState) and event.state in ("degraded", "failed"):
        level = WARNING
    if _log.isEnabledFor(level):
        _log.log(level, "%s", words(event), extra={"pool": event.pool})


def _with(what: str, detail: str) -> str:
    return f"{what}: {detail}" if detail else what
