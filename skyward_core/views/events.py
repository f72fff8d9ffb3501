"""What happened, as typed values. Together with ``views`` the only door between the pools and any screen.

Events are small and frozen; they go to disk as JSON lines (:func:`to_json`), from which the same views can be
rebuilt offline. Log bytes are not events: they have files and cursors of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

from skyward_core.model import outcomes
from skyward_core.model.errors import Hint
from skyward_core.model.outcomes import Outcome, RootCause, Summary, to_json_types
from skyward_core.util.light_dataclass import Value, value


@value(kw_only=True)
class Event(Value):
    """Something that happened to a pool. ``at`` is Unix time in seconds."""

    kinds: ClassVar[dict[str, type[Event]]] = {}
    written_as: ClassVar[str] = ""  # in journals, where it is not called as the class is
    pool: str
    at: float = field(default_factory=time.time)

    def __init_subclass__(cls) -> None:
        # A class with slots is made twice; the second one, which is used, replaces the first.
        Event.kinds[cls.written_as or cls.__name__] = cls


@value(kw_only=True)
class PoolOpened(Event):
    """A pool was asked for, or found again. ``spec`` as :meth:`PoolSpec.describe` gives it."""

    spec: dict[str, Any]
    created_at: float


@value(kw_only=True)
class PoolState(Event):
    """``hint``: what to do about it, where ``detail`` is an error and does not say that."""

    state: outcomes.PoolStatus
    detail: str = ""
    hint: Hint | None = None


@value(kw_only=True)
class NodePhase(Event):
    """A node entered a phase, or says more of the one it is in. ``retry_at``: when what failed is tried again, Unix
    time."""

    node: int
    phase: outcomes.NodePhase
    detail: str = ""
    retry_at: float | None = None
    address: str = ""


@value(kw_only=True)
class NodeLink(Event):
    """The link to a node came up or went down."""

    node: int
    up: bool
    detail: str = ""


@value(kw_only=True)
class NodeNotice(Event):
    """A node's machine is about to be taken back, at ``ends_at`` (Unix time, by our clock) where that is known; or
    ("rebalance") that is likelier than it was."""

    node: int
    kind: outcomes.NoticeKind
    ends_at: float | None = None


@value(kw_only=True)
class RunOpened(Event):
    """A run was dispatched. ``total``: ranks or tasks. ``job``: id of the job that it is a step of; "" for none.
    ``more``: whether another step follows."""

    run: str
    function: str
    kind: outcomes.RunKind
    total: int
    job: str = ""
    more: bool = False


@value(kw_only=True)
class RunPlaced(Event):
    """A run on some of the pool's nodes has got these, in order. ``job`` and ``more``: as of
    :class:`RunOpened`."""

    run: str
    nodes: Sequence[int]
    job: str = ""
    more: bool = False


@value(kw_only=True)
class QueuedRun(Value):
    """A run that waits for nodes: how many it wants (0 for all), or which ones; since when (Unix time), and whose it
    is."""

    run: str
    name: str
    nodes: int
    only: Sequence[int]
    since: float
    who: str = ""


@value(kw_only=True)
class QueueNews(Event):
    """All runs that wait for nodes now, in their order."""

    waiting: Sequence[QueuedRun]


@value(kw_only=True)
class RankPhase(Event):
    """What a rank's process is at, since ``at``. Only phases that last are told."""

    rank: int
    phase: outcomes.RankPhase


@value(kw_only=True)
class RankBegan(Event):
    """A rank began its part of a run."""

    run: str
    index: int
    rank: int
    node: int


@value(kw_only=True)
class ItemYielded(Event):
    """A generator function yielded its ``seq``-th value on a rank."""

    run: str
    index: int
    rank: int
    seq: int
    summary: Summary


@value(kw_only=True)
class RankEnded(Event):
    """A rank (or task) of a run ended."""

    run: str
    outcome: Outcome


@value(kw_only=True)
class RunEnded(Event):
    """All outcomes are in."""

    run: str
    state: outcomes.RunStatus
    root_cause: RootCause | None = None


@value(kw_only=True)
class LeaseNews(Event):
    """When the pool ends itself, as things stand (seconds since 1970): nobody uses it, or its time to live is
    running out. None where nothing counts down."""

    ends_at: float | None


@value(kw_only=True)
class PriceNews(Event):
    """What an hour of the pool's machines costs in dollars, from now on."""

    hourly: float


@value(kw_only=True)
class BudgetNews(Event):
    """How a pool stands to what it may cost in dollars. Where somebody is asked about it, the pool is torn down at
    ``ends_at`` (seconds since 1970) if nobody answers."""

    budget: float
    state: outcomes.BudgetStatus
    ends_at: float | None = None


@value(kw_only=True)
class UnfetchedNews(Event):
    """Runs whose results wait on the nodes for a client to fetch them, and bytes of those; all there are now."""

    runs: dict[str, int]


@value(kw_only=True)
class OutputFetched(Event):
    """A file that ranks wrote has come to this machine, or cannot: ``error`` says why."""

    run: str
    node: int
    path: str
    size: int
    target: str
    error: str = ""


@value(kw_only=True)
class PoolEnded(Event):
    """A teardown ended. ``receipt`` as :class:`skyward_core.store.ledger_rows.Receipt` gives it."""

    written_as: ClassVar[str] = "PoolGone"
    receipt: dict[str, Any]


def to_json(event: Event) -> dict[str, Any]:
    """The event as JSON types, with its kind under "event"."""
    data = {"event": event.written_as or type(event).__name__} | to_json_types(event)
    if (hint := data.get("hint")) is not None:
        data["hint"] = to_json_types(hint)
    if isinstance(event, QueueNews):
        data["waiting"] = [to_json_types(each) for each in event.waiting]
    return data
