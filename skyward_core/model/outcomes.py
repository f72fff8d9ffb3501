"""Outcomes of calls and runs, and the words for the states of pools, nodes, ranks and machines."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Literal

from skyward_core.util.light_dataclass import Value, value

# connecting: the ledger has it, and the way to its machines is being made. unfinished: its start was broken off, as the
# process that brought it up is gone.
PoolStatus = Literal[
    "starting", "connecting", "up", "degraded", "stopping", "gone", "failed", "unreachable", "unfinished"
]
# lost: its pool ended, and nobody knows how it went; kept: its pool ended, and what it gave can still be fetched; left:
# it goes on, but this client has gone from it.
RunStatus = Literal["running", "done", "failed", "cancelled", "lost", "kept", "left"]
# sweep: a task for each combination of arguments, of which none stops the others. "": an agent tells of a run, and
# nobody of what kind it is. map: its calls are made while it goes on, and what is shown of it is a row for each rank.
RunKind = Literal["broadcast", "single", "gather", "sweep", "map", ""]

# How a pool stands to its budget. asked: all of it is spent, and a person is asked what to do.
BudgetStatus = Literal["within", "near", "asked", "spent"]

# A node's way up, in this order.
NodePhase = Literal["requested", "running", "connected", "synced", "installed", "ready", "gone"]
# What is said ahead of a rented machine's end, which is not ours to decide. rebalance: it is likelier than it was.
NoticeKind = Literal["terminate", "stop", "hibernate", "rebalance"]
# What a rank's process is at; "" where it is idle, as far as is known.
RankPhase = Literal["", "starting", "importing", "joining", "running", "paused"]

OutcomeKind = Literal["returned", "raised", "exited", "lost", "collateral"]
# Of one rank of a broadcast, or one task of a gather.
TaskStatus = Literal["waiting", "running", "returned", "raised", "exited", "lost", "collateral"]

# running; orphaned: it is there, but no agent runs on it, and one can be started again; ending: its agent, or what ran
# there, has not quite ended; unreachable: nothing can be said of it now, and the trouble may be the way to it; lost:
# nobody gets an answer from it, other nodes neither.
MachineStatus = Literal["running", "orphaned", "ending", "unreachable", "lost", "gone"]

# What is told of a run while it goes on, the worst first.
AlertKind = Literal["gpu", "nan", "stall", "memory", "throttled", "straggler", "plateau"]


@value
class Summary(Value):
    """What a value looks like, made where the value is; nothing needs to unpickle to show it.

    Attributes:
        type: name of the value's type.
        text: at most 200 characters that describe it.
        json: the value itself where it is small and made of JSON types; of another dictionary of a few values these, by
            name, as texts; else None.
        is_json: whether ``json`` is the value (so that None can be told from "not JSON").
        size: bytes of the pickled value.
    """

    type: str
    text: str
    json: Any = None
    is_json: bool = False
    size: int = 0

    @classmethod
    def from_wire(cls, data: Mapping[str, Any] | None) -> Summary | None:
        return None if data is None else cls(**data)


@value
class ErrorInfo(Value):
    """A failure in words. ``traceback`` is the remote one, empty where there is none."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any] | None) -> ErrorInfo | None:
        return None if data is None else cls(**data)


@value
class Outcome(Value):
    """How one rank (of a broadcast) or one task (of a single dispatch or a gather) ended.

    Attributes:
        index: rank for a broadcast, position for a gather.
        rank: the rank whose worker ran it.
        node: the node of that rank.
        seconds: how long the function ran.
        exit_code, signal: how the process ended, for ``exited``.
        items, last: how many values a generator yielded, and the latest of them.
        numbers: what is left of what it logged (``sky.log``): name -> the last, the least and the greatest number, None
            for what is not finite. None where it logged nothing, or its process did not live to tell.
    """

    index: int
    rank: int
    node: int
    kind: OutcomeKind
    seconds: float = 0.0
    summary: Summary | None = None
    error: ErrorInfo | None = None
    exit_code: int | None = None
    signal: int | None = None
    items: int = 0
    last: Summary | None = None
    numbers: Mapping[str, Sequence[float | None]] | None = None

    def to_json(self) -> dict[str, Any]:
        return to_json_types(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        data = dict(data)
        data["summary"] = Summary.from_wire(data.get("summary"))
        data["error"] = ErrorInfo.from_wire(data.get("error"))
        data["last"] = Summary.from_wire(data.get("last"))
        return cls(**data)


@value
class RootCause(Value):
    """The first real failure of a run.

    Attributes:
        exit_code: the exit status that a command should end with on its behalf: its own status, 128 + signal, or None
            where the rank raised; KeyboardInterrupt counts as the signal that Python makes of it.
    """

    rank: int
    outcome: OutcomeKind
    type: str
    message: str
    exit_code: int | None = None

    @property
    def rank_prefix(self) -> str:
        """The rank, before what befell it: ``"rank 3 "``; "" for a trial that no rank had begun."""
        return f"rank {self.rank} " if self.rank >= 0 else ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> RootCause:
        error = outcome.error or ErrorInfo(outcome.kind, "")
        code = outcome.exit_code if outcome.signal is None else 128 + outcome.signal
        if outcome.kind == "raised" and error.type == "KeyboardInterrupt":
            code = 130
        return cls(outcome.rank, outcome.kind, error.type, error.message, code)


def to_json_types(value: Any) -> dict[str, Any]:
    """A dataclass as JSON types. Unlike ``asdict`` it copies no leaves: thousands of these are made per second."""
    kind = type(value)
    if kind not in _SHAPES:
        names = tuple(field.name for field in fields(value))
        _SHAPES[kind] = (
            names,
            attrgetter(*names, "__class__"),
        )  # one more, for it gives a tuple only of several
    names, parts = _SHAPES[kind]
    out = dict(zip(names, parts(value), strict=False))
    for name, part in out.items():
        if type(part) in _NESTED:
            out[name] = to_json_types(part)
    return out


_SHAPES: dict[type[Any], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {}
_NESTED = frozenset((Summary, ErrorInfo, Outcome, RootCause))


def signal_name(number: int) -> str:
    """``9`` -> ``SIGKILL``; an unknown number as it is."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
