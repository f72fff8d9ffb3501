"""How a rank or run ended, the states, the root cause among failures."""

from __future__ import annotations

import re
import signal
import signal as signals
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields
from operator import attrgetter
from pathlib import Path
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


MAX_NAMED_FILES = 5  # files that are named of many to which the same has happened


@value
class WrittenFile(Value):
    """A file that a rank wrote in its working folder, as its node tells.

    Attributes:
        path: below the working folder.
        size: in bytes.
        changed_at: when it last was, Unix time.
        node: that it lies on.
        version: what tells it from what it was before.
        also: other nodes that name it, as they share a disk with that one.
    """

    path: str
    size: int
    changed_at: float
    node: int
    version: str
    also: tuple[int, ...] = ()

    @property
    def age(self) -> float:
        """Seconds since it was last changed."""
        return max(0.0, time.time() - self.changed_at)


@value
class FetchedFile(Value):
    """What became of one that was to be fetched.

    Attributes:
        file: what it was.
        target: where it is now, or should be.
        error: why it is not there, in words, or "".
        is_new: whether it has come just now; False where it was there already.
    """

    file: WrittenFile
    target: Path
    error: str = ""
    is_new: bool = False


def list_failed_files(files: Iterable[FetchedFile]) -> Iterator[tuple[str, int, str]]:
    """Which of the files did not come, in words, their node, and why: of many with one cause a few are named."""
    found: dict[tuple[int, str], list[str]] = {}
    for each in files:
        if each.error:
            found.setdefault((each.file.node, each.error), []).append(each.file.path)
    for (node, why), paths in found.items():
        more = f" and {len(paths) - MAX_NAMED_FILES:,} more" if len(paths) > MAX_NAMED_FILES else ""
        yield f"{', '.join(paths[:MAX_NAMED_FILES])}{more}", node, why


@value
class Unfetched(Value):
    """What ranks of a pool wrote and nobody has fetched, and what its teardown would make of that.

    Attributes:
        asked: those that the image's patterns name: they are brought here first in any case.
        others: the rest.
        untold: how many more there are.
        goes: whether what is not fetched goes with the pool's machines; else it stays on its hosts.
        room: bytes of the rest that are brought here first, the newest, where they would go.
        failures: node -> why it does not tell.
    """

    asked: Sequence[WrittenFile] = ()
    others: Sequence[WrittenFile] = ()
    untold: int = 0
    goes: bool = False
    room: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def exceeds_limit(self) -> bool:
        """Whether some would be lost."""
        return self.goes and (bool(self.untold) or sum(file.size for file in self.others) > self.room)


REAL, DOUBTFUL, ECHO = range(3)
ECHO_WAIT = 0.25  # seconds in which the real failure may still follow what looks like its echo

# Where gloo's and NCCL's own words are, whatever exception carries them.
_TRANSPORT = re.compile(
    r"gloo/(transport|rendezvous)/|\bGloo \w+ failed: |monitoredBarrier"
    r"|remote process exited or there was a network error"
)
_PLAIN = re.compile(r"Connection (reset|closed) by peer|Broken pipe|Socket Timeout")
_STATUS = re.compile(r"(UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): ")
_CARRIERS = ("RuntimeError", "ValueError", "JaxRuntimeError", "XlaRuntimeError", "InternalError")
_TENSORFLOW = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
_SOCKETS = ("ConnectionResetError", "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError")


def _is_peer_loss(kind: str, message: str) -> bool:
    library, name = kind.partition(".")[0], kind.rpartition(".")[2]
    if library == "torch" and name.startswith("Dist"):
        return True  # DistNetworkError, DistStoreError, DistBackendError: they speak of nothing else
    if library in ("jax", "jaxlib") and _STATUS.match(message):
        return True
    if library == "tensorflow" and name in _TENSORFLOW:
        return True
    if kind == "RuntimeError" and _PLAIN.fullmatch(message):
        return True
    return name in _CARRIERS and _TRANSPORT.search(message) is not None


# What outcomes say of ranks that were stopped because somebody wanted it so, or as another one had failed.
INTENDED_STOPS = (
    "the run was cancelled",
    "the pool is torn down",
    "another rank failed",
)


def is_failure(outcome: Outcome) -> bool:
    """Whether a rank failed by itself, rather than was stopped."""
    return outcome.kind in ("raised", "exited", "lost")


def is_symptom(outcome: Outcome) -> bool:
    """Whether a failure looks like the echo of a peer's."""
    return cause_rank(outcome) > REAL


def cause_rank(outcome: Outcome) -> int:
    """Return how far a failure is from being a cause.

    Returns:
        ECHO if a rank only says that it lost its peers; DOUBTFUL if that is likely, but it could have failed by
        itself (JAX's runtime aborts a process that has lost the others; so does a failed assertion); REAL else.
    """
    error = outcome.error
    if outcome.kind == "exited":
        return DOUBTFUL if outcome.signal == signal.SIGABRT else REAL
    if outcome.kind != "raised" or error is None:
        return REAL
    if error.type in _SOCKETS:
        return DOUBTFUL
    return ECHO if _is_peer_loss(error.type, error.message) else REAL


def root_cause(arrived: Iterable[Outcome]) -> RootCause | None:
    """The root cause among outcomes in order of arrival; None when no rank failed, or was stopped that nobody meant."""
    outcomes = list(arrived)
    failures = [outcome for outcome in outcomes if is_failure(outcome)]
    if failures:
        return RootCause.from_outcome(min(failures, key=cause_rank))
    stopped = [outcome for outcome in outcomes if outcome.kind == "collateral" and not _is_requested_stop(outcome)]
    return RootCause.from_outcome(stopped[0]) if stopped else None


def summarize_outcomes(arrived: Iterable[Outcome]) -> tuple[RunStatus, RootCause | None]:
    """Return how a run ended whose calls have all ended, and its root cause."""
    outcomes = list(arrived)
    cause = root_cause(outcomes)
    done = all(outcome.kind == "returned" for outcome in outcomes)
    return "done" if done else "failed" if cause else "cancelled", cause


def _is_requested_stop(stopped: Outcome) -> bool:
    """Whether somebody asked for a rank to be stopped: for the run's or the pool's end."""
    said = stopped.error.message if stopped.error is not None else ""
    return not said or said.startswith("not started") or said.endswith(INTENDED_STOPS)
