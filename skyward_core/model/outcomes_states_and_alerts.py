"""Outcomes of calls and runs, the states of pools, nodes, ranks and machines, and alerts about a run."""

from __future__ import annotations

import signal as signals
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any, Literal

from skyward_core.util.light_dataclass import Value, value

# connecting: the ledger lists the pool, and the client is connecting to its machines. unfinished: the client exited
# during the startup.
PoolStatus = Literal[
    "starting", "connecting", "up", "degraded", "stopping", "gone", "failed", "unreachable", "unfinished"
]
# lost: the pool ended, and the outcome is unknown. kept: the pool ended, and the results are retained. left: the run
# continues, but this client has detached.
RunStatus = Literal["running", "done", "failed", "cancelled", "lost", "kept", "left"]
# sweep: one independent task for each combination of arguments. "": the agent reports a run of unknown kind. map: calls
# are added while the run is active, and screens show one row for each rank.
RunKind = Literal["broadcast", "single", "gather", "sweep", "map", ""]

# State of a pool's budget. asked: the budget is spent, and the user is asked whether to tear the pool down.
BudgetStatus = Literal["within", "near", "asked", "spent"]

# Phases of a node's startup, in order.
NodePhase = Literal["requested", "running", "connected", "synced", "installed", "ready", "gone"]
# Kinds of preemption notices. rebalance: preemption has become more likely.
NoticeKind = Literal["terminate", "stop", "hibernate", "rebalance"]
# Phase of a rank's process; "" if it is idle or unknown.
RankPhase = Literal["", "starting", "importing", "joining", "running", "paused", "saving"]

OutcomeKind = Literal["returned", "raised", "exited", "lost", "collateral"]
# State of one rank of a broadcast, or of one task of a gather.
TaskStatus = Literal["waiting", "running", "returned", "raised", "exited", "lost", "collateral"]

# orphaned: no agent runs on the machine, but a new agent can be started. ending: the agent, or processes of ranks, are
# ending, or the provider ends the machine. agentless: a rented machine runs without an agent, and nothing ends it.
# unreachable: no connection, possibly because of the network. lost: other nodes cannot connect either.
MachineStatus = Literal["running", "orphaned", "ending", "agentless", "unreachable", "lost", "gone"]

# Cause of an attempt's end: an error of user code, a lost process, node or machine, a preempted machine, or machines
# that have returned.
RestartCause = Literal["error", "loss", "preemption", "growth"]

# Kinds of alerts about a running run, the most severe first.
AlertKind = Literal["gpu", "nan", "stall", "memory", "restarts", "throttled", "straggler", "plateau"]


@value
class Summary(Value):
    """Short description of a value. Created on the rank, so that the client can display it without unpickling.

    Attributes:
        type: Name of the value's type.
        text: Description, at most 200 characters.
        json: The value, if it is small and consists of JSON types. For any other small dictionary: the texts of its
            values by key. Otherwise None.
        is_json: Whether ``json`` is the value itself. Distinguishes the value None from a missing value.
        size: Bytes of the pickled value.
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
    """Failure as text. ``traceback`` is the remote traceback, empty if there is none."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def from_wire(cls, data: Mapping[str, Any] | None) -> ErrorInfo | None:
        return None if data is None else cls(**data)


@value
class Outcome(Value):
    """How one rank (of a broadcast) or one task (of a single call or a group) ended.

    Attributes:
        index: Rank for a broadcast, position in the group for a task.
        rank: Rank of the worker.
        node: Node of that rank.
        kind: "returned", "raised", "exited", "lost", or "collateral": stopped because another rank failed or the run
            was cancelled.
        seconds: Duration of the function in seconds.
        summary: Summary of the returned value.
        error: Description of the failure.
        exit_code: Exit status of the process, for ``exited``.
        signal: Signal that ended the process, for ``exited``.
        items: Number of values that a generator yielded.
        last: Summary of the last yielded value.
        metrics: Metrics that the call logged (``sky.log``): name -> last, minimum and maximum value; None for
            non-finite values. ``metrics`` is None if nothing was logged, or if the process died before it could report.
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
    metrics: Mapping[str, Sequence[float | None]] | None = None

    def to_json(self) -> dict[str, Any]:
        return to_json_types(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        data = dict(data)
        data["summary"] = Summary.from_wire(data.get("summary"))
        data["error"] = ErrorInfo.from_wire(data.get("error"))
        data["last"] = Summary.from_wire(data.get("last"))
        data["metrics"] = data.pop("numbers", None)
        return cls(**data)


@value
class RootCause(Value):
    """The first real failure of a run.

    Attributes:
        rank: Rank that failed. Negative if no rank had started the call.
        outcome: Kind of the outcome.
        type: Type of the exception.
        message: Message of the failure.
        exit_code: Exit status with which a command should end: the rank's exit status, or 128 + signal. None if the
            rank raised an exception other than KeyboardInterrupt, which counts as SIGINT.
    """

    rank: int
    outcome: OutcomeKind
    type: str
    message: str
    exit_code: int | None = None

    @property
    def rank_prefix(self) -> str:
        """Prefix of messages: ``"rank 3 "``, or "" if no rank had started the call."""
        return f"rank {self.rank} " if self.rank >= 0 else ""

    @property
    def text(self) -> str:
        """Message of the failure. The type is included only if an exception was raised."""
        named = self.outcome == "raised" or not self.message
        return f"{self.type}: {self.message}".rstrip(": ") if named else self.message

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_outcome(cls, outcome: Outcome) -> RootCause:
        error = outcome.error or ErrorInfo(outcome.kind, "")
        code = outcome.exit_code if outcome.signal is None else 128 + outcome.signal
        if outcome.kind == "raised" and error.type == "KeyboardInterrupt":
            code = 130
        return cls(outcome.rank, outcome.kind, error.type, error.message, code)


@value(frozen=True)
class Alert(Value):
    """One problem of a run.

    Attributes:
        rank: Affected rank, or None for a machine.
        node: Affected node, or None for a rank.
        gpu: Affected GPU of the node, or None for the node itself.
        name: Name of the metric, or "".
        since: Unix time when the problem began.
        words: Description, without the subject and the time.
    """

    kind: AlertKind
    rank: int | None
    node: int | None
    gpu: int | None
    name: str
    since: float
    words: str

    @property
    def who(self) -> str:
        """Subject of the alert: ``rank 5``, ``n1``, ``n1 GPU 4`` or ``run``."""
        if self.kind == "restarts":
            return "run"
        if self.rank is not None:
            return f"rank {self.rank}"
        return f"n{self.node}" if self.gpu is None else f"n{self.node} GPU {self.gpu}"

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the problem, independent of its current values."""
        return (self.kind, self.rank, self.node, self.gpu, self.name)

    def to_json(self) -> dict[str, Any]:
        """Return all attributes as JSON types."""
        return asdict(self)


def to_json_types(value: Any) -> dict[str, Any]:
    """Return a dataclass as JSON types. Faster than ``asdict``, which copies every value: this function runs thousands
    of times per second.
    """
    kind = type(value)
    if kind not in _SHAPES:
        names = tuple(field.name for field in fields(value))
        keys = tuple(json_key(kind, name) for name in names)
        # With only one name, attrgetter would not return a tuple, so "__class__" is added as another one.
        _SHAPES[kind] = (keys, attrgetter(*names, "__class__"))
    keys, parts = _SHAPES[kind]
    out = dict(zip(keys, parts(value), strict=False))
    for name, part in out.items():
        if type(part) in _NESTED:
            out[name] = to_json_types(part)
    return out


def json_key(kind: type[Any], field_name: str) -> str:
    """Return the JSON key of a dataclass field."""
    return "numbers" if kind is Outcome and field_name == "metrics" else field_name


_SHAPES: dict[type[Any], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {}
_NESTED = frozenset((Summary, ErrorInfo, Outcome, RootCause))


def signal_name(number: int) -> str:
    """Return the name of a signal: ``9`` -> ``SIGKILL``, or ``signal N`` if unknown."""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
